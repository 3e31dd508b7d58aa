"""flash-linear-attention's Triton kernels behind the interface of `attnzoo.kernels.scan`; no other file knows its conventions.

=====================  ==========================================  ===========================================
                       here                                        there
=====================  ==========================================  ===========================================
tensors                (B, heads, T, D)                            (B, T, heads, D)
state                  (B, G, D, E)                                (sequences, heads, D, E), float32
decay                  log a, (…, 1) or (…, D)                     ``g`` (``gk`` in fused_recurrent_gla), natural log;
                                                                   one number a head loses its last axis
scale                  in q already                                ``scale=1``; None there is 1/sqrt(D)
q, k of length 1       in q and k already                          ``use_qk_l2norm_in_kernel=False``
G < H                  read in place                               keys, values, gates and states repeated
documents              ``starts``                                  one row with ``cu_seqlens``
Tq ≠ Tk                last query at last key                      none: queries of zero come first
=====================  ==========================================  ===========================================

Which of its operations a rule is, by the decay and the delta rule's β:

=================  ============  ==================
decay              sums          delta rule
=================  ============  ==================
none               simple_gla    delta_rule
one number a head  simple_gla    gated_delta_rule
one a channel      gla           kda
=================  ============  ==================

Its own linear_attn and retention are not used: the first normalises by Σ φ(q)·φ(k) + 1e-10, the second knows the paper's
decays only and no padding; both are simple_gla with the columns of ones and the decays that are kept here. Rules that are
others there: based (fla keeps no window, and squares features in half precision), nsa (pooled by plain means, forced first and
latest blocks), moba (blocks count from each document's start), hence no kernel for them; performer's decays come from
differences of peaks as large as 1e30, which running sums in float32 lose.
Source: flash-linear-attention 0.6, compared with `scan` in Triton's interpreter (see LOG.md); on a GPU not measured yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.capabilities import Capabilities, Request
from attnzoo.kernels.derivatives import first_order_only
from attnzoo.kernels.optional import load, missing
from attnzoo.kernels.pad import pad_tokens
from attnzoo.masks.translate import piece_bounds

DTYPES = (torch.bfloat16, torch.float16)
LARGEST_HEAD = 256
"""Key channels its delta rules take."""
WIDTHS = 16
"""Channels are padded to a multiple of this: 16-bit gradients of odd widths are refused there, products of fewer do not exist."""


def refusals(request: Request) -> list[str]:
    """Every reason why fla cannot compute the request."""
    why = missing("fla", request.device)
    if request.dtype not in DTYPES:
        given = str(request.dtype).removeprefix("torch.")
        why.append(f"fla multiplies float32 as TF32, or not at all: give bfloat16 or float16, not {given}")
    if request.head_dim > LARGEST_HEAD:
        why.append(f"fla takes a head_dim of at most {LARGEST_HEAD}; got {request.head_dim}")
    return why


def declared(own: Capabilities, compiled: bool) -> Capabilities:
    """What a rule can honour where fla computes it."""
    return replace(own, dtypes=DTYPES, devices=("cuda",), training_devices=("cuda",), bitwise_prefix=False)


def scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    dtype: torch.dtype,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    starts: Tensor | None = None,
    bounds: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor, str]:
    """`attnzoo.kernels.scan.scan` by fla, q, k and v rounded to ``dtype``: outputs, the state, and the name of what ran.

    ``bounds`` are those of the pieces that ``starts`` cuts, `piece_bounds`; made here they would be waited for at each call, and
    fla keeps what it makes of them as long as it is given the same tensor.
    A single token takes the recurrent kernel, where no gradient is asked for: two of them have none.
    """
    n_queries, n_keys, repeats, widths = q.shape[2], k.shape[2], q.shape[1] // k.shape[1], (k.shape[-1], v.shape[-1])
    lead = n_keys - n_queries
    one = n_keys == 1 and not torch.is_grad_enabled()
    call, name = operation(0 if decay is None else decay.shape[-1], beta is not None, one)
    there: dict[str, Any] = {
        "q": _there(pad_tokens(q, lead, 0), 1).to(dtype),
        "k": _there(k, repeats).to(dtype),
        "v": _there(v, repeats).to(dtype),
    }
    if decay is not None:
        g = _there(decay.expand(k.shape[0], *decay.shape[1:]), repeats, wide=decay.shape[-1] > 1).float()
        there["gk" if name == "fused_recurrent_gla" else "g"] = g if decay.shape[-1] > 1 else g[..., 0]
    if beta is not None:
        there["beta"] = beta.repeat_interleave(repeats, 1).transpose(1, 2).float()
    if state is not None:
        state = F.pad(state.repeat_interleave(repeats, 1), (0, -widths[1] % WIDTHS, 0, -widths[0] % WIDTHS)).float()
    batch, last = k.shape[0], torch.arange(k.shape[0], device=k.device)
    if starts is not None:
        bounds = piece_bounds(starts.expand(batch, -1)) if bounds is None else bounds
        first = torch.searchsorted(bounds, torch.arange(batch, device=bounds.device) * n_keys)  # piece of each row
        there = {key: t.flatten(0, 1)[None] for key, t in there.items()} | {"cu_seqlens": bounds}
        if state is not None:
            held = state * ~starts[:, :1, None, None]
            state = held.new_zeros(len(bounds) - 1, *held.shape[1:]).index_copy(0, first, held)
        last = F.pad(first[1:], (0, 1), value=len(bounds) - 1) - 1
    with torch.autocast(q.device.type, enabled=False):
        out, final = call(**there, scale=1.0, initial_state=state, output_final_state=True)
    first_order_only(f"fla/{name}", out, final)
    out = out.reshape(batch, n_keys, *out.shape[2:]).transpose(1, 2)[:, :, max(lead, 0) :, : widths[1]].to(v.dtype)
    final = final[last, ::repeats, : widths[0], : widths[1]].to(v.dtype)
    return pad_tokens(out, max(-lead, 0), 0), final, f"fla/{name}"


def operation(decay: int, delta: bool, one: bool) -> tuple[Any, str]:
    """The function for a decay of so many numbers a head (0: none), with or without the delta rule, and its name."""
    if delta:
        family = {0: "delta_rule", 1: "gated_delta_rule"}.get(decay, "kda")
    else:
        family = "gla" if decay > 1 else "simple_gla"
    name = f"{'fused_recurrent' if one else 'chunk'}_{family}"
    return getattr(load(f"fla.ops.{family}"), name), name


def _there(t: Tensor, repeats: int, wide: bool = True) -> Tensor:
    """(B, G, T, D) -> (B, T, H, D'), D' a multiple of 16 where ``wide``."""
    t = t.repeat_interleave(repeats, 1).transpose(1, 2)
    return F.pad(t, (0, -t.shape[-1] % WIDTHS)) if wide else t
