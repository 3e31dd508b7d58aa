"""Public bug reports about models, data and training, reduced to a small input with the right value.

Each test is named after its report. Reports about one operator are tested in the conformance suite and with the
backends, those of the training loop in tests/training.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attnzoo
from attnzoo import CausalLM, Mask, RequestError, leak_test
from attnzoo.checks.canary import entropy_canary
from attnzoo.data.config import DataConfig
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.model.layer import AttentionLayer
from attnzoo.optimizers.base import parameter_groups
from attnzoo.positions import build_positions
from attnzoo.positions.alibi import alibi_slopes
from attnzoo.shapes import IGNORE
from attnzoo.tasks.build import build_task
from attnzoo.tasks.config import TaskConfig

V = 32
EPS = 1e-5  # logits are of order 1 and float32 rounds them at 1e-7 a step
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def lm(name="sdpa", positions="rope", options=None, vocab_size=V, **sizes) -> CausalLM:
    sizes = {"n_layers": 2, "d_model": 32, "n_heads": 4} | sizes
    attention, places = AttentionConfig(name, options or {}), PositionsConfig(name=positions)
    return assemble(ModelConfig(**sizes), attention, places, vocab_size, 0).eval()


def tokens(*shape):
    return torch.randint(V, shape)


def seen_by(model, n_tokens, position):
    """How many tokens have a gradient in the logits of one position."""
    embedded = []
    hook = model.embedding.register_forward_hook(
        lambda module, args, out: embedded.append(out.detach().requires_grad_()) or embedded[0]
    )
    logits = model(tokens(1, n_tokens))
    hook.remove()
    (gradient,) = torch.autograd.grad(logits[0, position].sum(), embedded[0])
    return int(gradient[0].any(-1).sum())


def decoded(model, row, prefill):
    """Logits of all tokens: a prefill, then one token after another."""
    cache = model.new_cache(len(row), row.shape[1])
    parts = [model(row[:, :prefill], cache=cache)]
    parts += [model(row[:, t : t + 1], cache=cache) for t in range(prefill, row.shape[1])]
    return torch.cat(parts, 1)


# -- alignment, windows, caches ----------------------------------------------------------------------------------------


def test_pytorch_103082_a_decoded_token_sees_every_key():
    """Row 1: is_causal is top-left, so one query over five keys saw key 0 only."""
    model, row = lm(), tokens(2, 5)
    with torch.no_grad():
        torch.testing.assert_close(decoded(model, row, 4)[:, -1], model(row)[:, -1], atol=EPS, rtol=0)
        only_first = model(torch.cat([row[:, :1], row[:, 4:]], 1))[:, -1]
    assert (only_first - model(row)[:, -1]).abs().max() > 100 * EPS  # what the bug would have given differs


def test_flash_attention_951_two_decoded_tokens_see_four_and_five_keys():
    """Row 2: rows 11110 and 11111."""
    assert Mask().grid(2, 5) == "x x x x .\nx x x x x"
    model, row = lm("exact"), tokens(1, 5)
    cache = model.new_cache(1, 5)
    with torch.no_grad():
        model(row[:, :3], cache=cache)
        torch.testing.assert_close(model(row[:, 3:], cache=cache), model(row)[:, 3:], atol=EPS, rtol=0)


@pytest.mark.parametrize("name", ["exact", "sdpa", "sliding_window"])
def test_pytorch_41508_103963_an_empty_row_poisons_nothing(name):
    """Rows 5 and 6: padding on the left leaves rows that see no key; every gradient stays finite."""
    model = lm(name, options={"window": 3} if name == "sliding_window" else {})
    row, real = tokens(2, 12), torch.ones(2, 12, dtype=torch.bool)
    real[0, :7] = False
    targets = torch.where(real, row.roll(-1, 1), IGNORE)
    model.loss(model(row, key_padding=real), targets).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert any(p.grad.any() for p in model.parameters())


def test_litgpt_2182_a_prefill_longer_than_the_window_sees_no_future():
    """Row 13: W = 4, prefill 6: a ring that is filled before it is read shows early queries the future."""
    model, row = lm("sliding_window", options={"window": 4}), tokens(1, 9)
    with torch.no_grad():
        torch.testing.assert_close(decoded(model, row, 6), model(row), atol=EPS, rtol=0)


def test_nanochat_452_decoding_keeps_the_window():
    """Row 15: W = 3, step 6 equals the windowed row; the first three tokens no longer matter to a single layer."""
    model, row = lm("sliding_window", options={"window": 3}, n_layers=1), tokens(1, 7)
    other = torch.cat([(row[:, :4] + 1) % V, row[:, 4:]], 1)
    with torch.no_grad():
        step = decoded(model, row, 3)[:, 6]
        torch.testing.assert_close(step, model(row)[:, 6], atol=EPS, rtol=0)
        torch.testing.assert_close(step, decoded(model, other, 3)[:, 6], atol=EPS, rtol=0)


def test_transformers_39408_a_window_of_w_holds_w_keys():
    """Row 16: W = 3, T = 8: counts 1, 2, 3, 3, 3, …"""
    model = lm("sliding_window", options={"window": 3}, n_layers=1)
    assert [seen_by(model, 8, i) for i in range(8)] == [1, 2, 3, 3, 3, 3, 3, 3]


def test_unsloth_8253_the_window_reaches_the_kernel_and_zero_is_refused():
    """Row 18: T > W is a band; W ≤ 0 is an error, not empty rows."""
    assert seen_by(lm("sliding_window", options={"window": 5}, n_layers=1), 40, 39) == 5
    for window in (0, -1):
        with pytest.raises(RequestError, match="at least 1 key"):
            lm("sliding_window", options={"window": window})
        with pytest.raises(RequestError, match="at least 1 key"):
            Mask(window=window)


def test_prime_rl_2681_onnx_7274_key_heads_are_repeated_along_heads_and_interleaved():
    """Rows 19 and 20: H = 4, G = 2, the values of key head g are the constant g: 0, 0, 1, 1 at every token."""
    layer = AttentionLayer(
        attnzoo.build("sdpa", n_heads=4, n_kv_heads=2, head_dim=8), ModelConfig(d_model=32, qk_norm=False)
    )
    heads = []
    layer.attention.register_forward_hook(lambda module, args, out: heads.append(out))
    with torch.no_grad():
        layer.projection.qkv.weight[-16:] = 0  # the value projection; its constant comes from the hook below
    layer.attention.register_forward_pre_hook(
        lambda module, args: (*args[:2], torch.arange(2.0).view(1, 2, 1, 1).expand_as(args[2]), *args[3:])
    )
    layer(torch.randn(1, 6, 32))
    expected = torch.tensor([0.0, 0.0, 1.0, 1.0]).view(1, 4, 1, 1).expand(1, 4, 6, 8)
    torch.testing.assert_close(heads[0], expected, atol=1e-6, rtol=0)  # a mean of equal numbers, rounded once


# -- positions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rope", "alibi"])
def test_mlx_vlm_1983_a_decoded_token_has_its_own_position(positions):
    """Row 24: prefill 4, then 1: position 4."""
    model, row = lm(positions=positions), tokens(1, 5)
    with torch.no_grad():
        torch.testing.assert_close(decoded(model, row, 4)[:, 4], model(row)[:, 4], atol=EPS, rtol=0)


def test_megatron_535_positions_256_and_257_differ_in_bfloat16():
    """Row 25: as bfloat16 both are 256."""
    assert torch.tensor(257.0).bfloat16() == 256
    cos, sin = (
        build_positions("rope", d_model=16, n_heads=2, head_dim=8, base=10000.0)
        .to(torch.bfloat16)
        .phases(torch.tensor([[256, 257]]))
    )
    assert cos.dtype == torch.float32
    torch.testing.assert_close(cos[0, 0, :, 0], torch.tensor([256.0, 257.0]).cos(), atol=1e-4, rtol=0)
    assert not torch.equal(sin[..., 0, :], sin[..., 1, :])


def test_automodel_2549_a_cast_model_keeps_the_rope_table():
    """Row 26: .to(bfloat16) must not round cos and sin for good."""
    ids = torch.arange(300)[None]
    before = lm().positions.phases(ids)
    cast = lm().to(torch.bfloat16).positions.phases(ids)
    back = lm().to(torch.bfloat16).float().positions.phases(ids)
    for right, one, two in zip(before, cast, back, strict=True):
        assert torch.equal(one, right)
        assert torch.equal(two, right)


def test_mlx_3071_alibi_slopes_of_six_heads():
    """Row 28."""
    assert alibi_slopes(6) == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]


def test_vit_pytorch_65_the_scale_is_that_of_the_head():
    """Row 29: width 64, H = 4, q·k = [16, 0]: over sqrt(16) the weight is .98201; over sqrt(64) it would be .88080."""
    attention = lm(d_model=64).attention_modules()[0]
    q, k = torch.zeros(1, 4, 1, 16), torch.zeros(1, 4, 2, 16)
    q[..., 0], k[:, :, 0, 0] = 4.0, 4.0
    v = torch.tensor([1.0, 0.0]).view(1, 1, 2, 1).expand(1, 4, 2, 16)
    torch.testing.assert_close(attention(q, k, v), torch.full((1, 4, 1, 16), 0.98201), atol=1e-5, rtol=0)


def test_transformers_18388_thirty_two_pads_on_the_left_change_nothing():
    """Row 51: logits as without them, within 1e-5, for every position scheme."""
    for positions in ("learned", "sinusoidal", "rope", "alibi", "none"):
        model, row = lm(positions=positions), tokens(2, 9)
        real = F.pad(torch.ones(2, 9, dtype=torch.bool), (32, 0))
        with torch.no_grad():
            padded = model(F.pad(row, (32, 0)), key_padding=real)[:, 32:]
            torch.testing.assert_close(padded, model(row), atol=1e-5, rtol=0)


# -- modes, compilation, leaks -----------------------------------------------------------------------------------------


def test_pytorch_124464_nanogpt_240_dropout_is_off_in_evaluation():
    """Row 31: p = .5, two calls, identical; in training they are not."""
    model, row = lm(dropout=0.5, attention_dropout=0.5), tokens(2, 16)
    with torch.no_grad():
        assert torch.equal(model(row), model(row))
        assert torch.equal(model(row), lm()(row))
        model.train()
        assert not torch.equal(model(row), model(row))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sdpa", "linear"])
def test_transformers_48745_fresh_random_tokens_stay_at_ln_64(name):
    """Row 40: V = 64, trained: the loss is at least ln 64 = 4.159, up to sampling; without causality it falls."""
    canary = entropy_canary(lambda: lm(name, vocab_size=64), 64, n_tokens=16, steps=80)
    assert canary.passed, canary

    def acausal():
        model = lm("exact", vocab_size=64)
        for attention in model.attention_modules():
            attention.attend = lambda q, k, v, *_: F.scaled_dot_product_attention(q, k, v)
        return model

    assert name == "linear" or not entropy_canary(acausal, 64, n_tokens=16, steps=80).passed


def trainable():
    return [name for name in attnzoo.list_backends() if not attnzoo.why_not(name, head_dim=8, n_heads=4)]


@pytest.mark.parametrize("name", trainable())
def test_linformer_25_changing_the_suffix_changes_no_earlier_logit(name):
    """Row 42: a projection along the sequence leaks. Every backend that trains here is asked."""
    report = leak_test(lm(name), vocab_size=V, n_tokens=20, cuts=[1, 7, 10, 16, 19])
    assert report.passed, report


def test_pytorch_148545_a_second_shape_is_as_good_as_the_first():
    """Row 47: NaN at the second shape; the same model at several lengths, each equal to a fresh one's result."""
    model = lm()
    with torch.no_grad():
        for n in (16, 24, 7, 24):
            row = torch.arange(2 * n).view(2, n) % V
            assert model(row).isfinite().all()
            assert torch.equal(model(row), lm()(row))


