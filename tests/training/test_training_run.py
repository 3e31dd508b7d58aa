from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from helpers import tiny
from safetensors.torch import load_file

import attnzoo
from attnzoo.errors import RequestError
from attnzoo.measure.record import Record
from attnzoo.training import load_run, train
from attnzoo.training import run as run_module
from attnzoo.training.evaluate import evaluate
from attnzoo.training.probe import probe_config

HERE = Path(__file__).parent


def test_a_run_leaves_a_whole_folder(tmp_path):
    cfg = tiny(tmp_path / "run", task="text")
    record = train(cfg)
    assert record.status == "ok"
    assert record.quality == Record.load(tmp_path / "run/record.json").quality
    assert record.kernel_resolved.startswith("sdpa/")
    assert record.quality.tokens_seen == 6 * 2 * 16
    assert [tokens for tokens, _ in record.quality.curve] == [3 * 32, 6 * 32]
    assert record.quality.curve[-1][1] == record.quality.val_loss_nats
    assert isinstance(record.quality["sample"], str)
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["attention"]["name"] == "sdpa"
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows if "train_loss_nats" in r] == [2, 4, 6]
    assert {f.name for f in (tmp_path / "run/checkpoints").iterdir()} == {"last.ckpt", "model.safetensors"}


def test_load_run_gives_the_trained_model_back(tmp_path):
    cfg = tiny(tmp_path / "run")
    record = train(cfg)
    loaded_cfg, model, task = load_run(tmp_path / "run")
    assert loaded_cfg == cfg
    assert not model.training
    assert evaluate(model, task, 2)["val_loss_nats"] == record.quality.val_loss_nats
    assert record.quality.task_accuracy == {"recall": evaluate(model, task, 2)["val_accuracy"]}


def test_a_backend_that_cannot_train_here_is_refused_with_every_reason(tmp_path):
    record = train(tiny(tmp_path / "run", "flex"))
    assert (record.status, record.kernel_resolved) == ("refused", None)
    assert record.reasons == attnzoo.why_not("flex", device="cpu", n_heads=2, head_dim=8)
    assert Record.load(tmp_path / "run/record.json").status == "refused"
    assert not (tmp_path / "run/checkpoints").exists()


def test_positions_that_a_backend_cannot_take_are_refused(tmp_path):
    cfg = tiny(tmp_path / "run", "linear")
    cfg.positions.name = "alibi"
    record = train(cfg)
    assert record.status == "refused"
    assert "alibi" in record.reasons[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: setattr(c.trainer, "max_steps", 0), "trainer.max_steps=0"),
        (lambda c: setattr(c.attention, "name", "sdpaa"), "did you mean 'sdpa'"),
        (lambda c: c.attention.options.update(window=3), "unknown option of sdpa"),
        (lambda c: setattr(c.trainer, "optimizer", "muonn"), "muon"),
        (lambda c: setattr(c.model, "n_heads", 3), "n_heads"),
        (lambda c: setattr(c.trainer, "resume", True), "nothing to resume"),
    ],
)
def test_a_wrong_request_raises_before_anything_is_written(tmp_path, change, message):
    cfg = tiny(tmp_path / "run")
    change(cfg)
    with pytest.raises(RequestError) as caught:
        train(cfg)
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_run_folder_that_is_a_file(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RequestError, match="is a file"):
        train(tiny(tmp_path / "run"))
    assert (tmp_path / "run").read_text() == "mine"


def test_a_folder_of_another_run_is_left_alone_and_the_same_run_starts_anew(tmp_path):
    first = train(tiny(tmp_path / "run"))
    with pytest.raises(RequestError, match="another configuration") as caught:
        train(tiny(tmp_path / "run", seed=1, max_steps=7))
    assert caught.value.reasons == ["trainer.max_steps: there 6, asked for 7", "seed: there 0, asked for 1"]
    again = train(tiny(tmp_path / "run"))
    assert again.quality.val_loss_nats == first.quality.val_loss_nats
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 4  # steps 2, 3, 4 and 6


def test_a_broken_checkpoint_stops_a_resumed_run_before_it_starts(tmp_path):
    train(tiny(tmp_path / "run"))
    record = Record.load(tmp_path / "run/record.json")
    record.update(status="interrupted")
    record.save(tmp_path / "run/record.json")
    before = (tmp_path / "run/record.json").read_bytes()
    (tmp_path / "run/checkpoints/last.ckpt").write_bytes(b"PK\x03\x04 cut short")
    for resume in (True, False):
        with pytest.raises(RequestError, match="cannot be read") as caught:
            train(tiny(tmp_path / "run", resume=resume))
        assert "restart=true" in str(caught.value)
    assert (tmp_path / "run/record.json").read_bytes() == before


def test_load_run_says_what_is_wrong(tmp_path):
    with pytest.raises(RequestError, match="does not exist"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(RequestError, match=r"config\.yaml is missing"):
        load_run(tmp_path)
    train(tiny(tmp_path / "run"))
    weights = tmp_path / "run/checkpoints/model.safetensors"
    whole = weights.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"nonsense" * 20):
        weights.write_bytes(broken)
        with pytest.raises(RequestError, match=r"model\.safetensors cannot be read"):
            load_run(tmp_path / "run")
    weights.unlink()
    with pytest.raises(RequestError, match="holds no trained model"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "oom"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "oom"),
        (ZeroDivisionError("division by zero"), "failed"),
    ],
)
def test_what_breaks_on_the_way_is_in_the_record(tmp_path, monkeypatch, error, status):
    def broken(*_):
        raise error

    cfg = tiny(tmp_path / "run")
    cfg.probe.enabled = True
    monkeypatch.setattr(run_module, "run_probe", broken)
    record = train(cfg)
    assert record.status == status
    assert str(error) in record.reasons[0]
    assert record.quality.val_loss_nats > 0  # what was known by then
    assert Record.load(tmp_path / "run/record.json").status == status


