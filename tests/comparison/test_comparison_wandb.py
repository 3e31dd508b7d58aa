"""W&B under an agent, read back from the offline files: each cell is a run of its own, a single run is the agent's."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import attnzoo
from attnzoo.measure.record import Record

TINY = ["experiment=tiny", "measure=none", "trainer.max_steps=1", "trainer.precision=fp32", "logger=offline"]


def blocks(path: Path) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format, 32 KiB blocks, after a header of 7 bytes."""
    data, at, parts = path.read_bytes(), 7, []
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):
            yield b"".join(parts)
            parts = []


def runs(folder: Path) -> list:
    """Every run that was opened below a folder."""
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    found = []
    for file in sorted(folder.rglob("*.wandb")):
        for block in blocks(file):
            record = pb.Record()
            record.ParseFromString(block)
            if record.WhichOneof("record_type") == "run":
                found.append(record.run)
                break
    return found


@pytest.fixture
def agent(monkeypatch):
    for name, value in {"RUN_ID": "theagent", "SWEEP_ID": "thesweep", "RESUME": "allow", "NAME": "agents-name"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)


@pytest.mark.usefixtures("agent")
def test_each_cell_is_a_run_of_its_own_and_its_record_says_which(tmp_path):
    records = attnzoo.compare(
        attnzoo.compose("compare", [*TINY, "backends=[sdpa,exact]", f"run_dir={tmp_path / 'out'}"])
    )
    assert [record["status"] for record in records] == ["ok", "ok"]
    opened = {run.display_name: run for run in runs(tmp_path / "out")}
    assert sorted(opened) == ["exact-seed0", "out summary", "sdpa-seed0"]
    ids = [run.run_id for run in opened.values()]
    assert len(set(ids)) == 3
    assert "theagent" not in ids
    assert {run.sweep_id for run in opened.values()} == {""}
    assert [opened[f"{r.attention}-seed0"].run_id for r in records] == [r.wandb.id for r in records]


@pytest.mark.usefixtures("agent")
def test_a_single_run_is_the_agents(tmp_path):
    command = [sys.executable, "-m", "attnzoo", "train", *TINY, f"run_dir={tmp_path / 'run'}"]
    assert subprocess.run(command, capture_output=True).returncode == 0  # a process as an agent starts it
    (run,) = runs(tmp_path / "run")
    assert run.run_id == "theagent" == Record.load(tmp_path / "run" / "record.json").wandb.id
