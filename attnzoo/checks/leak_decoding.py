"""The leak tests that compare two ways to the same logits: a prefix alone, and decoding through a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.leak_rounding import explained
from attnzoo.checks.leak_setup import rounding
from attnzoo.checks.leak_subject import LeakTest, Subject, Worst, distance, skip
from attnzoo.errors import Refused, RequestError


def truncation(s: Subject) -> list[LeakTest]:
    """The logits of a prefix alone equal those in the full sequence, within rounding (shapes differ)."""
    name, n = "truncation", s.n_tokens
    lengths = sorted({1, 2, 3, n // 4, n // 2, n // 2 + 1, n - 1, *s.some(4)} & set(range(1, n)))
    refused: dict[int, str] = {}
    apart: dict[int, Tensor] = {}
    for length in lengths:
        try:
            alone = s.run(s.tokens[:, :length].contiguous())
        except RequestError:
            raise
        except Exception as error:  # a model of one length only is not a leak; the error is reported
            refused[length] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            continue
        apart[length] = distance(alone, s.logits[:, :length])
    worst, bound = _judged(apart, s.bound, lambda: s.explained(s.tokens, s.logits))
    if refused:
        length, why = next(iter(refused.items()))
        if len(refused) == len(lengths):
            return [skip(name, f"the callable takes only T = {n}: {why}")]
        return [LeakTest(name, False, max_change=worst.largest, detail=f"it fails on {length} tokens: {why}")]
    bad = (
        f"logit {worst.position} of row {worst.row} differs by up to {worst.largest:.2g} when tokens end at {worst.cut}"
    )
    within = f"(bound {bound:.2g})"
    return [
        worst.result(name, f"{len(lengths)} prefixes alone equal their part of the whole {within}", f"{bad} {within}")
    ]


def decoding(s: Subject) -> list[LeakTest]:
    """Tokens fed through the model's cache, in several splits, give the logits of the parallel pass within rounding."""
    name = "decoding"
    model: Any = next((m for m in s.modules if hasattr(m, "new_cache")), None)
    if model is None:
        return [skip(name, "the callable shows no module with new_cache")]
    broken, apart, ways = "", {}, splits(s.n_tokens)
    try:
        with torch.no_grad():
            # not the callable: it may run the model in another precision than its cache has
            parallel = model(s.tokens).clone()
            for spare, chunks in enumerate(ways):
                decoded, faults = _decode(model, s.tokens, chunks, spare)
                apart[spare] = distance(decoded, parallel)
                broken = broken or faults
    except Refused as error:
        return [skip(name, f"decoding is refused: {' '.join(str(error).split())}")]
    terms, dtype = rounding(parallel.dtype, [model], s.tokens.device)
    eps, usual = torch.finfo(dtype).eps, terms * float(parallel.abs().max())
    worst, bound = _judged(apart, usual, lambda: explained(model, [model], s.tokens, parallel, eps, s.seed))
    if broken:
        return [LeakTest(name, False, max_change=worst.largest, detail=broken)]
    bad = (
        f"decoding differs: logit {worst.position} of row {worst.row} from the parallel pass, by up to "
        f"{worst.largest:.2g} (bound {bound:.2g}), when tokens come in chunks of {_short(ways[worst.cut])}"
    )
    return [worst.result(name, f"{len(ways)} splits equal the parallel pass (bound {bound:.2g})", bad)]


def _judged(apart: dict[int, Tensor], usual: float, explained: Callable[[], float]) -> tuple[Worst, float]:
    """What differs by more than rounding, and the bound: the ``usual`` one of any model, or, where that does not hold, one
    that is widened by what rounding has been measured to do to this model."""
    largest = max((float(move.max()) for move in apart.values()), default=0.0)
    bound = usual if largest <= usual else usual + explained()
    worst = Worst(bound)
    for key, move in apart.items():
        worst.see(move, key)
    return worst, bound


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
        parts.append(model(tokens[:, start : start + n], cache=cache).clone())
        start += n
        if cache.length != start:
            fault = fault or f"after {start} tokens the cache says it holds {cache.length}"
    if cache.nbytes != size:
        fault = fault or f"the cache grew from {size} to {cache.nbytes} bytes"
    return torch.cat(parts, 1), fault


def _short(chunks: list[int]) -> str:
    shown = ", ".join(map(str, chunks[:4]))
    return f"{shown}, …" if len(chunks) > 4 else shown
