"""The lengths that the quick check adds on a CUDA device, tried here as if they had been asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import bugs_far

from attnzoo.checks import Subject, decoding, definition, gradients, masking
from attnzoo.checks.cases import TILE_EDGES
from attnzoo.checks.report import FAILED, PASSED
from attnzoo.checks.suite import all_checks, run_check

QUICK = {"definition": definition, "gradients": gradients, "mask_fields": masking, "decoding": decoding}


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "cpu"])
@pytest.mark.parametrize("name", QUICK)
def test_the_quick_check_crosses_tile_edges_on_cuda_alone(device, name, monkeypatch):
    cases = []
    monkeypatch.setattr(QUICK[name], "each", lambda subject, check, asked, prop, **how: cases.extend(asked) or ())
    subject = Subject.of("sdpa", device=device)
    (one,) = [c for c in all_checks(quick=True) if c.name == name]
    list(one.run(subject, name, True))
    tried = {(c.n_keys, c.dtype) for c in cases}
    wanted = {(n, dtype) for n in TILE_EDGES for dtype in (torch.float32, torch.bfloat16)}
    assert tried >= wanted if device != "cpu" else max(n for n, _ in tried) <= 40
    assert {n % 128 for n in TILE_EDGES} == {1, 64}  # one row more than tiles of 128, and half a tile
    assert subject.trains  # also on a device with a number
    assert not subject.reasons(subject.base, training=True)


@pytest.mark.parametrize(
    ("bug", "found_by"),
    [
        (bugs_far.SecondBlockLosesAKey, "definition"),
        (bugs_far.LongPaddingIgnored, "mask_fields"),
        (bugs_far.LongGradientOff, "gradients"),
    ],
)
@pytest.mark.parametrize("edges", [TILE_EDGES, ()])
def test_what_begins_beyond_128_keys_is_found_where_they_are_tried(bug, found_by, edges):
    subject = Subject.of(bug, shrink=False)
    subject.tile_edges = edges
    (one,) = [c for c in all_checks(quick=True) if c.name == found_by]
    outcomes = {r.status for r in run_check(subject, one, quick=True)}
    assert (FAILED in outcomes) == bool(edges)
    assert PASSED in outcomes
