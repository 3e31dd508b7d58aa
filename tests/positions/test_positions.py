"""Position schemes against independent formulas, and what goes wrong in them elsewhere."""

from __future__ import annotations

import math

import pytest
import torch

from attnzoo import components
from attnzoo.errors import RequestError
from attnzoo.positions import build_positions, rotate
from attnzoo.positions.alibi import alibi_slopes
from attnzoo.positions.relative import distance_buckets

SIZES = {"d_model": 16, "n_heads": 4, "head_dim": 4}


def test_rope_is_a_rotation_by_position_times_frequency():
    rope, head_dim = build_positions("rope", d_model=16, n_heads=2, head_dim=8, base=10000.0), 8
    t = torch.randn(1, 1, 5, head_dim)
    turned = rotate(t, rope.phases(torch.arange(5)[None]))
    for position in range(5):
        for pair in range(head_dim // 2):
            angle = position * 10000.0 ** (-2 * pair / head_dim)
            a, b = t[0, 0, position, pair].item(), t[0, 0, position, pair + 4].item()
            assert turned[0, 0, position, pair].item() == pytest.approx(
                a * math.cos(angle) - b * math.sin(angle), abs=1e-6
            )
            assert turned[0, 0, position, pair + 4].item() == pytest.approx(
                b * math.cos(angle) + a * math.sin(angle), abs=1e-6
            )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gradient_of_a_rotation_is_the_rotation_back_and_keeps_nothing(dtype):
    phases = build_positions("rope", d_model=16, n_heads=2, head_dim=8, base=100.0).phases(torch.arange(5)[None])
    t, gradient = torch.randn(2, 3, 5, 8).to(dtype).requires_grad_(), torch.randn(2, 3, 5, 8).to(dtype)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: kept.append(saved.numel()) or saved, lambda t: t):
        turned = rotate(t, phases)
    assert max(kept) <= 5 * 8  # the phases
    wide = t.detach().to(torch.promote_types(dtype, torch.float32)).requires_grad_()
    a, b = wide.chunk(2, -1)
    cos, sin = (p[..., 4:] for p in phases)
    plain = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    torch.testing.assert_close(turned, plain.to(dtype))
    expected = torch.autograd.grad(plain, wide, gradient.to(wide.dtype))[0].to(dtype)
    torch.testing.assert_close(torch.autograd.grad(turned, t, gradient)[0], expected)


def test_rope_scores_depend_on_the_difference_of_positions_only():
    q, k = torch.randn(2, 1, 1, 1, 16)
    rope = build_positions("rope", d_model=16, n_heads=2, head_dim=16, base=10000.0)

    def score(i: int, j: int) -> float:
        at = [rotate(t, rope.phases(torch.tensor([[p]]))) for t, p in ((q, i), (k, j))]
        return (at[0] * at[1]).sum().item()

    # float32 phases near 1000 are exact to 1000 * 2^-24 = 6e-5
    assert score(7, 3) == pytest.approx(score(1007, 1003), abs=1e-3)
    assert abs(score(7, 3) - score(7, 5)) > 0.01  # and it does depend on it


def test_half_precision_positions_do_not_collide():
    """Megatron-LM #535: in bfloat16, positions 256 and 257 are one number."""
    rope = build_positions("rope", d_model=16, n_heads=2, head_dim=16, base=10000.0).to(torch.bfloat16)
    cos, _ = rope.phases(torch.tensor([[256, 257]]))
    assert cos.dtype == torch.float32
    assert not torch.equal(cos[:, :, 0], cos[:, :, 1])


@pytest.mark.parametrize("name", components.built_in("positions"))
def test_casting_the_model_does_not_round_the_tables(name):
    """Automodel PR 2549: .to(bf16) and back must leave phases and slopes as they were."""
    scheme, ids = build_positions(name, **SIZES), torch.arange(40)[None]
    before = scheme.phases(ids)
    cast = scheme.to(torch.bfloat16).to(torch.float32)
    after = cast.phases(ids)
    assert (before is None) == (after is None)
    if before is not None:
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    if cast.bias() is not None:
        fresh = build_positions(name, **SIZES).bias()
        assert torch.equal(cast.bias().block(ids.T, ids), fresh.block(ids.T, ids))


def test_alibi_slopes_for_heads_that_are_no_power_of_two():
    """mlx PR 3071."""
    assert alibi_slopes(6) == [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]
    assert alibi_slopes(8) == [2.0**-n for n in range(1, 9)]


def test_alibi_bias_of_any_block_equals_the_whole():
    bias = build_positions("alibi", d_model=16, n_heads=4, head_dim=4).bias()
    i, j = torch.arange(9)[:, None], torch.arange(9)[None]
    whole = bias.block(i, j)
    assert whole.shape == (4, 9, 9)
    assert whole[1, 7, 2].item() == pytest.approx(-alibi_slopes(4)[1] * 5)
    assert whole[1, 2, 7] == whole[1, 7, 2]  # a key ahead is as far as one behind
    assert torch.equal(bias.block(i[3:6], j[:, 2:4]), whole[:, 3:6, 2:4])


