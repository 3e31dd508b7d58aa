"""Positions belong to a layer: patterns of schemes, two bases, what layers share, and what cannot be of some layers alone."""

from __future__ import annotations

import json

import pytest
import torch

import attnzoo
from attnzoo.checks.model import check_model
from attnzoo.errors import Refused, RequestError
from attnzoo.model.build import assemble, layer_positions
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig, positions_name
from attnzoo.positions.rope import Rope
from attnzoo.training.config import from_dict, to_dict

SIZES = {"d_model": 32, "n_heads": 4}
BASES = {"local": {"name": "rope", "base": 1e4}, "global": {"name": "rope", "base": 1e6}}


def built(pattern: list[str], n_layers: int = 4, attention: str = "exact", **positions: object) -> attnzoo.CausalLM:
    scheme = PositionsConfig(pattern=pattern, **positions)  # type: ignore[arg-type]
    return assemble(ModelConfig(n_layers=n_layers, **SIZES), AttentionConfig(attention, {}), scheme, 40, 0)


def test_each_layer_has_its_scheme_and_layers_of_one_scheme_share_it() -> None:
    lm = built(["rope", "rope", "none"], n_layers=7)
    assert lm.scheme_of == [0, 0, 1, 0, 0, 1, 0]
    assert [type(scheme).name for scheme in lm.schemes] == ["rope", "none"]


def test_two_bases_are_two_schemes_and_one_base_by_two_names_is_one() -> None:
    lm = built(["local", "local", "global"], 6, pattern_options=BASES)
    assert lm.scheme_of == [0, 0, 1] * 2
    assert [scheme.options.base for scheme in lm.schemes] == [1e4, 1e6]
    same = built(["a", "rope"], pattern_options={"a": {"name": "rope"}})
    assert same.scheme_of == [0, 0, 0, 0]


def test_a_layer_is_turned_by_its_own_base_only(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = built(["none", "local", "global"], 6, pattern_options=BASES)
    seen: list[object] = []
    for block in lm.layers:
        block.attention.register_forward_pre_hook(lambda _, args, how: seen.append(how["phases"]), with_kwargs=True)
    calls: list[float] = []
    real = Rope.phases
    monkeypatch.setattr(Rope, "phases", lambda self, at: calls.append(self.options.base) or real(self, at))
    tokens = torch.randint(40, (2, 9))
    lm(tokens)
    assert calls == [1e4, 1e6]  # once a scheme and forward
    ids = torch.arange(9)[None]
    due = [None, *(real(scheme, ids) for scheme in lm.schemes[1:])] * 2
    for given, expected in zip(seen, due, strict=True):
        assert (given is None) == (expected is None)
        assert expected is None or all(torch.equal(a, b) for a, b in zip(given, expected, strict=True))


@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        (["rope", "rope", "none"], {}),
        (["local", "global"], BASES),
        (["alibi", "rope"], {}),
        (["relative", "none", "rope"], {}),
    ],
)
def test_decoding_padding_packing_and_generation_are_right(pattern: list[str], options: dict) -> None:
    report = check_model(built(pattern, len(pattern), pattern_options=options), quick=True, n_tokens=16)
    assert not report.failures, report
    passed = {result.check for result in report.results if result.passed}
    assert {"decode_positions", "generation", "padded_generation", "left_padding", "documents_isolated"} <= passed


