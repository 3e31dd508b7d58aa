"""What a backend answers to abnormal input, found by running it: a class of answer. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from attnzoo.checks.cases import Inputs
from attnzoo.checks.subject import Subject
from attnzoo.contract import Attention
from attnzoo.errors import RequestError
from attnzoo.masks import Mask

TOKENS, PLACE = 9, 4
"""T, and the token whose q, k or v is not finite."""
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


def answers(name: str) -> dict[str, str]:
    """Column -> class of answer on a CPU in float32, in one pass and, where they differ, in decoding token by token.

    refused (`RequestError`, before any work); empty; 0; finite; and how far NaN or infinity goes: the rows that see the
    token at most, its sequence (earlier rows too: a weight of 0 times NaN), others' (a fault).
    """
    subject = Subject.of(name)
    case = replace(subject.base, n_queries=TOKENS, n_keys=TOKENS, options="own")
    if why := subject.reasons(case):
        return dict.fromkeys(COLUMNS, f"refused: {why[0]}")
    module, inputs = subject.build(case).eval(), subject.inputs(case)
    hidden = torch.ones(case.batch, TOKENS, dtype=torch.bool)
    hidden[0] = False
    found = {
        "T = 0": _class(lambda: module(*inputs.map(lambda t: t[..., :0, :]))),
        "batch 0": _class(lambda: module(*inputs.map(lambda t: t[:0]))),
        "no key visible": _class(lambda: module(*replace(inputs, mask=Mask(key_padding=hidden)))[0]),
        "cache full": _class(lambda: _decoded(module, inputs, TOKENS - 1)),
    }
    for word, value in (("NaN", torch.nan), ("∞", torch.inf)):
        for field in "qkv":
            bad = replace(inputs, **{field: getattr(inputs, field).clone()})
            getattr(bad, field)[0, 0, PLACE] = value
            ways = [_spread(partial(module, *bad)), _spread(partial(_decoded, module, bad, TOKENS))]
            found[f"{word} in {field}"] = "; decoded ".join(dict.fromkeys(ways))
    return found


@torch.no_grad()
def _class(call: Callable[[], Tensor]) -> str:
    try:
        out = call()
    except RequestError:
        return "refused"
    if not out.numel():
        return "empty"
    return "0" if not out.any() else "finite" if out.isfinite().all() else "not finite"


@torch.no_grad()
def _spread(call: Callable[[], Tensor]) -> str:
    """Which rows of the output (B, H, T, Dv) are not finite."""
    try:
        bad = ~call().isfinite().all(-1).all(1)
    except RequestError:
        return "refused"
    if bad[1:].any():
        return "others'"
    if bad[0, :PLACE].any():
        return "sequence"
    return "seen"  # all of them or some: the fused kernel passes over a NaN in a query on one CPU and not on another


def _decoded(module: Attention, inputs: Inputs, room: int) -> Tensor:
    cache, outs = module.new_cache(inputs.q.shape[0], room), []
    for t in range(TOKENS):
        at = slice(t, t + 1)
        x = None if inputs.x is None else inputs.x[:, at]
        q, k, v = inputs.q[:, :, at], inputs.k[:, :, at], inputs.v[:, :, at]
        outs.append(module.extend(q, k, v, cache, Mask(), None, x))
    return torch.cat(outs, 2)
