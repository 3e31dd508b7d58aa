"""scripts/demo.sh: what it would run, with settings of a person's own."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]


def shown(tmp_path: Path, *words: str) -> dict:
    """The configuration it asks for; the environment it would install is stood in for."""
    scripts = tmp_path / "scripts"
    (tmp_path / ".venv/bin").mkdir(parents=True)
    scripts.mkdir()
    scripts.joinpath("demo.sh").write_text((ROOT / "scripts/demo.sh").read_text())
    scripts.joinpath("env.sh").write_text('set -euo pipefail\ncd "$(dirname "${BASH_SOURCE[0]}")/.."\n')
    tool = tmp_path / ".venv/bin/attnzoo"
    tool.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    tool.chmod(0o755)
    done = subprocess.run(
        ["bash", scripts / "demo.sh", *words], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.splitlines()[:2] == ["compare", "experiment=demo"]
    settings = [line.partition("=") for line in done.stdout.splitlines()[1:]]
    assert len({key for key, _, _ in settings}) == len(settings), "a key is given twice, which compare refuses"
    return {key: yaml.safe_load(value) for key, _, value in settings}


@pytest.mark.parametrize(
    ("words", "differs"),
    [
        ((), {}),
        (("jobs=1", "seeds=[0,1,2]"), {"jobs": 1, "seeds": [0, 1, 2]}),
        (("run_dir=runs/other", "options.sliding_window.window=32"),
         {"run_dir": "runs/other", "options.sliding_window.window": 32}),
    ],
)  # fmt: skip
def test_a_persons_settings_take_the_place_of_its_own(tmp_path, words, differs):
    own = {"experiment": "demo", "jobs": 2, "options.sliding_window.window": 16, "run_dir": "runs/demo"}
    assert shown(tmp_path, *words) == own | differs
