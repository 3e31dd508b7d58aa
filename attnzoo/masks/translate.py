"""`Mask` in the conventions of other libraries. The only file that knows how they count and align.

========================================  ======================  ==========================================
library                                   alignment for Tq ≠ Tk   a window of W keys is called
========================================  ======================  ==========================================
attnzoo                                   last query, last key    window=W
SDPA ``is_causal``                        first query, first key  (none: a dense mask)
FlexAttention                             none: mask_mod decides  mask_mod
xformers ``LowerTriangularMask``          first query, first key  (none)
xformers ``…FromBottomRightMask``         last query, last key    ``make_local_attention(W)``
flash-attn                                last query, last key    ``window_size=(W - 1, 0)``
========================================  ======================  ==========================================
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.masks.spec import Mask

FAR = 2**30
"""Further than any sequence; added to a position it stays within 32 bits."""

XFORMERS_FIELDS = frozenset({"bidirectional", "window", "documents"})
"""The fields with an xformers bias object that needs no n x n tensor."""

FLASH_ATTN_FIELDS = frozenset({"bidirectional", "window", "documents"})
"""The fields that flash-attn has arguments for."""


def sdpa_arguments(mask: Mask, n_queries: int, n_keys: int, device: torch.device) -> tuple[Tensor | None, bool]:
    """(attn_mask, is_causal) for SDPA; never both. None and False when every key is visible."""
    if not mask.fields and n_queries == n_keys:
        return None, True
    if mask.fields <= {"bidirectional"} and not mask.causal:
        return None, False
    if not mask.fields and n_queries == 1:
        return None, False
    return mask.dense(n_queries, n_keys, device), False


def flex_mask_mod(
    mask: Mask,
    n_queries: int,
    n_keys: int,
    pattern: Callable[[Tensor, Tensor], Tensor | None] | None = None,
    key_positions: Tensor | None = None,
    device: torch.device | None = None,
) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """FlexAttention's ``mask_mod(b, h, q_index, kv_index)``; its indices are row and column numbers, so the row is shifted.

    ``pattern(i, j)`` of positions intersects with the mask; ``key_positions`` (Tk,) are those of the columns where they are
    not 0 … Tk - 1, and then Tq ≤ Tk. With ``device`` the numbers are tensors there: compiled, masks that differ in them
    alone are one graph.
    """
    ahead = 0 if mask.causal else FAR  # of the query, up to where keys are seen
    window, within = (FAR, FAR) if mask.window is None else (mask.window, 0)
    plain = (n_keys - n_queries, ahead, mask.prefix, window, within, mask.sinks)
    numbers: Sequence[Any] = plain if device is None else [number(place, n, device) for place, n in enumerate(plain)]
    padding, documents = mask.key_padding, mask.documents

    def visible(b: Tensor, h: Tensor, q_index: Tensor, kv_index: Tensor) -> Tensor:
        offset, ahead, prefix, window, within, sinks = numbers
        i, j = q_index + offset, kv_index
        if key_positions is not None:
            i, j = key_positions[i], key_positions[j]
        seen = (j <= i + ahead) | (j < prefix)
        seen = seen & (((j > i - window) & (j <= i + within)) | (j < sinks))
        own = None if pattern is None else pattern(i, j)
        if own is not None:
            seen = seen & own
        if padding is not None:
            seen = seen & padding[b % padding.shape[0], j]
        if documents is not None:
            row = b % documents.shape[0]
            # FlexAttention asks for whole blocks; a row before the first key has no document and sees nothing
            seen = seen & (i >= 0) & (documents[row, i.clamp(min=0)] == documents[row, j])
        return seen

    return visible


@lru_cache(maxsize=4096)
def number(name: Hashable, value: int, device: torch.device) -> Tensor:
    """A whole number as a tensor (), made on the device, so that nothing waits for a copy.

    ``name``: of its place in the code; two places with one tensor would be a graph apart from two tensors that are equal.
    """
    with torch.inference_mode(False):  # made during an evaluation, it must still serve training
        return torch.full((), value, dtype=torch.int32, device=device)


def xformers_bias(
    mask: Mask, n_queries: int, n_keys: int, batch_size: int = 1, device: torch.device | None = None
) -> Any:
    """The xformers bias object for this mask; None when every key is visible.

    Documents come as a block-diagonal bias over the batch packed into one row, as `memory_efficient_attention` wants it,
    on ``device``, which is theirs when None; left to xformers it would be the current device.

    Raises:
        ValueError: a field outside `XFORMERS_FIELDS`, documents that are not contiguous or with Tq ≠ Tk.
    """
    from xformers.ops.fmha import attn_bias as xb

    if not mask.fields <= XFORMERS_FIELDS:
        raise ValueError(f"xformers has no bias object for {sorted(mask.fields - XFORMERS_FIELDS)}")
    if mask.documents is not None:
        if n_queries != n_keys or not mask.contiguous_documents:
            raise ValueError("documents need Tq = Tk and contiguous ids here")
        lengths = document_bounds(mask.documents.expand(batch_size, -1)).diff().tolist()
        packed = xb.BlockDiagonalMask.from_seqlens(lengths, device=device or mask.documents.device)
        if mask.window is not None:
            return packed.make_causal().make_local_attention(mask.window)
        return packed.make_causal() if mask.causal else packed
    if mask.window is not None:
        return xb.LowerTriangularFromBottomRightMask().make_local_attention(mask.window)
    if not mask.causal:
        return None
    return xb.LowerTriangularMask() if n_queries == n_keys else xb.LowerTriangularFromBottomRightMask()


def flash_attn_arguments(mask: Mask, window: int | None = None) -> dict[str, Any]:
    """``causal`` and ``window_size`` of flash-attn: keys from ``left`` before the query's own to ``right`` after it, -1 for all.

    The smaller of the mask's window and ``window`` counts. Documents are `flash_attn_packing`'s business.

    Raises:
        ValueError: a field outside `FLASH_ATTN_FIELDS`.
    """
    if not mask.fields <= FLASH_ATTN_FIELDS:
        raise ValueError(f"flash-attn has no argument for {sorted(mask.fields - FLASH_ATTN_FIELDS)}")
    widths = [w for w in (mask.window, window) if w is not None]
    if widths:  # a window looks back only, also where the mask is not causal
        return {"causal": True, "window_size": (min(widths) - 1, 0)}
    return {"causal": mask.causal, "window_size": (-1, -1)}


def flash_attn_packing(documents: Tensor, n_queries: int) -> dict[str, Any]:
    """The bounds of contiguous documents (B, Tk) laid end to end, row after row, for flash-attn's varlen call.

    Queries are the last Tq ≤ Tk of each row: a document may have fewer of them than keys, or none, the last aligned.
    """
    keys = document_bounds(documents)
    n_keys = documents.shape[1]
    row, place = keys.div(n_keys, rounding_mode="floor"), keys % n_keys
    queries = row * n_queries + (place - (n_keys - n_queries)).clamp(min=0)
    longest = (bounds.diff().max().item() for bounds in (queries, keys))
    return {
        "cu_seqlens_q": queries.int(), "cu_seqlens_k": keys.int(),
        **dict(zip(("max_seqlen_q", "max_seqlen_k"), longest, strict=True)),
    }  # fmt: skip


def document_starts(documents: Tensor) -> Tensor:
    """(B, T) bool: True at the first token of each document but the first."""
    return F.pad(documents[:, 1:] != documents[:, :-1], (1, 0))


def document_bounds(documents: Tensor) -> Tensor:
    """Where each run of equal ids begins in the rows (B, T) laid end to end, and B·T at last: ``cu_seqlens`` elsewhere."""
    return piece_bounds(document_starts(documents))


def piece_bounds(starts: Tensor) -> Tensor:
    """The same from starts (B, T); a row begins a piece in any case."""
    cut = starts.clone()
    cut[:, 0] = True
    return F.pad(cut.flatten().nonzero()[:, 0], (0, 1), value=cut.numel())
