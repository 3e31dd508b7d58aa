"""docs/gpu.md: its settings exist, its scripts and tests are there, and the records name what it says they do."""

import re
from pathlib import Path

import pytest

from attnzoo.config import compose

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "gpu.md").read_text()


@pytest.mark.parametrize("setting", sorted(set(re.findall(r"trainer\.[a-z0-9_]+=[a-z0-9]+", TEXT))))
def test_a_setting_of_the_page_is_taken(setting):
    compose("train", [setting])


def test_files_of_the_page_are_there():
    named = set(re.findall(r"(?:scripts|tests)/[a-z_0-9/.]*[a-z]", TEXT))
    assert {"scripts/gpu.sh", "scripts/gpu.py", "tests/fake_cuda", "tests/training/test_training_compiled.py"} <= named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_it_is_linked():
    assert all("docs/gpu.md" in (ROOT / page).read_text() for page in ("README.md", "CONTRIBUTING.md"))
