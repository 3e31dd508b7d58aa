"""docs/recipes.md is run: its files are written, its commands end as it says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from attnzoo import cli

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = [
    (line, int(status or 0))
    for status, lines in re.findall(r"<!-- run(?:: exit (\d))? -->\n```\n(.*?)```", PAGE, re.DOTALL)
    for line in lines.strip().splitlines()
]
PYTHON = re.findall(r"<!-- python -->\n```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def needs(text: str) -> None:
    if "llama" in text and importlib.util.find_spec("transformers") is None:
        pytest.skip("the extra hf is not installed")


def test_the_page_is_read():
    assert (len(FILES), len(COMMANDS), len(PYTHON)) == (3, 5, 1)


@pytest.mark.parametrize(("line", "status"), COMMANDS)
def test_its_commands(line, status, written, capsys):
    needs(line)
    assert cli.main([*line.removeprefix("attnzoo ").split(), "--device", "cpu"]) == status, capsys.readouterr().out


@pytest.mark.parametrize("code", PYTHON)
def test_its_code(code, written):
    needs(code)
    exec(compile(code, "recipes.md", "exec"), {"__name__": "recipe"})


def test_without_the_cached_form_the_last_recipe_fails(written):
    import attnzoo
    from attnzoo.checks.elsewhere import load

    theirs = load("their_attention.py:Theirs")
    del theirs.attend_cached
    assert not attnzoo.check(theirs, quick=True, only=["decoding"], shrink=False).passed
