"""`Mask` in the conventions of other libraries. The only file that knows how they count and align.

========================================  ======================  ==========================================
library                                   alignment for Tq ≠ Tk   a window of W keys is called
========================================  ======================  ==========================================
attnzoo                                   last query, last key    window=W
SDPA ``is_causal``                        first query, first key  (none: a dense mask)
FlexAttention                             none: mask_mod decides  mask_mod
xformers ``LowerTriangularMask``          first query, first key  (none)
xformers ``…FromBottomRightMask``         last query, last key    ``make_local_attention(W)``
========================================  ======================  ==========================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnzoo.masks.spec import Mask

XFORMERS_FIELDS = frozenset({"bidirectional", "window", "documents"})
"""The fields with an xformers bias object that needs no n x n tensor."""


def sdpa_arguments(mask: Mask, n_queries: int, n_keys: int, device: torch.device) -> tuple[Tensor | None, bool]:
    """(attn_mask, is_causal) for SDPA; never both. None and False when every key is visible."""
    if not mask.fields and n_queries == n_keys:
        return None, True
    if mask.fields <= {"bidirectional"} and not mask.causal:
        return None, False
    if not mask.fields and n_queries == 1:
        return None, False
    return mask.dense(n_queries, n_keys, device), False


def flex_mask_mod(mask: Mask, n_queries: int, n_keys: int) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """FlexAttention's ``mask_mod(b, h, q_index, kv_index)``; its indices are row and column numbers, so the row is shifted."""
    offset = n_keys - n_queries

    def visible(b: Tensor, h: Tensor, q_index: Tensor, kv_index: Tensor) -> Tensor:
        i, j = q_index + offset, kv_index
        seen = j >= 0
        if mask.causal:
            seen = seen & ((j <= i) | (j < mask.prefix))
        if mask.window is not None:
            seen = seen & (((j > i - mask.window) & (j <= i)) | (j < mask.sinks))
        if mask.key_padding is not None:
            seen = seen & mask.key_padding[b % mask.key_padding.shape[0], j]
        if mask.documents is not None:
            row = b % mask.documents.shape[0]
            # FlexAttention asks for whole blocks; a row before the first key has no document and sees nothing
            seen = seen & (i >= 0) & (mask.documents[row, i.clamp(min=0)] == mask.documents[row, j])
        return seen

    return visible


def xformers_bias(mask: Mask, n_queries: int, n_keys: int, batch_size: int = 1) -> Any:
    """The xformers bias object for this mask; None when every key is visible.

    Documents come as a block-diagonal bias over the batch packed into one row, as `memory_efficient_attention` wants it.

    Raises:
        ValueError: a field outside `XFORMERS_FIELDS`, documents that are not contiguous or with Tq ≠ Tk.
    """
    from xformers.ops.fmha import attn_bias as xb

    if not mask.fields <= XFORMERS_FIELDS:
        raise ValueError(f"xformers has no bias object for {sorted(mask.fields - XFORMERS_FIELDS)}")
    if mask.documents is not None:
        if n_queries != n_keys or not mask.contiguous_documents:
            raise ValueError("documents need Tq = Tk and contiguous ids here")
        lengths = _document_lengths(mask.documents.expand(batch_size, -1))
        packed = xb.BlockDiagonalMask.from_seqlens(lengths)
        if mask.window is not None:
            return packed.make_causal().make_local_attention(mask.window)
        return packed.make_causal() if mask.causal else packed
    if mask.window is not None:
        return xb.LowerTriangularFromBottomRightMask().make_local_attention(mask.window)
    if not mask.causal:
        return None
    return xb.LowerTriangularMask() if n_queries == n_keys else xb.LowerTriangularFromBottomRightMask()


def _document_lengths(documents: Tensor) -> list[int]:
    """Lengths of the runs of equal ids, row after row."""
    lengths = []
    for row in documents:
        lengths += torch.unique_consecutive(row, return_counts=True)[1].tolist()
    return lengths
