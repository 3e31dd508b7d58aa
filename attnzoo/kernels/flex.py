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
from functools import lru_cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from attnzoo.capabilities import Capabilities, Request
from attnzoo.contract import ScoreBias
from attnzoo.kernels.derivatives import first_order_only
from attnzoo.masks import Mask
from attnzoo.masks.translate import flex_mask_mod, number

if TYPE_CHECKING:  # it loads half of the compiler, and every backend is loaded for `attnzoo list`
    from torch.nn.attention.flex_attention import BlockMask

LARGE = 2**28  # entries of a Tq x Tk matrix
BLOCK = 128  # queries or keys in a block of a block mask
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
    rule: Hashable = None,
    key_positions: Tensor | None = None,
    lse: bool = False,
) -> tuple[Tensor, Tensor | None, str]:
    """softmax(change(q kᵀ · scale) + bias) v over what mask and pattern leave visible.

    Args:
        q, k, v: (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, Dv).
        change: of each score, before the bias is added.
        rule: tells ``pattern`` and ``change`` from those of other rules and other options.
        key_positions: (Tk,) position of each key, ascending, where Tq ≤ Tk; 0 … Tk - 1 when None.

    Returns:
        (B, H, Tq, Dv), log Σ exp of the scores (B, H, Tq) in float32 if ``lse`` (torch compiles none on a CPU), and
        flex/compiled, flex/compiled+bias (a bias without `ScoreBias.by_head` is written out) or flex/eager.
    """
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    block_mask = _block_mask(mask, q, k.shape[2], pattern, rule, key_positions)
    score_mod = _score_mod(bias, change, q, k.shape[2], key_positions)
    run: Callable = flex_attention
    if compiled and not torch.compiler.is_compiling():
        masked = (*_fields(mask), key_positions is not None)
        run = _compiled(flex_attention, (rule, type(bias), *masked, scale, lse, *_structure(q, k, v)))
    with warnings.catch_warnings(), _eager(not compiled):
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")  # asked for; recorded
        found = run(
            q, k, v, score_mod=score_mod, block_mask=block_mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1],
            return_aux=AuxRequest(lse=True) if lse else None,
        )  # fmt: skip
    out, total = (found[0], found[1].lse) if lse else (found, None)
    kernel = "flex/compiled" if compiled else "flex/eager"
    if compiled and bias is not None and type(bias).by_head is ScoreBias.by_head:
        kernel += "+bias"  # written out
    first_order_only(kernel, out, total)
    return out, total, kernel


@lru_cache(maxsize=512)
def _compiled(function: Callable, structure: Hashable) -> Callable:
    """The function compiled whole, for inputs of one structure, which is whatever is another graph in any case.

    torch counts the graphs of a code object and makes an error of the ninth, or goes back to eager code, which writes the
    scores out: here each structure has a code object of its own. Its few graphs are other strides and lengths up to 128.
    """

    def run(*inputs: Any, **named: Any) -> Any:
        return function(*inputs, **named)

    alone = FunctionType(run.__code__.replace(), run.__globals__, function.__name__, None, run.__closure__)
    return torch.compile(alone, dynamic=True, fullgraph=True)


def _eager(wanted: bool) -> AbstractContextManager:
    """Keeps flex_attention from tracing each new mask function with dynamo even when it is run eagerly (0.3 s a call)."""
    return torch.compiler.set_stance("force_eager") if wanted and not torch.compiler.is_compiling() else nullcontext()


def _block_mask(
    mask: Mask, q: Tensor, n_keys: int, pattern: Pattern | None, rule: Hashable, key_positions: Tensor | None
) -> BlockMask | None:
    """Which blocks are visible; None where all are: one query at the end of a causal sequence."""
    batch, _, n_queries, _ = q.shape
    if n_queries == 1 and not mask.fields and pattern is None:
        return None
    if key_positions is not None or torch.compiler.is_compiling():
        return _make_block_mask(mask, batch, n_queries, n_keys, q.device, pattern, rule, key_positions)
    if not mask.static:
        key = ("flex", batch, n_queries, n_keys, q.device, pattern)
        return mask.made(key, lambda: _make_block_mask(mask, batch, n_queries, n_keys, q.device, pattern, rule))
    fields = (mask.causal, mask.window, mask.sinks, mask.prefix)
    return static_block_mask(fields, n_queries, n_keys, q.device, pattern, rule)


