"""Every registered backend against the whole suite, one test a check; and the block layouts that are options."""

from __future__ import annotations

import pytest
import torch

import attnzoo
from attnzoo.checks import all_checks
from attnzoo.checks.pytest import hold

SETTINGS = [
    *((name, {}) for name in attnzoo.list_backends()),
    ("block_sparse", {"layout": "strided"}),
    ("block_sparse", {"layout": "fixed", "stride": 2}),
    ("sliding_window", {"window": 1}),
    ("linear", {"chunk": 1}),
]
VARIANTS = {
    "definition", "mask_fields", "mask_readout", "future_by_change", "future_by_gradient", "decoding", "gradients",
    "empty_rows", "cache", "head_groups", "growth",
}  # fmt: skip
# tracing takes up to half a minute a backend; that of the others is left to the whole suite
COMPILED_EACH_TIME = {"exact", "sdpa", "sliding_window", "chunked_local", "linear", "retention"}


def pytest_generate_tests(metafunc):
    """The short form of the suite; with --slow the whole of it, which is also what `attnzoo check --all` runs."""
    if metafunc.function is not test_conformance:
        return
    slow = metafunc.config.getoption("--slow")
    cases = [
        pytest.param(name, options, one, id="-".join([name, *map(str, options.values()), one.name]))
        for name, options in SETTINGS
        for one in all_checks()
        if (slow or one.quick or (one.name == "compilation" and name in COMPILED_EACH_TIME))
        and (not options or one.name in VARIANTS)
    ]
    metafunc.parametrize(("name", "options", "one"), cases)


def test_conformance(name, options, one, request):
    hold(name, one, quick=not request.config.getoption("--slow"), **options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", attnzoo.list_backends())
@pytest.mark.parametrize("one", all_checks(quick=True), ids=lambda c: c.name)
def test_conformance_on_a_gpu(name, one):
    hold(name, one, quick=True, device="cuda")
