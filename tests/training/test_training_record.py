"""What goes into a record and to W&B beside it, what weights are known by, and the bounds of every setting."""

from __future__ import annotations

import json
import math
import os
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import safetensors.torch
import torch
from helpers import tiny

from attnzoo.arguments import LARGEST_SEED
from attnzoo.errors import RequestError
from attnzoo.measure.record import config_hash
from attnzoo.model import build_model
from attnzoo.model.export import export
from attnzoo.model.validation import lookup
from attnzoo.optimizers import parameter_groups
from attnzoo.tasks import build_task
from attnzoo.training import after, init_from, wandb_run
from attnzoo.training import run as run_module
from attnzoo.training.config import CompareConfig, to_dict
from attnzoo.training.folder import RunFolder
from attnzoo.training.init_from import weights_sha256
from attnzoo.training.kept import OPENING, identity, keep_text, kept_text
from attnzoo.training.optim import build_schedule
from attnzoo.training.run import describe, flat_numbers, merged_tasks, new_record, open_wandb, refusals
from attnzoo.training.saved import load_saved
from attnzoo.training.together import process_faults
from attnzoo.training.validation import (
    AT_LEAST_ONE,
    LARGEST_OF,
    NOT_NEGATIVE,
    POSITIVE,
    faults,
)
from attnzoo.training.wandb_run import AGENT, WandbRun, directories, leave_agent, run_id


def hybrid(**changes):
    """Two layers of unlike heads, with options."""
    model = {
        "n_layers": 3, "d_model": 32, "n_heads": 4, "attention_pattern": ["gqa", "sliding_window"],
        "attention_options": {"sliding_window": {"window": 3}},
    }  # fmt: skip
    return tiny(model={**model, **changes}, seed=5)


def test_a_record_says_what_was_asked_for_and_what_the_backends_chose():
    cfg = hybrid()
    cfg.trainer.tf32 = True
    record = new_record(cfg, "cpu", "fp32", "why it is")
    assert (record.status, record.reasons, record.attention) == ("failed", ["it did not end"], "gqa+sliding_window")
    assert (record.options, record.kernel_requested) == ({"sliding_window": {"window": 3}}, "auto")
    assert (record.n_heads, record.n_kv_heads, record.seed, record.positions) == (4, None, 5, "rope")
    assert record.config_hash == config_hash(to_dict(cfg))
    environment = record.environment
    assert (environment.precision, environment.precision_reason, environment.tf32) == ("fp32", "why it is", True)
    model = build_model(cfg, 8)
    describe(record, cfg, model)
    assert record.layers == ["gqa", "sliding_window", "gqa"]
    assert record.n_kv_heads == [1, 4]
    assert list(record.options) == ["gqa", "sliding_window"]
    assert (record.options.sliding_window.name, record.options.sliding_window.window) == ("sliding_window", 3)
    assert record.cost == {"parameters": sum(p.numel() for p in model.parameters())}
    assert record.model == {"mlp_width": model.blocks[0].mlp.down.in_features, "match_parameters": None}
    plain = new_record(tiny(options={"kernel": "math"}), "cpu", "fp32", "")
    assert (plain.options, plain.kernel_requested) == ({"kernel": "math"}, "math")
    describe(plain, tiny(options={"kernel": "math"}), build_model(tiny(options={"kernel": "math"}), 8))
    assert (plain.options, plain.n_kv_heads) == ({"kernel": "math"}, 2)
    assert "layers" not in plain


def test_every_backend_is_asked_whether_it_can_train_and_decode_this(monkeypatch):
    asked = []

    def why_not(name, **how):
        asked.append((name, how))
        return ["one", f"{name} {how.get('training', True)}"]

    monkeypatch.setattr(run_module.registry, "why_not", why_not)
    cfg = hybrid(attention_dropout=0.2)
    cfg.positions.name = "relative"
    found = refusals(cfg, build_model(cfg, 8), "cpu", "bf16")
    assert found == ["one", "gqa True", "gqa False", "sliding_window True", "sliding_window False"]
    common = {"device": "cpu", "dtype": torch.bfloat16, "n_heads": 4, "head_dim": 8, "bias": True, "alibi": False}
    assert asked[0] == ("gqa", {**common, "n_kv_heads": 1, "dropout": 0.2, "bias_gradient": True})
    assert asked[1] == ("gqa", {**common, "n_kv_heads": 1, "training": False})
    assert asked[2][1]["window"] == 3
    cfg.positions.name = "alibi"
    asked.clear()
    refusals(cfg, build_model(cfg, 8), "cpu", "fp32")
    assert asked[0][1] == {
        **common,
        "dtype": torch.float32,
        "n_kv_heads": 1,
        "dropout": 0.2,
        "bias_gradient": False,
        "alibi": True,
    }


