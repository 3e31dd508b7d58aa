"""The leak tests that compare two ways to the same logits: a prefix alone, and decoding through a cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.leak_setup import rounding
from attnzoo.checks.leak_subject import LeakTest, Subject, Worst, distance, skip
from attnzoo.errors import Refused, RequestError


def truncation(s: Subject) -> list[LeakTest]:
    """The logits of a prefix alone equal those in the full sequence, within rounding (shapes differ)."""
    name, n = "truncation", s.n_tokens
    lengths = sorted({1, 2, 3, n // 4, n // 2, n // 2 + 1, n - 1, *s.some(4)} & set(range(1, n)))
    worst, refused = Worst(s.bound), {}
    for length in lengths:
        try:
            alone = s.run(s.tokens[:, :length].contiguous())
        except RequestError:
            raise
        except Exception as error:  # a model of one length only is not a leak; the error is reported
            refused[length] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            continue
        worst.see(distance(alone, s.logits[:, :length]), length)
    if refused:
        length, why = next(iter(refused.items()))
        if len(refused) == len(lengths):
            return [skip(name, f"the callable takes only T = {n}: {why}")]
        return [LeakTest(name, False, max_change=worst.largest, detail=f"it fails on {length} tokens: {why}")]
    bad = (
        f"logit {worst.position} of row {worst.row} differs by up to {worst.largest:.2g} when tokens end at {worst.cut}"
    )
    within = f"(bound {s.bound:.2g})"
    return [
        worst.result(name, f"{len(lengths)} prefixes alone equal their part of the whole {within}", f"{bad} {within}")
    ]


def decoding(s: Subject) -> list[LeakTest]:
    """Tokens fed through the model's cache, in several splits, give the logits of the parallel pass within rounding."""
    name = "decoding"
    model: Any = next((m for m in s.modules if hasattr(m, "new_cache")), None)
    if model is None:
        return [skip(name, "the callable shows no module with new_cache")]
    broken = ""
    try:
        parallel = model(s.tokens)  # not the callable: it may run the model in another precision than its cache has
        bound = rounding(parallel.dtype, [model], s.tokens.device)[0] * float(parallel.abs().max())
        worst = Worst(bound)
        for spare, chunks in enumerate(splits(s.n_tokens)):
            decoded, faults = _decode(model, s.tokens, chunks, spare)
            worst.see(distance(decoded, parallel), spare)
            broken = broken or faults
    except Refused as error:
        return [skip(name, f"decoding is refused: {' '.join(str(error).split())}")]
    if broken:
        return [LeakTest(name, False, max_change=worst.largest, detail=broken)]
    chunks = splits(s.n_tokens)[worst.cut]
    bad = (
        f"logit {worst.position} of row {worst.row} differs from the parallel pass, by up to {worst.largest:.2g} "
        f"(bound {bound:.2g}), when tokens come in chunks of {_short(chunks)}"
    )
    return [worst.result(name, f"{len(splits(s.n_tokens))} splits equal the parallel pass (bound {bound:.2g})", bad)]


def splits(n_tokens: int) -> list[list[int]]:
    """Ways to feed T tokens: 64 singly and the rest; all but one; all but 16 and those singly; ragged chunks."""
    first, last = min(n_tokens, 64), min(n_tokens // 2, 16)
    ways = [[1] * first + [n_tokens - first], [n_tokens - 1, 1], [n_tokens - last] + [1] * last]
    ragged: list[int] = []
    sizes = [3, 1, 7, 2, 13, 5, 31, 1] if n_tokens <= 256 else [67, 1, 131, 2, 33]
    while sum(ragged) < n_tokens:
        ragged.append(min(sizes[len(ragged) % len(sizes)], n_tokens - sum(ragged)))
    return [[n for n in way if n] for way in [*ways, ragged]]


def _decode(model: Any, tokens: Tensor, chunks: Iterable[int], spare: int) -> tuple[Tensor, str]:
    """Logits of all tokens through a cache with some spare room, and what is wrong with the cache."""
    batch, n_tokens = tokens.shape
    kind = tokens.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    cache = model.new_cache(batch, n_tokens + spare, device=tokens.device, dtype=dtype)
    size, start, parts, fault = cache.nbytes, 0, [], ""
    for n in chunks:
        parts.append(model(tokens[:, start : start + n], cache=cache))
        start += n
        if cache.length != start:
            fault = fault or f"after {start} tokens the cache says it holds {cache.length}"
    if cache.nbytes != size:
        fault = fault or f"the cache grew from {size} to {cache.nbytes} bytes"
    return torch.cat(parts, 1), fault


def _short(chunks: list[int]) -> str:
    shown = ", ".join(map(str, chunks[:4]))
    return f"{shown}, …" if len(chunks) > 4 else shown
