"""The probe is trained by settings of its own: what the main run is trained by leaves it as it is."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from helpers import tiny, trainer_config

from attnzoo.model.config import AttentionConfig
from attnzoo.tasks.config import TaskConfig
from attnzoo.training.config import TrainerConfig
from attnzoo.training.probe import MACHINE, probe_config, run_probe
from attnzoo.training.validation import faults

OTHER = {
    "max_steps": 7, "batch_size": 5, "accumulate": 3, "optimizer": "adamw", "schedule": "cosine",
    "options": {"adamw_lr": 0.02, "weight_decay": 0.3, "betas": (0.5, 0.6), "warmup_steps": 1},
    "grad_clip": 0.1, "precision": "bf16", "compile": True, "eval_every": 1, "log_every": 1, "checkpoint_every": 1,
    "resume": True,
}  # fmt: skip


def probing(**trainer):
    cfg = tiny(**trainer)
    cfg.probe = replace(
        cfg.probe, enabled=True, max_steps=4, batch_size=2, d_model=16, n_layers=1,
        task=TaskConfig("recall", 16, 4, {"n_symbols": 8}),
    )  # fmt: skip
    return cfg


@pytest.mark.parametrize("name", sorted({f.name for f in fields(TrainerConfig)} - {*MACHINE}))
def test_no_setting_of_the_main_training_is_the_probes(name):
    plain = probing()
    value = OTHER.get(name, "another value")
    changed = replace(plain, trainer=replace(plain.trainer, **{name: value}))
    assert getattr(changed.trainer, name) != getattr(plain.trainer, name)
    assert probe_config(changed).trainer == probe_config(plain).trainer


def test_where_it_runs_is_the_main_runs():
    cfg = probing(device="cuda", threads=3, progress=True)
    trainer = probe_config(cfg).trainer
    assert (trainer.device, trainer.threads, trainer.progress) == ("cuda", 3, True)


def test_its_own_settings_reach_the_training():
    cfg = probing()
    cfg.probe = replace(
        cfg.probe, max_steps=40, batch_size=3, optimizer="adamw", learning_rate=0.5, adamw_lr=0.25, precision="bf16"
    )
    expected = trainer_config(
        max_steps=40, batch_size=3, optimizer="adamw", adamw_lr=0.25, precision="bf16", eval_every=10,
        device="cpu", progress=False,
    )  # fmt: skip
    assert probe_config(cfg).trainer == expected


def test_by_default_it_is_trained_as_beside_a_default_run_before():
    """AdamW's rate was scaled by the two rates of Muon: .003 · .03 / .01."""
    trainer = probe_config(tiny()).trainer
    assert (trainer.optimizer, trainer.schedule) == ("muon", "wsd")
    assert trainer.options == {"muon_lr": 0.03, "adamw_lr": pytest.approx(0.009)}


def test_its_learning_curve_is_the_same_beside_other_learning_rates():
    one, two = (
        run_probe(probing(optimizer="adamw", adamw_lr=rate, max_steps=7, warmup_steps=1), "cpu")
        for rate in (0.005, 0.02)
    )
    assert one == two
    assert len(one["task_curve"]["recall"]) == 4
    assert one["task_curve"]["recall"][-1] == [4 * 2 * 16, one["task_accuracy"]["recall"]]
    other = probing()
    other.probe.learning_rate = 0.3
    assert run_probe(other, "cpu") != one


def test_its_sizes_come_from_the_probe_and_its_layout_from_the_model():
    cfg = probing(model={"n_layers": 3, "n_heads": 8, "n_kv_heads": 2, "d_model": 64, "short_conv": 2})
    cfg.model = replace(cfg.model, dropout=0.3, attention_dropout=0.2, qk_norm=False)
    cfg.probe = replace(cfg.probe, n_heads=4, short_conv=3)
    model = probe_config(cfg).model
    assert (model.n_layers, model.d_model, model.n_heads, model.n_kv_heads) == (1, 16, 4, 1)
    assert (model.short_conv, model.dropout, model.attention_dropout, model.qk_norm) == (3, 0.0, 0.0, False)
    assert probe_config(replace(cfg, probe=replace(cfg.probe, n_heads=3))).model.n_kv_heads == 1
    assert probe_config(replace(cfg, model=replace(cfg.model, n_kv_heads=None))).model.n_kv_heads is None


def test_what_a_backend_cannot_compute_is_said():
    cfg = replace(probing(), attention=AttentionConfig("flex", {}))
    found = run_probe(cfg, "cpu")
    assert found["task_accuracy"] == {"recall": None}
    assert found["task_chance"] == {"recall": 1 / 8}
    assert found["task_reasons"]


def test_wrong_settings_are_named():
    cfg = probing()
    cfg.probe = replace(cfg.probe, optimizer="adam", precision="fp8", adamw_lr=0.0, learning_rate=-1.0)
    said = "\n".join(faults(cfg))
    for part in ("probe.optimizer=adam", "probe.precision=fp8", "probe.adamw_lr=0.0", "probe.learning_rate=-1.0"):
        assert part in said
