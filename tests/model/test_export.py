"""A model written and read again is the same model, bit for bit; what does not fit is said whole."""

from __future__ import annotations

import json

import pytest
import torch

import attnzoo
from attnzoo.errors import RequestError
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.model.export import load_tokenizer
from attnzoo.tokenizers import ByteTokenizer

SIZES = {"n_layers": 2, "d_model": 32, "n_heads": 4}
TOKENS = torch.arange(24).view(2, 12)


def model(name: str = "sdpa", positions: str = "rope", options=None, **settings):
    """A model whose weights are those of no fresh one."""
    lm = assemble(
        ModelConfig(**SIZES, **settings), AttentionConfig(name, options or {}), PositionsConfig(positions), 32, 3
    )
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return lm.eval()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sdpa", {"short_conv": 3, "n_kv_heads": 2}),
        ("sliding_window", {"options": {"window": 5}, "positions": "learned"}),
        ("performer", {"options": {"seed": 7}}),
        ("gla", {"positions": "none"}),
        ("sink_logit", {"positions": "alibi"}),
        ("mla", {}),
        ("exact", {"tie_embeddings": False}),
        ("exact", {"attention_pattern": ["linear", "exact"], "attention_options": {"linear": {"chunk": 8}}}),
    ],
)
@torch.no_grad()
def test_logits_are_equal_bit_for_bit(name, settings, tmp_path):
    lm = model(name, **settings)
    attnzoo.export(lm, tmp_path / "out")
    again = attnzoo.load(tmp_path / "out")
    assert torch.equal(again(TOKENS), lm(TOKENS))
    assert not again.training
    assert again.recipe.model == lm.recipe.model
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "model.safetensors", "out"]


def test_the_type_of_the_weights_is_kept(tmp_path):
    attnzoo.export(model().bfloat16(), tmp_path / "out")
    assert attnzoo.load(tmp_path / "out").embedding.weight.dtype == torch.bfloat16


def test_the_options_are_written_out_and_the_vocabulary_kept(tmp_path):
    attnzoo.export(model("sliding_window"), tmp_path / "out", ByteTokenizer())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["attention"] == {"name": "sliding_window", "kernel": "auto", "window": 64}
    config["attention"] = {"name": "sliding_window", "options": {"kernel": "auto", "window": 32}}  # as 0.1 wrote it
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    assert attnzoo.load(tmp_path / "out").recipe.attention.options == {"kernel": "auto", "window": 32}
    assert load_tokenizer(tmp_path / "out").decode([72, 105]) == "Hi"
    attnzoo.export(model(), tmp_path / "none")
    assert load_tokenizer(tmp_path / "none") is None


def test_a_folder_that_is_taken_stays_as_it_was(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RequestError, match="choose a new folder"):
        attnzoo.export(model(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_every_fault_of_a_changed_configuration(tmp_path):
    attnzoo.export(model(), tmp_path / "out")
    file = tmp_path / "out" / "config.json"
    config = json.loads(file.read_text())
    config["model"] |= {"n_layer": 3, "d_model": "wide"}
    del config["seed"]
    file.write_text(json.dumps(config | {"vocab_size": None, "dtype": "float31"}))
    with pytest.raises(RequestError, match="cannot be used") as caught:
        attnzoo.load(tmp_path / "out")
    said = "\n".join(caught.value.reasons)
    parts = ("did you mean 'model.n_layers'", "model.d_model='wide'", "vocab_size=None", "seed is missing", "'float32'")
    assert all(part in said for part in parts), said


def test_what_is_no_export(tmp_path):
    with pytest.raises(RequestError, match="cannot read"):
        attnzoo.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(RequestError, match=r"attnzoo\.from_llama"):
        attnzoo.load(tmp_path)
    lm = model()
    lm.recipe = None
    with pytest.raises(RequestError, match="not built from settings"):
        attnzoo.export(lm, tmp_path / "out")


@pytest.mark.parametrize("change", [
    {"n_layers": 10**9}, {"mlp_width": 10**12}, {"n_heads": 10**9, "head_dim": 8}, {"d_model": 10**9}, {"mlp_ratio": 1e12},
    {"latent_dim": 10**12}, {"short_conv": 10**12},
])  # fmt: skip
def test_sizes_that_the_weights_do_not_hold_are_refused_before_they_are_allocated(tmp_path, change):
    from attnzoo.model.build import assemble
    from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig

    lm = assemble(ModelConfig(n_layers=1, d_model=16, n_heads=2), AttentionConfig("sdpa", {}), PositionsConfig(), 32, 0)
    attnzoo.export(lm, tmp_path / "out")
    config = json.loads((tmp_path / "out/config.json").read_text())
    config["model"] |= change
    (tmp_path / "out/config.json").write_text(json.dumps(config))
    with pytest.raises(RequestError) as caught:
        attnzoo.load(tmp_path / "out")
    assert f"model.{next(iter(change))}=" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"vocab_size": -1}, "vocab_size=-1"),
        ({"seed": 10**30}, "seed="),
        ({"attention": {}}, "attention.name is missing"),
        ({"model": {"match_parameters": "1e308"}}, "match_parameters=1e308: more than the"),
    ],
)
def test_settings_that_no_weights_could_have_are_refused_before_anything_is_made(tmp_path, change, said):
    cfg = attnzoo.compose("train", ["attention=sdpa", "model.n_layers=1", "model.d_model=16", "model.n_heads=2"])
    folder = tmp_path / "model"
    attnzoo.export(attnzoo.build_model(cfg), folder)
    config = json.loads((folder / "config.json").read_text())
    for key, value in change.items():
        config[key] = {**config[key], **value} if key == "model" else value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(RequestError, match=said):
        attnzoo.load(folder)
