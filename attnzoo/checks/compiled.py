"""torch.compile: the same values, and not a new graph for every length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnzoo.checks.cases import Case
from attnzoo.checks.compare import Failed
from attnzoo.checks.report import Result
from attnzoo.checks.subject import Subject, each
from attnzoo.checks.suite import conformance_check

LENGTHS = (9, 33, 40, 43, 46)


@conformance_check()
def compilation(subject: Subject, name: str, quick: bool) -> Iterator[Result]:
    """Compiled, it gives the definition at five lengths; the last of them needs no new graph."""
    case = replace(subject.base, batch=1, n_queries=LENGTHS[-1], n_keys=LENGTHS[-1], options="own", kind="five lengths")
    yield from each(subject, name, [case], _compiles, training=True, shrink=False)


def _compiles(subject: Subject, case: Case) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    # on a CPU only the tracing is tried: code generation would take minutes
    counter = CompileCounterWithBackend("inductor" if subject.device.startswith("cuda") else "eager")
    torch._dynamo.reset()
    module = subject.build(case, fresh=True)
    run = torch.compile(module, backend=counter)
    graphs = []
    for n in LENGTHS:
        sized = replace(case, n_queries=n, n_keys=n)
        inputs = subject.inputs(sized)
        with torch.no_grad():
            out = run(*inputs)
        subject.expect_definition(module, inputs, out, f"compiled out at T = {n}")
        graphs.append(counter.frame_count)
    torch._dynamo.reset()
    if graphs[-1] > graphs[-2] or graphs[-1] > 2 * len(LENGTHS):
        raise Failed(
            "a bounded number of graphs", f"{graphs[-1]}", "compiled graphs", f"after each of T = {LENGTHS}: {graphs}"
        )
