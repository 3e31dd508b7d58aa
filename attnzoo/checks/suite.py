"""The list of checks, and how one run goes through it."""

from __future__ import annotations

import importlib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from attnzoo import components
from attnzoo.arguments import demand, flag, texts
from attnzoo.arguments import device as check_device
from attnzoo.arguments import dtype as check_dtype
from attnzoo.checks import kinds
from attnzoo.checks.elsewhere import adapted
from attnzoo.checks.report import FAILED, CheckReport, Result
from attnzoo.checks.subject import Subject
from attnzoo.contract import Attention
from attnzoo.errors import RequestError, unknown
from attnzoo.seeds import seeded

GROUPS = (
    "definition", "masking", "causality", "decoding", "gradients", "second_order", "heads", "mixed", "parts",
    "numbers", "layout", "modes", "compiled", "refusal", "far", "cost",
)  # fmt: skip
Run = Callable[[Subject, str, bool], Iterator[Result]]


@dataclass(frozen=True)
class Check:
    """A named property. ``run(subject, name, quick)`` yields a result a case; ``about`` is the first line of its docstring."""

    name: str
    group: str
    run: Run
    quick: bool

    @property
    def about(self) -> str:
        return (self.run.__doc__ or "").strip().split("\n")[0]


_checks: dict[str, Check] = {}


def conformance_check(*, quick: bool = False) -> Callable[[Run], Run]:
    """Adds a function to the suite under its own name; ``quick`` ones also run in the short form."""

    def add(run: Run) -> Run:
        _checks[run.__name__] = Check(run.__name__, run.__module__.rsplit(".", 1)[-1], run, quick)
        return run

    return add


def all_checks(quick: bool = False) -> list[Check]:
    """The suite in order; with ``quick`` only what takes seconds."""
    for group in GROUPS:
        importlib.import_module(f"attnzoo.checks.{group}")
    ordered = sorted(_checks.values(), key=lambda c: GROUPS.index(c.group))
    return [c for c in ordered if c.quick or not quick]


def check(
    what,
    *,
    device: str = "cpu",
    dtype: torch.dtype | None = None,
    quick: bool = False,
    only: Iterable[str] = (),
    shrink: bool = True,
    **options,
) -> CheckReport:
    """Hold an attention to the suite.

    Args:
        what: a registered name, an `Attention` (at its own and at many other sizes), its class, or a function that builds one.
            A component of another kind, by its name (``recall``, ``task:recall``) or class, is held to what its kind must
            keep (`attnzoo.checks.kinds`).
            A language model (any other nn.Module, tokens (B, T) -> logits (B, T, V), or a causal LM of transformers) goes
            to `check_model`, with ``quick`` and the options it takes (``vocab_size``, ``n_tokens``, ``seed``).
        device, dtype: where and in what; every declared dtype when None.
        quick: the short form: a few seconds, no compilation.
        only: names of checks; all when empty.
        shrink: search the smallest failing input.
        options: the component's own settings; of a task, ``n_tokens`` too.

    Returns:
        the report; a check stops at its first failing case.

    Raises:
        RequestError: an unknown backend, option or check, or a device that is not there.
    """
    demand(
        "this cannot be checked",
        check_device("device", device),
        check_dtype("dtype", dtype, floating=True, optional=True),
        flag("quick", quick),
        texts("only", only),
        flag("shrink", shrink),
    )
    if isinstance(what, nn.Module) and not isinstance(what, Attention):
        from attnzoo.checks.model import check_model

        if dtype is not None or only:
            raise RequestError("a language model is checked whole and in its own type: no dtype, no choice of checks")
        known = list(inspect.signature(check_model).parameters)[1:]
        faults = [unknown("option of a language model's check", key, known) for key in options if key not in known]
        demand("this cannot be checked", faults)
        return check_model(adapted(what), device=device, quick=quick, **options)
    what = kinds.component(what)
    if components.kind_of(what) not in (None, "attention"):
        if dtype is not None:
            raise RequestError(f"a {components.kind_of(what)} is checked in every type that matters to it: no dtype")
        return kinds.check_component(what, options, device=device, quick=quick, only=only)
    subject = Subject.of(what, device=device, dtype=dtype, shrink=shrink, **options)
    chosen = all_checks(quick)
    wrong = set(only) - {c.name for c in all_checks()}
    if wrong:
        raise RequestError("no such check", [unknown("check", name, _checks) for name in sorted(wrong)])
    if only:
        chosen = [c for c in all_checks() if c.name in set(only)]
    start = time.perf_counter()
    report = CheckReport(subject.name, device, tuple(str(t).removeprefix("torch.") for t in subject.dtypes), quick)
    report.refused = subject.reasons(subject.base)
    for one in chosen:
        report.results += run_check(subject, one, quick)
    report.seconds = time.perf_counter() - start
    return report


def run_check(subject: Subject, one: Check, quick: bool = False) -> list[Result]:
    """The results of one check, up to its first failure."""
    results = []
    with seeded(0, subject.device):
        for result in one.run(subject, one.name, quick):
            results.append(result)
            if result.status == FAILED:
                break
    about = one.about
    return [r if r.about else Result(**{**r.__dict__, "about": about}) for r in results]
