"""A backend for each layer: the pattern in the model, in the settings, in the record and in a comparison."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import attnzoo
from attnzoo.comparison.plan import plan
from attnzoo.config import compose, from_dict, to_dict, validate
from attnzoo.errors import Refused, RequestError
from attnzoo.model import build_model
from attnzoo.model.config import AttentionConfig, ModelConfig, hybrid_name, hybrid_parts
from attnzoo.training.config import RunConfig
from attnzoo.training.probe import probe_config

OPTIONS = {"near": {"name": "sliding_window", "window": 5}, "linear": {"chunk": 8}, "gla": {"chunk": 8, "rank": 4}}
TINY = [
    "experiment=tiny",
    "trainer.precision=fp32",
    "probe=none",
    "measure.memory=false",
    "measure.timing=false",
    "logger=disabled",
]


def hybrid(*pattern: str, n_layers: int = 4, **settings) -> RunConfig:
    options = {entry: OPTIONS[entry] for entry in pattern if entry in OPTIONS}
    model = ModelConfig(n_layers, 32, 4, attention_pattern=list(pattern), attention_options=options, **settings)
    return RunConfig(AttentionConfig("sdpa", {}), model=model)


def faults(kind: str, *overrides: str) -> list[str]:
    with pytest.raises(RequestError) as caught:
        compose(kind, overrides)
    return caught.value.reasons or [caught.value.message]


def test_the_pattern_repeats_over_the_layers():
    model = build_model(hybrid("near", "near", "exact", n_layers=7), 50)
    near, exact = "sliding_window", "exact"
    assert [a.name for a in model.attention_modules()] == [near, near, exact, near, near, exact, near]
    assert model.attention_modules()[0].settings()["window"] == 5


@pytest.mark.parametrize("pattern", [("near", "near", "exact"), ("gla", "gla", "gla", "sdpa"), ("linear", "mqa")])
def test_decoding_in_any_split_equals_the_parallel_pass(pattern):
    model = build_model(hybrid(*pattern, short_conv=4), 50).eval()
    tokens = torch.randint(50, (2, 23))
    with torch.no_grad():
        full = model(tokens)
        for split in ([1] * 23, [7, 1, 1, 9, 5], [20, 3]):
            cache = model.new_cache(2, 23)
            parts = [model(part, cache=cache) for part in tokens.split(split, 1)]
            # float32 sums in another order through four layers
            torch.testing.assert_close(torch.cat(parts, 1), full, atol=2e-4, rtol=2e-4)


def test_each_layer_has_a_cache_of_its_own_kind():
    cache = build_model(hybrid("near", "exact", n_layers=2), 50).new_cache(1, 40)
    assert [layer.nbytes for layer in cache.layers] == [2 * 5 * 32 * 4, 2 * 40 * 32 * 4]


def test_one_entry_in_every_layer_is_the_plain_model():
    alike, plain = hybrid("sdpa", n_layers=2), hybrid(n_layers=2)
    tokens = torch.randint(50, (1, 9))
    assert torch.equal(build_model(alike, 50)(tokens), build_model(plain, 50)(tokens))


def test_positions_are_refused_for_every_member_that_cannot_take_them():
    cfg = hybrid("gla", "sdpa", "linear")
    cfg.positions.name = "alibi"
    with pytest.raises(Refused) as refused:
        build_model(cfg, 50)
    assert [reason.partition(":")[0] for reason in refused.value.reasons] == [
        "gla cannot take alibi",
        "linear cannot take alibi",
    ]


def test_head_layouts_are_refused_for_every_member_that_cannot_take_them():
    with pytest.raises(Refused) as refused:
        build_model(hybrid("mqa", "sdpa", n_kv_heads=3), 50)
    assert [reason.partition(" ")[0] for reason in refused.value.reasons] == ["mqa", "4"]


def test_names_of_hybrids_read_both_ways():
    for parts in (["gla", "gla", "gla", "sdpa"], ["sdpa", "gla", "sdpa"], ["sdpa"], ["gla"] * 12):
        assert hybrid_parts(hybrid_name(parts)) == parts
    assert hybrid_name(["sliding_window", "sliding_window", "exact"]) == "2xsliding_window+exact"


def test_settings_carry_every_members_options_and_come_back():
    cfg = compose(
        "train",
        [
            "model.attention_pattern=[sliding_window,far,exact]",
            "model.attention_options.far.name=sliding_window",
            "model.attention_options.far.window=64",
        ],
    )
    assert cfg.attention == AttentionConfig("2xsliding_window+exact", {})
    assert cfg.model.attention_options["far"] == {"name": "sliding_window", "kernel": "auto", "window": 64}
    assert cfg.model.attention_options["exact"] == {"name": "exact", "kernel": "auto"}
    assert cfg.run_dir.startswith("runs/2xsliding_window+exact-seed0-")
    assert from_dict(to_dict(cfg)) == cfg


def test_a_configuration_made_by_hand_is_named_too():
    cfg = RunConfig(AttentionConfig("sdpa", {}))
    cfg.model = replace(cfg.model, attention_pattern=["linear", "exact"])
    validate(cfg)
    assert cfg.attention.name == "linear+exact"
    assert cfg.model.attention_options["linear"]["chunk"] == 128


WRONG = [
    (["model.attention_pattern=[sdpaa]"], "unknown backend 'sdpaa'; did you mean 'sdpa'?"),
    (["model.attention_pattern=sdpa"], "must be a list, such as model.attention_pattern=[sdpa]"),
    (["model.attention_pattern=[sdpa]", "attention=linear"], "attention=linear would change nothing"),
    (["model.attention_pattern=[sdpa,gla]", "model.n_layers=1"], "the last would stand in no layer"),
    (["model.attention_pattern=[sdpa]", "model.attention_options.sdpaa.kernel=math"], "did you mean 'sdpa'?"),
    (["model.attention_pattern=[gla]", "model.attention_options.gla.chunk=3"], "chunk=3: must be a power of two"),
    (
        ["model.attention_pattern=[gla]", "model.attention_options.gla.chunks=4"],
        "did you mean 'model.attention_options.gla.chunk'?",
    ),
    (["model.attention_pattern=[gla]", "model.attention_options.gla.kernel=fast"], "unknown kernel of gla 'fast'"),
    (["model.attention_options.gla._target_=os.system"], "it never runs code"),
]


@pytest.mark.parametrize(("overrides", "says"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_a_wrong_pattern_is_one_plain_line(overrides, says):
    (fault,) = faults("train", *overrides)
    assert says in fault


def test_faults_of_several_members_are_said_at_once():
    pattern = "model.attention_pattern=[glaa,linear,gla]"
    found = faults("train", pattern, "model.attention_options.linear.chunk=0", "model.attention_options.gla.rank=0")
    assert len(found) == 3


def test_a_comparison_takes_hybrids_among_its_backends(tmp_path):
    cfg = compose("compare", ["backends=[sdpa,gla+gla+gla+sdpa]", "options.gla.chunk=16", f"run_dir={tmp_path}"])
    assert cfg.backends == ["sdpa", "3xgla+sdpa"]
    plain, mixed = plan(cfg).cells
    assert (plain.run, mixed.run) == ("sdpa-seed0", "3xgla+sdpa-seed0")
    assert plain.cfg.model.attention_pattern == []
    assert mixed.cfg.attention.name == "3xgla+sdpa"
    assert mixed.cfg.model.attention_options["gla"] == {"chunk": 16}
    assert "'glaa'" in faults("compare", "backends=[sdpa,2xglaa+sdpa]")[0]
    assert "too few for the 5 layers" in faults("compare", "backends=[4xgla+sdpa]")[0]
    assert "name hybrids among the backends" in faults("compare", "model.attention_pattern=[sdpa]")[0]


def test_the_probe_has_every_entry_of_the_pattern():
    assert probe_config(hybrid("gla", "gla", "gla", "sdpa")).model.n_layers == 4


def test_the_record_names_the_hybrid_and_all_of_it_is_checked(tmp_path):
    cfg = compose("train", [*TINY, "model.attention_pattern=[linear,sdpa]", f"run_dir={tmp_path / 'run'}"])
    record = attnzoo.train(cfg)
    assert (record.status, record.attention) == ("ok", "linear+sdpa")
    assert record.layers == ["linear", "sdpa"]
    assert record.options["linear"]["chunk"] == 128
    assert record.kernel_resolved == "linear/chunked, sdpa/flash"
    assert record.correct.passed
    assert record.cost.cache_bytes == record.cost.cache_bytes_formula


def test_a_member_that_cannot_train_here_refuses_the_run(tmp_path):
    cfg = compose("train", [*TINY, "model.attention_pattern=[flex,sdpa]", f"run_dir={tmp_path / 'run'}"])
    record = attnzoo.train(cfg)
    assert record.status == "refused"
    assert "flex has no backward on cpu" in record.reasons[0]
