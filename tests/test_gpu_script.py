"""scripts/gpu.sh from end to end on a CPU, with only the source tree and torch."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from attnzoo import cli

ROOT = Path(__file__).resolve().parents[1]
ABSENT = ("hydra", "omegaconf", "wandb", "lightning", "rich", "jinja2", "xformers", "transformers", "fla", "flash_attn")


STEPS = "check:900:sdpa,sliding_window check:900 operators:900:sdpa train:900:sdpa window:900 kernels:900"


def gpu_sh(out: Path, tmp_path: Path, root: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    """The script at small sizes, where nothing but torch and the source tree can be imported."""
    blocked = tmp_path / "site"
    blocked.mkdir(exist_ok=True)
    (blocked / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({ABSENT!r}))\n")
    settings = {"OUT": str(out), "PYTHON": sys.executable, "PYTHONPATH": str(blocked), "GPU_SMALL": "1"}
    return subprocess.run(
        [root / "scripts" / "gpu.sh"], env={**os.environ, **settings, **environment}, capture_output=True, text=True
    )


def read(out: Path) -> dict:
    return {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}


STUB = """#!/bin/sh
# stands for python: notes the part it was started for, and ends it as BAD says
shift
echo "$*" >> "$SAID"
case " $BAD " in
  *" fail:$1 "*) exit 7 ;;
  *" hang:$1 "*) exec sleep 60 ;;
esac
[ "$1" = page ] || echo "{}" > "$OUT/$1.json"
"""
PARTS = ("check", "operators", "train", "window", "kernels", "decode", "growth")


def with_stub(tmp_path: Path, bad: str, **environment: str) -> tuple[int, list[str], set[str]]:
    """(exit status, the calls, the files that were left) of the script with another program in python's place."""
    stub, out, said = tmp_path / "python", tmp_path / "out", tmp_path / "said"
    stub.write_text(STUB)
    stub.chmod(0o755)
    settings = {"OUT": str(out), "PYTHON": str(stub), "SAID": str(said), "BAD": bad, **environment}
    done = subprocess.run([ROOT / "scripts" / "gpu.sh"], env={**os.environ, **settings}, capture_output=True, text=True)
    return done.returncode, said.read_text().splitlines(), {path.stem for path in out.glob("*.json")}


def test_any_two_parts_that_fail_or_hang_leave_the_others(tmp_path):
    steps = " ".join(f"{part}:1" for part in PARTS)
    pairs = [(a, b) for n, a in enumerate(PARTS) for b in PARTS[n + 1 :]]
    ways = [f"fail:{a} fail:{b}" for a, b in pairs] + ["hang:check fail:train", "hang:window hang:growth"]
    for number, bad in enumerate(ways):
        folder = tmp_path / str(number)
        folder.mkdir()
        status, calls, left = with_stub(folder, bad, STEPS=steps, GRACE="0")
        assert status == 1
        assert left == set(PARTS) - {word.partition(":")[2] for word in bad.split()}, bad
        assert calls[-1].startswith("page"), bad


def test_the_most_telling_comes_first(tmp_path):
    """sdpa and a window checked and timed, sdpa trained, FlexAttention with its masks, fla, xformers, the rest; then what is
    large: 65,536 tokens, and 124 M parameters with every backend."""
    status, calls, _ = with_stub(tmp_path, "")
    assert status == 0
    words = [call.split() for call in calls]
    order = [(w[0], w[w.index("--only") + 1] if "--only" in w else "") for w in words]
    assert order == [
        ("check", "sdpa,sliding_window"), ("operators", "sdpa,sliding_window"), ("train", "sdpa"),
        ("check", "flex"), ("window", ""), ("check", "fla,flash_attn"), ("kernels", ""),
        ("check", "xformers"), ("operators", "xformers"), ("check", ""), ("operators", ""), ("decode", ""), ("growth", ""),
        ("train", ""), ("page", ""),
    ]  # fmt: skip
    assert sum(float(w[w.index("--seconds") + 1]) for w in words if "--seconds" in w) < 300


