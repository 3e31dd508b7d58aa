"""Latent keys and values: decoding from the latent equals the parallel pass, and full rank gives plain attention back."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import attnzoo
from attnzoo import Mask, build, registry
from attnzoo.checks.subject import Subject
from attnzoo.errors import Refused, RequestError
from attnzoo.model import AttentionLayer, build_model
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.positions import build_positions, rotate
from attnzoo.training.config import RunConfig

FITTING = [
    name
    for name in attnzoo.list_backends()
    if registry.get(name).capabilities.products and not attnzoo.why_not(name, n_heads=4, head_dim=8, training=False)
]
# float32 sums in another order and another basis, through two layers: far below any of the differences a bug makes (> 0.1)
CLOSE = {"atol": 2e-4, "rtol": 2e-4}


def config(name: str = "mla", positions: str = "rope", **settings) -> RunConfig:
    model = ModelConfig(
        **{"n_layers": 2, "d_model": 32, "n_heads": 4, "projection": "mla", "latent_dim": 12} | settings
    )
    attention = AttentionConfig(name, dataclasses.asdict(Subject.of(name).small))
    return RunConfig(attention, PositionsConfig(positions), model)


def make(*args, **settings):
    model = build_model(config(*args, **settings), 50).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("positions", ["none", "rope", "relative"])
@pytest.mark.parametrize("name", [n for n in FITTING if n != "mqa"])
def test_decoding_from_the_latent_equals_the_parallel_pass(name, positions):
    if positions == "relative" and not registry.get(name).capabilities.bias:
        pytest.skip("it takes no score bias, and says so")
    model, tokens = make(name, positions, short_conv=3), torch.randint(50, (2, 23))
    with torch.no_grad():
        full = model(tokens)
        for split in ([1] * 23, [7, 1, 1, 9, 5], [20, 3]):
            cache = model.new_cache(2, 23)
            parts = [model(part, cache=cache) for part in tokens.split(split, 1)]
            torch.testing.assert_close(torch.cat(parts, 1), full, **CLOSE)


def test_only_the_latent_and_the_decoupled_key_are_kept():
    model = make(rope_dim=2)
    cache = model.new_cache(3, 40)
    assert [layer.nbytes for layer in cache.layers] == [3 * 40 * (12 + 2) * 4] * 2
    held = cache.layers[0].attention
    assert held.values.data_ptr() == held.keys.data_ptr()
    before = held.keys.data_ptr()
    model(torch.randint(50, (3, 39)), cache=cache)
    assert held.keys.data_ptr() == before  # in place, never reallocated


@pytest.mark.parametrize("name", [n for n in FITTING if n != "mqa"])
def test_the_cache_takes_what_its_formula_says(name):
    model = make(name, short_conv=3)
    declared = sum(block.attention.cache_bytes(2, 40, torch.float32) for block in model.layers)
    assert model.new_cache(2, 40).nbytes == declared


def test_heads_choose_and_compress_as_they_do_beside_keys_of_their_own():
    """nsa with one latent for all heads: a group is still a head, so that each has its own summaries, of width r + Dr."""
    model = make("nsa", rope_dim=2)
    attention, cache = model.attention_modules()[0], model.new_cache(3, 40).layers[0].attention
    assert (attention.groups, model.layers[0].attention.projection.decoder(attention).groups) == (4, 4)
    c = attention.options.block
    assert cache.nbytes == 3 * (40 * (12 + 2) * 4 + 2 * 4 * (40 // c) * (12 + 2) * 8)


def test_full_rank_can_be_plain_attention():
    """r = C, the latent is x itself, and W and U are the key and value matrices of the heads."""
    cfg = ModelConfig(d_model=8, n_heads=2, qk_norm=False, projection="mla", latent_dim=8, rope_dim=0)
    plain = AttentionLayer(build("exact", n_heads=2, head_dim=4), ModelConfig(d_model=8, n_heads=2, qk_norm=False))
    latent = AttentionLayer(build("mla", n_heads=2, head_dim=4), cfg)
    x = torch.randn(2, 7, 8)
    with torch.no_grad():
        q, k, v = plain.projection.qkv.weight.view(3, 2, 4, 8)
        latent.projection.qkv.weight.copy_(torch.cat([q.flatten(0, 1), torch.eye(8)]))
        latent.projection.expand.weight.copy_(torch.cat([k, v], 1).flatten(0, 1))
        latent.out.weight.copy_(plain.out.weight)
        expected, cache = plain(x), latent.new_cache(2, 7)
        torch.testing.assert_close(latent(x), expected)
        decoded = [latent(token, cache=cache) for token in x.split(1, 1)]
        torch.testing.assert_close(torch.cat(decoded, 1), expected)


def test_the_layer_is_what_the_paper_says():
    """q, k and v a head at a time, rope of width Dr on the decoupled parts alone."""
    cfg = ModelConfig(d_model=16, n_heads=2, projection="mla", latent_dim=5, rope_dim=2)
    layer = AttentionLayer(build("mla", n_heads=2, head_dim=8), cfg)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x, at, p = torch.randn(1, 6, 16), torch.arange(6)[None], layer.projection
    seen = {}
    layer.attention.register_forward_pre_hook(lambda module, args: seen.update(zip("qkv", args, strict=False)))
    layer(x, phases=build_positions("rope", d_model=16, n_heads=2, head_dim=8, base=100.0).phases(at))
    q, latent, key = p.qkv(x).split([16, 5, 2], -1)
    latent, key, small = (
        p.latent_norm(latent),
        p.k_norm(key),
        build_positions("rope", d_model=16, n_heads=2, head_dim=2, base=100.0).phases(at),
    )
    for head in range(2):
        w, u = p.expand.weight[head * 14 : head * 14 + 6], p.expand.weight[head * 14 + 6 : head * 14 + 14]
        turned = rotate(p.q_norm(q[..., head * 8 : head * 8 + 8])[:, None], (torch.ones(1), torch.zeros(1)))[:, 0]
        q_head = torch.cat([turned[..., :6], rotate(turned[:, None, :, 6:], small)[:, 0]], -1)
        k_head = torch.cat([latent @ w.T, rotate(key[:, None], small)[:, 0]], -1)
        for name, expected in {"q": q_head, "k": k_head, "v": latent @ u.T}.items():
            torch.testing.assert_close(seen[name][:, head], expected, atol=1e-5, rtol=1e-5)


def test_packed_documents_and_padding_are_as_if_alone():
    model = make(short_conv=3)
    one, two = torch.randint(50, (2, 9)), torch.randint(50, (2, 14))
    documents = torch.tensor([[3] * 9 + [1] * 14] * 2)
    with torch.no_grad():
        packed = model(torch.cat([one, two], 1), documents=documents)
        torch.testing.assert_close(packed[:, 9:], model(two), **CLOSE)
        real = torch.arange(23).expand(2, -1) >= 9
        padded = model(torch.cat([one, two], 1), key_padding=real)
        torch.testing.assert_close(padded[:, 9:], model(two), **CLOSE)
    assert torch.equal(model.generate(two, 8), model.generate(two, 8, use_cache=False))


def test_cross_attention_reads_latents_of_the_context():
    layer = AttentionLayer(build("mla", n_heads=2, head_dim=4), ModelConfig(d_model=8, projection="mla"))
    x, context = torch.randn(1, 6, 8), torch.randn(1, 9, 8)
    torch.testing.assert_close(layer(x, Mask(), context=x), layer(x, Mask()))
    assert layer(x, Mask(causal=False), context=context).shape == (1, 6, 8)


def test_it_stands_beside_other_layers():
    cfg = config(projection=None)
    cfg.model.attention_pattern = ["mla", "linear"]
    model, tokens = build_model(cfg, 50).eval(), torch.randint(50, (1, 12))
    with torch.no_grad():
        cache = model.new_cache(1, 12)
        parts = [model(token, cache=cache) for token in tokens.split(1, 1)]
        torch.testing.assert_close(torch.cat(parts, 1), model(tokens), **CLOSE)


def test_parameters_and_operations_are_counted():
    model, n = make(n_layers=1), 16
    projection = 32 * (32 + 12 + 4) + 12 * 4 * (16 - 4)
    hidden = model.blocks[0].mlp.down.in_features
    norms = 8 + 12 + 4 + 3 * 32
    assert model.parameter_count() == 50 * 32 + projection + 32 * 32 + 3 * hidden * 32 + norms
    attention = 4 * 32 * n * (n + 1) / 2
    assert model.flops(n) == 2 * n * (50 * 32 + projection + 32 * 32 + 3 * hidden * 32) + attention


REFUSED = {
    "gla": ({}, "gla does not see q and k through q·k of whole heads alone"),
    "linear": ({}, "linear does not see q and k"),
    "differential": ({}, "differential does not see q and k"),
    "sdpa": ({"n_kv_heads": 2}, "n_kv_heads=2: mla makes keys and values of every head"),
    "exact": ({"rope_dim": 3}, "rope_dim=3: must be even and a true divisor of the head dim 8"),
    "mla": ({"rope_dim": 0}, "rope_dim=0 leaves mla no channels that rope could turn"),
    "mqa": ({}, "mqa has one key/value head"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    settings, reason = REFUSED[name]
    with pytest.raises(Refused) as refused:
        make(name, **settings)
    assert reason in str(refused.value)


def test_an_unknown_projection_names_the_nearest():
    with pytest.raises(RequestError, match="did you mean mla"):
        attnzoo.compose("train", ["model.projection=mlp"])


def test_a_run_records_the_latents_size(tmp_path):
    tiny = [
        "experiment=tiny",
        "trainer.precision=fp32",
        "probe=none",
        "measure.memory=false",
        "measure.timing=false",
        "logger=disabled",
    ]
    sizes = {}
    for name in ("sdpa", "mla"):
        record = attnzoo.train(attnzoo.compose("train", [*tiny, f"attention={name}", f"run_dir={tmp_path / name}"]))
        assert (record.status, record.attention, record.correct.passed, record.leak.passed) == ("ok", name, True, True)
        assert record.cost.cache_bytes == record.cost.cache_bytes_formula
        sizes[name] = record.cost.cache_bytes
    assert sizes["mla"] / sizes["sdpa"] == (16 + 4) / (2 * 32)  # r = 2·D and Dr = D/2 against 2·H·D, with D = 8, H = 4


def test_a_fused_kernel_decodes_the_latent():
    model = make()
    cache = model.new_cache(1, 9)
    with torch.no_grad():
        model(torch.randint(50, (1, 8)), cache=cache)
        model(torch.randint(50, (1, 1)), cache=cache)
    assert model.kernel == "sdpa/flash"


@pytest.mark.parametrize("own", ["new_cache", "cache_bytes"])
def test_a_cache_that_knows_no_value_dim_is_refused_before_any_work(monkeypatch, own):
    sdpa, inherited = registry.get("sdpa"), getattr(attnzoo.Attention, own)
    if own == "new_cache":
        changed = lambda self, batch_size, max_tokens, device=None, dtype=None: inherited(  # noqa: E731
            self, batch_size, max_tokens, device, dtype
        )
    else:
        changed = lambda self, batch_size, max_tokens, dtype: inherited(self, batch_size, max_tokens, dtype)  # noqa: E731
    monkeypatch.setattr(sdpa, own, changed)
    with pytest.raises(Refused) as caught:
        build_model(config("sdpa"), 50)
    assert f"{own} takes no value_dim" in str(caught.value)
    layer = build_model(config("sdpa", projection="qkv"), 50).layers[0].attention
    assert layer.new_cache(1, 4).nbytes == layer.cache_bytes(1, 4, torch.float32)


def test_mla_decodes_as_its_attention_is_now(make_model):
    """What decodes is another object, that must not keep what the attention was when the model was built."""
    model = make_model("mla")
    attention = model.attention_modules()[0]
    decoder = model.blocks[0].attention.projection.decoder
    assert (decoder(attention).scale, decoder(attention).training) == (attention.scale, False)
    attention.scale = 7.0
    attention.train()
    assert (decoder(attention).scale, decoder(attention).training) == (7.0, True)
    assert (attention.n_kv_heads, decoder(attention).n_kv_heads) == (4, 1)
