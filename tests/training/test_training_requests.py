"""Requests that cannot be carried out are refused before anything is written."""

from __future__ import annotations

import os

import pytest
from helpers import tiny

from attnzoo.config import compose
from attnzoo.errors import RequestError
from attnzoo.training import train
from attnzoo.training.validation import faults, machine_faults


@pytest.mark.parametrize(
    ("group", "key"),
    [
        *(("trainer", key) for key in ("max_steps", "batch_size", "accumulate", "log_every", "eval_every", "threads")),
        *(("trainer", key) for key in ("warmup_steps", "checkpoint_every")),
        *(("model", key) for key in ("n_layers", "d_model", "n_heads", "short_conv")),
        *(("task", key) for key in ("n_tokens", "validation_rows")),
        ("positions", "max_tokens"), ("measure", "rounds"), ("data", "bpe_vocab"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [10**20, 10**5000], ids=["10^20", "10^5000"])
def test_no_count_is_astronomical(tmp_path, group, key, value):
    cfg = tiny(tmp_path / "run")
    if hasattr(getattr(cfg, group), key):
        setattr(getattr(cfg, group), key, value)
    else:  # of a component that the group names
        getattr(cfg, group).options[key] = value
    (fault,) = faults(cfg)
    assert fault.startswith(f"{group}.{key}=")
    assert "must be at most" in fault
    with pytest.raises(RequestError, match="must be at most"):
        train(cfg)
    assert not (tmp_path / "run").exists()


def test_options_and_seeds_too(tmp_path):
    assert "attention.window" in faults(tiny(attention="sliding_window", options={"window": 10**20}))[0]
    assert "seed=" in faults(tiny(seed=2**32))[0]
    assert faults(tiny(seed=2**32 - 1, max_steps=10**9)) == []
    with pytest.raises(RequestError, match=r"trainer\.max_steps=1000000000001: must be at most 1000000000"):
        compose("train", ["trainer.max_steps=1000000000001", f"run_dir={tmp_path / 'x'}"])
    with pytest.raises(RequestError, match=r"seeds.0.*must be at most 4294967295"):
        compose("compare", ["backends=[sdpa]", "seeds=[100000000000000000000]", f"run_dir={tmp_path / 'x'}"])


NOT_UTF8 = os.fsdecode(b"caf\xe9")


@pytest.mark.parametrize("where", ["run_dir", "paths", "name"])
def test_a_name_that_is_not_utf8_is_refused_before_the_training(tmp_path, where):
    cfg = tiny(tmp_path / "run")
    if where == "run_dir":
        cfg.run_dir = str(tmp_path / NOT_UTF8)
    elif where == "paths":
        cfg.data.options["paths"] = [str(tmp_path / NOT_UTF8)]
    else:
        cfg.logger.name = NOT_UTF8
    with pytest.raises(RequestError, match="not UTF-8") as caught:
        train(cfg)
    str(caught.value).encode()  # the message itself can be shown
    assert list(tmp_path.iterdir()) == []


def test_a_run_dir_below_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    assert "a folder is needed" in machine_faults(tiny(tmp_path / "file" / "run"))[0]