# -- packed documents --------------------------------------------------------------------------------------------------


def copies(batch, n=8):
    """Rows of n random symbols and their copy, targets scored within the copy, and the documents' ids."""
    doc = tokens(batch, n)
    row = torch.cat([doc, doc], 1)
    targets = F.pad(row[:, 1:], (0, 1), value=IGNORE)
    targets[:, :n] = IGNORE
    return row, targets, torch.arange(2 * n).div(n, rounding_mode="floor").expand(batch, -1)


@pytest.mark.slow
def test_profam_495_a_packed_copy_stays_at_chance():
    """Row 48: document 1 is random, document 2 copies it: apart, the copy cannot be predicted; together it can."""
    losses = {}
    for apart in (True, False):
        torch.manual_seed(0)
        model = lm("exact", d_model=64, short_conv=3).train()
        optimiser, seen = torch.optim.AdamW(model.parameters(), lr=5e-3), []
        for _ in range(90):
            row, targets, ids = copies(16)
            loss = model.loss(model(row, documents=ids if apart else None), targets)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            seen.append(loss.item())
        losses[apart] = sum(seen[-30:]) / 30
    # fresh symbols: the expected loss is at least ln 32; the mean over 30 · 16 · 7 predictions is off by less than .05
    assert losses[True] > math.log(V) - 0.05
    assert losses[False] < math.log(V) - 0.5, losses


