"""To Hugging Face and back: transformers itself computes the same logits from the written folder.

Tolerance: both sum in float32 in other orders; over two layers of width 32 that is a few hundred roundings of 6e-8 on
logits of size 1 to 10. 1e-4 is what is promised, 2e-5 what is held here.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import attnzoo
from attnzoo.errors import Refused, RequestError
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.tokenizers import BPETokenizer, ByteTokenizer

SIZES = ModelConfig(n_layers=2, d_model=32, n_heads=4)
TOKENS = torch.arange(40).view(2, 20) % 32
CLOSE = {"atol": 2e-5, "rtol": 1e-5}


def model(name: str = "sdpa", base: float = 10000.0, **settings):
    """Norms and all other weights away from their initial values."""
    cfg = replace(SIZES, **settings)
    lm = assemble(cfg, AttentionConfig(name, {}), PositionsConfig("rope", options={"base": base}), 32, 0)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return lm.eval()


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("sdpa", "LlamaForCausalLM", {"qk_norm": False}),
        ("exact", "Qwen3ForCausalLM", {"qk_norm": True, "head_dim": 16}),
        ("gqa", "LlamaForCausalLM", {"qk_norm": False, "n_kv_heads": 2, "base": 500.0}),
        ("mqa", "Qwen3ForCausalLM", {"qk_norm": True, "norm_eps": 1e-3}),
        ("mqa", "LlamaForCausalLM", {"qk_norm": False, "match_parameters": "exact"}),
        ("sdpa", "LlamaForCausalLM", {"qk_norm": False, "tie_embeddings": False}),
        ("gqa", "Qwen3ForCausalLM", {"qk_norm": True, "n_kv_heads": 2, "tie_embeddings": False}),
    ],
)
@torch.no_grad()
def test_transformers_computes_the_same(name, kind, settings, tmp_path):
    transformers = pytest.importorskip("transformers")
    lm = model(name, **settings)
    attnzoo.export_llama(lm, tmp_path / "hf")
    theirs, said = getattr(transformers, kind).from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(said[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    torch.testing.assert_close(theirs.eval()(TOKENS).logits, lm(TOKENS), **CLOSE)
    again = attnzoo.from_llama(tmp_path / "hf", "exact" if name == "sdpa" else "sdpa")
    torch.testing.assert_close(again(TOKENS), lm(TOKENS), **CLOSE)
    assert (again.head is None) == settings.get("tie_embeddings", True) == theirs.config.tie_word_embeddings
    assert torch.equal(attnzoo.from_llama(theirs)(TOKENS), attnzoo.from_llama(tmp_path / "hf")(TOKENS))


@torch.no_grad()
def test_a_model_of_transformers_is_taken_over_and_sharded_files_too(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=45, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    lm = attnzoo.from_llama(tmp_path)
    torch.testing.assert_close(lm(TOKENS), theirs(TOKENS).logits, **CLOSE)
    attnzoo.export(lm, tmp_path / "out")
    assert torch.equal(attnzoo.load(tmp_path / "out")(TOKENS), lm(TOKENS))
    assert attnzoo.leak_test(lm, vocab_size=32, n_tokens=16).passed


def test_every_reason_why_it_has_no_equal(tmp_path):
    lm = assemble(
        replace(SIZES, short_conv=2, dropout=0.1, attention_pattern=["linear", "sdpa"]),
        AttentionConfig("sdpa", {}), PositionsConfig("learned"), 32, 0,
    )  # fmt: skip
    with pytest.raises(Refused) as caught:
        attnzoo.export_llama(lm, tmp_path / "hf")
    said = "\n".join(caught.value.reasons)
    for part in ("attention linear", "positions learned", "model.short_conv=2", "model.dropout=0.1"):
        assert part in said
    assert len(caught.value.reasons) == 4
    assert not (tmp_path / "hf").exists()


def test_every_reason_why_it_cannot_be_taken_over(tmp_path):
    attnzoo.export_llama(model(), tmp_path / "hf")
    file = tmp_path / "hf" / "config.json"
    config = json.loads(file.read_text())
    changed = {"hidden_act": "gelu", "attention_bias": True, "rope_parameters": {"rope_type": "yarn"},
               "use_sliding_window": True}  # fmt: skip
    file.write_text(json.dumps(config | changed))
    with pytest.raises(Refused) as caught:
        attnzoo.from_llama(tmp_path / "hf", "linear")
    said = "\n".join(caught.value.reasons)
    for part in ("'linear'", "gelu", "attention_bias", "yarn", "sliding window"):
        assert part in said
    assert len(caught.value.reasons) == 5


def test_weights_that_do_not_fit(tmp_path):
    lm = model()
    attnzoo.export_llama(lm, tmp_path / "hf")
    file = tmp_path / "hf" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_hidden_layers": 1, "vocab_size": 31}))
    with pytest.raises(Refused) as caught:
        attnzoo.from_llama(tmp_path / "hf")
    assert "model.embed_tokens.weight is (32, 32), expected (31, 32)" in caught.value.reasons
    assert any("model.layers.1." in reason and "no place" in reason for reason in caught.value.reasons)
    (tmp_path / "hf" / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RequestError, match="cannot be read"):
        attnzoo.from_llama(tmp_path / "hf")
    file.write_text(json.dumps({"model_type": "llma"}))
    (tmp_path / "hf" / "model.safetensors").unlink()
    with pytest.raises(RequestError, match="missing"):
        attnzoo.from_llama(tmp_path / "hf")


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
def test_a_head_of_its_own_is_taken_over(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=4, head_dim=8, tie_word_embeddings=False, initializer_range=0.3,
    )  # fmt: skip
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    theirs.save_pretrained(tmp_path / "hf")
    for source in (theirs, tmp_path / "hf"):
        lm = attnzoo.from_llama(source)
        assert not torch.equal(lm.head_weight, lm.embedding.weight)
        torch.testing.assert_close(lm(TOKENS), theirs(TOKENS).logits, **CLOSE)
    file = tmp_path / "hf" / "config.json"
    whole = json.loads(file.read_text())
    file.write_text(json.dumps({key: value for key, value in whole.items() if key != "tie_word_embeddings"}))
    assert attnzoo.from_llama(tmp_path / "hf").head is not None  # the weights say it where the configuration does not
    file.write_text(json.dumps(whole | {"tie_word_embeddings": True}))
    with pytest.raises(Refused, match="cannot be taken over") as caught:
        attnzoo.from_llama(tmp_path / "hf")
    assert caught.value.reasons == ["tie_word_embeddings is true, but lm_head has weights of its own"]


def test_a_head_that_is_missing_is_named(tmp_path):
    attnzoo.export_llama(model(qk_norm=False), tmp_path / "hf")
    file = tmp_path / "hf" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tie_word_embeddings": False}))
    with pytest.raises(Refused) as caught:
        attnzoo.from_llama(tmp_path / "hf")
    assert caught.value.reasons == ["lm_head.weight is missing"]


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_the_tokenizer_goes_along(kind, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    text = "Call me Ishmael.\n\tSome years ago — never mind \x00"
    ours = ByteTokenizer() if kind == "bytes" else BPETokenizer.train(text.encode() * 3, 300)
    attnzoo.export_llama(model(), tmp_path / "hf", ours)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "hf" / "tokenizer.json"))
    line = text.splitlines()[0]  # a token of ours never spans a line end
    assert theirs.encode(line).ids == ours.encode(line)
    assert theirs.decode(ours.encode(text)) == text


def changed(folder, **values):
    """The exported folder with other values in its configuration; None takes a key away."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | values
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