def t5_bucket(distance: int, buckets: int, max_distance: int) -> int:
    """T5's causal bucket, by the formula of its code; in whole numbers where the logarithm falls on an edge."""
    exact = buckets // 2
    if distance < exact:
        return distance
    bucket = exact
    # bucket b begins where (distance / exact)^(buckets - exact) reaches (max_distance / exact)^(b - exact)
    while bucket + 1 < buckets and (
        distance ** (buckets - exact) * exact ** (bucket + 1 - exact)
        >= max_distance ** (bucket + 1 - exact) * exact ** (buckets - exact)
    ):
        bucket += 1
    return bucket


@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (32, 64), (8, 16), (9, 100), (2, 5), (32, 17), (9, 128)]
)
def test_buckets_are_those_of_t5(buckets, max_distance):
    found = distance_buckets(buckets, max_distance).tolist()
    assert found == [t5_bucket(d, buckets, max_distance) for d in range(max_distance + 1)]


def test_relative_bias_of_any_block_equals_the_whole():
    bias = build_positions("relative", d_model=16, n_heads=4, head_dim=4, buckets=8, max_distance=16).bias()
    torch.nn.init.normal_(bias.table)
    i, j = torch.arange(40)[:, None], torch.arange(40)[None]
    whole = bias.block(i, j)
    assert whole.shape == (4, 40, 40)
    for query, key in ((7, 7), (9, 2), (39, 0), (20, 3)):
        assert whole[2, query, key] == bias.table[t5_bucket(query - key, 8, 16), 2]
    last = build_positions("relative", d_model=16, n_heads=4, head_dim=4, buckets=32, max_distance=17).bias()
    torch.nn.init.normal_(last.table)
    for distance in (15, 16, 17, 39):
        assert torch.equal(last.block(i[distance], j[0, 0])[:, 0], last.table[min(t5_bucket(distance, 32, 17), 31)])
    for query, key in ((0, 1), (2, 39)):  # ahead
        assert whole[2, query, key] == bias.table[0, 2]
    assert list(
        build_positions("relative", d_model=16, n_heads=4, head_dim=4, buckets=8, max_distance=16).state_dict()
    ) == ["score_bias.table"]  # the buckets are no weights
    assert torch.equal(bias.block(i[3:6], j[:, 2:4]), whole[:, 3:6, 2:4])
    assert torch.equal(bias.block(i[5], j[0, 2]), whole[:, 5, 2:3])


@pytest.mark.parametrize("width", [6, 5])
def test_sinusoidal_follows_the_paper(width):
    h = build_positions("sinusoidal", d_model=width, n_heads=2, head_dim=8, base=10000.0).embed(
        torch.zeros(1, 4, width), torch.arange(4)[None]
    )
    scale = 0.02 * math.sqrt(2)
    for position in range(4):
        for channel in range(width):
            angle = position / 10000.0 ** (2 * (channel // 2) / width)
            wave = math.sin(angle) if channel % 2 == 0 else math.cos(angle)
            assert h[0, position, channel].item() == pytest.approx(scale * wave, abs=1e-6)


def test_sinusoidal_leaves_the_type_as_it_is():
    h = torch.zeros(1, 4, 6, dtype=torch.bfloat16)
    assert (
        build_positions("sinusoidal", d_model=6, n_heads=2, head_dim=8, base=10000.0)
        .embed(h, torch.arange(4)[None])
        .dtype
        == torch.bfloat16
    )


def test_learned_positions_past_the_table_are_an_error():
    learned = build_positions("learned", **SIZES, max_tokens=8)
    assert learned.embed(torch.zeros(1, 8, 16), torch.arange(8)[None]).shape == (1, 8, 16)
    with pytest.raises(RequestError, match=r"position 8 .* table of 8"):
        learned.embed(torch.zeros(1, 1, 16), torch.tensor([[8]]))


def test_unknown_scheme_names_the_nearest():
    with pytest.raises(RequestError, match="did you mean 'alibi'"):
        build_positions("alibl", **SIZES)


def test_rope_refuses_an_odd_head_dim():
    with pytest.raises(RequestError, match="even"):
        build_positions("rope", d_model=12, n_heads=4, head_dim=3)


def test_what_lies_below_the_end_is_not_read_back(monkeypatch):
    """int(positions.max()) waits for the device at every token; where the caller knows the end it is not needed."""
    learned = build_positions("learned", **SIZES, max_tokens=8)
    read = []
    real = torch.Tensor.max
    monkeypatch.setattr(torch.Tensor, "max", lambda t, *a: read.append(1) or real(t, *a))
    learned.embed(torch.zeros(1, 1, 16), torch.tensor([[7]]), 8)
    assert read == []
    with pytest.raises(RequestError, match="position 8 is past"):
        learned.embed(torch.zeros(1, 1, 16), torch.tensor([[8]]), 9)