def test_what_reads_every_layer_cannot_be_of_some() -> None:
    with pytest.raises(Refused, match="learned adds positions to the embeddings, which every layer reads"):
        built(["rope", "learned"])
    assert built(["learned"]).longest == 2048
    with pytest.raises(Refused, match="gla cannot take alibi"):
        built(["none", "alibi"], attention="gla")
    hybrid = ModelConfig(n_layers=4, attention_pattern=["gla", "sdpa"], **SIZES)
    positions = PositionsConfig(pattern=["none", "alibi"])  # the bias falls on the layers that have scores
    assert assemble(hybrid, AttentionConfig("sdpa", {}), positions, 40, 0).scheme_of == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["positions.pattern=[rope,nope]"], "unknown position scheme 'nope'; did you mean 'rope'"),
        (["positions.pattern=[rope,none]", "positions=rope"], "positions=rope would change nothing"),
        (
            ["positions.pattern=[rope,none]", "positions.pattern_options={k:{base:1}}"],
            "unknown entry of positions.pattern 'k'",
        ),
        (
            ["positions.pattern=[k]", "positions.pattern_options={k:{name:rope,bas:1}}"],
            r"pattern_options\.k\.bas'; did you mean",
        ),
        (
            ["positions.pattern=[k]", "positions.pattern_options={k:{name:rope,base:0}}"],
            r"pattern_options\.k\.base=0\.0: must be",
        ),
        (["positions.pattern=[none,none,none,rope]", "model.n_layers=3"], "the last would stand in no layer"),
        (["positions=alibi", "positions.base=3"], "it is an option of rope, sinusoidal"),
        (["positions.buckets=3"], "it is an option of relative"),
        (
            ["positions=relative", "positions.max_distance=16"],
            r"positions\.max_distance=16: must be more than the 16 distances",
        ),
        (["positions=learned", "positions.max_tokens=8"], r"positions\.max_tokens=8: learned has fewer positions"),
    ],
)
def test_a_wrong_choice_is_one_plain_line(overrides: list[str], said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        attnzoo.compose("train", overrides)
    assert not caught.value.reasons


def test_a_pattern_survives_its_file_and_its_export(tmp_path) -> None:
    overrides = [
        "positions.pattern=[local,none,global]",
        f"positions.pattern_options={json.dumps(BASES).replace(chr(34), '')}",
    ]
    cfg = attnzoo.compose("train", [*overrides, "model.n_layers=3", "model.d_model=32", "model.n_heads=4"])
    assert cfg.positions.pattern_options["global"] == {"name": "rope", "base": 1e6}
    assert from_dict(to_dict(cfg)) == cfg
    said = positions_name(layer_positions(cfg.model, cfg.attention, cfg.positions))
    assert said == "rope(base=10000.0)+none+rope(base=1000000.0)"
    lm = attnzoo.build_model(cfg, 40).eval()
    again = attnzoo.load(attnzoo.export(lm, tmp_path / "out"))
    tokens = torch.randint(40, (2, 9))
    assert torch.equal(again(tokens), lm(tokens))
    assert again.scheme_of == [0, 1, 2]


def test_group_options_are_of_every_entry_that_has_them() -> None:
    cfg = attnzoo.compose("train", ["positions.pattern=[rope,none]", "positions.base=5e5"])
    schemes = layer_positions(cfg.model, cfg.attention, cfg.positions)
    assert [(each.name, each.options) for each in schemes[:2]] == [("rope", {"base": 5e5}), ("none", {})]
    own = attnzoo.compose(
        "train",
        ["positions.pattern=[rope,far]", "positions.pattern_options={far:{name:rope,base:7}}", "positions.base=5e5"],
    )
    assert [each.options["base"] for each in layer_positions(own.model, own.attention, own.positions)[:2]] == [5e5, 7.0]


def test_auto_in_a_pattern_is_what_the_backend_is_published_with() -> None:
    model = ModelConfig(n_layers=4, attention_pattern=["gla", "sdpa"], **SIZES)
    schemes = layer_positions(
        model, AttentionConfig("x", {}), PositionsConfig(pattern=["auto", "auto", "auto", "none"])
    )
    assert [each.name for each in schemes] == ["none", "rope", "none", "none"]


OLD = {"name": "rope", "base": 500.0, "max_tokens": 4096, "buckets": 32, "max_distance": 128}
"""The form of 0.1: options of every scheme beside the name."""


def test_old_exports_and_run_folders_are_read(tmp_path) -> None:
    positions = PositionsConfig("learned", options={"max_tokens": 64})
    lm = assemble(ModelConfig(n_layers=1, **SIZES), AttentionConfig("exact", {}), positions, 40, 0).eval()
    assert {"positions.table.weight"} == {name for name in lm.state_dict() if name.startswith("positions")}
    folder = attnzoo.export(lm, tmp_path / "learned")
    config = json.loads((folder / "config.json").read_text())
    config["positions"] = OLD | {"name": "learned", "max_tokens": 64}
    del config["max_tokens"]
    (folder / "config.json").write_text(json.dumps(config))
    tokens = torch.randint(40, (2, 9))
    assert torch.equal(attnzoo.load(folder)(tokens), lm(tokens))
    cfg = attnzoo.compose("train", [])
    old = from_dict(to_dict(cfg) | {"positions": OLD})
    assert (old.positions.name, old.positions.options) == ("rope", {"base": 500.0})
    auto = from_dict(to_dict(cfg) | {"positions": OLD | {"name": "auto"}})
    assert auto.positions.options == {"base": 500.0}


def test_an_old_export_of_a_llama_keeps_its_length(tmp_path) -> None:
    lm = assemble(
        ModelConfig(n_layers=1, n_kv_heads=2, qk_norm=False, **SIZES), AttentionConfig("sdpa", {}),
        PositionsConfig("rope", options={"base": 500.0}), 40, 0,
    )  # fmt: skip
    folder = attnzoo.export(lm, tmp_path / "old")
    config = json.loads((folder / "config.json").read_text())
    config["positions"] = OLD
    del config["max_tokens"]
    (folder / "config.json").write_text(json.dumps(config))
    theirs = attnzoo.export_llama(attnzoo.load(folder), tmp_path / "llama")
    said = json.loads((theirs / "config.json").read_text())
    assert (said["rope_theta"], said["max_position_embeddings"]) == (500.0, 4096)
    assert attnzoo.from_llama(theirs).recipe.max_tokens == 4096


def test_more_positions_or_buckets_than_a_file_has_are_refused_before_they_are_made(tmp_path) -> None:
    for name, key in (("learned", "max_tokens"), ("relative", "buckets")):
        lm = assemble(ModelConfig(n_layers=1, **SIZES), AttentionConfig("exact", {}), PositionsConfig(name), 40, 0)
        folder = attnzoo.export(lm, tmp_path / name)
        config = json.loads((folder / "config.json").read_text())
        config["positions"] |= {key: 10**9} | ({"max_distance": 10**10} if name == "relative" else {})
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(RequestError) as caught:
            attnzoo.load(folder)
        assert f"positions.{key}=1000000000" in str(caught.value)


FILE = '''
from attnzoo.positions.rope import Rope

class Half(Rope):
    """Rope at half the speed."""

    def phases(self, positions):
        return super().phases(positions / 2)
'''


@pytest.mark.parametrize(
    "overrides",
    [
        ["positions={}"],
        ["positions.pattern=[{},none]"],
        ["positions.pattern=[a,none]", "positions.pattern_options={{a:{{name:{},base:7}}}}"],
    ],
)
@pytest.mark.usefixtures("files_forgotten")
def test_a_scheme_of_a_file_stands_wherever_one_is_named(tmp_path, overrides: list[str]) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    spec = f"{tmp_path / 'mine.py'}:Half"
    cfg = attnzoo.compose("train", [each.format(spec) for each in overrides])
    assert list(cfg.code) == ["positions:Half"]
    assert layer_positions(cfg.model, cfg.attention, cfg.positions)[0].name == "Half"