def test_a_full_disk_is_one_clear_error(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_module, "save_weights", full)
    with pytest.raises(RequestError, match=r"cannot write in .*: No space left on device"):
        train(tiny(tmp_path / "run"))


def test_ctrl_c_leaves_a_record(tmp_path, monkeypatch):
    def pressed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "save_weights", pressed)
    with pytest.raises(KeyboardInterrupt):
        train(tiny(tmp_path / "run"))
    assert Record.load(tmp_path / "run/record.json").status == "interrupted"


LONG = """
import sys
sys.path.insert(0, {here!r})
from helpers import tiny
import attnzoo, torch
torch.set_num_threads(1)
cfg = tiny({folder!r}, model={{"dropout": 0.1}}, max_steps=400, checkpoint_every=20, eval_every=100, resume={resume})
print(attnzoo.train(cfg).status)
"""


@pytest.mark.slow
def test_kill_9_and_resume_give_the_uninterrupted_run(tmp_path):
    def start(folder, resume=False):
        code = LONG.format(here=str(HERE), folder=str(tmp_path / folder), resume=resume)
        return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "1"})

    assert start("whole").wait(300) == 0
    process = start("killed")
    deadline = time.monotonic() + 300
    while not (tmp_path / "killed/checkpoints/last.ckpt").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed/record.json").exists()
    assert start("killed", resume=True).wait(300) == 0
    whole, killed = (tmp_path / name / "checkpoints/model.safetensors" for name in ("whole", "killed"))
    left, right = load_file(whole), load_file(killed)  # the file's header lists its metadata in any order
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    records = [Record.load(tmp_path / name / "record.json") for name in ("whole", "killed")]
    assert records[0].quality == records[1].quality
    lines = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "killed")]
    assert [json.loads(x)["step"] for x in lines[0]] == [json.loads(x)["step"] for x in lines[1]]


def test_probe_keeps_the_attention_and_the_head_sharing():
    cfg = tiny(attention="gqa", model={"n_heads": 8, "n_kv_heads": 2, "d_model": 64, "dropout": 0.3})
    probe = probe_config(cfg)
    assert (probe.attention, probe.positions, probe.seed) == (cfg.attention, cfg.positions, cfg.seed)
    assert (probe.model.n_heads, probe.model.n_kv_heads, probe.model.dropout) == (2, 1, 0.0)
    assert probe.task == cfg.probe.task


def test_probe_is_in_the_record(tmp_path):
    cfg = tiny(tmp_path / "run", task="text")
    cfg.probe.enabled, cfg.probe.max_steps, cfg.probe.d_model = True, 2, 16
    record = train(cfg)
    assert set(record.quality.task_accuracy) == {"recall"}
    assert record.quality.task_chance == {"recall": 1 / 64}
    assert len(record.quality.task_curve["recall"]) == 2


@pytest.mark.slow
def test_leaks_correctness_and_costs_are_in_the_record(tmp_path):
    cfg = tiny(tmp_path / "run")
    cfg.measure.enabled = cfg.measure.leak = True
    cfg.measure.seconds, cfg.measure.rounds, cfg.measure.decode_context, cfg.measure.decode_tokens = 1.0, 3, 8, 2
    record = train(cfg)
    assert record.status == "ok", record.reasons
    assert record.leak.passed
    assert "entropy_canary" in [test["name"] for test in record.leak.tests]
    assert record.correct.passed
    assert record.cost.train_step_ms["median"] > 0
    assert record.cost.train_peak_memory_bytes > 4 * record.cost.parameters
    assert record.cost.cache_bytes == record.cost.cache_bytes_formula
    assert set(record.environment.stage_seconds) == {"train", "leak", "cost"}
    rounding = 0.0005 * 4  # of the three stages and of the whole
    assert sum(record.environment.stage_seconds.values()) <= record.environment.seconds + rounding


def test_without_timing_only_counts_are_measured(tmp_path):
    cfg = tiny(tmp_path / "run")
    cfg.measure.enabled, cfg.measure.timing, cfg.measure.leak, cfg.measure.memory = True, False, False, False
    cost = train(cfg).cost
    assert cost.parameters > 0
    assert not [key for key in cost if key.endswith("_ms") or "per" in key]


def test_importing_the_package_and_its_settings_loads_no_torch():
    code = "import sys, attnzoo.training.config; print({'torch', 'lightning', 'wandb'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_training_alone_loads_no_wandb():
    code = "import sys, attnzoo.training.run; print({'wandb', 'hydra', 'matplotlib', 'datasets'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("aloud", [True, False])
def test_a_stage_says_what_begins_where_asked_to(aloud, capfd):
    record = Record(attention="sdpa", environment={})
    with run_module.stage(record, "leak", aloud=aloud):
        pass
    assert capfd.readouterr() == ("", "sdpa: leak tests\n" if aloud else "")
    assert "leak" in record.environment["stage_seconds"]
