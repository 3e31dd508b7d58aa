"""Backends from other packages: found by entry point, one that works and one that does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = '''
"""An attention from somebody else's package."""
from dataclasses import dataclass

import torch

from attnzoo import Attention, Capabilities, Options


@dataclass(frozen=True)
class AverageOptions(Options):
    decay: float = 0.5


class Average(Attention):
    """The mean of the visible values."""

    Options = AverageOptions
    source = "a test"
    capabilities = Capabilities(bias=False, dropout=False)

    def weights(self, q, k, visible, bias, x):
        return visible.to(q.dtype).expand(*q.shape[:3], -1) / visible.sum(-1, keepdim=True).clamp(min=1)

    def attend(self, q, k, v, mask, bias, x):
        self.ran("average/dense")
        visible = mask.dense(q.shape[2], k.shape[2], device=q.device)
        return self.weights(q, k, visible, None, None) @ self.repeat_kv(v)
'''


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as an installer leaves it: two packages with their metadata."""
    packages = {
        "averaging": ("average", "Average", GOOD),
        "shattered": ("broken_one", "Nothing", "import no_such_module\n"),
    }
    for package, (name, attribute, text) in packages.items():
        (tmp_path / f"{package}.py").write_text(text)
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[attnzoo.backends]\n{name} = {package}:{attribute}\n")
    return tmp_path


def attnzoo(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).resolve().parents[1]
    code = (
        f"import sys; sys.path[:0] = [{str(site)!r}, {str(root)!r}]\n"
        "from attnzoo.cli import main\nstatus = main(sys.argv[1:])\n"
        "print('TORCH', 'torch' in sys.modules, file=sys.stderr)\nraise SystemExit(status)"
    )
    return subprocess.run([sys.executable, "-c", code, *words], cwd=site, capture_output=True, text=True)


def test_list_shows_the_plugin_with_its_package_and_the_broken_one_with_its_error(site: Path) -> None:
    done = attnzoo(site, "list", "--json")
    listed = json.loads(done.stdout)
    (row,) = [row for row in listed["backends"] if row["name"] == "average"]
    assert (row["origin"], row["options"], row["here"]) == ("averaging", {"decay": 0.5}, "training")
    (broken,) = listed["broken"]
    assert (broken["name"], broken["origin"]) == ("broken_one", "shattered")
    assert "No module named 'no_such_module'" in broken["error"]
    shown = attnzoo(site, "list")
    assert shown.returncode == 0
    assert "no_such_module" in shown.stdout


def test_doctor_names_the_broken_plugin_and_fails(site: Path) -> None:
    done = attnzoo(site, "doctor")
    assert done.returncode == 1
    assert "plugin broken_one of shattered failed to import: ModuleNotFoundError" in done.stdout


def test_a_plugin_is_a_choice_with_its_own_options(site: Path) -> None:
    done = attnzoo(site, "train", "attention=average", "attention.decay=0.25", "--cfg", "job")
    assert done.returncode == 0, done.stderr
    assert "attention:\n  name: average\n  kernel: auto\n  decay: 0.25\n" in done.stdout
    wrong = attnzoo(site, "train", "attention=average", "attention.deacy=1", "model.n_layers=0")
    assert wrong.returncode == 2
    assert "did you mean 'attention.decay'?" in wrong.stderr
    assert "model.n_layers=0" in wrong.stderr


def test_a_plugin_beside_it_is_not_imported(site: Path) -> None:
    assert "TORCH False" in attnzoo(site, "train", "attention=linear", "--cfg", "job").stderr
    found = attnzoo(site, "__complete", "train", "attention=a")
    assert (found.stdout, found.stderr) == ("attention=average\n", "TORCH False\n")


@pytest.mark.parametrize("words", [["train", "attention=broken_one"], ["compare", "backends=[sdpa,broken_one]"]])
def test_choosing_the_broken_plugin_prints_its_error(site: Path, words: list[str]) -> None:
    done = attnzoo(site, *words)
    assert done.returncode == 2
    assert "backend 'broken_one' of shattered failed to import: ModuleNotFoundError: No module named" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (site / "runs").exists()


def test_a_misspelt_plugin_is_recognised(site: Path) -> None:
    assert "did you mean 'average'?" in attnzoo(site, "train", "attention=avrage").stderr


def test_a_plugin_trains(site: Path) -> None:
    quick = ["experiment=tiny", "trainer.precision=fp32", "measure=none", "trainer.max_steps=2", "run_dir=run"]
    done = attnzoo(site, "train", "attention=average", *quick)
    assert done.returncode == 0, done.stderr
    record = json.loads((site / "run" / "record.json").read_text())
    assert (record["status"], record["kernel_resolved"]) == ("ok", "average/dense")
    assert record["options"]["decay"] == 0.5
