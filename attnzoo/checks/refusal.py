"""Requests that are wrong, and requests that are not declared: one clear error, before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnzoo.checks.cases import Case, Inputs, MaskPlan
from attnzoo.checks.compare import Failed, Skip
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject
from attnzoo.checks.suite import conformance_check
from attnzoo.contract import Attention
from attnzoo.errors import RequestError
from attnzoo.masks import Mask

Wrong = Callable[[Attention, Inputs], None]


def _call(**changes: Callable[[Inputs], object]) -> Wrong:
    def run(module: Attention, t: Inputs) -> None:
        given = {"q": t.q, "k": t.k, "v": t.v, "mask": t.mask, "x": t.x} | {n: f(t) for n, f in changes.items()}
        module(**given)

    return run


def _overfull(module: Attention, t: Inputs) -> None:
    cache = module.new_cache(t.q.shape[0], 2, device=t.q.device, dtype=t.q.dtype)
    module.extend(t.q, t.k, t.v, cache, x=t.x)


def _cache_of_one_row(module: Attention, t: Inputs) -> None:
    cache = module.new_cache(1, t.q.shape[2], device=t.q.device, dtype=t.q.dtype)
    module.extend(t.q, t.k, t.v, cache, x=t.x)


WRONG: dict[str, Wrong] = {
    "q of three axes": _call(q=lambda t: t.q[0]),
    "one head too many": _call(q=lambda t: torch.cat([t.q, t.q[:, :1]], 1)),
    "one key/value head too many": _call(
        k=lambda t: torch.cat([t.k, t.k[:, :1]], 1), v=lambda t: torch.cat([t.v, t.v[:, :1]], 1)
    ),
    "keys of another head dim": _call(k=lambda t: torch.cat([t.k, t.k[..., :1]], 3)),
    "queries and keys of another head dim": _call(
        q=lambda t: torch.cat([t.q, t.q[..., :1]], 3), k=lambda t: torch.cat([t.k, t.k[..., :1]], 3)
    ),
    "fewer values than keys": _call(v=lambda t: t.v[:, :, 1:]),
    "another batch in k": _call(k=lambda t: t.k[:1]),
    "no keys at all": _call(k=lambda t: t.k[:, :, :0], v=lambda t: t.v[:, :, :0]),
    "integers": _call(q=lambda t: t.q.long(), k=lambda t: t.k.long(), v=lambda t: t.v.long()),
    "two dtypes": _call(k=lambda t: t.k.double() if t.k.dtype != torch.float64 else t.k.float()),
    "two devices": _call(k=lambda t: t.k.to("meta")),
    "padding one token short": _call(
        mask=lambda t: Mask(key_padding=torch.ones(t.k.shape[0], t.k.shape[2] - 1, dtype=torch.bool, device=t.k.device))
    ),
    "padding of another batch": _call(
        mask=lambda t: Mask(key_padding=torch.ones(t.k.shape[0] + 1, t.k.shape[2], dtype=torch.bool, device=t.k.device))
    ),
    "documents one token long": _call(
        mask=lambda t: Mask(documents=torch.zeros(t.k.shape[0], t.k.shape[2] + 1, dtype=torch.long, device=t.k.device))
    ),
    "a window of 0": _call(mask=lambda t: Mask(window=0)),
    "x of another length": _call(x=lambda t: torch.zeros(t.q.shape[0], t.q.shape[2] + 1, 4, device=t.q.device)),
    "x of another width": _call(x=lambda t: None if t.x is None else t.x[..., 1:]),
    "more tokens than the cache holds": _overfull,
    "a cache of another batch": _cache_of_one_row,
}


class _Computing(TorchDispatchMode):
    """Notes matrix products and fused attention: what must not have run when a request was wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: str | None = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name()
        if any(
            part in name
            for part in ("::mm", "::bmm", "::addmm", "::baddbmm", "scaled_dot_product", "softmax", "flex_attention")
        ):
            self.ran = name
        return func(*args, **(kwargs or {}))


@conformance_check(quick=True)
def wrong_requests(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Tensors, masks and caches that do not fit raise one RequestError with reasons, before any kernel runs."""
    kinds = [kind for kind in WRONG if subject.can.needs_x or kind != "x of another width"]
    yield from each(subject, name, [replace(subject.base, kind=kind) for kind in kinds], _wrong)


def _wrong(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    if case.n_keys < 3 or case.batch < 2:
        raise Skip("these requests need three tokens and two rows")
    if subject.device != "cpu" and case.kind == "two devices":
        inputs.q = inputs.q.cpu()
    with _Computing() as computing:
        try:
            with torch.no_grad():
                WRONG[case.kind](module, inputs)
        except RequestError as error:
            if not str(error).strip():
                raise Failed("a message", "an empty one", case.kind) from error
            if computing.ran:
                raise Failed("an error before any kernel runs", f"{computing.ran} had run", case.kind) from error
            return
        except Exception as error:
            raise Failed(
                "RequestError with the reasons", f"{type(error).__name__}: {str(error)[:120]}", case.kind
            ) from error
    raise Failed("RequestError with the reasons", "a result", case.kind)


@conformance_check(quick=True)
def declared_or_refused(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """What is declared runs; what is not is refused when asked for: masks, head layouts, bias, dropout, lengths, types."""
    base = replace(subject.base, n_queries=6, n_keys=6)
    plans = [MaskPlan(causal=False), MaskPlan(window=2), MaskPlan(window=2, sinks=1), MaskPlan(prefix=2)]
    plans += [MaskPlan(padding="right"), MaskPlan(documents="runs"), MaskPlan(documents="mixed")]
    cases = [replace(base, mask=plan) for plan in plans]
    cases += [replace(base, heads=4, kv_heads=g) for g in (1, 2, 3, 4)]
    cases += [
        replace(base, bias=True),
        replace(base, dropout=0.3),
        replace(base, n_keys=9),
        replace(base, value_dim=base.dim + 3),
    ]
    cases += [replace(base, dtype=t) for t in (torch.float64, torch.float32, torch.bfloat16, torch.float16)]
    yield from each(subject, name, cases, _runs)
    if subject.can.needs_x:
        yield from each(subject, name, [replace(base, kind="without x")], _needs_x)


def _runs(subject: Subject, case: Case) -> None:
    inputs = subject.inputs(case)
    with torch.no_grad():
        out = subject.build(case)(*inputs)
    shape = (*inputs.q.shape[:3], inputs.v.shape[3])
    if tuple(out.shape) != shape:
        raise Failed(f"shape {shape}", f"{tuple(out.shape)}", "out")


def _needs_x(subject: Subject, case: Case) -> None:
    inputs = subject.inputs(case)
    try:
        subject.build(case)(inputs.q, inputs.k, inputs.v)
    except RequestError:
        return
    raise Failed("RequestError: x is missing", "a result", "call without x")
