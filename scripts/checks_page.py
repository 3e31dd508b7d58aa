"""Writes docs/checks.md from the docstrings of the suite: what each check demands. `--check` only compares."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "checks.md"

HEAD = """# The conformance suite

Written by `scripts/checks_page.py`; do not edit. `attnzoo check NAME` runs these; those marked quick also run with `--quick` and
before any speed is shown. A check stops at its first failure and then looks for the smallest input that still fails. What a
backend does not declare must be refused, and counts as refused, not as passed.
"""


MODELS = """## Language models

What `attnzoo check --model` asks of a whole model and its task, beside the leak tests and the entropy canary. What a model has no
argument or method for is skipped, with the reason.
"""


def page() -> str:
    import attnzoo.checks.suite as suite
    from attnzoo.checks import kinds
    from attnzoo.checks.model import OF_MODEL, OF_TASK
    from attnzoo.components import KINDS

    lines, group = [HEAD], ""
    for one in suite.all_checks():
        if one.group != group:
            group = one.group
            module = sys.modules[f"attnzoo.checks.{group}"]
            lines.append(f"## {group.replace('_', ' ').capitalize()}\n\n{(module.__doc__ or '').strip()}\n")
        lines.append(f"### {one.name.replace('_', '-')}\n\n{one.about}{' (quick)' if one.quick else ''}\n")
    lines.append(MODELS)
    for prop in (*OF_MODEL, *OF_TASK):
        lines.append(f"### {prop.__name__.replace('_', '-')}\n\n{one_line(prop)}\n")
    for kind, home in kinds.CHECKS.items():
        module = importlib.import_module(home)
        lines.append(f"## {KINDS[kind].word.capitalize()}\n\n{(module.__doc__ or '').strip()}\n")
        lines += [f"### {prop.__name__.replace('_', '-')}\n\n{one_line(prop)}\n" for prop in module.PROPERTIES]
    return "\n".join(lines)


def one_line(prop: Callable[..., str]) -> str:
    return " ".join((prop.__doc__ or "").split())


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return int(not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text)
    from attnzoo.files import write_text_atomic

    write_text_atomic(PAGE, text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