def test_wrinklefree_53_documents_are_isolated_and_not_only_repositioned():
    """Row 49: change document 1, document 2 is bitwise unchanged; positions restart in both."""
    for name in ("exact", "sdpa", "linear"):
        model = lm(name)
        row, _, ids = copies(2)
        other = torch.cat([(row[:, :8] + 1) % V, row[:, 8:]], 1)
        with torch.no_grad():
            packed = model(row, documents=ids)
            assert torch.equal(model(other, documents=ids)[:, 8:], packed[:, 8:])
            torch.testing.assert_close(packed[:, 8:], model(row[:, 8:]), atol=EPS, rtol=0)
            assert not torch.equal(model(row)[:, 8:], packed[:, 8:])  # without ids they are one document


# -- data and loss -----------------------------------------------------------------------------------------------------


@pytest.fixture
def file_task(tmp_path):
    def make(content: bytes, n_tokens: int):
        path = tmp_path / "text.txt"
        path.write_bytes(content)
        data = DataConfig("files", validation_fraction=0.5, allow_shared_text=True, options={"paths": [str(path)]})
        return build_task(TaskConfig(name="text", n_tokens=n_tokens), data, 0)

    return make


def test_transformers_47394_labels_are_shifted_once(file_task):
    """Row 53: ids 1, 2, 3, 4 have the targets 2, 3, 4, in training and in validation."""
    task = file_task(bytes(range(65, 91)) * 2, n_tokens=3)
    for batch in (task.train_batch(0, 8), next(task.validation_batches(2))):
        assert torch.equal(batch.targets[:, :-1], batch.tokens[:, 1:])
        same_run = batch.tokens < 90  # after Z the alphabet starts again
        assert torch.equal(batch.targets[same_run], batch.tokens[same_run] + 1)


