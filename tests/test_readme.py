"""What the README says is run: its plug-in is installed and used, its commands exist, its table is the record's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLUGIN, LEAKING = ROOT / "tests" / "plugin", ROOT / "tests" / "plugin_leaking"


def block(name: str, language: str) -> str:
    """The code block between the README's markers, or the first of a language."""
    match = re.search(rf"<!-- {name} -->\s*```{language}\n(.*?)```", README, re.DOTALL)
    assert match, f"the README has no block {name}"
    return match.group(1)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The packages of tests/plugin and tests/plugin_leaking, built and installed by pip into a folder."""
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(target)]
    sources = [shutil.copytree(folder, tmp_path_factory.mktemp("source") / folder.name) for folder in (PLUGIN, LEAKING)]
    subprocess.run([*pip, *map(str, sources)], check=True, capture_output=True)
    return target


def attnzoo(site: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from attnzoo.cli import main; sys.exit(main(sys.argv[1:]))"
    # the child processes of a comparison import the plug-in too
    environment = {"PYTHONPATH": f"{site}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(cwd), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )


def test_the_readme_shows_the_plugin_as_it_is():
    text = (PLUGIN / "my_package.py").read_text(encoding="utf-8")
    assert block("plugin", "python") == text
    assert len(text.splitlines()) < 30
    entry_points = re.search(r"```toml\n(.*?)```", README, re.DOTALL)
    assert entry_points
    assert (PLUGIN / "pyproject.toml").read_text(encoding="utf-8").endswith(entry_points.group(1))


def test_the_leaking_plugin_fails_with_the_property_and_the_smallest_input(installed, tmp_path):
    checked = attnzoo(installed, "check", "relu_leaking", "--quick", cwd=tmp_path)
    assert checked.returncode == 1, checked.stdout + checked.stderr
    for said in (
        "FAILED future_by_change",
        "FAILED future_by_gradient",
        "Tq=2 Tk=2",
        "expected",
        "actual",
        "docs/checks.md#",
    ):
        assert said in checked.stdout


def test_the_plugin_is_listed_checked_and_compared(installed, tmp_path):
    listed = attnzoo(installed, "list", cwd=tmp_path)
    assert "relu_power" in listed.stdout, listed.stderr
    checked = attnzoo(installed, "check", "relu_power", "--quick", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    compared = attnzoo(
        installed, "compare", "experiment=tiny", "trainer.precision=fp32", "backends=[sdpa,relu_power]", "run_dir=out",
        "probe=none", "options.relu_power.power=3", "measure.memory=false", cwd=tmp_path,
    )  # fmt: skip
    assert compared.returncode == 0, compared.stdout + compared.stderr
    assert "relu_power" in compared.stdout
    assert '"power": 3' in (tmp_path / "out" / "relu_power-seed0" / "record.json").read_text()


def test_its_commands_exist():
    from attnzoo.cli import COMMANDS

    named = set(re.findall(r"^attnzoo ([a-z]+)", README, re.MULTILINE))
    assert named <= set(COMMANDS), named - set(COMMANDS)


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


@pytest.mark.skipif(not (ROOT / "experiments" / "demo").is_dir(), reason="no demo has been recorded yet")
def test_its_table_is_that_of_the_records():
    subprocess.run([sys.executable, "scripts/readme_table.py", "--check"], cwd=ROOT, check=True)
