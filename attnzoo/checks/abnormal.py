"""What a backend answers to abnormal input, found by running it: a class of answer. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnzoo.checks.cases import Inputs
from attnzoo.checks.subject import Subject
from attnzoo.contract import Attention
from attnzoo.errors import RequestError
from attnzoo.masks import Mask

TOKENS, PLACE, ROWS, ROW = 9, 4, 3, 1
"""T, the token whose q, k or v is not finite, B, and its row: there are others before it and behind it."""
COLUMNS = (
    "T = 0",
    "batch 0",
    "no key visible",
    "cache full",
    "NaN in q",
    "NaN in k",
    "NaN in v",
    "∞ in q",
    "∞ in k",
    "∞ in v",
)


def answers(name: Any) -> dict[str, str]:
    """Column -> class of answer on a CPU in float32: in one pass and, where they differ, trained (with its gradients) and
    decoded token by token.

    refused (`RequestError`, before any work); empty; 0; finite; and how far NaN or infinity goes: the rows that see the
    token at most, its sequence (earlier rows too: a weight of 0 times NaN), others' (a fault).
    """
    subject = Subject.of(name)
    case = replace(subject.base, batch=ROWS, n_queries=TOKENS, n_keys=TOKENS, options="own")
    if why := subject.reasons(case):
        return dict.fromkeys(COLUMNS, f"refused: {why[0]}")
    module, inputs = subject.build(case).eval(), subject.inputs(case)
    hidden = torch.ones(case.batch, TOKENS, dtype=torch.bool)
    hidden[ROW] = False
    unseen = replace(inputs, mask=Mask(key_padding=hidden))
    trains = not subject.reasons(case, True)

    def ways(of: Callable[[Callable[[], Tensor]], str], given: Inputs, decode: bool = False) -> str:
        """The answers, each once."""
        found = {"": of(partial(_evaluated, module, given))}
        if trains:
            found["trained "] = of(partial(_trained, module, given))
        if decode:
            found["decoded "] = of(partial(_decoded, module, given, TOKENS))
        return "; ".join(how + answer for how, answer in found.items() if not how or answer != found[""])

    found = {
        "T = 0": ways(_class, inputs.map(lambda t: t[..., :0, :])),
        "batch 0": ways(_class, inputs.map(lambda t: t[:0])),
        "no key visible": ways(lambda call: _class(lambda: call()[ROW]), unseen),
        "cache full": _class(lambda: _decoded(module, inputs, TOKENS - 1)),
    }
    for word, value in (("NaN", torch.nan), ("∞", torch.inf)):
        for field in "qkv":
            bad = replace(inputs, **{field: getattr(inputs, field).clone()})
            getattr(bad, field)[ROW, 0, PLACE] = value
            found[f"{word} in {field}"] = ways(_spread, bad, decode=True)
    return found


def _class(call: Callable[[], Tensor]) -> str:
    try:
        out = call()
    except RequestError:
        return "refused"
    if not out.numel():
        return "empty"
    return "0" if not out.any() else "finite" if out.isfinite().all() else "not finite"


def _spread(call: Callable[[], Tensor]) -> str:
    """Which rows of the output (B, H, T, …) are not finite."""
    try:
        bad = ~call().isfinite().all(-1).all(1)
    except RequestError:
        return "refused"
    if bad[[row for row in range(ROWS) if row != ROW]].any():
        return "others'"
    if bad[ROW, :PLACE].any():
        return "sequence"
    return "seen"  # all of them or some: the fused kernel passes over a NaN in a query on one CPU and not on another


@torch.no_grad()
def _evaluated(module: Attention, inputs: Inputs) -> Tensor:
    return module.eval()(*inputs)


def _trained(module: Attention, inputs: Inputs) -> Tensor:
    """(B, H, T, n): the output of a training step; beside it for each row of the batch whether its gradients are finite (0 or
    NaN), and whether they are 0 where the output is (0 or 1)."""
    leaves = inputs.leaves()
    out = module.train()(*leaves)
    try:
        if not out.numel():
            return out.detach()
        out.sum().backward()
        gradients = [t.grad.detach() for t in (leaves.q, leaves.k, leaves.v) if t.grad is not None]
        rows = torch.stack([g.flatten(1).abs().sum(1) for g in gradients]).sum(0)[:, None, None, None]
        finite = torch.where(rows.isfinite(), 0.0, torch.nan).expand(*out.shape[:3], 1).clone()
        finite[ROW] = 0  # its own
        moved = ((out.detach() == 0).flatten(1).all(1)[:, None, None, None] & (rows > 0)).float()
        return torch.cat([out.detach(), finite, moved.expand(*out.shape[:3], 1)], -1)
    finally:
        module.eval()


@torch.no_grad()
def _decoded(module: Attention, inputs: Inputs, room: int) -> Tensor:
    cache, outs = module.new_cache(inputs.q.shape[0], room), []
    for t in range(TOKENS):
        at = slice(t, t + 1)
        x = None if inputs.x is None else inputs.x[:, at]
        q, k, v = inputs.q[:, :, at], inputs.k[:, :, at], inputs.v[:, :, at]
        outs.append(module.extend(q, k, v, cache, Mask(), None, x))
    return torch.cat(outs, 2)