@pytest.mark.parametrize("n_tokens", [7, 10])
def test_mlx_lm_1855_perplexity_does_not_depend_on_the_batch_size(file_task, n_tokens):
    """Row 57: padding is not scored: one number for batches of 1, 3 and 8, every token scored once."""
    text = bytes(97 + (7 * i * i + i) % 26 for i in range(128))
    task, model = file_task(text, n_tokens), lm(vocab_size=256)
    sums = []
    for batch_size in (1, 3, 8):
        total, count = 0.0, 0
        for batch in task.validation_batches(batch_size):
            scored = int((batch.targets != IGNORE).sum())
            with torch.no_grad():
                total += float(model.loss(model(batch.tokens), batch.targets)) * scored
            count += scored
        sums.append((total / count, count))
    assert {count for _, count in sums} == {len(task.corpus.validation) - 1}
    assert max(loss for loss, _ in sums) - min(loss for loss, _ in sums) < EPS


def test_lightning_21838_uneven_batches_weigh_by_tokens():
    """Row 58: the loss over 1 and 6 scored tokens is the mean of 7, not of the two means."""
    logits, targets = torch.randn(2, 6, V), tokens(2, 6)
    targets[0, 1:] = IGNORE
    parts = [F.cross_entropy(logits[r].double(), targets[r], ignore_index=IGNORE, reduction="sum") for r in (0, 1)]
    right, wrong = float(sum(parts)) / 7, float(parts[0] / 1 + parts[1] / 6) / 2
    assert float(CausalLM.loss(logits, targets)) == pytest.approx(right, abs=EPS)
    assert abs(right - wrong) > 100 * EPS