def test_the_summary_has_numbers_verdicts_and_short_texts():
    record = {
        "a": 1,
        "b": {"c": 2.5, "d": {"e": True, "f": float("nan")}},
        "g": "x" * 199,
        "h": "x" * 200,
        "i": [1],
        "j": None,
    }
    assert flat_numbers(record) == {"a": 1, "b/c": 2.5, "b/d/e": True, "g": "x" * 199}
    both = merged_tasks(
        {"task_accuracy": {"recall": 0.5}, "x": 1}, {"task_accuracy": {"probe": 0.2}, "task_reasons": ["y"]}
    )
    assert both == {"task_accuracy": {"recall": 0.5, "probe": 0.2}, "task_reasons": ["y"]}


def test_the_wandb_run_of_a_run(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(run_module, "WandbRun", lambda folder, **how: opened.append((folder, how)))
    cfg = tiny(tmp_path, seed=3)
    cfg.logger = replace(cfg.logger, wandb="online", project="p", group="g")
    open_wandb(cfg, RunFolder(tmp_path))
    cfg.logger.name = "mine"
    open_wandb(cfg, RunFolder(tmp_path, resume_from=tmp_path / "x"))
    same = {"mode": "online", "project": "p", "group": "g", "job_type": "train"}
    first, second = (how for _, how in opened)
    assert {key: first[key] for key in same} == same
    assert (first["name"], first["resume"]) == ("sdpa-seed3", False)
    assert first["config"]["trainer"]["max_steps"] == 6
    assert (second["name"], second["resume"]) == ("mine", True)
    assert [folder for folder, _ in opened] == [tmp_path] * 2


@pytest.fixture
def wandb(monkeypatch):
    """In place of the package: what was asked of it."""
    calls = []

    class Run:
        id = "theirs"
        summary = SimpleNamespace(update=lambda values: calls.append(("summary", values)))

        def __getattr__(self, name):
            return lambda *words, **how: calls.append((name, words, how))

    class Settings:
        model_fields = (
            "silent",
            "console",
            "init_timeout",
            "login_timeout",
            "finish_timeout",
            "disable_code",
            "x_disable_stats",
        )

        def __init__(self, **how):
            self.how = how

    def init(**how):
        calls.append(("init", how, {k: v for k, v in os.environ.items() if k.startswith("WANDB")}))
        if how["mode"] == fake.broken:
            raise ConnectionError("refused\nwith a story")
        return Run()

    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    fake = ModuleType("wandb")
    fake.init, fake.Settings, fake.calls, fake.broken = init, Settings, calls, None
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_what_wandb_is_told(tmp_path, wandb, monkeypatch):
    monkeypatch.setenv("WANDB_CACHE_DIR", "theirs")
    run = WandbRun(
        tmp_path / "run", mode="online", project="p", group="g" * 200, name="n" * 200, job_type="train",
        config={"api_key": "hush", "x": 1}, resume=False, init_timeout=7.0,
    )  # fmt: skip
    (_, how, places), *rest = wandb.calls
    folder = tmp_path / "run" / "wandb"
    assert (how["mode"], how["project"], how["job_type"], how["reinit"], how["resume"]) == (
        "online",
        "p",
        "train",
        "create_new",
        None,
    )
    assert (len(how["group"]), len(how["name"])) == (128, 128)
    assert how["config"] == {"api_key": "***", "x": 1}
    assert how["dir"] == str(tmp_path / "run")
    assert how["id"] == (folder / "run_id").read_text().strip()
    settings = {"silent": True, "console": "off", "init_timeout": 7.0, "disable_code": True, "x_disable_stats": True}
    assert settings.items() <= how["settings"].how.items()
    assert rest == [
        ("define_metric", ("tokens",), {"hidden": True}),
        ("define_metric", ("*",), {"step_metric": "tokens"}),
    ]
    here = {"WANDB_DIR": folder.parent, "WANDB_CACHE_DIR": folder / "cache", "WANDB_DATA_DIR": folder / "data"}
    assert places == {name: str(place) for name, place in here.items()}  # online a person's own settings are read
    assert {k: v for k, v in os.environ.items() if k.startswith("WANDB")} == {"WANDB_CACHE_DIR": "theirs"}
    assert run.status() == {"asked": "online", "mode": "online", "reason": None, "id": "theirs"}
    wandb.calls.clear()
    run.log({"step": 4, "loss": 1.0})
    run.summarise({"a": 1})
    run.finish("failed")
    run.log({"step": 5})
    assert wandb.calls == [
        ("log", ({"step": 4, "loss": 1.0},), {"step": 4}),
        ("summary", {"a": 1}),
        ("finish", (), {"exit_code": 1}),
    ]
    WandbRun(tmp_path / "run", mode="online", resume=True).finish()
    assert wandb.calls[3][1]["resume"] == "allow"
    assert wandb.calls[3][1]["id"] == how["id"]
    assert wandb.calls[-1] == ("finish", (), {"exit_code": 0})
    offline = WandbRun(tmp_path / "run", resume=True)
    (_, how, places) = wandb.calls[-3]
    assert (offline.mode, how["mode"], how["resume"]) == ("offline", "offline", None)
    assert (places["WANDB_CONFIG_DIR"], places["WANDB_ERROR_REPORTING"]) == (str(folder / "settings"), "false")
    assert WandbRun(tmp_path / "off", mode="disabled").status() == {
        "asked": "disabled",
        "mode": "disabled",
        "reason": None,
        "id": None,
    }


def test_without_the_server_a_run_of_its_own_is_kept(tmp_path, wandb):
    said = []
    wandb.broken = "online"
    run = WandbRun(tmp_path / "run", mode="online", warn=said.append)
    first, second = (call[1] for call in wandb.calls if call[0] == "init")
    assert (first["mode"], second["mode"]) == ("online", "offline")
    assert first["id"] != second["id"]  # the core still holds the one that failed
    assert (run.status()["mode"], run.status()["reason"]) == ("offline", "refused")
    assert len(said) == 1
    wandb.broken = "offline"
    given_up = WandbRun(tmp_path / "x", warn=said.append)
    assert said[1] == "W&B could not be started (refused); the run goes on without it"
    assert given_up.status()["mode"] == "disabled"


def test_the_id_an_agent_waits_for(tmp_path, monkeypatch):
    for name in AGENT:
        monkeypatch.setenv(name, "agents")
    assert run_id(tmp_path, resume=False) == "agents" == (tmp_path / "run_id").read_text().strip()
    (tmp_path / "run_id").write_text("before\n")
    assert run_id(tmp_path, resume=True) == "agents"
    leave_agent()
    assert not [name for name in os.environ if os.environ[name] == "agents"]
    (tmp_path / "run_id").write_text("before\n")
    assert run_id(tmp_path, resume=True) == "before"
    with pytest.raises(ZeroDivisionError), directories(tmp_path, "offline"):
        raise ZeroDivisionError
    assert "WANDB_DIR" not in os.environ
    assert wandb_run.one_line(ValueError()) == "ValueError"


# -- what is asked of a trained model --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("timing", "memory", "failed"), [(True, True, []), (False, False, ["x"])])
def test_costs_are_of_this_model_at_its_size(monkeypatch, timing, memory, failed):
    asked = {}

    def recorded(name, answer):
        def call(*words, **how):
            asked[name] = (words, how)
            return dict(answer)

        return call

    peak = {"bytes": 7, "method": "m"}
    for name, answer in (("model_costs", {"a": 1}), ("time_models", {"sdpa": {"t": 2}}), ("train_step_memory", peak)):
        monkeypatch.setattr(after, name, recorded(name, answer))
    monkeypatch.setattr(after, "failed_timings", lambda found: failed)
    cfg = tiny(batch_size=3, seed=9, optimizer="adamw", adamw_lr=0.25)
    cfg.measure = replace(cfg.measure, timing=timing, memory=memory, decode_context=11)
    task, model = SimpleNamespace(n_tokens=16, vocab_size=8), build_model(cfg, 8)
    found = after.costs(model, task, cfg, "cpu", "bf16", True)
    assert asked["model_costs"] == ((model,), {"batch_size": 3, "n_tokens": 16, "context": 11})
    assert ("failed" in found) == bool(failed)
    if not timing:
        assert found == {"a": 1, "failed": ["x"]}
        return
    (models,), how = asked["time_models"]
    assert models == {"sdpa": model}
    optimizer = how.pop("make_optimizer")(model)
    assert {group["base_lr"] for group in optimizer.param_groups} == {0.25}
    assert how == {"task_shape": (3, 16), "measure": cfg.measure, "precision": "bf16", "seed": 9, "compiled": True}
    sizes = {"vocab_size": 8, "batch_size": 3, "n_tokens": 16, "device": "cpu", "precision": "bf16"}
    assert asked["train_step_memory"] == ((cfg,), sizes)
    assert found == {
        "a": 1,
        "t": 2,
        "train_peak_memory_bytes": 7,
        "train_peak_memory_method": "m",
        "train_memory": peak,
    }


@pytest.mark.parametrize(("n_tokens", "opening", "new"), [(16, 4, 12), (400, 64, 192), (2, 1, 1)])
def test_a_sample_goes_on_from_the_opening(n_tokens, opening, new):
    row, asked = torch.arange(n_tokens)[None], []

    def generate(tokens, n_new, **how):
        asked.append((tokens, n_new, how))
        return torch.cat([tokens, 7 + torch.arange(n_new)[None]], 1)

    model = SimpleNamespace(embedding=torch.nn.Embedding(2, 2), generate=generate)
    tokenizer = SimpleNamespace(decode=lambda ids: ids)
    task = SimpleNamespace(
        n_tokens=n_tokens, tokenizer=tokenizer, validation_batches=lambda n: iter([SimpleNamespace(tokens=row)])
    )
    assert after.sample(model, task, seed=3) == list(range(7, 7 + new))
    ((tokens, n_new, how),) = asked
    assert torch.equal(tokens, row[:, :opening])
    assert (n_new, how) == (new, {"temperature": 0.8, "seed": 3})


# -- weights and folders ---------------------------------------------------------------------------------------------------


def test_weights_are_known_by_names_types_shapes_and_numbers(tmp_path):
    def known(tensors, **metadata):
        safetensors.torch.save_file(tensors, tmp_path / "w", metadata or None)
        return weights_sha256(tmp_path / "w")

    ones = {"a": torch.ones(2, 3), "b": torch.zeros(4)}
    assert known(ones) == known({"b": ones["b"], "a": ones["a"]}, config_hash="x") == known(ones, config_hash="y")
    others = (
        {"a": torch.ones(3, 2), "b": ones["b"]}, {"c": ones["a"], "b": ones["b"]}, {"a": ones["a"]},
        {"a": ones["a"].view(torch.int32), "b": ones["b"]}, {"a": ones["a"] + 1e-7, "b": ones["b"]},
    )  # fmt: skip
    assert len({known(tensors) for tensors in (ones, *others)}) == 6
    whole = (tmp_path / "w").read_bytes()
    for broken in (whole[:-1], whole[:4], b"\xff" * 8 + whole[8:]):
        (tmp_path / "w").write_bytes(broken)
        with pytest.raises(RequestError, match="cannot be read as safetensors"):
            weights_sha256(tmp_path / "w")


def test_settings_that_change_no_shape_do_not_fit_either(tmp_path):
    kept = {"n_layers": 1, "d_model": 16, "n_heads": 2, "n_kv_heads": 2, "head_dim": 8, "norm": "layer", "mlp": "gelu"}
    kept |= {"projection": "mla", "rope_dim": 4, "dropout": 0.5}
    (tmp_path / "config.json").write_text(json.dumps({"model": kept}))
    asked = {"n_kv_heads": None, "head_dim": None, "norm": "rms", "mlp": "swiglu", "projection": None, "rope_dim": None}
    assert init_from._misfits(tmp_path, tiny()) == [
        f"model.{key}: there {kept[key]}, asked for {asked}"
        for key, asked in asked.items()
    ]  # fmt: skip
    kept |= {"n_layers": 2, "d_model": 32, "n_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps({"model": kept}))
    assert [line.partition(":")[0] for line in init_from._misfits(tmp_path, tiny())][:3] == [
        "model.n_layers", "model.d_model", "model.n_heads",
    ]  # fmt: skip
    assert init_from._origin(tmp_path) == {"config_hash": None, "step": None}
    assert init_from.weights_file(tmp_path) == tmp_path / "model.safetensors"
    run = tmp_path / "run"
    RunFolder(run).write_config(tiny(run, max_steps=9))
    known = config_hash(to_dict(tiny(run, max_steps=9)))
    assert init_from._origin(run) == {"config_hash": known, "step": 9}
    (run / "record.json").write_text(json.dumps({"starts": [{"to_step": 2}, {"to_step": 4}]}))
    assert init_from._origin(run) == {"config_hash": known, "step": 4}


def test_what_an_export_says_of_itself(tmp_path):
    cfg = tiny()
    for name, rows, expected in (("rope", 16, 64), ("learned", 16, 16), ("learned", 100, 64)):
        cfg.positions = replace(cfg.positions, name=name, options={"max_tokens": rows} if name == "learned" else {})
        folder = tmp_path / f"{name}{rows}"
        export(build_model(cfg, 11), folder)
        saved = load_saved(folder)
        assert (saved.n_tokens, saved.name, saved.tokenizer) == (expected, "sdpa", None)
    assert not saved.model.training
    row = saved.row(9)
    assert torch.equal(row, saved.row(9))
    assert row.shape == (1, 9)
    assert row.max() < 11
    assert len(set(saved.row(64)[0].tolist())) > 5
    fresh = saved.fresh().state_dict()
    assert {name: t.shape for name, t in fresh.items()} == {
        name: t.shape for name, t in saved.model.state_dict().items()
    }
    with pytest.raises(RequestError, match="was exported"):
        saved.load_task()


def test_what_is_kept_of_a_text(tmp_path):
    cfg = tiny(task="text")
    cfg.task.n_tokens, cfg.task.options["validation_tokens"] = 2000, 4000
    task = build_task(cfg.task, cfg.data, 0)
    keep_text(tmp_path, task)
    kept = kept_text(tmp_path)
    first = next(iter(task.validation_batches(1))).tokens[0]
    assert kept["opening"] == first[:OPENING].tolist()
    assert len(kept["opening"]) == 1024
    assert kept["tokenizer"] == task.tokenizer.state()
    assert set(identity(task)) == {"sha256", "bytes", "tokenizer", "tokenizer_sha256"}
    assert identity(task)["sha256"] == kept["sha256"] == task.provenance["sha256"]


def test_what_launchers_say(monkeypatch):
    for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.setenv(name, " 3 ")
        assert name in process_faults()[0]
        monkeypatch.setenv(name, "1")
        assert process_faults() == []
        monkeypatch.delenv(name)


# -- bounds ----------------------------------------------------------------------------------------------------------------


def put(group, name, value):
    """One key of a group; those that are no fields of it are options of what it names."""
    if hasattr(group, name):
        setattr(group, name, value)
    else:
        group.options[name] = value


def with_value(key, value):
    cfg = CompareConfig(**vars(tiny()), backends=["sdpa"])
    cfg.probe = replace(cfg.probe, enabled=True, n_heads=1, d_model=2)
    *groups, name = key.split(".")
    holder = cfg
    for group in groups:
        holder = getattr(holder, group)
    put(holder, name, type(lookup(cfg, key) or value)(value))
    return [fault for fault in faults(cfg) if fault.startswith(f"{key}=")]


PROBE = ("max_steps", "batch_size", "n_layers", "d_model", "n_heads")
ONE = [*(f"task.{n}" for n in ("n_tokens", "validation_rows")), *(f"probe.{n}" for n in PROBE), "probe.task.n_tokens"]
ONE += ["probe.task.validation_rows", *(f"measure.{n}" for n in ("rounds", "decode_context", "decode_tokens")), "jobs"]
ONE += [f"trainer.{n}" for n in ("max_steps", "batch_size", "accumulate", "log_every", "threads")]
ZERO = [
    "probe.short_conv",
    *(f"trainer.{n}" for n in ("grad_clip", "eval_every", "checkpoint_every")),
]
ABOVE = [
    "probe.learning_rate",
    "probe.adamw_lr",
    "measure.seconds",
    "time_limit",
]


OWN_ZERO, OWN_ABOVE = ["trainer.weight_decay", "trainer.warmup_steps"], ["trainer.muon_lr", "trainer.adamw_lr"]


def test_every_setting_has_its_bounds():
    named = [AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE]
    assert [sorted(keys) for keys in named] == [sorted(keys) for keys in (ONE, ZERO, ABOVE)]
    for keys, least, says in ((ONE, 1, "at least 1"), ([*ZERO, *OWN_ZERO], 0, "not be negative")):
        for key in keys:
            assert says in with_value(key, least - 1)[0], key
            assert [f for f in with_value(key, least) if says in f] == [], key
    for key in [*ABOVE, *OWN_ABOVE]:
        assert "more than 0" in with_value(key, 0.0)[0], key
        assert with_value(key, 1e-9) == [], key
        assert "more than 0" in with_value(key, math.inf)[0], key
    for key, most in LARGEST_OF.items():
        if key != "seed":
            assert f"must be at most {most}" in with_value(key, most + 1)[0], key
            assert [f for f in with_value(key, most) if "at most" in f] == [], key
    assert {f"{group}.{name}" for group in ("model", "probe") for name in ("n_layers", "d_model", "n_heads")} <= set(
        LARGEST_OF
    )


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"trainer.decay_fraction": -0.1}, "decay_fraction"), ({"trainer.decay_fraction": 1.1}, "decay_fraction"),
        ({"trainer.decay_fraction": 1.0}, None), ({"trainer.betas": (0.9, 1.0)}, "betas"),
        ({"trainer.betas": (-0.1, 0.9)}, "betas"),
        ({"trainer.betas": (0.0, 0.99)}, None), ({"measure.lengths": [1, 0]}, "lengths"), ({"measure.lengths": [1]}, None),
        ({"run_dir": "  "}, "run_dir is empty"), ({"task.n_tokens": 7}, "recall needs at least 8"), ({"task.n_tokens": 8}, None),
        ({"positions.name": "learned", "positions.options": {"max_tokens": 15}}, "learned has fewer positions"),
        ({"positions.name": "learned", "positions.options": {"max_tokens": 16}}, None),
        ({"seed": -1}, "seed=-1"), ({"seed": LARGEST_SEED}, None),
        ({"probe.enabled": True, "probe.n_heads": 3}, "probe.n_heads=3"), ({"probe.enabled": False, "probe.n_heads": 3}, None),
        ({"probe.enabled": True, "probe.task.n_tokens": 7}, "probe.task.n_tokens=7"),
        ({"probe.enabled": False, "probe.task.n_tokens": 7}, None),
        ({"probe.enabled": True, "probe.task.name": "text"}, "probe.task=text: the probe is a task with a chance level"),
        ({"trainer.optimizer": "sgd"}, "trainer.optimizer=sgd"), ({"trainer.schedule": "step"}, "trainer.schedule=step"),
        ({"logger.wandb": "on"}, "logger.wandb=on"), ({"trainer.device": "tpu"}, "trainer.device=tpu"),
        ({"trainer.precision": "fp8"}, "trainer.precision=fp8"), ({"trainer.schedule": "cosine"}, None),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_said_and_what_does_is_not(change, fault):
    cfg = tiny()
    for key, value in change.items():
        *groups, name = key.split(".")
        holder = cfg
        for group in groups:
            holder = getattr(holder, group)
        put(holder, name, value)
    found = faults(cfg)
    assert found == [] if fault is None else any(fault in line for line in found), found


def test_cosine_warms_up_too_and_what_is_frozen_is_in_no_group():
    cfg = tiny(schedule="cosine", max_steps=12, warmup_steps=3).trainer
    factors = [build_schedule(cfg).factor(step, 12) for step in range(12)]
    assert factors[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert factors[4:] == pytest.approx([0.5 * (1 + math.cos(math.pi * n / 9)) for n in range(1, 9)])
    model = build_model(tiny(), 8)
    model.embedding.weight.requires_grad_(False)
    assert not any(p is model.embedding.weight for group in vars(parameter_groups(model)).values() for p in group)
