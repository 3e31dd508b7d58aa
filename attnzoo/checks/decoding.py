"""Decoding: chunks and single tokens against one full pass, and the cache itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnzoo.checks.cases import Case, Inputs, MaskPlan
from attnzoo.checks.compare import Failed, Skip, expect_close, expect_finite, expect_same, expect_unbiased
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject, evaluating, one_head
from attnzoo.checks.suite import conformance_check
from attnzoo.contract import Attention
from attnzoo.errors import RequestError
from attnzoo.masks import Mask

POISON = 3e4  # large, finite in every dtype: a slot that is read although unused shows at once


def compositions(n: int) -> list[tuple[int, ...]]:
    """Every way to cut n tokens into chunks: 2^(n-1) of them."""
    found = []
    for cuts in product((False, True), repeat=n - 1):
        sizes = [1]
        for cut in cuts:
            if cut:
                sizes.append(1)
            else:
                sizes[-1] += 1
        found.append(tuple(sizes))
    return found


def part(inputs: Inputs, start: int, end: int) -> Inputs:
    """Tokens start … end - 1, under the mask over all tokens up to end."""
    m = inputs.mask
    upto = {n: None if (t := getattr(m, n)) is None else t[:, :end] for n in ("key_padding", "documents")}
    mask = Mask(m.causal, m.window, m.sinks, m.prefix, **upto)
    x = None if inputs.x is None else inputs.x[:, start:end]
    q, k, v = (t[:, :, start:end] for t in (inputs.q, inputs.k, inputs.v))
    return Inputs(q, k, v, mask, inputs.bias, x)


def decode(module: Attention, inputs: Inputs, chunks: tuple[int, ...], cache) -> Tensor:
    """The outputs of all tokens, given chunk by chunk, in evaluation."""
    outs, start = [], 0
    for size in chunks:
        q, k, v, mask, bias, x = part(inputs, start, start + size)
        with evaluating(module):
            outs.append(module.extend(q, k, v, cache, mask, bias, x))
        start += size
        if cache.length != start:
            raise Failed(f"{start} tokens in the cache", f"cache.length = {cache.length}", f"after a chunk of {size}")
    return torch.cat(outs, 2)


def new_cache(subject: Subject, module: Attention, case: Case, max_tokens: int):
    """A cache of the case, its unused slots poisoned where they can be seen."""
    cache = subject.new_cache(module, case, max_tokens)
    for name in ("keys", "values"):
        held = getattr(cache, name, None)
        if isinstance(held, Tensor):
            held.fill_(POISON)
    return cache


PLANS = (
    MaskPlan(padding="left"),
    MaskPlan(padding="deep"),
    MaskPlan(padding="holes"),
    MaskPlan(documents="runs"),
    MaskPlan(documents="mixed"),
    MaskPlan(window=3),
    MaskPlan(window=2, sinks=1),
    MaskPlan(prefix=2),
)


@conformance_check(quick=True)
def decoding(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Any split into a prefill, chunks and single tokens gives the rows of one full pass, also across the wrap of a ring."""
    base = replace(subject.base, batch=1 if quick else 2)
    cases = [replace(base, n_queries=n, n_keys=n) for n in ((1, 2, 6) if quick else (1, 2, 3, 5, 7, 13))]
    cases.append(replace(base, n_queries=11, n_keys=11, bias=True))
    cases += subject.tile_cases(MaskPlan())
    if not quick:
        cases += [replace(base, n_queries=n, n_keys=n, mask=plan) for plan in PLANS for n in (4, 13)]
        cases += [replace(base, n_queries=27, n_keys=27, batch=1, mask=MaskPlan(documents="runs"))]
        left = replace(base, n_queries=4, n_keys=4, mask=MaskPlan(padding="left"))
        cases += [replace(left, bias=True), replace(left, heads=4, kv_heads=2)]
        cases += [replace(base, n_queries=n, n_keys=n, heads=4, kv_heads=2) for n in (4, 9)]
        cases += [replace(base, n_queries=7, n_keys=7, value_dim=3), replace(base, n_queries=5, n_keys=5, batch=5)]
        long = replace(one_head(subject), batch=1)
        cases += [replace(long, n_queries=n, n_keys=n) for n in (35, 150, 1100)]
        cases += [replace(base, n_queries=e + e // 2, n_keys=e + e // 2, options="own", batch=1) for e in subject.edges]
        cases += [replace(base, n_queries=6, n_keys=6, dtype=dtype) for dtype in subject.dtypes[1:]]
    yield from each(subject, name, cases, decodes)


def decodes(subject: Subject, case: Case, most: int | None = None) -> None:
    """Every split of `_splits`, or ``most`` of them, gives the definition's rows."""
    module, inputs = subject.build(case), subject.inputs(case)
    n = case.n_keys
    if n < case.mask.prefix:
        raise Skip("a prefix must arrive whole in the first call")
    exact, plain = subject.exact(module, inputs), subject.plain(module, inputs)
    splits = _splits(n, case.mask.prefix)
    for chunks in splits if most is None else random.Random(case.seed).sample(splits, min(most, len(splits))):
        with torch.no_grad():
            out = decode(module, inputs, chunks, new_cache(subject, module, case, n + 3))
        if out.dtype != case.dtype:
            raise Failed(f"{case.dtype}", f"{out.dtype}", "decoded out")
        try:
            expect_close(out, exact, plain, "out", moved=lambda: subject.moved(module, inputs, exact))
            if out.dtype.itemsize == 2:
                expect_unbiased(out, exact, plain, "out")
        except Failed as found:
            row = _first_wrong_row(out, exact)
            found.detail = f"tokens given as {'+'.join(map(str, chunks))}; first wrong row {row}; {found.detail}"
            raise


def _splits(n: int, first: int) -> list[tuple[int, ...]]:
    """Every split of a few tokens, a well-chosen dozen of many; none cuts through the first ``first`` tokens."""
    if n <= 5:
        chosen = compositions(n)
    else:
        halves = n // 2
        chosen = [
            (n,),
            (1,) * n,
            (n - 1, 1),
            (1, n - 1),
            (halves, n - halves),
            (halves, *(1,) * (n - halves)),
            (n - 2, 1, 1),
        ]
        chosen += [_in_steps(n, step) for step in (2, 3, 4, 5)] + [(3, *_in_steps(n - 3, 4)), (5, *_in_steps(n - 5, 3))]
        if n > 40:  # single steps are dear there: only the last ones
            chosen = [
                (n,),
                (halves, n - halves),
                (n - 3, 1, 1, 1),
                (halves, *_in_steps(n - halves, 7 if n < 200 else 100)),
            ]
    return [c for c in dict.fromkeys(chosen) if c[0] >= min(first, n)]


def _in_steps(n: int, step: int) -> tuple[int, ...]:
    return (*(step,) * (n // step), *((n % step,) if n % step else ()))


def _first_wrong_row(out: Tensor, exact: Tensor) -> int:
    off = (out.double() - exact).abs().amax((0, 1, 3))
    return int((off > 1e-3 * exact.abs().max()).nonzero()[:1].sum())


@conformance_check(quick=True)
def cache(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """The cache takes the bytes it declares, hides none, and is empty at first; its size does not change what is decoded."""
    base = subject.base
    yield from each(subject, name, [replace(base, n_queries=n, n_keys=n) for n in (1, 6)], _cache)


def _cache(subject: Subject, case: Case) -> None:
    module, inputs, n = subject.build(case), subject.inputs(case), case.n_keys
    for max_tokens in (n, 4 * n):
        held = module.new_cache(case.batch, max_tokens, device=subject.device, dtype=case.dtype)
        declared = module.cache_bytes(case.batch, max_tokens, case.dtype)
        if held.nbytes != declared:
            raise Failed(
                f"{declared} bytes, as cache_bytes says",
                f"{held.nbytes} bytes",
                f"new_cache({case.batch}, {max_tokens})",
            )
        if held.length != 0:
            raise Failed("length 0", f"length {held.length}", "a new cache")
        if (found := _tensor_bytes(held)) > held.nbytes:
            raise Failed(f"{held.nbytes} bytes, as nbytes says", f"{found} bytes of tensors", "what the cache holds")
    with torch.no_grad():
        first = decode(module, inputs, (n,), new_cache(subject, module, case, n))
        again = decode(module, inputs, (n,), new_cache(subject, module, case, n + 9))
    expect_finite(first, "out")
    allowed = 8 * torch.finfo(case.dtype).eps * first.abs().max().item()
    expect_same(again, first, "out", allowed, "a larger cache gives other values")


@conformance_check(quick=True)
def full_cache(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """More tokens than the cache has room for are refused, and leave it as it was: what fits can still be decoded."""
    yield from each(subject, name, [replace(subject.base, n_queries=n, n_keys=n) for n in (2, 7)], _overfills)


def _overfills(subject: Subject, case: Case) -> None:
    n, module, inputs = case.n_keys, subject.build(case), subject.inputs(case)
    if n < 2:
        raise Skip("one token does not leave room for a second")
    held = new_cache(subject, module, case, n)
    with torch.no_grad():
        decode(module, part(inputs, 0, n - 1), (n - 1,), held)
        _expect_full(module, part(inputs, 0, 2), held, n)  # two where one fits
        last = module.extend(*_call(part(inputs, n - 1, n), held))
        _expect_full(module, part(inputs, 0, 1), held, n)
    exact, plain = subject.exact(module, inputs), subject.plain(module, inputs)
    plain = None if plain is None else plain[:, :, -1:]
    expect_close(last, exact[:, :, -1:], plain, "the last token's out, after a refusal")


def _expect_full(module: Attention, tokens: Inputs, cache, n: int) -> None:
    before = cache.length
    try:
        module.extend(*_call(tokens, cache))
    except RequestError:
        if cache.length != before:
            raise Failed(f"refused tokens leave length {before}", f"length {cache.length}", "cache") from None
        return
    raise Failed("RequestError: the cache is full", "it took them", f"{tokens.k.shape[2]} tokens for {before} of {n}")


def _call(tokens: Inputs, cache) -> tuple:
    q, k, v, mask, bias, x = tokens
    return q, k, v, cache, mask, bias, x


def _tensor_bytes(held) -> int:
    """Of the tensors among an object's attributes and their elements, each memory once."""
    found = [t.untyped_storage() for t in tree_leaves(list(vars(held).values())) if isinstance(t, Tensor)]
    return sum({s.data_ptr(): s.nbytes() for s in found}.values())


@conformance_check(quick=True)
def caches_apart(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Two sequences decoded in turns keep to their own caches, and a new cache knows nothing of an old one."""
    yield from each(subject, name, [replace(subject.base, n_queries=7, n_keys=7)], _apart)


def _apart(subject: Subject, case: Case) -> None:
    n, module = case.n_keys, subject.build(case)
    both = [subject.inputs(replace(case, seed=seed)) for seed in (1, 2)]
    caches = [new_cache(subject, module, case, n) for _ in both]
    steps = [(0, n)] if n < 3 else [(0, n - 2), (n - 2, n - 1), (n - 1, n)]
    with torch.no_grad(), evaluating(module):
        turns = [
            [module.extend(*_call(part(t, *step), c)) for t, c in zip(both, caches, strict=True)] for step in steps
        ]
        late = module.extend(*_call(both[0], new_cache(subject, module, case, n)))
    for t, outs, what in zip(both, zip(*turns, strict=True), ("first", "second"), strict=True):
        subject.expect_definition(module, t, torch.cat(outs, 2), f"out of the {what} of two sequences")
    subject.expect_definition(module, both[0], late, "out with a new cache, after other sequences")
