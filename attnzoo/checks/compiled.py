"""torch.compile: the same values, and not a new graph for every length, in one pass and a token at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from attnzoo.checks.cases import Case, Inputs
from attnzoo.checks.compare import Failed, Skip, expect_same
from attnzoo.checks.decoding import decode, new_cache, part
from attnzoo.checks.judge import each
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject, evaluating
from attnzoo.checks.suite import conformance_check
from attnzoo.kernels.compiling import growing, one_graph, torchs_reason

LENGTHS = (9, 33, 40, 43, 46)
FILLED, STEPS = 20, 6  # tokens in the cache, and tokens decoded one by one


@conformance_check()
def compilation(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Compiled, it gives the definition at five lengths, the last without a new graph, eager gradients, and tokens one by one."""
    case = replace(subject.base, batch=1, n_queries=LENGTHS[-1], n_keys=LENGTHS[-1], options="own", kind="five lengths")
    yield from each(subject, name, [case], _compiles, training=subject.trains, shrink=False)
    case = replace(subject.base, n_queries=FILLED + STEPS, n_keys=FILLED + STEPS, options="own", kind="token by token")
    yield from each(subject, name, [case], _decodes, shrink=False)


def _compiles(subject: Subject, case: Case) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    # on a CPU only the tracing is tried: code generation would take minutes
    counter = CompileCounterWithBackend("inductor" if subject.kind == "cuda" else "eager")
    torch._dynamo.reset()
    module = subject.build(case, fresh=True)
    run = torch.compile(module, backend=counter)
    graphs = []
    for n in LENGTHS:
        sized = replace(case, n_queries=n, n_keys=n)
        inputs = subject.inputs(sized)
        compiled, eager = (inputs.leaves() if subject.trains else inputs for _ in range(2))
        with torch.set_grad_enabled(subject.trains):
            out = run(*compiled)
        subject.expect_definition(module, inputs, out.detach(), f"compiled out at T = {n}")
        if subject.trains:
            out.square().sum().backward()
            module(*eager).square().sum().backward()
            _expect_gradients(compiled, eager, f"compiled, at T = {n}")
        graphs.append(counter.frame_count)
    torch._dynamo.reset()
    if graphs[-1] > graphs[-2] or graphs[-1] > 2 * len(LENGTHS):
        raise Failed(
            "a bounded number of graphs",
            f"{graphs[-1]}",
            "compiled graphs",
            f"after each of T = {LENGTHS}: {graphs}; a loop over tokens is unrolled unless it has @torch.compiler.disable",
        )


def _decodes(subject: Subject, case: Case) -> None:
    from torch._dynamo.exc import TorchDynamoException
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    torch._dynamo.reset()
    module, inputs = subject.build(case, fresh=True), subject.inputs(case)
    held = new_cache(subject, module, case, FILLED + STEPS + 1)
    extend: Callable = one_graph(module.extend, counter)
    with torch.no_grad(), evaluating(module), growing():
        outs = [decode(module, part(inputs, 0, FILLED), (FILLED,), held)]
        try:
            for n in range(FILLED, FILLED + STEPS):
                q, k, v, mask, bias, x = part(inputs, n, n + 1)
                outs.append(extend(*(t.contiguous() for t in (q, k, v)), held, mask, bias, x))
        except TorchDynamoException as error:
            raise Skip(f"torch does not trace its extend as one graph: {torchs_reason(error)}") from error
    torch._dynamo.reset()
    subject.expect_definition(module, inputs, torch.cat(outs, 2), "out, the last tokens compiled")
    if counter.frame_count > STEPS // 2:
        raise Failed(f"at most {STEPS // 2} graphs", f"{counter.frame_count}", f"compiled graphs of {STEPS} tokens")


def _expect_gradients(compiled: Inputs, eager: Inputs, when: str) -> None:
    due = {name: t.grad for name, t in eager.tensors().items() if t.grad is not None}
    allowed = (
        64 * torch.finfo(eager.q.dtype).eps * max(g.abs().max().item() for g in due.values())
    )  # another order of sums
    for name, gradient in due.items():
        found = compiled.tensors()[name].grad
        if found is None:
            raise Failed("a gradient", "none", f"d {name}", when)
        expect_same(found, gradient, f"d {name}", allowed, when)
