"""torch's FlexAttention: softmax over any mask, with any change of the scores, in one kernel. Shapes: see `attnzoo.shapes`.

Compiled it takes time O(blocks the mask leaves visible) and memory O(T). Eager, which is all there is on a CPU, it writes out
the Tq x Tk matrix, and on a CPU torch has no backward for it: inference only.
Source: `torch.nn.attention.flex_attention`, arXiv:2412.05496.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnzoo.capabilities import Capabilities, Request
from attnzoo.contract import ScoreBias
from attnzoo.kernels.derivatives import first_order_only
from attnzoo.masks import Mask
from attnzoo.masks.translate import flex_mask_mod

if TYPE_CHECKING:  # it loads half of the compiler, and every backend is loaded for `attnzoo list`
    from torch.nn.attention.flex_attention import BlockMask

LARGE = 2**28  # entries of a Tq x Tk matrix
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Pattern:
    """Who is visible besides the mask: ``visible(i, j)`` for positions. Patterns of one key are the same to the cache."""

    key: Hashable
    visible: Callable[[Tensor, Tensor], Tensor | None] = field(compare=False)


def refusals(request: Request) -> list[str]:
    """Every reason why FlexAttention cannot compute the request; what eager can is refused as what compiled cannot."""
    why = []
    if request.dropout:
        why.append("FlexAttention cannot drop attention weights")
    if request.dtype not in DTYPES:
        why.append(f"FlexAttention does not compute in {str(request.dtype).removeprefix('torch.')}")
    if request.device == "cpu" and request.training:
        why.append("FlexAttention has no backward on cpu: it runs there for inference only")
    if request.device == "cuda" and request.head_dim < 16:
        why.append(f"FlexAttention needs head_dim of at least 16 on CUDA; got {request.head_dim}")
    return why


def declared(own: Capabilities, compiled: bool) -> Capabilities:
    """What a rule can honour where FlexAttention computes it; eager costs the whole matrix."""
    time, memory = (own.time, own.memory) if compiled else (2.0, 2.0)
    dtypes = tuple(dtype for dtype in own.dtypes if dtype in DTYPES)
    return replace(
        own, dropout=False, dtypes=dtypes, training_devices=("cuda",), bitwise_prefix=False, time=time, memory=memory
    )


def flex_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: ScoreBias | None,
    *,
    scale: float,
    compiled: bool,
    pattern: Pattern | None = None,
    change: Callable[[Tensor], Tensor] | None = None,
    key_positions: Tensor | None = None,
    lse: bool = False,
) -> tuple[Tensor, Tensor | None, str]:
    """softmax(change(q kᵀ · scale) + bias) v over what mask and pattern leave visible.

    Args:
        q, k, v: (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, Dv).
        change: of each score, before the bias is added.
        key_positions: (Tk,) position of each key, ascending, where Tq ≤ Tk; 0 … Tk - 1 when None.

    Returns:
        (B, H, Tq, Dv), log Σ exp of the scores (B, H, Tq) in float32 if ``lse`` (torch compiles none on a CPU), and
        flex/compiled or flex/eager.
    """
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    block_mask = _block_mask(mask, q, k.shape[2], pattern, key_positions)
    score_mod = _score_mod(bias, change, k.shape[2] - q.shape[2], key_positions)
    run = _compiled() if compiled else flex_attention
    with warnings.catch_warnings(), _eager(not compiled):
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")  # asked for; recorded
        found = run(
            q, k, v, score_mod=score_mod, block_mask=block_mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1],
            return_aux=AuxRequest(lse=True) if lse else None,
        )  # fmt: skip
    out, total = (found[0], found[1].lse) if lse else (found, None)
    kernel = f"flex/{'compiled' if compiled else 'eager'}"
    first_order_only(kernel, out, total)
    return out, total, kernel


@cache
def _compiled():
    from torch.nn.attention.flex_attention import flex_attention

    # whole, or torch would go back to eager in silence once it has made 8 graphs
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


def _eager(wanted: bool) -> AbstractContextManager:
    """Keeps flex_attention from tracing each new mask function with dynamo even when it is run eagerly (0.3 s a call)."""
    return torch.compiler.set_stance("force_eager") if wanted and not torch.compiler.is_compiling() else nullcontext()


def _block_mask(
    mask: Mask, q: Tensor, n_keys: int, pattern: Pattern | None, key_positions: Tensor | None
) -> BlockMask | None:
    """Which blocks are visible; None where all are: one query at the end of a causal sequence."""
    batch, _, n_queries, _ = q.shape
    if n_queries == 1 and not mask.fields and pattern is None:
        return None
    if mask.static and key_positions is None and not torch.compiler.is_compiling():
        fields = (mask.causal, mask.window, mask.sinks, mask.prefix)
        return static_block_mask(fields, n_queries, n_keys, q.device, pattern)
    from torch.nn.attention.flex_attention import create_block_mask

    mod = flex_mask_mod(mask, n_queries, n_keys, None if pattern is None else pattern.visible, key_positions)
    return create_block_mask(mod, None if mask.static else batch, None, n_queries, n_keys, device=q.device)


@lru_cache(maxsize=8)
def static_block_mask(
    fields: tuple, n_queries: int, n_keys: int, device: torch.device, pattern: Pattern | None
) -> BlockMask:
    """The block mask of positions alone, built once for all layers and steps.

    Uncompiled, torch builds it from a Tq x Tk matrix; compiling takes seconds, which pays for large ones only.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    large = device.type == "cuda" and n_queries * n_keys > LARGE
    make = _compiled_block_mask() if large else create_block_mask
    mod = flex_mask_mod(Mask(*fields), n_queries, n_keys, None if pattern is None else pattern.visible)
    with torch.inference_mode(False):  # made during an evaluation, it must still serve training
        return make(mod, None, None, n_queries, n_keys, device=device)


@cache
def _compiled_block_mask():
    from torch.nn.attention.flex_attention import create_block_mask

    return torch.compile(create_block_mask)


def _score_mod(
    bias: ScoreBias | None, change: Callable[[Tensor], Tensor] | None, offset: int, key_positions: Tensor | None
):
    """FlexAttention asks for one score at a time: row and column numbers, here turned to positions."""
    if bias is None and change is None:
        return None

    def changed(score: Tensor, b: Tensor, h: Tensor, q_index: Tensor, kv_index: Tensor) -> Tensor:
        score = score if change is None else change(score)
        if bias is None:
            return score
        i, j = q_index + offset, kv_index
        if key_positions is not None:
            i, j = key_positions[i], key_positions[j]
        return score + bias.block(i, j)[h]

    return changed
