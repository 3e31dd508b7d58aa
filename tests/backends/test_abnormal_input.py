"""Inputs of no rows, scores beyond float16, masks that are refilled: every backend, in training and decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attnzoo import Mask, RequestError, list_backends
from attnzoo.checks.subject import Subject
from attnzoo.kernels.recurrent import Recurrent
from attnzoo.kernels.summaries import PastBlocksAttention
from attnzoo.registry import get

HERE = sorted(set(list_backends()) - {"xformers"})


TAKES_RUNS = (Recurrent, PastBlocksAttention, *(get(name) for name in ("forgetting", "hierarchical")))
"""Rules that carry something from token to token: documents must be contiguous."""


def subject_of(name, **changes):
    subject = Subject.of(name)
    case = replace(subject.base, n_queries=9, n_keys=9, **changes)
    return subject, case, subject.build(case), subject.inputs(case)


def decoded(module, inputs, *lengths):
    cache, outs, start = module.new_cache(inputs.q.shape[0], 9, dtype=inputs.q.dtype), [], 0
    for n in lengths:
        at = slice(start, start + n)
        x = None if inputs.x is None else inputs.x[:, at]
        outs.append(module.extend(*(t[:, :, at] for t in (inputs.q, inputs.k, inputs.v)), cache, Mask(), None, x))
        start += n
    assert cache.length == start
    return torch.cat(outs, 2)


@pytest.mark.parametrize("name", HERE)
def test_a_batch_of_none_gives_none(name):
    """Ten backends divided by zero (reported as pytorch PR 175000)."""
    subject, _, module, inputs = subject_of(name)
    none = inputs.map(lambda t: t[:0])
    with torch.no_grad():
        assert module(*none).shape == (0, *inputs.q.shape[1:3], inputs.v.shape[3])
        assert decoded(module, none, 7, 1, 1).shape == module(*none).shape
    if subject.trains:
        leaves = none.leaves()
        module(*leaves).sum().backward()
        for t in leaves.tensors().values():
            assert t.grad is None or t.grad.shape == t.shape


@pytest.mark.parametrize(
    "name", [n for n in HERE if Subject.of(n).softmax or n in ("moba", "nsa", "softcap", "sigmoid", "sink_logit")]
)
def test_scores_beyond_float16_are_finite(name):
    """q·k of 90,000: exact, moba and nsa gave NaN (reported as ultralytics PR 24990)."""
    changes = {} if Subject.of(name).reasons(replace(Subject.of(name).base, scale=1.0)) else {"scale": 1.0}
    subject, _, module, inputs = subject_of(name, dtype=torch.float16, **changes)
    if subject.reasons(replace(subject.base, dtype=torch.float16)):
        pytest.skip("it takes no float16")
    long = lambda t: (300 * t.float() / t.float().norm(dim=-1, keepdim=True)).half()  # noqa: E731
    inputs.q = long(inputs.q)
    inputs.k = inputs.q[:, : inputs.k.shape[1]].clone()
    with torch.no_grad():
        assert module(*inputs).isfinite().all()
        assert decoded(module, inputs, 5, 1, 1, 1, 1).isfinite().all()
    if subject.trains:
        leaves = inputs.leaves()
        module(*leaves).float().sum().backward()
        assert all(t.grad.isfinite().all() for t in leaves.tensors().values() if t.grad is not None)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", HERE)
def test_the_reference_takes_every_floating_dtype(name, dtype):
    """`forgetting.reference` multiplied float64 by its float32 gate."""
    _, _, module, inputs = subject_of(name)
    out, _ = module.reference(*inputs.map(lambda t: t.to(dtype)))
    assert out.dtype == torch.float64
    assert out.isfinite().all()


@pytest.mark.parametrize("refill", ["in place", "numpy", "data"])
@pytest.mark.parametrize("name", HERE)
def test_a_mask_that_is_refilled_is_read_again(name, refill):
    """What was found out of the old ids stayed: a rule that carries a state took ids that came back."""
    _, case, module, inputs = subject_of(name)
    if "documents" not in module.capabilities.masks:
        pytest.skip("it takes no documents")
    ids = torch.tensor([[0, 0, 0, 1, 1, 1, 2, 2, 2]]).repeat(case.batch, 1)
    mask = Mask(documents=ids)
    inputs.mask = mask
    write = {
        "in place": ids.copy_,
        "numpy": lambda t: ids.numpy().__setitem__(slice(None), t.numpy()),
        "data": ids.data.copy_,
    }
    with torch.no_grad():
        module(*inputs)
        write[refill](torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 2]]).repeat(case.batch, 1))
        torch.testing.assert_close(module(*inputs).double(), module.reference(*inputs)[0], atol=1e-4, rtol=1e-4)
        write[refill](torch.tensor([[0, 1, 0, 1, 0, 1, 0, 1, 0]]).repeat(case.batch, 1))
        assert not mask.contiguous_documents
        if isinstance(module, TAKES_RUNS):
            with pytest.raises(RequestError, match="contiguous"):
                module(*inputs)
        else:
            torch.testing.assert_close(module(*inputs).double(), module.reference(*inputs)[0], atol=1e-4, rtol=1e-4)
