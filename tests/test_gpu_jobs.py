"""scripts/gpu_jobs.py: a job that fails, hangs or takes its process with it costs its own result alone, and the file is
written after every one."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
PLANTED = """
import os, time
def good(n, path=None):
    return {"rows": [{"n": n}]}
def fails():
    raise ValueError("no such kernel")
def hangs():
    time.sleep(600)
def dies():
    os._exit(7)
def looks(path):
    import json
    return {"rows": [{"seen": sorted(json.load(open(path))["jobs"])}]}
"""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    (tmp_path / "planted_jobs.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.delitem(sys.modules, "planted_jobs", raising=False)
    import gpu_jobs
    import planted_jobs

    monkeypatch.setattr(gpu_jobs, "STARTING", 20.0)
    return gpu_jobs, planted_jobs


def test_one_bad_job_leaves_the_others(planted, tmp_path):
    gpu_jobs, jobs = planted
    path = tmp_path / "part.json"
    part = gpu_jobs.Part(path, {"device": "cpu"})
    missed = {"rows": [{"n": None}]}
    todo = [
        gpu_jobs.Job("one", jobs.good, (1,), 5.0, missed),
        gpu_jobs.Job("fails", jobs.fails, (), 5.0, missed),
        gpu_jobs.Job("dies", jobs.dies, (), 5.0, missed),
        gpu_jobs.Job("looks", jobs.looks, (str(path),), 5.0, missed),
        gpu_jobs.Job("hangs", jobs.hangs, (), 600.0, missed),
        gpu_jobs.Job("never", jobs.good, (2,), 5.0, missed),
    ]
    assert gpu_jobs.run_jobs(part, todo, seconds=12.0) == ["fails", "dies", "hangs", "never"]
    held = json.loads(path.read_text())
    said = {key: (job["status"], *job["reasons"]) for key, job in held["jobs"].items()}
    assert said["one"] == ("ok",)
    assert said["fails"][0] == "failed"
    assert "ValueError: no such kernel (planted_jobs.py:6 in fails)" in said["fails"][1]
    assert said["dies"] == ("failed", "its process ended with status 7")
    assert said["hangs"] == ("not ended", "it was running when the 12 s were over")
    assert said["never"] == ("not reached", "the 12 s were over before its turn")
    assert held["jobs"]["looks"]["found"]["rows"] == [{"seen": sorted(held["jobs"])}]  # written before the end
    assert [row["n"] for row in held["rows"] if "n" in row] == [1, None, None, None, None]
    assert held["machine"] == {"device": "cpu"}


def test_a_hanging_job_is_ended_at_its_own_limit(planted, tmp_path, monkeypatch):
    gpu_jobs, jobs = planted
    monkeypatch.setattr(gpu_jobs, "STARTING", 0.0)
    part = gpu_jobs.Part(tmp_path / "part.json", {})
    todo = [gpu_jobs.Job("hangs", jobs.hangs, (), 0.2), gpu_jobs.Job("after", jobs.good, (1,), 30.0)]
    assert gpu_jobs.run_jobs(part, todo, seconds=60.0) == ["hangs"]
    assert part.jobs["hangs"]["reasons"][0].startswith("it had not ended after")
    assert part.jobs["after"]["status"] == "ok"


def test_a_later_start_goes_on(planted, tmp_path):
    gpu_jobs, jobs = planted
    path = tmp_path / "part.json"
    first = gpu_jobs.Part(path, {})
    gpu_jobs.run_jobs(first, [gpu_jobs.Job("one", jobs.good, (1,)), gpu_jobs.Job("two", jobs.fails)], 30.0)
    again = gpu_jobs.Part(path, {})
    order = []
    todo = [gpu_jobs.Job("one", jobs.fails), gpu_jobs.Job("two", jobs.good, (2,)), gpu_jobs.Job("new", jobs.good, (3,))]
    put = again.put
    again.put = lambda job, *rest: (order.append((job.key, rest[0])), put(job, *rest))
    assert gpu_jobs.run_jobs(again, todo, 30.0) == []
    assert again.jobs["one"]["found"]["rows"] == [{"n": 1}]  # not run again
    assert [key for key, status in order if status == "ok"] == ["new", "two"]  # what failed before comes last
    assert again.jobs["two"]["found"]["rows"] == [{"n": 2}]


def test_what_was_found_out_is_not_replaced_by_not_reached(planted, tmp_path):
    gpu_jobs, jobs = planted
    part = gpu_jobs.Part(tmp_path / "part.json", {})
    job = gpu_jobs.Job("two", jobs.fails)
    part.put(job, "failed", 1.0, {}, "it broke")
    gpu_jobs.run_jobs(part, [job], seconds=0.0)
    assert (part.jobs["two"]["status"], part.jobs["two"]["reasons"]) == ("failed", ["it broke"])


def test_a_file_of_something_else_is_not_overwritten(planted, tmp_path):
    gpu_jobs, _ = planted
    path = tmp_path / "part.json"
    path.write_text('{"rows": []}')  # no jobs
    with pytest.raises(SystemExit, match="no record of this script"):
        gpu_jobs.Part(path, {})
    assert path.read_text() == '{"rows": []}'


def test_only_a_finished_check_verifies(planted, tmp_path):
    spec = importlib.util.spec_from_file_location("gpu_script", SCRIPTS / "gpu.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    torch = pytest.importorskip("torch")
    passed = {"subject": "sdpa", "dtypes": ["float32"], "passed": True, "refused": [], "tests": []}
    failed = passed | {"subject": "linear", "passed": False, "tests": [{"name": "causality", "passed": False}]}
    jobs = {
        "sdpa, float32": {"status": "ok", "found": {"checks": [passed]}},
        "linear, float32": {"status": "ok", "found": {"checks": [failed]}},
        "flex, float32": {"status": "not ended", "found": {"checks": [script.unchecked("flex", None, "float32")]}},
    }
    (tmp_path / "check.json").write_text(json.dumps({"jobs": jobs, "machine": script.here()}))
    verdicts = script.Verdicts(tmp_path)
    assert verdicts("sdpa", "cpu", torch.float32, {}) == ("ok", [])
    assert verdicts("linear", "cpu", torch.float32, {}) == ("incorrect", ["fails the quick check: causality"])
    assert verdicts("flex", "cpu", torch.float32, {}) == ("ok", [])  # timed all the same
    rows = [
        {"backend": name, "timing": {"median": 1.0}, "reasons": []}
        for name in ("sdpa", "sdpa, compiled", "flex: causal")
    ]
    verdicts.mark(rows)
    assert [row["verified"] for row in rows] == [script.DEVICE == "cpu"] * 2 + [False]
    assert rows[2]["reasons"] == ["unverified: no finished check of flex here"]
    for other in ({"git_commit": "another"}, {"device_name": "another"}, {"torch": "another"}):
        (tmp_path / "check.json").write_text(json.dumps({"jobs": jobs, "machine": script.here() | other}))
        assert script.Verdicts(tmp_path).reports == {}
    (tmp_path / "check.json").write_text("{ broken")
    assert script.Verdicts(tmp_path).reports == {}


def test_what_other_code_has_found_is_put_aside(planted, tmp_path):
    gpu_jobs, jobs = planted
    path, machine = tmp_path / "part.json", {"device_name": "A", "torch": "2", "git_commit": "0123456789"}
    gpu_jobs.run_jobs(gpu_jobs.Part(path, machine), [gpu_jobs.Job("one", jobs.good, (1,))], 30.0)
    same = gpu_jobs.Part(path, machine | {"start": "later"})
    assert same.done("one")
    other = gpu_jobs.Part(path, machine | {"git_commit": "another"})
    assert not other.done("one")
    assert json.loads((tmp_path / "part.01234567.json").read_text())["rows"] == [{"n": 1}]