@pytest.mark.slow
def test_it_runs_with_the_source_tree_alone(tmp_path, capsys):
    out = tmp_path / "out"
    done = gpu_sh(out, tmp_path, STEPS=f"{STEPS} operators:900 train:900 decode:900 growth:900")
    assert done.returncode == 0, done.stdout + done.stderr
    parts = read(out)
    assert set(parts) == {"check", "operators", "window", "train", "decode", "kernels", "growth"}
    assert {r["subject"]: r["passed"] for r in parts["check"]["checks"]} == {
        "sdpa": True, "flex": True, "sliding_window": True,
        "sliding_window, flex": True, "gla, fla": False, "sliding_window, flash_attn": False,
    }  # fmt: skip
    why = {row["backend"]: row["reasons"] for row in parts["kernels"]["rows"] if row["status"] == "refused"}
    assert any(reason.startswith("not importable: fla is not installed") for reason in why["gla, fla"])
    assert why["sliding_window, flex"][0] == "FlexAttention has no backward on cpu: it runs there for inference only"
    for part in ("operators", "window", "train", "decode", "growth"):
        statuses = {(row["backend"], row["status"]) for row in parts[part]["rows"]}
        assert ("sliding_window", "ok") in statuses, part
        assert {status for _, status in statuses} <= {"ok", "refused"}, part
        assert {row["verified"] for row in parts[part]["rows"] if row["timing"] and "verified" in row} == {True}, part
    step, (share,) = parts["train"]["rows"][0], parts["train"]["bars"]
    assert step["tokens_per_s"] > 0
    assert share["ratio"]["median"] == pytest.approx(step["matmul_share"])
    page = (out / "page.md").read_text()
    assert "share of the matrix-product rate" in page
    assert page.rstrip().endswith("Nothing.")
    assert cli.main(["report", str(out)]) == 0
    said = capsys.readouterr().out
    assert "sliding_window, float32: passed" in said
    assert (out / "operators.html").exists()


PLANTED = """
def train(*_):
    time.sleep(600)
def one_race(key, out):
    os._exit(9)
def one_check(name, kernel, dtype):
    raise RuntimeError("planted")
if __name__"""


@pytest.mark.slow
def test_parts_that_hang_or_die_leave_the_others_and_are_made_up_for_later(tmp_path):
    out, copy = tmp_path / "out", tmp_path / "copy"
    (copy / "scripts").mkdir(parents=True)
    for name in ("gpu.sh", "gpu_jobs.py", "gpu_page.py"):
        shutil.copy(ROOT / "scripts" / name, copy / "scripts" / name)
    source = (ROOT / "scripts" / "gpu.py").read_text()
    (copy / "scripts" / "gpu.py").write_text(source.replace("if __name__", PLANTED, 1))
    (copy / "attnzoo").symlink_to(ROOT / "attnzoo")
    steps = "check:900:sdpa operators:900:sdpa train:12:sdpa window:900"
    done = gpu_sh(out, tmp_path, copy, STEPS=steps)
    assert done.returncode == 1
    parts = read(out)
    statuses = {part: {job["status"] for job in held["jobs"].values()} for part, held in parts.items()}
    assert statuses == {
        "check": {"failed"}, "operators": {"ok"}, "train": {"not ended", "not reached"}, "window": {"failed"},
    }  # fmt: skip
    assert "status 9" in parts["window"]["rows"][0]["reasons"][0] + str(parts["window"]["jobs"])
    timed = [row for part in parts.values() for row in part.get("rows", []) if row["timing"]]
    assert timed
    assert not any(row["verified"] for row in timed)  # no check has ended
    assert not any(report["passed"] for report in parts["check"]["checks"])
    page = (out / "page.md").read_text()
    assert "train, sdpa: not ended" in page
    assert "operators, sdpa: timed, unverified" in page
    assert "RuntimeError: planted" in page
    before = parts["operators"]["jobs"]["sdpa"]
    (copy / "scripts" / "gpu.py").write_text(source)
    done = gpu_sh(out, tmp_path, copy, STEPS="check:900:sdpa operators:900:sdpa train:900:sdpa")
    parts = read(out)
    statuses = {part: {job["status"] for job in held["jobs"].values()} for part, held in parts.items()}
    assert statuses == {"check": {"ok"}, "operators": {"ok"}, "train": {"ok"}, "window": {"failed"}}, done.stderr
    assert parts["operators"]["jobs"]["sdpa"] == before  # not measured again
