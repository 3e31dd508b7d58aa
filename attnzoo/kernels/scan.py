"""A state that decays and is written to token by token, computed in chunks. Shapes: see `attnzoo.shapes`.

c is the chunk's length, N the number of chunks, E the width of the values, R = H/G. The decay is given as its logarithm,
one number a token (…, 1) or one a key channel (…, D). Every exponential taken here is of a sum of logarithms of decays, never of
a difference of two such sums: none overflows, none cancels, and a decay of exactly 0 is allowed.
Sources: arXiv:2312.06635 (chunks, channel decay), 2405.21060 (scalar decay), 2406.06484, 2412.06464 and 2510.26692 (delta rule).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.kernels.derivatives import plainly, recorded_gradients
from attnzoo.kernels.pad import pad_tokens

CACHED = 2**20
"""Bytes."""


def scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    chunk: int,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    starts: Tensor | None = None,
    state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """o_t = S_t^T q_t with S_t = Diag(a_t) S_{t-1} + k_t u_t^T, the last query aligned with the last key.

    u_t is v_t, or with ``beta`` the delta rule's β_t (v_t - (Diag(a_t) S_{t-1})^T k_t): what k_t reads is replaced by v_t.
    Time O(T (c + D) E), memory O(T (c + D + E)), forward and backward. Computed in the dtype of q, under no autocast.

    Args:
        q, k, v: (B, H, Tq, D), (B, G, Tk, D), (B, G, Tk, E).
        chunk: tokens computed together, a power of two.
        decay: log a_t ≤ 0, (B or 1, G, Tk, 1 or D); None for a_t = 1.
        beta: (B, G, Tk).
        starts: (B or 1, Tk) bool, True where the state is emptied before the token.
        state: S before the first token, (B, G, D, E); None for zeros.

    Returns:
        (B, H, Tq, E) and the state after the last token.
    """
    n_queries, n_keys = q.shape[2], k.shape[2]
    c = chunk_for(chunk, n_keys)
    # where chunks are summed and not walked through, torch.compile may leave their number open
    open_ended = decay is None and beta is None and starts is None
    n_chunks = -(-n_keys // c) if open_ended else chunk_count(c, n_keys)
    # earlier keys get queries of zero; queries before the first key (a negative pad) see nothing
    lead, tail = n_keys - n_queries, n_chunks * c - n_keys
    q, k, v = pad_tokens(q, lead, tail), pad_tokens(k, 0, tail), pad_tokens(v, 0, tail)
    q, k, v = (t.unflatten(2, (n_chunks, c)) for t in (q, k, v))  # (B, ·, N, c, ·)
    q = q.unflatten(1, (k.shape[1], -1))  # (B, G, R, N, c, D)
    if decay is not None:
        decay = pad_tokens(decay, 0, tail).unflatten(2, (n_chunks, c))
    if beta is not None:
        beta = F.pad(beta, (0, tail)).unflatten(2, (n_chunks, c))
    run = None if starts is None else F.pad(starts, (0, tail)).unflatten(1, (n_chunks, c)).long().cumsum(-1)[:, None]
    with torch.autocast(q.device.type, enabled=False):
        out, state = _chunks(q, k, v, decay, beta, run, state)
    out = out.flatten(1, 2).flatten(2, 3)[:, :, max(lead, 0) : n_keys]
    return pad_tokens(out, max(-lead, 0), 0), state


def chunk_for(chunk: int, n_tokens: int) -> int:
    """The chunk, or the smallest power of two that holds all tokens. Found by comparisons: a constant to torch.compile."""
    c = 1
    while c < chunk and c < n_tokens:
        c *= 2
    return c


def chunk_count(c: int, n_tokens: int) -> int:
    """How many chunks hold all tokens. Found by comparisons, so that no shape below depends on the number of tokens."""
    n_chunks = 1
    while n_chunks * c < n_tokens:
        n_chunks += 1
    return n_chunks


def _chunks(q, k, v, decay, beta, run, state) -> tuple[Tensor, Tensor]:
    """`scan` of whole chunks; ``run`` (B or 1, 1, N, c) numbers the stretches between starts within each chunk."""
    if decay is None and beta is None and run is None and not plainly():
        state = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]) if state is None else state
        carried, state = _carry(state, k.mT @ v, None)
        return Chunks.apply(q, *(t[:, :, None] for t in (k, v, carried))), state
    enter = leave = whole = None  # what is left of the state at a token, of a token at the end, of the state at the end
    if decay is not None:
        enter, leave, whole = decay.cumsum(-2).exp(), suffix_sums(decay).exp(), decay.sum(-2, keepdim=True).exp()
    rows = q if beta is None else torch.cat([q, k[:, :, None]], 2)
    pairs = pair_products(rows, k, decay)
    if run is not None:
        pairs = pairs * (run[..., :, None] == run[..., None, :])[:, :, None]
        last = run[..., -1:]
        enter, leave, whole = _cut(enter, run == 0), _cut(leave, run == last), _cut(whole, last == 0)
    reads, key_ends = _times(q, None if enter is None else enter[:, :, None]), _times(k, leave).mT
    if state is None:
        state = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    if beta is None:
        carried, state = _carry(state, key_ends @ v, whole)
    else:
        pairs, among = pairs[:, :, :-1], pairs[:, :, -1]
        # the UT transform: each token's write, less what it finds already written by earlier tokens of the chunk
        alone = torch.cat([v, _times(k, enter)], -1) * beta[..., None]
        written = torch.linalg.solve_triangular(among * beta[..., None], alone, upper=False, unitriangular=True)
        values, keys = written.split([v.shape[-1], k.shape[-1]], -1)
        carried, v, state = _carry_delta(state, key_ends, values, keys, whole)
    return pairs @ v[:, :, None] + reads @ carried[:, :, None], state


class Chunks(torch.autograd.Function):
    """tril(q kᵀ) v + q S in each chunk of q (B, G, R, N, c, D), k, v and S (B, G, 1, N, ·, ·), some chunks at a time.

    The products of queries and keys are made again in the backward pass.
    """

    @staticmethod
    def forward(ctx, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        out = tensors[0].new_empty(*tensors[0].shape[:-1], tensors[2].shape[-1])
        for q, k, v, state, o in _split(*tensors, out):
            torch.add((q @ k.mT).tril_() @ v, q @ state, out=o)
        return out

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        if torch.is_grad_enabled():
            return recorded_gradients(lambda q, k, v, s: (q @ k.mT).tril() @ v + q @ s, tensors, gradient)
        found = tuple(t.new_empty(t.shape) for t in tensors)
        for q, k, v, state, o, dq, dk, dv, ds in _split(*tensors, gradient, *found):
            pairs, above = (q @ k.mT).tril_(), (o @ v.mT).tril_()
            torch.add(above @ k, o @ state.mT, out=dq)
            for sums, each in ((dk, above.mT @ q), (dv, pairs.mT @ o), (ds, q.mT @ o)):
                sums.copy_(each.sum(2, keepdim=True))
        return found


def _split(q: Tensor, *others: Tensor) -> Iterable[tuple[Tensor, ...]]:
    """As many chunks at a time as have their products of queries and keys in a CPU's cache."""
    n = (
        q.shape[3]
        if q.is_cuda
        else max(CACHED * q.shape[3] // max(q.numel() // q.shape[-1] * q.shape[-2] * q.itemsize, 1), 1)
    )
    return zip(*(t.split(n, 3) for t in (q, *others)), strict=True)


def _carry(state: Tensor, updates: Tensor, whole: Tensor | None) -> tuple[Tensor, Tensor]:
    """The state before each chunk (B, G, N, D, E), and after the last."""
    if whole is None:
        sums = torch.cat([state[:, :, None], updates], 2).cumsum(2)
        return sums[:, :, :-1], sums[:, :, -1]
    carried = []
    for n, update in enumerate(updates.unbind(2)):
        carried.append(state)
        state = state * whole[:, :, n].mT + update
    return torch.stack(carried, 2), state


def _carry_delta(state, key_ends, values, keys, whole) -> tuple[Tensor, Tensor, Tensor]:
    """The same for the delta rule; also what tokens write, (B, G, N, c, E): ``values`` less what ``keys`` read of the state."""
    carried, written = [], []
    for n, (end, value, key) in enumerate(zip(key_ends.unbind(2), values.unbind(2), keys.unbind(2), strict=True)):
        carried.append(state)
        written.append(value - key @ state)
        state = _times(state, None if whole is None else whole[:, :, n].mT) + end @ written[-1]
    return torch.stack(carried, 2), torch.stack(written, 2), state


def pair_products(rows: Tensor, k: Tensor, decay: Tensor | None) -> Tensor:
    """Σ_d rows_id k_jd Π_{j<t≤i} a_td for j ≤ i, else 0: rows (B, G, R, N, c, D), k (B, G, N, c, D) -> (B, G, R, N, c, c)."""
    if decay is None:
        return (rows @ k[:, :, None].mT).tril()
    c = k.shape[-2]
    if decay.shape[-1] == 1:
        between = decay.expand(*decay.shape[:-1], c).tril(-1).cumsum(-2).exp()  # [i, j]: Π of a_t, j < t ≤ i
        return (rows @ k[:, :, None].mT * between[:, :, None]).tril()
    # Halves of halves: a pair astride a middle is (row × decay since the middle) · (key × decay up to the middle), both ≤ 1.
    # Level by level the triangles of blocks of 1, 2, 4, … tokens are joined by the square between them.
    rows, k, decay = rows.flatten(-3, -2), k.flatten(-3, -2), decay.flatten(-3, -2)
    triangles, size = (rows * k[:, :, None]).sum(-1)[..., None, None], 1
    while size < c:
        since, before = _second(decay, size).cumsum(-2).exp(), suffix_sums(_first(decay, size)).exp()
        square = (_second(rows, size) * since[:, :, None]) @ (_first(k, size) * before)[:, :, None].mT
        first, second = triangles.unflatten(-3, (-1, 2)).unbind(-3)
        triangles = torch.cat([F.pad(first, (0, size)), torch.cat([square, second], -1)], -2)
        size *= 2
    return triangles


def suffix_sums(t: Tensor) -> Tensor:
    """Sums over the tokens after each one, along the last axis but one."""
    return F.pad(t[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)


def _first(t: Tensor, size: int) -> Tensor:
    """The first half of each block of 2·size tokens: (…, T, D) -> (…, T/(2·size), size, D)."""
    return t.unflatten(-2, (-1, 2, size)).unbind(-3)[0]


def _second(t: Tensor, size: int) -> Tensor:
    return t.unflatten(-2, (-1, 2, size)).unbind(-3)[1]


def _times(t: Tensor, factor: Tensor | None) -> Tensor:
    return t if factor is None else t * factor


def _cut(factor: Tensor | None, kept: Tensor) -> Tensor:
    """The factor (…, c, ·), or 1, where kept (…, c) is True, else 0."""
    return kept[..., None].float() if factor is None else factor * kept[..., None]
