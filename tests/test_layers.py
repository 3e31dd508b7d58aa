"""Imports go down only, and heavy packages are imported by the functions that need them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "attnzoo"

LAYERS = [  # ground floor first; a file may import from its own row and from those above it here
    {
        "errors",
        "arguments",
        "shapes",
        "files",
        "terminal",
        "plugins",
        "options",
        "declarations",
        "components",
        "open_groups",
        "from_files",
        "redact",
        "names",
        "lock",
        "settings",
        "seeds",
        "masks",
        "capabilities",
        "bias",
        "softmax",
        "declared",
        "rule",
        "cache",
        "validate",
        "contract",
        "registry",
        "processes",
        "forkserver",
    },
    {"kernels"},
    {"backends", "positions"},
    {"model", "projections", "data", "tasks", "metrics", "optimizers", "schedules", "corpora", "tokenizers"},
    {"loggers"},
    {"measure", "checks"},
    {"training"},
    {"report"},
    {
        "groups",
        "reference",
        "config_source",
        "composition",
        "config",
        "comparison",
        "commands",
        "completion",
        "cli",
        "__main__",
    },
]
# the registry loads the backends by name when it is first asked; everything else that looks upward is a fault
ALLOWED = {("registry", "backends")}
HEAVY = {
    "lightning",
    "wandb",
    "xformers",
    "fla",
    "flash_attn",
    "flash_attn_interface",
    "triton",
    "matplotlib",
    "tokenizers",
    "datasets",
    "hydra",
}


def level(part: str) -> int:
    return next(n for n, names in enumerate(LAYERS) if part in names)


def imports(node: ast.AST) -> Iterator[str]:
    """Modules a piece of code imports, annotations' imports left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from imports(child)


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_go_down(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for module in imports(ast.parse(path.read_text())):
        parts = module.split(".")
        if parts[0] != "attnzoo" or len(parts) == 1:
            continue
        target = parts[1]
        if not any(target in names for names in LAYERS):  # a public name of the package itself
            continue
        # settings are plain values, which every layer may read
        if parts[2:3] == ["config"] or (own, target) in ALLOWED:
            continue
        assert level(target) <= level(own), f"{own} imports {module}"


def test_backends_do_not_import_each_other():
    for path in (PACKAGE / "backends").glob("*.py"):
        assert not [m for m in imports(ast.parse(path.read_text())) if m.startswith("attnzoo.backends")], path.name


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("attnzoo", {"torch", *HEAVY}),
        ("attnzoo.cli", {"torch", *HEAVY}),
        ("attnzoo.training.config", {"torch", *HEAVY}),
        ("attnzoo.report", {"torch", *HEAVY}),
        ("attnzoo.model.lm", HEAVY),
        ("attnzoo.checks", HEAVY),
        ("attnzoo.kernels.library", HEAVY),
        ("attnzoo.measure.cost", HEAVY),
        ("attnzoo.comparison.run", {"torch", *HEAVY}),
    ],
)
def test_what_a_fresh_import_brings(module, absent):
    code = f"import sys, {module}; print(' '.join(sorted({absent!r} & set(sys.modules))))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == []
