"""An attention at the size at which it is measured, against its definition: forward, backward and decoding.

Short inputs of the suite say little about a long one: a block table, a batch row or a head further on may be wrong there.
Shapes: see `attnzoo.shapes`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from attnzoo.checks.cases import Case, Inputs, make_inputs
from attnzoo.checks.compare import Failed, InPrecision, Skip, expect_close, expect_same, expect_unbiased
from attnzoo.checks.decoding import decode
from attnzoo.checks.report import FAILED, PASSED, REFUSED, SKIPPED, Result
from attnzoo.contract import Attention
from attnzoo.errors import Refused

NAME = "measured_size"
ABOUT = "At the measured length, batch, heads and type, sampled rows, their gradients and decoded tokens are the definition's."
WHOLE = 512
"""Tokens up to which every query row is compared; beyond, some of them, where the rule takes queries apart."""
MOST = 160
"""Tokens of a definition that has to be computed whole (recurrences, rules that read x): the first of the long input."""
DECODED = 3

Rows = Callable[[Attention, Inputs], Tensor]
T = TypeVar("T")


def measured_size(
    attention: Attention, *, batch: int, n_tokens: int, dtype: torch.dtype, device: str = "cpu", training: bool = True
) -> list[Result]:
    """Hold a copy of this attention to its definition on one causal input of this size.

    Returns:
        results of the check `measured_size`: output, gradients and each place in the batch (``training``), decoding.
    """
    module = copy.deepcopy(attention).to(device, dtype).eval()
    chained = module.capabilities.needs_x or not module.capabilities.cross
    whole, n = chained or n_tokens <= WHOLE, n_tokens
    case = Case(module.n_heads, module.n_kv_heads, module.head_dim, None, batch, n, n, dtype=dtype, options="own")
    inputs = make_inputs(case, device, module.d_model if module.capabilities.needs_x else None)
    rows = sorted({0, batch - 1})
    picks = list(range(min(n, MOST) if chained else n)) if whole else sampled(n)
    said = f"{case}, batch rows {rows}, {'all' if whole else len(picks)} queries of each"
    found = [_attempt("out", said, lambda: _forward(module, inputs, rows, picks, whole))]
    if training:
        found.append(_attempt("gradients", said, lambda: _gradients(module, inputs, rows, picks, whole)))
    if training and batch > len(rows):
        found.append(
            _attempt("batch rows", str(case), lambda: _without_dropout(module, lambda: _rows_alike(module, inputs)))
        )
    found.append(_attempt("decoding", said, lambda: _decodes(module, inputs, rows, whole)))
    return found


def sampled(n_tokens: int) -> list[int]:
    """Query rows to look at: the first, the last, and next to powers of two and halves."""
    near = {m * n_tokens // 8 for m in range(1, 8)}
    edges = {2**p + d for p in range(7, n_tokens.bit_length()) for d in (-1, 1)}
    last = {n_tokens - 1 - d for d in range(DECODED)}
    return sorted(i for i in {0, 1, *near, *edges, *last} if 0 <= i < n_tokens)


def defined(rows: list[int], picks: list[int], whole: bool) -> Rows:
    """The definition's output at these batch rows and queries, as a function of module and inputs."""

    def run(module: Attention, t: Inputs) -> Tensor:
        if whole:
            upto = slice(picks[-1] + 1)  # causal: what follows does not matter
            x = None if t.x is None else t.x[rows, upto]
            q, k, v = (t[rows, :, upto] for t in (t.q, t.k, t.v))
            return module.define(q, k, v, t.mask, t.bias, x)[0][:, :, picks]
        outs = [
            module.define(t.q[rows, :, i : i + 1], t.k[rows, :, : i + 1], t.v[rows, :, : i + 1], t.mask, t.bias)[0]
            for i in picks
        ]
        return torch.cat(outs, 2)

    return run


def _forward(module: Attention, inputs: Inputs, rows: list[int], picks: list[int], whole: bool) -> None:
    with torch.no_grad():
        out = module(*inputs)[rows][:, :, picks]
    _expect(module, inputs, [out], defined(rows, picks, whole), "out")


def _expect(module: Attention, inputs: Inputs, outs: list[Tensor], right: Rows, what: str) -> None:
    with torch.no_grad():
        exact, plain = right(copy.deepcopy(module).double(), inputs.double()), None
        try:
            with InPrecision(inputs.q.dtype):
                plain = right(module, inputs)
        except RuntimeError:  # such as an operation without a half-precision kernel
            plain = None
    for out in outs:
        expect_close(out, exact, plain, what)
        if out.dtype.itemsize == 2:
            expect_unbiased(out, exact, plain, what)


def _without_dropout(module: Attention, run: Callable[[], T]) -> T:
    dropout, module.dropout = module.dropout, 0.0
    try:
        return run()
    finally:
        module.dropout = dropout