@pytest.fixture
def llama(tmp_path):
    attnzoo.export_llama(model(base=1000.0), tmp_path / "hf")
    return tmp_path / "hf"


@pytest.mark.parametrize(
    ("said", "base"),
    [
        ({"rope_scaling": {"rope_type": "default", "rope_theta": 1000}}, 1000.0),
        ({"rope_parameters": {"rope_theta": 500.0}}, 500.0),
        ({"rope_theta": 1000}, 1000.0),
        ({"rope_theta": 1000.0, "rope_parameters": {"rope_theta": 1000}, "rope_scaling": {"type": "default"}}, 1000.0),
        ({}, 10000.0),
    ],
)
def test_the_base_of_rope_is_read_wherever_it_stands(llama, said, base):
    changed(llama, rope_theta=None, rope_parameters=None)
    assert attnzoo.from_llama(changed(llama, **said)).recipe.positions.options["base"] == base


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"rope_theta": 500.0}, "said twice"),
        ({"rope_scaling": {"rope_type": "default", "rope_theta": 7.0}}, "said twice"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling.rope_type=linear"),
        ({"rope_parameters": {"type": "yarn", "rope_theta": 1000.0}}, "rope_parameters.type=yarn"),
        ({"rope_scaling": {"rope_type": "default", "type": "linear"}}, "rope_scaling.type=linear"),
        ({"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial"),
        ({"partial_rotary_factor": 0.5}, "partial"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "differs by kind of layer"),
        ({"rope_parameters": 3}, "must be a group of keys"),
        ({"rope_theta": "1000"}, "must be a number"),
        ({"rope_theta": -1}, "more than 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000: its files hold"),
        ({"intermediate_size": 10**9}, "intermediate_size=1000000000: more than"),
        ({"num_attention_heads": 10**9}, "num_attention_heads=1000000000: more than"),
        ({"vocab_size": 10**12}, "vocab_size=1000000000000: more than"),
        ({"hidden_size": 0}, "hidden_size=0: must be a whole number, 1 or more"),
        ({"head_dim": "8"}, "head_dim='8'"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps='x'"),
        ({"max_position_embeddings": 2**40}, "max_position_embeddings"),
        ({"model_type": ["llama"]}, "unknown model_type"),
    ],
)
def test_what_is_said_twice_or_otherwise_is_refused(llama, said, reason):
    with pytest.raises(RequestError) as caught:
        attnzoo.from_llama(changed(llama, **said))
    assert reason in str(caught.value)


@pytest.mark.parametrize(("base", "dtype", "right"), [
    (1000.0, torch.float32, True), (1000.0, torch.bfloat16, True), (10000.0, torch.float32, False), (990.0, torch.float32, False),
])  # fmt: skip
def test_frequencies_in_a_file_are_those_of_the_base_or_refused(llama, base, dtype, right):
    from safetensors.torch import load_file, save_file

    held = load_file(llama / "model.safetensors")
    held["model.layers.0.self_attn.rotary_emb.inv_freq"] = (base ** -(torch.arange(0, 8, 2) / 8)).to(dtype)
    save_file(held, llama / "model.safetensors")
    if right:
        assert attnzoo.from_llama(llama).recipe.positions.options["base"] == base
    else:
        with pytest.raises(Refused, match="other frequencies"):
            attnzoo.from_llama(llama)


@pytest.mark.parametrize("index", [
    "[]", "{}", "[" * 5000,
    '{"weight_map": 3}', '{"weight_map": {}}', '{"weight_map": {"a": "../x"}}', '{"weight_map": {"a": "/x"}}',
    '{"weight_map": {"a": 3}}', '{"weight_map": {"a": ".."}}', '{"weight_map": {"a": ""}}', '{"weight_map": {"a": "x/y"}}',
])  # fmt: skip
def test_an_index_names_files_beside_it_alone(llama, index):
    (llama / "model.safetensors.index.json").write_text(index)
    with pytest.raises(RequestError, match=r"index\.json"):
        attnzoo.from_llama(llama)
