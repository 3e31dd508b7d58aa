"""Timing rounds: one set for all cells of a plan, never several read as one; whose timing it is, and what was before."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import attnzoo
from attnzoo.comparison import rounds as rounds_module
from attnzoo.comparison.children import Ended
from attnzoo.comparison.plan import plan
from attnzoo.comparison.rounds import all_rounds, keep_history, time_limit
from attnzoo.comparison.timing import time_variants
from attnzoo.measure.record import Record
from attnzoo.training.config import to_dict


def asked(folder, *more: str):
    cfg = attnzoo.compose(
        "compare", ["experiment=tiny", "logger=disabled", "trainer.precision=fp32", f"run_dir={folder}", *more]
    )
    return plan(cfg)


@pytest.fixture
def timing(monkeypatch):
    """In place of the process: each set of rounds takes 1, 2, … ms; ``asked`` is what was to be timed."""
    calls = []

    def call_alone(module, arguments, log, *, given, limit):
        assert module == "attnzoo.comparison.timing"
        wanted = json.loads(given)
        calls.append(wanted)
        log.write_text("said")
        if timing.fails:
            return Ended(-9, 1.0, log)
        step = {"median": float(len(calls)), "status": "ok"}
        broken = {"median": None, "status": "failed", "reasons": ["no backward"]}
        cost = {v: {"train_step_ms": dict(step, of=c["attention"]["name"])} for v, c in wanted["variants"].items()}
        for variant in timing.broken:
            cost[variant] = {"train_step_ms": broken}
        kept = {key: wanted[key] for key in ("id", "baseline")}
        with open(arguments[0], "w") as file:
            json.dump({**kept, "cost": cost, "environment": {"threads": 2}}, file)
        return Ended(0, 1.0, log)

    class timing:
        fails, broken, asked = False, (), calls

    monkeypatch.setattr(rounds_module, "call_alone", call_alone)
    return timing


def trained(plan, **more):
    """Write a record for each cell that has none."""
    for cell in plan.cells:
        if not (cell.folder / "record.json").exists():
            Record(status="ok", attention=cell.cfg.attention.name, seed=cell.cfg.seed, config_hash=cell.hash,
                   cost={"parameters": 1}, **more).save(cell.folder / "record.json")  # fmt: skip
    return plan


def take(plan):
    return [rounds.run(plan) for rounds in all_rounds(plan)]


def costs(plan):
    return {cell.run: Record.load(cell.folder / "record.json").cost for cell in plan.cells}


def test_one_model_a_variant_is_timed_and_each_seed_says_whose_timing_it_is(tmp_path, timing):
    both = trained(asked(tmp_path, "backends=[sdpa,linear]", "seeds=[0,1]"))
    assert take(both) == [(1.0, "")]
    assert list(timing.asked[0]["variants"]) == ["sdpa", "linear"]
    assert timing.asked[0]["baseline"] == "sdpa"
    for run, cost in costs(both).items():
        name = run.partition("-")[0]
        assert cost.train_step_ms.of == name
        assert cost.timing_shared_by == [f"{name}-seed0", f"{name}-seed1"]
        assert (cost.timing_baseline, cost.timing_environment, cost.parameters) == ("sdpa", {"threads": 2}, 1)
    assert {cost.timing_id for cost in costs(both).values()} == {timing.asked[0]["id"]}
    assert take(both) == [(0.0, "")]  # nothing is timed twice
    assert len(timing.asked) == 1


def test_an_extension_times_all_again_and_the_rounds_before_are_history(tmp_path, timing):
    take(trained(asked(tmp_path, "backends=[sdpa,linear]")))
    more = trained(asked(tmp_path, "backends=[sdpa,exact]"))
    take(more)
    assert list(timing.asked[1]["variants"]) == ["sdpa", "exact"]
    assert {cost.train_step_ms.median for cost in costs(more).values()} == {2.0}
    assert {cost.timing_id for cost in costs(more).values()} == {timing.asked[1]["id"]}
    (before,) = Record.load(tmp_path / "sdpa-seed0" / "record.json").cost_history
    assert (before.train_step_ms.median, before.timing_id) == (1.0, timing.asked[0]["id"])
    assert "cost_history" not in Record.load(tmp_path / "exact-seed0" / "record.json")
    gone = Record.load(
        tmp_path / "linear-seed0" / "record.json"
    ).cost  # no longer in the plan: left as it is, with its own id
    assert gone.timing_id == timing.asked[0]["id"]


def test_another_seed_or_another_baseline_is_an_extension_too(tmp_path, timing):
    take(trained(asked(tmp_path, "backends=[sdpa,linear]")))
    take(trained(asked(tmp_path, "backends=[sdpa,linear]", "seeds=[0,1]")))
    assert len(timing.asked) == 2
    take(asked(tmp_path, "backends=[sdpa,linear]", "seeds=[0,1]", "baseline=linear"))
    assert timing.asked[2]["baseline"] == "linear"
    take(asked(tmp_path, "backends=[linear]", "baseline=linear"))  # fewer of one set are one set still
    assert len(timing.asked) == 3


def test_timings_without_an_id_or_of_two_sets_are_taken_again(tmp_path, timing):
    both = trained(asked(tmp_path, "backends=[sdpa,linear]"))
    take(both)
    path = tmp_path / "sdpa-seed0" / "record.json"
    for other in ("another", None):
        record = Record.load(path)
        record.cost.timing_id = other
        record.save(path)
        take(both)
        assert len({cost.timing_id for cost in costs(both).values()}) == 1
    assert len(timing.asked) == 3


def test_without_the_baseline_ratios_refer_to_the_first_that_trained(tmp_path, timing):
    both = trained(asked(tmp_path, "backends=[sdpa,linear,exact]"))
    record = Record.load(tmp_path / "sdpa-seed0" / "record.json")
    record.status = "failed"
    record.save(tmp_path / "sdpa-seed0" / "record.json")
    take(both)
    assert timing.asked[0]["baseline"] == "linear"
    assert list(timing.asked[0]["variants"]) == ["linear", "exact"]
    assert "timing_id" not in costs(both)["sdpa-seed0"]
    take(both)
    assert len(timing.asked) == 1


def test_rounds_that_fail_leave_what_was_and_say_so_until_they_succeed(tmp_path, timing):
    take(trained(asked(tmp_path, "backends=[sdpa]")))
    first = costs(asked(tmp_path, "backends=[sdpa]"))["sdpa-seed0"]
    both = trained(asked(tmp_path, "backends=[sdpa,linear]"))
    timing.fails = True
    ((_, fault),) = take(both)
    assert "SIGKILL" in fault
    assert costs(both)["sdpa-seed0"] == first
    for cell in both.cells:
        (warning,) = Record.load(cell.folder / "record.json").warnings
        assert warning.startswith("not timed: killed (SIGKILL)")
    timing.fails = False
    assert take(both) == [(1.0, "")]
    assert "warnings" not in Record.load(tmp_path / "sdpa-seed0" / "record.json")


def test_one_that_cannot_be_timed_is_warned_of_and_other_warnings_stay(tmp_path, timing):
    timing.broken = ("linear",)
    both = trained(asked(tmp_path, "backends=[sdpa,linear]"), warnings=["it diverged"])
    take(both)
    assert Record.load(tmp_path / "sdpa-seed0" / "record.json").warnings == ["it diverged"]
    assert Record.load(tmp_path / "linear-seed0" / "record.json").warnings == [
        "it diverged", "not timed: train_step_ms: no backward",
    ]  # fmt: skip
    take(both)
    assert len(timing.asked) == 1


def test_a_result_of_another_start_is_not_taken(tmp_path, timing, monkeypatch):
    both = trained(asked(tmp_path, "backends=[sdpa]"))
    take(both)
    stale = Ended(0, 1.0, tmp_path / "timing.log")
    monkeypatch.setattr(rounds_module, "call_alone", lambda *a, **k: stale)
    ((_, fault),) = take(trained(asked(tmp_path, "backends=[sdpa,linear]")))
    assert fault
    assert "timing_id" not in costs(asked(tmp_path, "backends=[linear]"))["linear-seed0"]


def test_a_record_written_anew_keeps_the_rounds_of_before_as_history():
    before = Record(cost={"train_step_ms": 1, "timing_id": "a", "parameters": 5}, cost_history=[{"timing_id": "b"}])
    anew = Record(cost={"parameters": 5})
    keep_history(before, anew)
    assert anew.cost_history == [{"timing_id": "b"}, {"train_step_ms": 1, "timing_id": "a"}]
    keep_history(before, before)
    assert before.cost_history == [{"timing_id": "b"}]


def test_rounds_have_a_bound_of_their_own(tmp_path):
    one = asked(tmp_path, "backends=[sdpa]", "measure.seconds=10")
    assert time_limit(one, 3) == 3600
    assert time_limit(replace(one, time_limit=100.0), 3) == 300
    assert time_limit(replace(one, time_limit=1.0), 3) == 100  # the rounds themselves take 30 and more


def test_the_model_of_each_variant_is_timed_and_one_that_cannot_be_built_says_why(tmp_path, monkeypatch):
    import attnzoo.measure.cost as cost_module

    seen = {}

    def time_models(models, *, baseline, **more):
        seen.update({name: model.attention_modules()[0].name for name, model in models.items()}, to=baseline, **more)
        return {name: {"train_step_ms": {}} for name in models}

    monkeypatch.setattr(cost_module, "time_models", time_models)
    cells = asked(tmp_path, "backends=[sdpa,linear,exact]", "measure.lengths=[]").cells
    variants = {cell.variant: to_dict(cell.cfg) for cell in cells}
    variants["exact"] = variants["exact"] | {"model": variants["exact"]["model"] | {"n_heads": 5}}
    timed = time_variants(variants, "linear")
    assert {name: seen[name] for name in ("sdpa", "linear")} == {"sdpa": "sdpa", "linear": "linear"}
    assert (seen["to"], seen["precision"], seen["task_shape"]) == ("linear", "fp32", (2, 32))
    assert timed["cost"]["exact"]["train_step_ms"]["status"] in ("failed", "refused")
    assert timed["cost"]["exact"]["train_step_ms"]["reasons"]
    assert timed["environment"]["precision"] == "fp32"
