"""The parts of a comparison's time add up, whatever the number of jobs."""

from __future__ import annotations

import time

import pytest

from attnzoo.comparison.account import Account, account_line
from attnzoo.measure.record import Record


def record(**stages: float) -> Record:
    return Record(status="ok", environment={"stage_seconds": stages})


def test_the_parts_of_two_jobs(monkeypatch):
    account = Account(jobs=2, started=100.0)
    account.add(record(train=40.0, probe=10.0, leak=5.0, cost=5.0), 64.0)
    account.add(record(train=20.0), 24.0)
    account.add(Record(status="refused"), 2.0)
    account.cells, account.timing = 64.0, 12.0
    monkeypatch.setattr(time, "monotonic", lambda: 180.0)
    parts = account.parts()
    assert parts == {"seconds": 80.0, "training": 35.0, "measuring": 17.0, "free_jobs": 19.0, "other": 9.0}
    assert account_line(parts) == "80 s: training 44 %, measuring 21 %, jobs without a cell 24 %, all else 11 %"


def test_one_job_is_never_free(monkeypatch):
    account = Account(jobs=1, started=0.0)
    account.add(record(train=9.0), 10.0)
    account.cells = 10.0
    monkeypatch.setattr(time, "monotonic", lambda: 12.0)
    assert account.parts()["free_jobs"] == 0.0
    assert account.parts()["other"] == pytest.approx(3.0)
