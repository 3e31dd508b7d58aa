"""The same run started again: what is kept, what goes on, from where, and what is said and recorded about it."""

from __future__ import annotations

import json

import pytest
import torch
from helpers import tiny
from safetensors.torch import load_file

from attnzoo.errors import RequestError, Stopped
from attnzoo.lock import locked
from attnzoo.measure.record import Record
from attnzoo.tasks import build_task
from attnzoo.training import after as after_module
from attnzoo.training import run as run_module
from attnzoo.training import train
from attnzoo.training.checkpoints import read_checkpoint
from attnzoo.training.init_from import weights_sha256
from attnzoo.training.stream import StepStream
from attnzoo.training.together import process_faults


class BreakAt:
    """The n-th call of an optimiser step does something else first."""

    def __init__(self, monkeypatch, n, action):
        from attnzoo.training.optim import Together

        self.calls, real = 0, Together.skip_if

        def skip_if(optimizer, found):
            self.calls += 1
            if self.calls == n:
                action()
            real(optimizer, found)

        monkeypatch.setattr(Together, "skip_if", skip_if)


def break_at(monkeypatch, n, error=ZeroDivisionError("broken")):
    def action():
        raise error

    BreakAt(monkeypatch, n, action)


def weights(folder):
    return load_file(folder / "checkpoints/model.safetensors")


def same(one, two):
    assert one.keys() == two.keys()
    return all(torch.equal(one[name], two[name]) for name in one)


