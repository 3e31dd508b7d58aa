"""An attention at its measured size: what short inputs do not show."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo.backends.sdpa import SDPA
from attnzoo.checks.measured import measured_size, sampled
from attnzoo.checks.report import FAILED


def failed(attention, **how):
    how = {"batch": 2, "n_tokens": 60, "dtype": torch.float32} | how
    return [r.where.split("[")[0] for r in measured_size(attention, **how) if r.status == FAILED]


@pytest.mark.parametrize("name", ["sdpa", "sliding_window", "linear", "gla", "deltanet", "gqa", "moba"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_right_ones_pass(name, dtype):
    assert failed(attnzoo.build(name, n_heads=4, head_dim=8, d_model=32), dtype=dtype) == []


def test_a_long_input_is_compared_at_some_queries():
    assert failed(attnzoo.build("sdpa", n_heads=2, head_dim=8), n_tokens=700) == []
    assert {0, 350, 511, 513, 697, 699} <= set(sampled(700))


def wrong_where(condition):
    class Wrong(SDPA):
        def attend(self, q, k, v, mask, bias, x):
            out = super().attend(q, k, v, mask, bias, x)
            return 1.2 * out if condition(q, k) else out

    return Wrong(n_heads=4, n_kv_heads=4, head_dim=8)


@pytest.mark.parametrize(
    ("condition", "how", "seen"),
    [
        (lambda q, k: k.shape[2] > 50, {}, ["out", "d q", "decoded out"]),
        (lambda q, k: k.shape[2] > 600, {"n_tokens": 700}, ["out", "d q", "decoded out"]),
        (lambda q, k: q.shape[0] >= 9, {"batch": 9}, ["out", "d q", "decoded out"]),
        (lambda q, k: q.shape[2] == 1, {}, ["decoded out"]),
        (lambda q, k: torch.is_grad_enabled(), {}, ["d q"]),
        (lambda q, k: q.dtype == torch.bfloat16, {"dtype": torch.bfloat16}, ["out", "d q", "decoded out"]),
        (lambda q, k: q.shape[1] == 4, {}, ["out", "d q", "decoded out"]),
    ],
)
def test_what_is_wrong_only_there_is_seen(condition, how, seen):
    found = failed(wrong_where(condition), **how)
    assert [f.replace("d v", "d q").replace("d k", "d q") for f in found] == seen


# -- plug-ins that short inputs do not tell from right ones ----------------------------------------------------------------


class Rule(SDPA):
    """Scaled dot products written out, so that a wrong one differs in one step."""

    def attend(self, q, k, v, mask, bias, x):
        k, v = self.spread(k), self.spread(v)
        scores = (q @ k.mT) * self.scale
        return self.seen(mask, q, k, scores) @ v

    def spread(self, t):
        return self.repeat_kv(t)

    def seen(self, mask, q, k, scores):
        visible = self.allow(mask.dense(q.shape[2], k.shape[2]), q.shape[2], k.shape[2])
        return scores.masked_fill(~visible, -torch.inf).softmax(-1)

    def allow(self, visible, n_queries, n_keys):
        return visible


def partly(t, factor):
    """t, with ``factor`` times its gradient."""
    return factor * t + (1 - factor) * t.detach()


class BackwardOfKeysBeyond64(Rule):
    def attend(self, q, k, v, *rest):
        return super().attend(q, partly(k, 1.05) if k.shape[2] > 64 else k, v, *rest)


class FarKeysWithoutGradient(Rule):
    def attend(self, q, k, v, *rest):
        return super().attend(q, k, torch.cat([v[:, :, :128], v[:, :, 128:].detach()], 2), *rest)


class GroupsInterleaved(Rule):
    def spread(self, t):
        return t.repeat(1, 2, 1, 1) if t.shape[2] > 64 else super().spread(t)


class FromTheFifthRow(Rule):
    def seen(self, mask, q, k, scores):
        weights = super().seen(mask, q, k, scores)
        return torch.cat([weights[:4], scores[4:].softmax(-1)]) if k.shape[2] > 64 else weights


class SixthRowAlone(Rule):
    def attend(self, q, *rest):
        out = super().attend(q, *rest)
        return out * torch.where(torch.arange(len(q)) == 5, 1.1, 1.0).view(-1, 1, 1, 1) if len(q) > 6 else out


class SixthRowBackward(Rule):
    def attend(self, q, k, v, *rest):
        row = (torch.arange(len(q)) == 5).view(-1, 1, 1, 1) & (len(q) > 6)
        return super().attend(q, k, torch.where(row, partly(v, 1.1), v), *rest)


class Bfloat16Backward(Rule):
    def attend(self, q, k, v, *rest):
        return super().attend(q, k, partly(v, 0.9) if k.dtype == torch.bfloat16 and k.shape[2] > 64 else v, *rest)


class ScaleOfWideHeads(Rule):
    def attend(self, q, *rest):
        return super().attend(q * 1.05 if q.shape[3] == 32 else q, *rest)


class StateForgottenEach128(Rule):
    def allow(self, visible, n_queries, n_keys):
        i, j = torch.arange(n_keys - n_queries, n_keys)[:, None], torch.arange(n_keys)
        return visible & (i // 128 == j // 128)


class OneFutureKeyOfOneRow(Rule):
    def allow(self, visible, n_queries, n_keys):
        i, j = torch.arange(n_keys - n_queries, n_keys)[:, None], torch.arange(n_keys)
        return visible | ((i == 150) & (j == 151))


class DropsInEvaluation(Rule):
    def seen(self, mask, q, k, scores):
        weights = super().seen(mask, q, k, scores)
        return torch.nn.functional.dropout(weights, 0.01) if k.shape[2] > 64 else weights


class DecodesAfter32Wrongly(Rule):
    def allow(self, visible, n_queries, n_keys):
        return visible & (torch.arange(n_keys) > 0) if n_queries == 1 and n_keys > 32 else visible


class DecodesWronglyFrom64To100(Rule):
    def allow(self, visible, n_queries, n_keys):
        return visible & (torch.arange(n_keys) != 40) if n_queries == 1 and 64 < n_keys < 100 else visible


class ChunkOnACacheUnmasked(Rule):
    def allow(self, visible, n_queries, n_keys):
        return torch.ones_like(visible) if 1 < n_queries < n_keys and n_keys > 64 else visible


class PairOnACacheUnmasked(Rule):
    def allow(self, visible, n_queries, n_keys):
        return torch.ones_like(visible) if n_queries == 2 and n_keys > 64 else visible


class LongPrefillSeesAhead(Rule):
    def allow(self, visible, n_queries, n_keys):
        return visible | visible.roll(1, -1) if 160 <= n_queries < 170 else visible


@pytest.mark.parametrize("wrong", Rule.__subclasses__(), ids=lambda c: c.__name__)
def test_a_wrong_plug_in_is_seen_at_its_size(wrong):
    dtype = torch.bfloat16 if wrong is Bfloat16Backward else torch.float32
    attention = wrong(n_heads=4, n_kv_heads=2 if wrong is GroupsInterleaved else 4, head_dim=32)
    found = [r for r in measured_size(attention, batch=8, n_tokens=170, dtype=dtype) if r.status == FAILED]
    assert found, "it went unseen"
    assert not [r for r in found if "Error" in r.actual], "it is wrong, not broken"


def test_the_rule_that_they_are_planted_in_is_right():
    for dtype in (torch.float32, torch.bfloat16):
        assert failed(Rule(n_heads=4, n_kv_heads=2, head_dim=32), batch=8, n_tokens=170, dtype=dtype) == []


@pytest.mark.parametrize("n_tokens", [2, 3, 5, 6, 32, 33, 160, 700])
def test_decoding_is_tried_in_whole_inputs(n_tokens):
    from attnzoo.checks.measured import decoded_in

    for chunks in decoded_in(n_tokens):
        assert sum(chunks) == n_tokens
        assert min(chunks) > 0
    assert decoded_in(n_tokens)[0][-1] == 1