def test_datasets_5360_no_two_readers_get_the_same_stream(file_task):
    """Row 61: the reader of the even and of the odd steps are disjoint, and together they are the stream."""
    task = file_task(bytes(97 + (i * i) % 26 for i in range(4000)), n_tokens=16)
    both = [task.train_batch(step, 2).tokens for step in range(8)]
    ranks = [[task.train_batch(step, 2).tokens for step in range(rank, 8, 2)] for rank in (0, 1)]
    assert all(torch.equal(both[2 * i + r], ranks[r][i]) for r in (0, 1) for i in range(4))
    assert not any(torch.equal(a, b) for a in ranks[0] for b in ranks[1])


def test_nanogpt_21_a_tied_weight_is_one_parameter_in_one_group():
    """Row 63."""
    model = lm(vocab_size=37)
    tied = model.embedding.weight
    assert sum(p is tied for p in model.parameters()) == 1
    members = [p for group in vars(parameter_groups(model)).values() for p in group]
    assert sum(p is tied for p in members) == 1
    assert len(members) == len({id(p) for p in members}) == len(list(model.parameters()))
    assert model(tokens(1, 4)).shape[-1] == tied.shape[0]
    assert not any(isinstance(m, nn.Linear) and m.out_features == 37 for m in model.modules())  # no second head


def test_megatron_831_the_formula_counts_the_causal_half():
    """Row 66: scores and values cost 4·H·D for each of the T(T+1)/2 visible pairs, not for T²."""
    model, n = lm(), 64
    attention = model.attention_modules()[0]
    pairs = n * (n + 1) / 2
    assert attention.flops(n, n) == 4 * 4 * 8 * pairs
    matrices = sum(p.numel() for block in model.blocks for p in block.parameters() if p.dim() == 2)
    head = model.embedding.weight.numel()
    assert model.flops(n) == 2 * n * (matrices + head) + 2 * attention.flops(n, n)


# -- GPU ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, gpu])])
@pytest.mark.parametrize("n_tokens", [64, 192, 704])
def test_pytorch_196678_gradients_under_a_mask_are_finite_in_bfloat16(n_tokens, device):
    """Row 8: the cuDNN backward gave NaN under a mask at these lengths, D = 64, all logits -120."""
    attention = attnzoo.build("sdpa", n_heads=4, head_dim=64)
    q = torch.full((2, 4, n_tokens, 64), 15.0**0.5, dtype=torch.bfloat16, device=device, requires_grad=True)
    k, v = (-q).detach().requires_grad_(), torch.randn_like(q, requires_grad=True)
    real = torch.ones(2, n_tokens, dtype=torch.bool, device=device)
    real[0, : n_tokens // 3] = False
    attention(q, k, v, Mask(key_padding=real)).square().sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v))


@pytest.mark.gpu
@gpu
def test_pytorch_153799_flex_gradients_are_finite_at_1025_tokens():
    """Row 44: a mask and a score change together, one token past a block."""
    model = lm("flex", positions="alibi", d_model=256).cuda()
    row = tokens(1, 1025).cuda()
    model.loss(model(row), row.roll(-1, 1)).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.gpu