def _gradients(module: Attention, inputs: Inputs, rows: list[int], picks: list[int], whole: bool) -> None:
    module = module.train()
    draw = torch.Generator().manual_seed(5)
    shape = (len(rows), inputs.q.shape[1], len(picks), inputs.v.shape[3])
    weight = torch.randn(shape, generator=draw, dtype=torch.float64).to(inputs.q)
    right = defined(rows, picks, whole)

    def collect(run: Rows, module: Attention, given: Inputs) -> dict[str, Tensor | None]:
        leaves = given.leaves()
        named = {**leaves.tensors(), **{f"parameter {n}": p for n, p in module.named_parameters()}}
        out = run(module, leaves)
        found = torch.autograd.grad((out * weight.to(out)).sum(), list(named.values()), allow_unused=True)
        return dict(zip(named, found, strict=True))

    own = _without_dropout(module, lambda: collect(lambda m, t: m(*t)[rows][:, :, picks], module, inputs))
    exact = collect(right, copy.deepcopy(module).double(), inputs.double())
    try:
        with InPrecision(inputs.q.dtype):
            plain = collect(right, module, inputs)
    except RuntimeError:  # as above
        plain = {}
    scale = max((g.abs().max().item() for n in "qkv" if (g := exact[n]) is not None), default=0.0)
    for name, due in exact.items():
        if due is not None and own[name] is None:
            raise Failed("a gradient", "none", f"d {name}")
        if due is not None and (found := own[name]) is not None:
            # sums over as many tokens, in any order: their rounding grows as the root of the number of terms
            expect_close(found, due, plain.get(name), f"d {name}", scale=scale * max(1.0, inputs.k.shape[2] ** 0.5 / 8))
            if found.dtype.itemsize == 2:
                expect_unbiased(found, due, plain.get(name), f"d {name}", scale)


def _decodes(module: Attention, inputs: Inputs, rows: list[int], whole: bool) -> None:
    if whole:
        inputs = inputs.map(lambda t: t[..., : max(MOST, WHOLE if module.capabilities.cross else 0), :])
    n, batch = inputs.k.shape[2], inputs.k.shape[0]
    picks = list(range(n)) if whole else sampled(n)
    module, outs = module.eval(), []
    with torch.no_grad():
        for chunks in decoded_in(n):
            cache = module.new_cache(batch, n, device=inputs.q.device, dtype=inputs.q.dtype)
            outs.append(decode(module, inputs, chunks, cache)[rows][:, :, picks])
    _expect(module, inputs, outs, defined(rows, picks, whole), "decoded out")


def decoded_in(n_tokens: int) -> list[tuple[int, ...]]:
    """Ways to feed T tokens: nearly all at once, a pair and the rest singly; of at most `WHOLE`, also two single ones at each
    multiple of 32."""
    steps = min(DECODED, n_tokens - 1)
    pair = min(2, max(n_tokens - steps - 1, 0))
    ways = [(n_tokens - steps - pair, *((pair,) if pair else ()), *(1,) * steps)]
    if 32 < n_tokens <= WHOLE:
        rest = n_tokens % 32
        ways.append((*(30, 1, 1) * (n_tokens // 32), *((rest,) if rest else ())))
    return ways


def _rows_alike(module: Attention, inputs: Inputs) -> None:
    """Another place in the batch changes neither a row's output nor its gradients: no row is taken apart, whichever are held to
    the definition."""
    module = module.train()
    draw = torch.Generator().manual_seed(5)
    weight = torch.randn(inputs.q.shape[1:3], generator=draw, dtype=torch.float64).to(inputs.q)[..., None]

    def run(given: Inputs) -> dict[str, Tensor]:
        leaves = given.leaves()
        out, tensors = module(*leaves), leaves.tensors()
        found = torch.autograd.grad((out * weight).sum(), list(tensors.values()), allow_unused=True)
        gradients = {f"d {name}": g for name, g in zip(tensors, found, strict=True) if g is not None}
        return {"out": out.detach(), **gradients}

    held = run(inputs)
    moved = run(inputs.map(lambda t: t.roll(1, 0)))
    size = max(t.abs().max().item() for name, t in held.items() if name != "out")
    for name, t in held.items():
        # the same sums: a vector's tail may be rounded apart, gradients summed in another order; 16-bit types by a stored unit
        scale = t.abs().max().item() if name == "out" else size * max(1.0, inputs.k.shape[2] ** 0.5 / 8)
        allowed = (2 if t.dtype.itemsize == 2 else 64) * torch.finfo(t.dtype).eps * scale
        expect_same(moved[name].roll(-1, 0), t, name, allowed, "the same row at the next place of the batch")


def _attempt(what: str, said: str, prop: Callable[[], None]) -> Result:
    try:
        prop()
    except Failed as found:
        return Result(NAME, said, FAILED, found.expected, found.actual, found.where, found.detail, ABOUT)
    except Refused as refusal:
        return Result(NAME, said, REFUSED, detail=" ".join(str(refusal).split()), about=ABOUT)
    except (Skip, NotImplementedError) as why:
        return Result(NAME, said, SKIPPED, detail=f"{what}: {why}", about=ABOUT)
    except Exception as error:  # whatever the attention raises is a finding, and is reported whole
        return Result(NAME, said, FAILED, "a result", f"{type(error).__name__}: {error}", what, about=ABOUT)
    return Result(NAME, said, PASSED, about=ABOUT)