def steps(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def snapshot(folder):
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("resume", [False, True])
def test_a_finished_run_is_kept_whole(tmp_path, capfd, resume):
    first = train(tiny(tmp_path / "run"))
    before = snapshot(tmp_path / "run")
    capfd.readouterr()
    again = train(tiny(tmp_path / "run", resume=resume))
    assert again == Record(json.loads(json.dumps({"schema": 1, **first})))
    assert snapshot(tmp_path / "run") == before
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1
    assert "finished (ok) and kept" in said[0]
    assert "trainer.restart=true" in said[0]
    assert str(tmp_path / "run") in said[0]


def test_restart_starts_over_by_name(tmp_path, capfd):
    cfg = tiny(tmp_path / "run")
    first = train(cfg)
    (tmp_path / "run/checkpoints/model.safetensors").write_bytes(b"")
    again = train(tiny(tmp_path / "run", restart=True))
    assert again.quality == first.quality
    assert len(again.starts) == 1
    assert weights(tmp_path / "run")
    assert "starts over at step 0" in capfd.readouterr().err


def test_restart_too_refuses_the_folder_of_another_run(tmp_path):
    train(tiny(tmp_path / "run"))
    before = snapshot(tmp_path / "run")
    with pytest.raises(RequestError, match="another configuration"):
        train(tiny(tmp_path / "run", seed=1, restart=True))
    assert snapshot(tmp_path / "run") == before


def test_a_failed_run_goes_on_to_the_uninterrupted_result(tmp_path, monkeypatch, capfd):
    cfg = {"model": {"dropout": 0.2}, "max_steps": 8, "log_every": 3}
    whole = train(tiny(tmp_path / "whole", **cfg))
    with monkeypatch.context() as patch:
        break_at(patch, 5)
        broken = train(tiny(tmp_path / "run", **cfg))
    assert (broken.status, broken.reasons) == ("failed", ["ZeroDivisionError: broken"])
    assert read_checkpoint(tmp_path / "run/checkpoints/last.ckpt")["global_step"] == 4
    capfd.readouterr()
    record = train(tiny(tmp_path / "run", **cfg))
    assert "goes on from step 4 of 8" in capfd.readouterr().err
    assert record.status == "ok"
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    assert record.quality == whole.quality
    assert steps(tmp_path / "run") == steps(tmp_path / "whole") == [3, 6, 8]
    first, second = record.starts
    assert (first["status"], first["from_step"], first["to_step"]) == ("failed", 0, 4)
    assert first["reasons"] == ["ZeroDivisionError: broken"]
    assert (second["status"], second["from_step"], second["to_step"]) == ("ok", 4, 8)
    for start in record.starts:
        assert start["seconds"] > 0
        assert (start["precision"], start["threads"], start["device"]) == ("fp32", 1, "cpu")
        assert start["kernels"]["training"].startswith("sdpa/")
        assert start["start"] <= start["end"]


def test_the_traceback_is_in_the_log_and_the_last_frame_in_the_record(tmp_path, monkeypatch):
    break_at(monkeypatch, 2, ValueError("x" * 1_000_000))
    record = train(tiny(tmp_path / "run"))
    assert record.error["type"] == "ValueError"
    assert record.error["frame"].startswith("test_training_again.py:")
    assert record.error["frame"].endswith(" in action")
    assert record.error["log"] == "log.txt"
    log = (tmp_path / "run/log.txt").read_text()
    assert "Traceback (most recent call last)" in log
    assert "raise error" in log
    assert len((tmp_path / "run/record.json").read_text()) < 20_000
    from attnzoo.training.log import last_traceback

    shown = last_traceback(tmp_path / "run/log.txt")
    assert "raise error" in shown
    assert len(shown) < 21_000


def test_a_backend_that_exits_has_failed(tmp_path, monkeypatch):
    break_at(monkeypatch, 2, SystemExit(0))
    record = train(tiny(tmp_path / "run"))
    assert record.status == "failed"
    assert record.error["type"] == "SystemExit"


def test_without_a_checkpoint_it_starts_at_0_and_says_why(tmp_path, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        break_at(patch, 1)
        assert train(tiny(tmp_path / "run")).status == "failed"
    assert not (tmp_path / "run/checkpoints/last.ckpt").exists()
    capfd.readouterr()
    record = train(tiny(tmp_path / "run", resume=True))
    assert "starts at step 0: the run that is there (failed) has no checkpoint" in capfd.readouterr().err
    assert [start["status"] for start in record.starts] == ["failed", "ok"]


def test_a_killed_run_is_one_of_the_starts(tmp_path, capfd):
    """A kill leaves no record; the checkpoint says what that start was."""
    train(tiny(tmp_path / "run", checkpoint_every=2))
    checkpoint = read_checkpoint(tmp_path / "run/checkpoints/last.ckpt")
    assert checkpoint["run"]["starts"][-1]["to_step"] == 6
    (tmp_path / "run/record.json").unlink()
    record = train(tiny(tmp_path / "run", checkpoint_every=2))
    assert [start["status"] for start in record.starts] == ["killed", "ok"]
    assert "trained to step 6 by an earlier start" in capfd.readouterr().err
    assert record.kernel_resolved == record.kernels.training == record.starts[0]["kernels"]["training"]
    assert record.kernel_resolved.startswith("sdpa/")


def test_what_comes_after_training_goes_on_where_it_was(tmp_path, monkeypatch):
    def configured():
        cfg = tiny(tmp_path / "run", task="text")
        cfg.probe.enabled, cfg.probe.max_steps, cfg.probe.d_model, cfg.measure.leak = True, 2, 16, True
        return cfg

    real, probes = run_module.run_probe, []

    def probe(*arguments):
        probes.append(1)
        return real(*arguments)

    def pressed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "run_probe", probe)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "leaks", pressed)
        with pytest.raises(Stopped, match=r"stopped by Ctrl-C in leak tests, at step 6 of 6; .* goes on from there"):
            train(configured())
    stopped = Record.load(tmp_path / "run/record.json")
    assert stopped.status == "interrupted"
    before = weights(tmp_path / "run")
    monkeypatch.setattr(run_module, "leaks", lambda *_: {"passed": True, "tests": []})
    record = train(configured())
    assert record.status == "ok"
    assert record.leak.passed
    assert len(probes) == 1  # its result was there
    assert record.quality == stopped.quality
    assert same(weights(tmp_path / "run"), before)
    assert set(record.stages_done) == {"train", "probe", "leak"}
    assert record.kernel_resolved.startswith("sdpa/")


def test_a_longer_run_goes_on_under_the_new_schedule(tmp_path, capfd):
    """With a constant learning rate 4 steps and then 8 are 8; the optimiser's state and the draws are those of the first."""
    cfg = {"model": {"dropout": 0.2}, "decay_fraction": 0.0, "warmup_steps": 2, "accumulate": 2}
    train(tiny(tmp_path / "whole", max_steps=8, **cfg))
    first = train(tiny(tmp_path / "run", max_steps=4, **cfg))
    capfd.readouterr()
    record = train(tiny(tmp_path / "run", max_steps=8, **cfg))
    assert "goes on from step 4 of 8, which ended at 4 before" in capfd.readouterr().err
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    assert record.history == [{"max_steps": 4, "to_step": 4, "status": "ok"}]
    assert record.config_hash != first.config_hash
    assert record.quality.tokens_seen == 8 * 2 * 2 * 16
    assert [start["max_steps"] for start in record.starts] == [4, 8]
    rows = steps(tmp_path / "run")
    assert rows == sorted(set(rows))
    assert train(tiny(tmp_path / "run", max_steps=8, **cfg)).config_hash == record.config_hash
    with pytest.raises(RequestError, match="another configuration") as caught:
        train(tiny(tmp_path / "run", max_steps=4, **cfg))
    assert caught.value.reasons == ["trainer.max_steps: there 8, asked for 4"]


