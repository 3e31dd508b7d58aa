"""scripts/gpu.sh from end to end on a CPU, with only the source tree and torch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attnzoo import cli

ROOT = Path(__file__).resolve().parents[1]
ABSENT = ("hydra", "omegaconf", "wandb", "lightning", "rich", "jinja2", "xformers", "transformers", "fla", "flash_attn")


@pytest.mark.slow
def test_it_runs_with_the_source_tree_alone(tmp_path, capsys):
    blocked = tmp_path / "site"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({ABSENT!r}))\n")
    out = tmp_path / "out"
    environment = {
        **os.environ,
        "OUT": str(out),
        "PYTHON": sys.executable,
        "PYTHONPATH": str(blocked),
        "GPU_SMALL": "1",
    }
    done = subprocess.run([ROOT / "scripts" / "gpu.sh"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    parts = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    assert set(parts) == {"check", "operators", "window", "train", "decode", "kernels"}
    assert {r["subject"]: r["passed"] for r in parts["check"]["checks"]} == {
        "sdpa": True, "flex": True, "sliding_window": True,
        "sliding_window, flex": True, "gla, fla": False, "sliding_window, flash_attn": False,
    }  # fmt: skip
    why = {row["backend"]: row["reasons"] for row in parts["kernels"]["rows"] if row["status"] == "refused"}
    assert any(reason.startswith("not importable: fla is not installed") for reason in why["gla, fla"])
    assert why["sliding_window, flex"] == ["FlexAttention has no backward on cpu: it runs there for inference only"]
    for part in ("operators", "window", "train", "decode"):
        statuses = {(row["backend"], row["status"]) for row in parts[part]["rows"]}
        assert ("sliding_window", "ok") in statuses, part
        assert {status for _, status in statuses} <= {"ok", "refused"}, part
    step, (share,) = parts["train"]["rows"][0], parts["train"]["bars"]
    assert step["tokens_per_s"] > 0
    assert share["ratio"]["median"] == pytest.approx(step["matmul_share"])
    assert cli.main(["report", str(out)]) == 0
    said = capsys.readouterr().out
    assert "sliding_window, float32: passed" in said
    assert (out / "operators.html").exists()