@lru_cache(maxsize=8)
def static_block_mask(
    fields: tuple, n_queries: int, n_keys: int, device: torch.device, pattern: Pattern | None, rule: Hashable
) -> BlockMask:
    """The block mask of positions alone, built once for all layers and steps."""
    return _make_block_mask(Mask(*fields), 1, n_queries, n_keys, device, pattern, rule)


def _make_block_mask(
    mask: Mask, batch: int, n_queries: int, n_keys: int, device, pattern, rule: Hashable, key_positions=None
) -> BlockMask:
    """Uncompiled, torch makes it from a Tq x Tk matrix; compiling takes seconds, which pays for large ones only."""
    from torch.nn.attention.flex_attention import create_block_mask

    compiling, batch = torch.compiler.is_compiling(), 1 if mask.static else batch
    visible, make = None if pattern is None else pattern.visible, cast(Callable, create_block_mask)
    mod = flex_mask_mod(mask, n_queries, n_keys, visible, key_positions, None if compiling else device)
    if not compiling and device.type == "cuda" and batch * n_queries * n_keys > LARGE:
        make = _compiled(create_block_mask, (rule, batch == 1, _fields(mask), key_positions is not None))
    with (
        nullcontext() if compiling else torch.inference_mode(False)
    ):  # made in an evaluation, it must still serve training
        return make(mod, batch, None, n_queries, n_keys, device=device)


def _fields(mask: Mask) -> tuple[bool, bool]:
    """The fields that are other code and not other numbers."""
    return mask.key_padding is not None, mask.documents is not None


def _structure(q: Tensor, k: Tensor, v: Tensor) -> tuple:
    """What torch takes for constants: heads, widths, an axis of 1 (a token, a block), the order in memory and its gaps."""
    few = (len(q) == 1, *((n > 1) + (n > BLOCK) for n in (q.shape[2], k.shape[2])))
    lie = ((t.is_contiguous(), t.dim_order()) for t in (q, k, v))
    recording = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    return q.dtype, q.shape[1], q.shape[3], k.shape[1], v.shape[3], *few, *lie, recording


def _score_mod(
    bias: ScoreBias | None,
    change: Callable[[Tensor], Tensor] | None,
    q: Tensor,
    n_keys: int,
    key_positions: Tensor | None,
):
    """FlexAttention asks for one score at a time: row and column numbers, here turned to positions."""
    if bias is None and change is None:
        return None
    shift = n_keys - q.shape[2]
    offset: Any = shift if torch.compiler.is_compiling() else number("shift", shift, q.device)
    of_head = None if bias is None else bias.by_head(q.device)
    whole = None if bias is None or of_head is not None else _written_out(bias, q, n_keys, key_positions)

    def changed(score: Tensor, b: Tensor, h: Tensor, q_index: Tensor, kv_index: Tensor) -> Tensor:
        score = score if change is None else change(score)
        if whole is not None:
            return score + whole[h, q_index, kv_index]
        if of_head is None:
            return score
        i, j = q_index + offset, kv_index
        if key_positions is not None:
            i, j = key_positions[i], key_positions[j]
        return score + of_head(i, j, h)

    return changed


def _written_out(bias: ScoreBias, q: Tensor, n_keys: int, key_positions: Tensor | None) -> Tensor:
    """(H, Tq, Tk), of a bias that says no more than whole blocks."""
    at = torch.arange(min(n_keys - q.shape[2], 0), n_keys, device=q.device) if key_positions is None else key_positions
    return bias.block(at[len(at) - q.shape[2] :, None], at[None, len(at) - n_keys :])