def test_the_schedule_of_a_longer_run_is_that_of_its_length(tmp_path):
    train(tiny(tmp_path / "run", max_steps=4, log_every=1, warmup_steps=0))
    train(tiny(tmp_path / "run", max_steps=10, log_every=1, warmup_steps=0))
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    factors = [row["lr_factor"] for row in rows if "lr_factor" in row]
    # wsd over 4 steps: it falls over the last 1.6; over 10 steps over the last 4
    assert factors == pytest.approx([1, 1, 1, 0.625, 1, 1, 1, 0.75, 0.5, 0.25])


def test_the_parts_of_a_step_may_change_and_nothing_else_does(tmp_path, monkeypatch, capfd):
    """Steps of 4 x 1 rows, then 2 x 2, then 1 x 4: what is computed is that of 4 x 1 but for the order of the sums."""
    whole = train(tiny(tmp_path / "whole", batch_size=4, log_every=1))
    with monkeypatch.context() as patch:
        break_at(patch, 3)
        train(tiny(tmp_path / "run", batch_size=4, log_every=1))
    with monkeypatch.context() as patch:
        break_at(patch, 3)
        train(tiny(tmp_path / "run", batch_size=2, accumulate=2, log_every=1))
    capfd.readouterr()
    record = train(tiny(tmp_path / "run", batch_size=1, accumulate=4, log_every=1))
    assert "goes on from step 4 of 6; a step's rows in other parts than before" in capfd.readouterr().err
    assert record.status == "ok"
    for name, value in weights(tmp_path / "whole").items():  # six steps; a row in another place is 1e-2
        torch.testing.assert_close(weights(tmp_path / "run")[name], value, rtol=0, atol=1e-4)
    assert record.quality.val_loss_nats == pytest.approx(whole.quality.val_loss_nats, abs=1e-4)
    assert record.quality.tokens_seen == whole.quality.tokens_seen == 6 * 4 * 16
    assert [(h["batch_size"], h["accumulate"], h["to_step"]) for h in record.history] == [(4, 1, 2), (2, 2, 4)]
    capfd.readouterr()
    assert train(tiny(tmp_path / "run", batch_size=2, accumulate=2, log_every=1)).starts == record.starts
    assert "is finished (ok) and kept" in capfd.readouterr().err


@pytest.mark.parametrize("other", [{"batch_size": 4}, {"accumulate": 2}, {"batch_size": 4, "accumulate": 2}])
def test_another_number_of_rows_a_step_is_another_run(tmp_path, other):
    train(tiny(tmp_path / "run", max_steps=2))
    with pytest.raises(RequestError, match="may change while their product stays") as wrong:
        train(tiny(tmp_path / "run", max_steps=2, **other))
    assert wrong.value.exit_status == 2
    assert len(wrong.value.reasons) == len(other)


@pytest.mark.parametrize("task", ["recall", "text"])
@pytest.mark.parametrize("parts", [(6, 1), (3, 2), (2, 3), (1, 6)])
def test_a_step_has_the_same_rows_in_the_same_order_in_whatever_parts(task, parts):
    cfg = tiny(task=task)
    task = build_task(cfg.task, cfg.data, 0)
    window, whole = StepStream(task, *parts, 9).window(5), task.train_batch(5, 6)
    assert [len(batch.tokens) for batch in window.batches] == [parts[0]] * parts[1]
    assert torch.equal(torch.cat([batch.tokens for batch in window.batches]), whole.tokens)
    assert torch.equal(torch.cat([batch.targets for batch in window.batches]), whole.targets)


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_a_finished_run_stays_until_the_longer_one_is_done(tmp_path, monkeypatch, how):
    train(tiny(tmp_path / "run", max_steps=4))
    first = Record.load(tmp_path / "run/record.json")
    kept, config = weights(tmp_path / "run"), (tmp_path / "run/config.yaml").read_bytes()
    with monkeypatch.context() as patch:
        break_at(patch, 3, KeyboardInterrupt() if how == "stopped" else ZeroDivisionError())
        if how == "stopped":
            with pytest.raises(Stopped, match="at step 6 of 8"):
                train(tiny(tmp_path / "run", max_steps=8))
        else:
            assert train(tiny(tmp_path / "run", max_steps=8)).status == "failed"
    record = Record.load(tmp_path / "run/record.json")
    assert record.status == "ok"
    assert record.quality == first.quality
    assert (tmp_path / "run/config.yaml").read_bytes() == config
    assert same(weights(tmp_path / "run"), kept)
    assert [start["status"] for start in record.starts] == ["ok", "interrupted" if how == "stopped" else "failed"]
    longer = train(tiny(tmp_path / "run", max_steps=8))
    assert longer.status == "ok"
    assert [(s["from_step"], s["to_step"]) for s in longer.starts] == [(0, 4), (4, 6), (6, 8)]
    assert longer.history == [{"max_steps": 4, "to_step": 4, "status": "ok"}]
    with pytest.raises(RequestError, match="another configuration"):
        train(tiny(tmp_path / "run", max_steps=7))


