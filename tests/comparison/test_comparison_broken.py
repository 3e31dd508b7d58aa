"""A comparison by the real command in which one backend breaks, one hangs and one is well: none harms another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = '''
import time
from attnzoo import Attention, Capabilities

class Base(Attention):
    """Everything, by softmax."""
    source = "a test"
    capabilities = Capabilities()
    def attend(self, q, k, v, mask, bias, x):
        return self.go(q, k, v, mask, bias, x)

class Well(Base):
    __doc__ = Base.__doc__
    def go(self, q, k, v, mask, bias, x):
        return self.define(q, k, v, mask, bias, x)[0].to(q.dtype)

class Breaks(Base):
    __doc__ = Base.__doc__
    def go(self, q, *rest):
        self.deepest(q)
    def deepest(self, q):
        raise ValueError("x" * 1_000_000 + "the end")

class Hangs(Well):
    __doc__ = Base.__doc__
    calls = 0
    def go(self, *given):
        Hangs.calls += 1
        if Hangs.calls > 6:
            self.nap()
        return super().go(*given)
    def nap(self):
        time.sleep(600)
'''
WORDS = (
    "experiment=tiny logger=disabled measure=none probe=none trainer.max_steps=4 trainer.eval_every=0 model.n_layers=1 "
    "trainer.device=cpu trainer.progress=false"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    (folder / "package.py").write_text(PACKAGE)
    info = folder / "package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: package\nVersion: 1.0\n")
    points = "".join(f"{name} = package:{name.title()}\n" for name in ("well", "breaks", "hangs"))
    (info / "entry_points.txt").write_text(f"[attnzoo.backends]\n{points}")
    return folder


def attnzoo(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = [str(site), str(Path(__file__).resolve().parents[2])]
    return subprocess.run(
        [sys.executable, "-m", "attnzoo", *words, *WORDS.split()], cwd=site, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, timeout=300,
    )  # fmt: skip


def record(folder: Path) -> dict:
    return json.loads((folder / "record.json").read_text())


def test_one_breaks_one_hangs_one_is_well(site):
    cells = "backends=[breaks,hangs,well]", "baseline=well", "jobs=3", "time_limit=10", "run_dir=c"
    done = attnzoo(site, "compare", *cells)
    assert done.returncode == 1
    assert record(site / "c/well-seed0")["status"] == "ok"
    broken = record(site / "c/breaks-seed0")
    assert (broken["status"], broken["error"]["type"]) == ("failed", "ValueError")
    assert broken["error"]["frame"].startswith("package.py:")
    assert broken["error"]["frame"].endswith(" in deepest")
    log = site / "c/breaks-seed0" / broken["error"]["log"]
    assert "Traceback" in log.read_text()
    assert "x" * 1_000_000 + "the end" in log.read_text()
    late = record(site / "c/hangs-seed0")
    assert (late["status"], late["error"]["type"]) == ("failed", "TimeLimit")
    assert late["error"]["frame"].endswith(" in nap")
    assert "time_limit of 10 s" in late["reasons"][0]
    assert "did not heed" not in late["reasons"][0]
    assert (site / "c/hangs-seed0/checkpoints/last.ckpt").exists()  # of the last whole step
    assert len(done.stdout + done.stderr) < 10_000
    assert "Traceback" not in done.stderr
    assert f"c/{log.parent.name}/log.txt has the traceback" in done.stderr
    assert len((site / "c/report.html").read_text()) < 200_000
    shown = attnzoo(site, "compare", "backends=[breaks]", "baseline=well", "run_dir=c", "--debug").stderr
    assert "in deepest" in shown
    assert "Traceback" in shown
    assert "the end" in shown
    assert len(shown) < 30_000


def test_train_with_debug_shows_the_traceback(site):
    done = attnzoo(site, "train", "attention=breaks", "run_dir=t", "--debug")
    assert done.returncode == 1
    assert "in deepest" in done.stderr
    assert len(done.stdout + done.stderr) < 30_000
    done = attnzoo(site, "train", "attention=breaks", "run_dir=t")
    assert "Traceback" not in done.stderr
    assert "ValueError at package.py:" in done.stderr
    assert "the traceback is in t/log.txt" in done.stderr
