"""flash-linear-attention and flash-attn as their documentation describes them, in plain loops: what the translations are held to
where the packages are not there."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import torch
from torch import Tensor


def _recurrence(q, k, v, g, beta, scale, initial_state, cu_seqlens):
    """(B, T, H, ·), g (B, T, H, K) natural logarithms: outputs, and the state of each sequence (N, H, K, V)."""
    bounds = cu_seqlens.tolist() if cu_seqlens is not None else None
    assert bounds is None or q.shape[0] == 1, "packed sequences come as one row"
    pieces = itertools.pairwise(bounds) if bounds else [(0, q.shape[1])]
    outs, states = [], []
    for n, (start, end) in enumerate(pieces):
        state = q.new_zeros(q.shape[0], q.shape[2], k.shape[3], v.shape[3])
        if initial_state is not None:
            state = state + (initial_state if bounds is None else initial_state[n : n + 1])
        for t in range(start, end):
            key, value = k[:, t, :, :, None], v[:, t, :, None]
            state = state * (1 if g is None else g[:, t, :, :, None].exp())
            if beta is not None:
                value = (value - key.mT @ state) * beta[:, t, :, None, None]
            state = state + key * value
            outs.append((q[:, t, :, None] * scale @ state)[:, :, 0])
        states.append(state)
    return torch.stack(outs, 1), torch.cat(states) if bounds else states[0]


def _of(gate: str | None, wide: bool, delta: bool):
    def operation(
        q, k, v, *, scale=None, initial_state=None, output_final_state=False, cu_seqlens=None, beta=None, **gates
    ):
        assert set(gates) <= ({gate} if gate else set()), f"no such argument: {set(gates)}"
        assert (beta is not None) == delta
        g = gates.get(gate)
        if g is not None:
            assert g.shape == (k.shape if wide else k.shape[:3])
            g = g if wide else g[..., None].expand_as(k)
        assert q.shape == k.shape
        assert q.shape[-1] % 2 == v.shape[-1] % 2 == 0, "16-bit gradients of odd widths are refused"
        return _recurrence(q, k, v, g, beta, k.shape[-1] ** -0.5 if scale is None else scale, initial_state, cu_seqlens)

    return operation


_FLA = {
    "simple_gla": {"chunk": ("g", False, False), "fused_recurrent": ("g", False, False)},
    "gla": {"chunk": ("g", True, False), "fused_recurrent": ("gk", True, False)},
    "delta_rule": {"chunk": (None, False, True), "fused_recurrent": (None, False, True)},
    "gated_delta_rule": {"chunk": ("g", False, True), "fused_recurrent": ("g", False, True)},
    "kda": {"chunk": ("g", True, True), "fused_recurrent": ("g", True, True)},
}


def fla(module: str) -> SimpleNamespace:
    """What `load` gives for ``fla.ops.<family>``."""
    family = module.removeprefix("fla.ops.")
    return SimpleNamespace(**{f"{form}_{family}": _of(*how) for form, how in _FLA[family].items()})


def _attention(q, k, v, causal, window_size, softmax_scale, softcap, alibi_slopes) -> Tensor:
    """One sequence, (T, heads, D): keys from i + Tk - Tq - left to i + Tk - Tq + right; query head h reads h // (H/G)."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    i = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    j = torch.arange(k.shape[0])
    left, right = window_size
    seen = (j <= i) | torch.tensor(not causal)
    seen = seen & ((left < 0) | (j >= i - left)) & ((right < 0) | (j <= i + right))
    scores = torch.einsum("ihd,jhd->hij", q, k) * softmax_scale
    scores = softcap * (scores / softcap).tanh() if softcap else scores
    if alibi_slopes is not None:
        assert alibi_slopes.dtype == torch.float32
        scores = scores - alibi_slopes[:, None, None] * (i - j).abs()
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    return torch.einsum("hij,jhd->ihd", weights, v)


def _func(
    q, k, v, *, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None
):
    rows = zip(q, k, v, strict=True)
    return torch.stack([_attention(*row, causal, window_size, softmax_scale, softcap, alibi_slopes) for row in rows])


def _varlen(q, k, v, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **how):
    outs, lengths, key_lengths = [], cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert (max(lengths), max(key_lengths)) == (max_seqlen_q, max_seqlen_k)
    pieces = q.split(lengths), k.split(key_lengths), v.split(key_lengths)
    for qs, ks, vs in zip(*pieces, strict=True):
        outs.append(_func(qs[None], ks[None], vs[None], **how)[0])
    return torch.cat(outs)


def _func_3(q, k, v, *, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0):
    how = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size, "softcap": softcap}
    return _func(q, k, v, **how), None  # log Σ exp beside it, as its earlier releases


def _varlen_3(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, softmax_scale=None, causal=False,
    window_size=(-1, -1), softcap=0.0,
):  # fmt: skip
    bounds = {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
    }
    how = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size, "softcap": softcap}
    return _varlen(q, k, v, **bounds, **how)


flash_attn_interface = SimpleNamespace(flash_attn_func=_func_3, flash_attn_varlen_func=_varlen_3)
flash_attn = SimpleNamespace(flash_attn_func=_func, flash_attn_varlen_func=_varlen)