def test_a_run_goes_on_in_the_precision_it_was_started_in(tmp_path, monkeypatch, capfd):
    """precision=auto on a machine that takes bf16, and then on one that does not."""
    from attnzoo.measure import environment

    cfg = {"precision": "auto", "max_steps": 6}
    with monkeypatch.context() as patch:
        patch.setattr(environment, "fast_bf16_on_cpu", lambda: "AMX")
        break_at(patch, 3)
        assert train(tiny(tmp_path / "run", **cfg)).starts[0]["precision"] == "bf16"
    monkeypatch.setattr(environment, "fast_bf16_on_cpu", lambda: None)
    record = train(tiny(tmp_path / "run", **cfg))
    assert record.status == "ok"
    assert [start["precision"] for start in record.starts] == ["bf16", "bf16"]
    assert record.environment.precision == "bf16"
    assert "this run was started in it" in record.environment.precision_reason
    assert "in bf16, as it was started, where auto would take fp32" in capfd.readouterr().err


def test_decoding_is_compared_with_the_parallel_pass(tmp_path, monkeypatch):
    record = train(tiny(tmp_path / "run", "sliding_window", options={"window": 3}))
    assert record.decoding.passed
    assert 0 <= record.decoding.max_difference <= record.decoding.bound < 1e-2
    assert record.kernel_resolved == record.kernels.training
    assert set(record.kernels) == {"training", "prefill", "decoding"}
    assert None not in record.kernels.values()
    assert "warnings" not in record or not [w for w in record.warnings if "decoding" in w]
    real = after_module.CausalLM.forward

    def wrong(self, tokens, *, cache=None, **kwargs):
        out = real(self, tokens, cache=cache, **kwargs)
        return out + 0.5 if cache is not None and tokens.shape[1] == 1 else out

    monkeypatch.setattr(after_module.CausalLM, "forward", wrong)
    record = train(tiny(tmp_path / "wrong"))
    assert record.status == "ok"
    assert not record.decoding.passed
    assert record.decoding.max_difference == pytest.approx(0.5, rel=1e-3)
    assert [w for w in record.warnings if w.startswith("decoding differs from the parallel pass by up to 0.5")]


def test_a_loss_worse_than_guessing_is_a_warning(tmp_path):
    record = train(tiny(tmp_path / "run", optimizer="adamw", adamw_lr=30.0, grad_clip=0.0, max_steps=20))
    assert record.status == "ok"
    assert record.quality.uniform_loss_nats == pytest.approx(2.0794, abs=1e-3)
    assert record.quality.val_loss_nats > 3
    assert [line for line in record.warnings if line.startswith("diverged: validation loss")]


def test_weights_of_another_run_are_taken_and_named(tmp_path, monkeypatch):
    train(tiny(tmp_path / "first"))
    file = tmp_path / "first/checkpoints/model.safetensors"
    seen = []
    real = run_module.stages

    def stages(run):
        seen.append({name: t.clone() for name, t in run.model.state_dict().items()})
        real(run)

    monkeypatch.setattr(run_module, "stages", stages)
    record = train(tiny(tmp_path / "run", seed=5, init_from=str(tmp_path / "first")))
    there = weights(tmp_path / "first")
    assert all(torch.equal(seen[0][name], tensor) for name, tensor in there.items())
    (entry,) = record.history
    first = Record.load(tmp_path / "first/record.json")
    assert entry == {
        "path": str(tmp_path / "first"), "config_hash": first.config_hash, "step": 6, "sha256": weights_sha256(file)
    }  # fmt: skip
    assert record.starts[0]["from_step"] == 0
    assert record.config_hash != train(tiny(tmp_path / "alone", seed=5)).config_hash
    assert train(tiny(tmp_path / "run", seed=5, init_from=str(tmp_path / "first"))).history == record.history  # kept
    (tmp_path / "first").rename(tmp_path / "moved")
    moved = tiny(tmp_path / "run", seed=5, init_from=str(tmp_path / "moved"))
    assert train(moved).config_hash == record.config_hash  # the same weights in another place
    gone = tiny(tmp_path / "run", seed=5, init_from=str(tmp_path / "first"))
    assert train(gone).config_hash == record.config_hash
    train(tiny(tmp_path / "other", seed=3))
    with pytest.raises(RequestError, match="another configuration") as caught:
        train(tiny(tmp_path / "run", seed=5, init_from=str(tmp_path / "other")))
    assert "init_sha256" in caught.value.reasons[0]


