"""The forward pass against the definition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnzoo.checks.cases import Case, MaskPlan
from attnzoo.checks.compare import Failed, Skip, expect_close, expect_same
from attnzoo.checks.decoding import decode
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject, one_head
from attnzoo.checks.suite import conformance_check
from attnzoo.masks import Mask

FULL = [[6.6976, 6.6041], [3.3020, 13.3959]]
CAUSAL = [[10.0, 0.0], [3.3020, 13.3959]]


@conformance_check(quick=True)
def worked_numbers(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Softmax rules give the numbers worked by hand for Q = K = I and V = diag(10, 20), and others of two tokens."""
    base = replace(subject.base, batch=1, dim=2, n_queries=2, n_keys=2)
    cases = [replace(base, kind=kind) for kind in ("identity", "weighted", "equal keys")]
    cases.append(replace(base, mask=MaskPlan(causal=False), kind="identity"))
    cases.append(replace(base, dim=16, kind="scale"))
    yield from each(subject, name, cases, _worked)


def _worked(subject: Subject, case: Case) -> None:
    if not subject.softmax:
        raise Skip(f"{subject.name} is not a softmax over visible keys; its own definition holds it")
    if case.n_keys != 2 or case.dim < 2:
        raise Skip("the numbers are for two tokens")
    module = subject.build(case)
    own = module.pattern(torch.tensor([[0], [1]]), torch.tensor([[0, 1]]))
    if own is not None and (case.mask.build(1, 2).dense(2, 2)[0, 0] & ~own).any():
        raise Skip(f"the pattern of {subject.name} hides one of the two tokens")

    def tensor(rows: list[list[float]]) -> torch.Tensor:
        return torch.tensor(rows, dtype=case.dtype, device=subject.device)

    q = torch.zeros(2, case.dim, dtype=case.dtype, device=subject.device)
    k, v = q.clone(), q.clone()
    if case.kind == "identity":
        q, k, v = tensor([[1, 0], [0, 1]]), tensor([[1, 0], [0, 1]]), tensor([[10, 0], [0, 20]])
        right = tensor(CAUSAL if case.mask.causal else FULL)
    elif case.kind == "weighted":  # scores [1, 2] in the last row: weights [.269, .731]
        q[1, 0], k[0, 0], k[1, 0], v[1, 0] = case.dim**0.5, 1, 2, 1
        right = tensor([[0, 0], [0.7310586, 0]])
    elif case.kind == "equal keys":  # the key decides how much is read, the value what is read
        q, k, v = q + 3, k + 1, tensor([[2, 4], [6, 0]])
        right = tensor([[2, 4], [4, 2]])
    else:  # q·k = [16, 0], D = 16: weight .98201; scaled by the width of four such heads it would be .88080
        q[1, 0], k[0, 0], v[0, 0] = 16, 1, 1
        right = tensor([[1, 0], [0.98201, 0]])
    right = torch.nn.functional.pad(right, (0, v.shape[1] - 2))
    _expect_rows(module, case, q, k, v, right)


def _expect_rows(module, case: Case, q, k, v, right) -> None:
    heads, kv_heads = (1, case.heads, -1, -1), (1, case.kv_heads, -1, -1)
    with torch.no_grad():
        out = module(q.expand(heads), k.expand(kv_heads), v.expand(kv_heads), Mask(causal=case.mask.causal))
    tolerance = 1e-4 + 8 * torch.finfo(case.dtype).eps  # the numbers are given to four decimals
    expect_same(out, right.expand_as(out), "out", tolerance * right.abs().max().item())


@conformance_check(quick=True)
def definition(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """The output equals the definition, computed in float64, at every length, head layout, head dim and kernel."""
    yield from each(subject, name, _shapes(subject, quick), output_agrees)


def _shapes(subject: Subject, quick: bool) -> Iterator[Case]:
    base = subject.base
    lengths = (1, 2, 5, 8, 17, 33) if quick else (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 65)
    for n in lengths:
        yield replace(base, n_queries=n, n_keys=n)
    for heads, kv_heads in ((2, 1), (4, 2), (4, 4), (4, 1), (8, 2)):
        yield replace(base, heads=heads, kv_heads=kv_heads, n_queries=9, n_keys=9)
    for n_queries, n_keys in ((1, 5), (2, 5), (3, 17), (16, 17), (33, 40)):
        yield replace(base, n_queries=n_queries, n_keys=n_keys)
    for n_queries, n_keys in ((5, 2), (17, 3), (9, 1)):  # more queries than keys: the first ones see nothing
        yield replace(base, n_queries=n_queries, n_keys=n_keys)
    for value_dim in (1, 3, 2 * base.dim):
        yield replace(base, value_dim=value_dim, n_queries=9, n_keys=9)
    for case in subject.tile_cases(MaskPlan()):
        yield case
        yield replace(case, n_queries=3)
    if quick:
        return
    for dim in (1, 33, 59, 64, 80, 128, 256):
        yield replace(base, dim=dim, n_queries=9, n_keys=9)
    for edge in subject.edges:
        for n in (edge - 1, edge, edge + 1, 2 * edge + 1):
            yield replace(base, n_queries=n, n_keys=n, options="own", batch=1)
    for kernel in subject.kernels:
        if kernel not in ("auto", "compiled"):  # compilation has a check of its own
            for n_queries, n_keys in ((1, 1), (9, 9), (4, 9)):
                yield replace(base, kernel=kernel, n_queries=n_queries, n_keys=n_keys)
    for seed in range(1, 4):
        yield replace(base, n_queries=19, n_keys=19, seed=seed)


def output_agrees(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    with torch.no_grad():
        out = module(*inputs)
    subject.expect_definition(module, inputs, out)


@conformance_check()
def long_inputs(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Beyond 128, 256 and 1024 tokens the output is still the definition's, with a wide window, deep padding, many documents."""
    base = replace(one_head(subject), batch=1)
    plans = (MaskPlan(), MaskPlan(window=100, sinks=5), MaskPlan(padding="deep"), MaskPlan(documents="many"))
    cases = [replace(base, n_queries=n, n_keys=n) for n in (127, 128, 129, 1100)]
    cases += [replace(base, n_queries=n, n_keys=n, mask=plan) for plan in plans for n in (257,)]
    cases += [replace(base, n_queries=70, n_keys=1100, mask=plan, options="own") for plan in plans]
    yield from each(subject, name, cases, output_agrees)


@conformance_check()
def half_precision(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """In bfloat16 and float16 the output is as near to the float64 definition as plain arithmetic of that type."""
    for dtype in subject.dtypes[1:] or subject.dtypes:
        if dtype.itemsize == 2:
            base = replace(subject.base, dtype=dtype)
            cases = [replace(base, n_queries=n, n_keys=n) for n in (1, 5, 17, 40)]
            cases += [
                replace(base, n_queries=3, n_keys=17),
                replace(base, dim=64),
                replace(base, heads=4, kv_heads=2, n_queries=9, n_keys=9),
            ]
            yield from each(subject, name, cases, output_agrees)


@conformance_check(quick=True)
def scale(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """A scale given by the caller is used, in a full pass and in decoding, where the rule has scores to scale."""
    base = replace(subject.base, batch=1, n_queries=6, n_keys=6)
    yield from each(subject, name, [replace(base, scale=s) for s in (0.05, 0.7)], _scaled)


def _scaled(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    exact = subject.exact(module, inputs)
    if torch.equal(exact, subject.exact(subject.build(replace(case, scale=None)), inputs)):
        raise Skip(f"by its definition {subject.name} scales nothing")
    with torch.no_grad():
        out = module(*inputs)
        cache = subject.new_cache(module, case, case.n_keys)
        decoded = decode(module, inputs, (2, *(1,) * (case.n_keys - 2)) if case.n_keys > 2 else (case.n_keys,), cache)
    subject.expect_definition(module, inputs, out)
    subject.expect_definition(module, inputs, decoded, "decoded out")


@conformance_check(quick=True)
def definition_is_sound(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """The definition itself: weights (B, H, Tq, Tk), 0 where the mask hides, O = A V, softmax rows that sum to 1."""
    base = subject.base
    plans = [
        MaskPlan(),
        MaskPlan(window=2),
        MaskPlan(padding="right"),
        MaskPlan(documents="runs"),
        MaskPlan(causal=False),
    ]
    yield from each(
        subject, name, [replace(base, n_queries=n, n_keys=n, mask=m) for m in plans for n in (5, 9)], _sound
    )


def _sound(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case), subject.inputs(case)
    out, weights = subject.defined(module, inputs)
    shape = (case.batch, case.heads, case.n_queries, case.n_keys)
    if tuple(weights.shape) != shape:
        raise Failed(f"weights of shape {shape}", f"{tuple(weights.shape)}", "reference")
    visible = inputs.mask.dense(case.n_queries, case.n_keys, subject.device).expand(shape)
    expect_same(
        weights.masked_fill(visible, 0.0), torch.zeros_like(weights), "weights", detail="the mask hides this key"
    )
    if subject.can.weighted_sum:
        try:
            expect_close(out, weights @ module.repeat_kv(inputs.v.double()), None, "reference out", multiple=1e3)
        except Failed as found:
            found.detail += (
                "; expected is weights @ v: a rule with another output declares Capabilities(weighted_sum=False)"
            )
            raise
    if subject.softmax:
        sums = weights.sum(-1)
        full = sums.round()  # 1 where some key is visible, 0 where none is
        expect_same(sums, full, "sum of weights", 1e-12)


@conformance_check()
def kernel_is_recorded(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """After a call, ``kernel`` names what ran; a kernel asked for by name is the one that ran."""
    kernels = [k for k in subject.kernels if k != "compiled"]
    yield from each(subject, name, [replace(subject.base, kernel=k) for k in kernels], _recorded)


def _recorded(subject: Subject, case: Case) -> None:
    module = subject.build(case, fresh=True)
    before = module.kernel
    with torch.no_grad():
        module(*subject.inputs(case))
    if not module.kernel or module.kernel == before:
        raise Failed("the name of the kernel that ran", repr(module.kernel), "kernel", "call self.ran('…') in attend")
    if case.kernel not in (None, "auto") and case.kernel not in module.kernel:
        raise Failed(f"a name with {case.kernel!r} in it", repr(module.kernel), "kernel")