@gpu
def test_fla_1080_a_batch_past_2_to_the_31_equals_its_rows():
    """Row 32: B·T·H·D > 2³¹: 32-bit offsets wrap to finite, wrong values."""
    if torch.cuda.get_device_properties(0).total_memory < 120 * 2**30:
        pytest.skip("needs 120 GiB of GPU memory: three inputs of 2³¹ numbers, and as many in float32")
    attention = attnzoo.build("linear", n_heads=16, head_dim=64).cuda()
    # every row another: equal rows would hide an offset that wraps to a row's start
    q, k, v = (torch.randn(1025, 16, 2048, 64, device="cuda", dtype=torch.bfloat16) for _ in "qkv")
    with torch.no_grad():
        out = attention(q, k, v)
        for row in (slice(0, 1), slice(1023, 1024), slice(1024, 1025)):
            alone = attention(q[row], k[row], v[row])
            torch.testing.assert_close(out[row], alone, atol=2e-2, rtol=0)  # bfloat16 of order 1


def _curvature(model, text):
    """v·H·v of the loss by two backward passes and by differences of gradients."""
    draw = torch.Generator().manual_seed(0)
    text = torch.randint(model.vocab_size, text, generator=draw)
    parameters = list(model.parameters())
    way = [torch.randn(p.shape, generator=draw, dtype=torch.float64) for p in parameters]

    def slope(keep=False):
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        found = torch.autograd.grad(loss, parameters, create_graph=keep)
        return sum((g * d).sum() for g, d in zip(found, way, strict=True))

    def at(step):
        with torch.no_grad():
            for p, d in zip(parameters, way, strict=True):
                p += step * d
        found = float(slope())
        with torch.no_grad():
            for p, d in zip(parameters, way, strict=True):
                p -= step * d
        return found

    h = 1e-5  # the way is thousands of times as long as the parameters: of fourth order, as H changes along it
    by_difference = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
    second = torch.autograd.grad(slope(keep=True), parameters)
    return float(sum((g * d).sum() for g, d in zip(second, way, strict=True))), by_difference


@pytest.mark.parametrize("name", ["exact", "moba", "gla"])
def test_pytorch_116350_the_second_derivative_of_a_model_is_that_of_differences(name):
    cfg = attnzoo.compose("train", ["experiment=tiny", f"attention={name}"])
    torch.manual_seed(0)
    own, by_difference = _curvature(attnzoo.build_model(cfg).double(), (2, 17))
    assert own == pytest.approx(by_difference, rel=1e-5)
    if name != "gla":  # moba reads every block of so short a text, as exact does
        assert own == pytest.approx(-1859.342, abs=0.01)  # with the norm's scale as a constant, exact gave 59.885


def test_pytorch_116350_a_fused_kernel_without_one_refuses_in_both_forms():
    model = lm("sdpa")
    loss = model(tokens(2, 9)).square().mean()
    found = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    total = sum(g.square().sum() for g in found)
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.autograd.grad(total, list(model.parameters()))
    loss = model(tokens(2, 9)).square().mean()
    found = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        sum(g.square().sum() for g in found).backward()


@pytest.mark.parametrize("name", trainable())
def test_mamba_239_flash_attention_2071_per_sample_gradients_by_torch_func(name):
    model = lm(name).double()
    own = {n: p.detach() for n, p in model.named_parameters()}
    text = tokens(3, 9)

    def loss(parameters, row):
        logits = torch.func.functional_call(model, parameters, (row[None, :-1],))
        return F.cross_entropy(logits[0], row[1:])

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(own, text)
    for n, row in enumerate(text):
        right = torch.autograd.grad(loss(dict(model.named_parameters()), row), list(model.parameters()))
        for name_, g in zip(own, right, strict=True):
            torch.testing.assert_close(found[name_][n], g, msg=f"row {n} of {name_}")