def test_weights_that_do_not_fit_are_refused_before_anything_is_written(tmp_path):
    train(tiny(tmp_path / "first"))
    for change, expected in (
        ({"model": {"d_model": 32}}, ["model.d_model: there 16, asked for 32", "embedding.weight is (8, 16)"]),
        ({"model": {"n_heads": 4}}, ["model.n_heads: there 2, asked for 4"]),
        ({"model": {"n_layers": 2}}, ["model.n_layers: there 1, asked for 2", "blocks.1.mlp.down.weight is missing"]),
    ):
        with pytest.raises(RequestError, match="do not fit this model") as caught:
            train(tiny(tmp_path / "run", init_from=str(tmp_path / "first"), **change))
        assert all(any(line.startswith(part) for line in caught.value.reasons) for part in expected), change
        assert not (tmp_path / "run").exists()
    with pytest.raises(RequestError, match="no trained model there"):
        train(tiny(tmp_path / "run", init_from=str(tmp_path / "nowhere")))
    (tmp_path / "first/checkpoints/model.safetensors").write_bytes(b"nonsense" * 9)
    with pytest.raises(RequestError, match="cannot be read as safetensors"):
        train(tiny(tmp_path / "run", init_from=str(tmp_path / "first")))
    assert not (tmp_path / "run").exists()


def test_an_export_is_a_place_to_start_from(tmp_path):
    from attnzoo.model.export import export
    from attnzoo.training import load_run

    train(tiny(tmp_path / "first"))
    export(load_run(tmp_path / "first")[1], tmp_path / "model")
    record = train(tiny(tmp_path / "run", init_from=str(tmp_path / "model")))
    run = train(tiny(tmp_path / "run2", init_from=str(tmp_path / "first")))
    assert record.history[0]["sha256"] == run.history[0]["sha256"]
    assert record.config_hash == run.config_hash


def test_a_folder_in_use_is_left_alone(tmp_path):
    with locked(tmp_path / "run"), pytest.raises(RequestError, match=r"run_dir=.*run is in use by process \d+"):
        train(tiny(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_cell_of_a_comparison_that_runs_is_its_own(tmp_path):
    (tmp_path / "comparison.json").write_text("{}")
    with locked(tmp_path):
        with pytest.raises(RequestError, match="belongs to the comparison"):
            train(tiny(tmp_path / "sdpa-seed0"))
        assert not (tmp_path / "sdpa-seed0").exists()
        assert train(tiny(tmp_path / "sdpa-seed0"), cell=True).status == "ok"
    assert train(tiny(tmp_path / "linear-seed0", "linear")).status == "ok"


WORLDS = ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"]


@pytest.mark.parametrize("name", WORLDS)
def test_several_processes_are_refused_before_anything_is_written(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "2")
    if name == "SLURM_NTASKS":
        assert process_faults() == []  # in the shell of an allocation nothing has been started yet
        monkeypatch.setenv("SLURM_PROCID", "0")
    with pytest.raises(RequestError, match=f"{name}=2"):
        train(tiny(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    if name == "SLURM_NTASKS":
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")  # one step of a job that may start two
        assert process_faults() == []
    monkeypatch.setenv(name, "1")
    assert train(tiny(tmp_path / "run")).status == "ok"


def test_a_refused_run_is_looked_at_again(tmp_path, monkeypatch):
    assert train(tiny(tmp_path / "run", "flex")).status == "refused"
    assert train(tiny(tmp_path / "run", "flex")).status == "refused"
    record = Record.load(tmp_path / "run/record.json")
    assert [start["status"] for start in record.starts] == ["refused", "refused"]


def test_an_oom_is_kept_unless_it_is_asked_to_go_on(tmp_path, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        break_at(patch, 3, MemoryError("no memory"))
        assert train(tiny(tmp_path / "run")).status == "oom"
    assert train(tiny(tmp_path / "run")).status == "oom"
    assert "finished (oom) and kept" in capfd.readouterr().err
    assert train(tiny(tmp_path / "run", resume=True)).status == "ok"
