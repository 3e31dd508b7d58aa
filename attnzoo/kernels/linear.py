"""Causal sums of φ(k) v^T, in chunks: what linear attention and its kin are made of. Shapes: see `attnzoo.shapes`.

E is the width of the summed values; a column of ones among them carries the normaliser through the same sums.
Source of the chunkwise form: arXiv:2312.06635, section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


class StateCache:
    """A state (B, G, D, E) that stands for all tokens seen so far; its size does not depend on their number."""

    def __init__(self, state: Tensor, max_tokens: int) -> None:
        self.state, self.max_tokens, self.length = state, max_tokens, 0

    @property
    def nbytes(self) -> int:
        return self.state.nbytes


def full(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Without causality: (B,H,Tq,D), (B,G,Tk,D), (B,G,Tk,E) -> (B,H,Tq,E), every query reading every key."""
    state = keys.mT @ values
    grouped = queries.unflatten(1, (keys.shape[1], -1))
    return (grouped @ state[:, :, None]).flatten(1, 2)


def chunked(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    chunk: int,
    documents: Tensor | None = None,
    state: Tensor | None = None,
) -> Tensor:
    """Causal sums O_i = Σ_{j ≤ i} (q_i · k_j) v_j, the last query aligned with the last key.

    Args:
        queries, keys, values: (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, E).
        documents: (B or 1, Tk) contiguous ids; the sums start anew with each document.
        state: (B, G, D, E) sums over earlier tokens of the first token's document.

    Returns:
        (B, H, Tq, E).
    """
    n_queries, n_keys = queries.shape[2], keys.shape[2]
    if (
        n_queries != n_keys
    ):  # earlier keys get queries of zero; queries before the first key (a negative pad) see nothing
        queries = F.pad(queries, (0, 0, n_keys - n_queries, 0))
    c = min(chunk, n_keys)
    tail = -n_keys % c
    if tail:
        queries, keys, values = (F.pad(t, (0, 0, 0, tail)) for t in (queries, keys, values))
    q, k, v = (t.unflatten(2, (-1, c)) for t in (queries, keys, values))  # (B, ·, N, c, ·)
    q = q.unflatten(1, (keys.shape[1], -1))  # (B, G, H/G, N, c, D)

    near = (q @ k.mT[:, :, None]).tril_()
    updates = k.mT @ v  # (B, G, N, D, E)
    if documents is None:
        first = torch.zeros_like(updates[:, :, 0]) if state is None else state
        carried = torch.cat([first[:, :, None], updates[:, :, :-1]], 2).cumsum(2)
        out = near @ v[:, :, None] + q @ carried[:, :, None]
    else:
        ids = F.pad(documents, (0, tail), mode="constant").unflatten(1, (-1, c))  # (B, N, c)
        if tail:
            ids[:, -1, c - tail :] = documents[:, -1:]
        last, before = ids[:, :, -1], torch.cat([ids[:, :1, 0], ids[:, :-1, -1]], 1)  # (B, N)
        near = near * (ids[..., None] == ids[..., None, :])[:, None, None]
        updates = (k * (ids == last[..., None])[:, None, ..., None]).mT @ v
        carried = _reset_sums(updates, keep=last == before, state=state)
        far = q @ carried[:, :, None]
        out = near @ v[:, :, None] + far * (ids == before[..., None])[:, None, None, ..., None]
    out = out.flatten(1, 2).flatten(2, 3)[:, :, :n_keys]
    return out[:, :, n_keys - n_queries :] if n_queries <= n_keys else F.pad(out, (0, 0, n_queries - n_keys, 0))


def step_state(state: Tensor, keys: Tensor, values: Tensor, documents: Tensor | None) -> Tensor:
    """The state after these tokens: (B, G, D, E) plus their sums, anew where a document has ended."""
    if documents is not None:
        last = documents[:, -1:]
        keys = keys * (documents == last)[:, None, :, None]
        state = state * (documents[:, :1] == last)[:, :, None, None]
    return state + keys.mT @ values


def _reset_sums(updates: Tensor, keep: Tensor, state: Tensor | None) -> Tensor:
    """Exclusive running sums over N of updates (B, G, N, D, E), set to zero where ``keep`` (B or 1, N) is False."""
    running = torch.zeros_like(updates[:, :, 0]) if state is None else state
    carried = []
    for n in range(updates.shape[2]):
        carried.append(running)
        running = running * keep[:, n, None, None, None] + updates[:, :, n]
    return torch.stack(carried, 2)
