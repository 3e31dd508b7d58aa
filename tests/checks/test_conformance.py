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
CASES = [
    pytest.param(name, options, one, id="-".join([name, *map(str, options.values()), one.name]))
    for name, options in SETTINGS
    for one in all_checks()
    if not options or one.name in VARIANTS
]


# tracing takes up to half a minute a backend; the others' is run by `attnzoo check NAME` and `pytest --slow`
COMPILED_EACH_TIME = {"exact", "sdpa", "sliding_window", "chunked_local", "linear", "retention"}


@pytest.mark.parametrize(("name", "options", "one"), CASES)
def test_conformance(name, options, one, request):
    if one.name == "compilation" and name not in COMPILED_EACH_TIME and not request.config.getoption("--slow"):
        pytest.skip("compilation of this backend is checked with --slow")
    hold(name, one, **options)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", attnzoo.list_backends())
@pytest.mark.parametrize("one", all_checks(quick=True), ids=lambda c: c.name)
def test_conformance_on_a_gpu(name, one):
    hold(name, one, quick=True, device="cuda")
