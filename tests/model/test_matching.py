"""One parameter count across variants, by the width of the MLP."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo.errors import RequestError
from attnzoo.model import build_model
from attnzoo.model.config import resized

SIZES = ["model.d_model=32", "model.n_heads=4", "model.n_layers=2"]
STEP = 3 * 32 * 2  # one more hidden unit in each layer: a row of gate, up and down each


def model(*overrides: str):
    return build_model(attnzoo.compose("train", [*SIZES, *overrides]), 50)


@pytest.mark.parametrize("name", ["sdpa", "mqa", "mla", "gla", "based"])
def test_variants_have_as_many_parameters_as_the_reference(name):
    plain, reference = model(f"attention={name}"), model()
    found = model(f"attention={name}", "model.match_parameters=sdpa")
    assert abs(found.parameter_count() - reference.parameter_count()) <= STEP / 2
    if name != "sdpa":
        assert abs(plain.parameter_count() - reference.parameter_count()) > STEP / 2  # there was something to match
    assert found(torch.randint(50, (1, 5))).shape == (1, 5, 50)


def test_a_hybrid_is_matched_as_a_whole():
    pattern = "model.attention_pattern=[gla,mqa]"
    settings = ["model.output_gate=elementwise", "model.tie_embeddings=false"]
    found = model(pattern, "model.match_parameters=sdpa", *settings)
    reference = model(*settings)
    assert abs(found.parameter_count() - reference.parameter_count()) <= STEP / 2


def test_a_number_is_met_too():
    two = model("model.match_parameters=40e3", "model.mlp=gelu")
    assert abs(two.parameter_count() - 40_000) <= STEP * 2 / 3 / 2
    assert abs(model("model.match_parameters=40e3").parameter_count() - 40_000) <= STEP / 2


def test_what_cannot_be_met_is_refused():
    for match, says in {
        "9": "this model has 10176 at least",
        "sdpaa": "did you mean 'sdpa'",
        "-1": "must be at least 1",
    }.items():
        with pytest.raises(RequestError, match=says):
            model(f"model.match_parameters={match}")


def test_other_sizes_drop_what_was_said_in_numbers():
    cfg = attnzoo.compose("train", ["model.match_parameters=2e6", "model.mlp_width=99", "model.head_dim=64"]).model
    small = resized(cfg, n_layers=1, d_model=32)
    assert (small.match_parameters, small.mlp_width, small.head_dim) == (None, None, None)
    named = attnzoo.compose("train", ["model.match_parameters=gqa"]).model
    assert resized(named, n_layers=1).match_parameters == "gqa"


def test_the_record_and_the_tables_say_so(tmp_path):
    tiny = [
        "experiment=tiny",
        "trainer.precision=fp32",
        "probe=none",
        "measure.memory=false",
        "measure.timing=false",
        "logger=disabled",
    ]
    cfg = attnzoo.compose("train", [*tiny, "attention=mqa", "model.match_parameters=sdpa", f"run_dir={tmp_path}"])
    record = attnzoo.train(cfg)
    assert record.model.match_parameters == "sdpa"
    assert record.model.mlp_width > 88  # 2.6875 · 32, up to a multiple of 8
    assert record.cost.parameters == build_model(cfg).parameter_count()
    from attnzoo.report.columns import columns

    shown = {column.key for column in columns([record]) if column.shown == "everywhere"}
    assert {"parameters", "train_flops"} <= shown
