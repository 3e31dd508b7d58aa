"""What an attention reads: the matrix that multiplies the values, of a backend alone and of each head of a trained model.

Every matrix comes from `Attention.reference`, in float64, so that rules without a softmax have one too. Shapes: see
`attnzoo.shapes`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from attnzoo import registry
from attnzoo.contract import Attention
from attnzoo.errors import RequestError
from attnzoo.masks import Mask
from attnzoo.model import CausalLM
from attnzoo.options import cut_down
from attnzoo.seeds import seeded

SYMBOLS = 6
MATCH = 4.0
"""The logit of a query that meets a key of its own symbol."""


def backend_map(
    name: str,
    *,
    n_tokens: int = 32,
    head: int = 0,
    n_heads: int = 4,
    head_dim: int = 32,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The effective weights of a backend on a row of random symbols, each with one code that is its query and its key.

    A softmax then shows what it may see and that it prefers its own symbol; a decay, a delta rule or a choice of blocks show
    theirs. Counts among the options that are not given (windows, blocks) are cut to T/8 and named in ``cut``.

    Returns:
        plain values: ``weights`` (T lists of T), ``symbols`` (T), ``options``, ``cut`` (option -> its default).

    Raises:
        RequestError: an unknown backend or option, no such head.
    """
    if not 0 <= head < n_heads:
        raise RequestError(f"head {head}: the picture has heads 0 to {n_heads - 1}")
    given = dict(options or {})
    asked = registry.parse_options(name, given)
    small = asdict(cut_down(asked, [max(n_tokens // part, 1) for part in (8, 4, 2)]))
    cut = {key: value for key, value in asdict(asked).items() if key not in given and small[key] != value}
    fitted = asdict(replace(asked, **{key: small[key] for key in cut}))
    with seeded(seed, torch.get_default_device()):
        attn = registry.build(name, n_heads=n_heads, head_dim=head_dim, d_model=n_heads * head_dim, **fitted).double()
    symbols, inputs = _symbols(attn, n_tokens, seed)
    weights = attn.reference(*inputs)[1][0, head]
    return {
        "backend": name,
        "n_tokens": n_tokens,
        "head": head,
        "n_heads": n_heads,
        "options": {key: value for key, value in fitted.items() if key != "kernel"},
        "cut": cut,
        "symbols": symbols.tolist(),
        "weights": weights.tolist(),
    }


@torch.no_grad()
def model_maps(model: CausalLM, tokens: Tensor) -> list[dict[str, Any]]:
    """What each head of each layer reads on one row of tokens (1, T), the model in evaluation mode.

    Returns:
        a dictionary a layer: ``layer``, ``backend``, ``heads``; a head has ``weights`` and what `head_numbers` says.
    """
    calls: list[tuple[Attention, tuple]] = []
    hooks = [
        attn.register_forward_pre_hook(lambda module, inputs: calls.append((module, inputs)))
        for attn in model.attention_modules()
    ]
    was_training = model.training
    try:
        model.eval()(tokens)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return [
        {"layer": layer, "backend": attn.name, "heads": _heads(attn, inputs)}
        for layer, (attn, inputs) in enumerate(calls)
    ]


def head_numbers(weights: Tensor, scores: Tensor | None, visible: Tensor) -> dict[str, float | None]:
    """One head in numbers.

    Args:
        weights: (T, T) that multiply the values; of a rule without a softmax some may be negative.
        scores: (T, T) logits; None where the rule has none.
        visible: (T, T) bool.

    Returns:
        ``entropy_nats``: of a row's shares |weight| / sum, mean over the rows that read anything; ``keys``: its exponential,
        how many keys a query reads in effect; ``sink_share``: mean share of the first token in the rows after it;
        ``row_sum``: mean sum of a row; ``logit_min``, ``logit_max``: over the visible pairs.
    """
    sizes = weights.abs()
    reads = sizes.sum(-1) > 0
    shares = sizes[reads] / sizes[reads].sum(-1, keepdim=True)
    entropy = float(torch.special.entr(shares).sum(-1).mean()) if reads.any() else None
    later = sizes[1:][reads[1:]]
    logits = None if scores is None or not visible.any() else scores[visible]
    return {
        "entropy_nats": entropy,
        "keys": None if entropy is None else float(torch.tensor(entropy).exp()),
        "sink_share": float((later[:, 0] / later.sum(-1)).mean()) if len(later) else None,
        "row_sum": float(weights.sum(-1).mean()),
        "logit_min": None if logits is None else float(logits.min()),
        "logit_max": None if logits is None else float(logits.max()),
    }


def _heads(attn: Attention, inputs: tuple) -> list[dict[str, Any]]:
    q, k, v, mask, bias, x = inputs
    exact = copy.deepcopy(attn).double()
    q, k, v = q.double(), k.double(), v.double()
    weights = exact.reference(q, k, v, mask, bias, None if x is None else x.double())[1][0]
    n_tokens = q.shape[2]
    visible = exact.visible(mask, n_tokens, n_tokens, q.device).expand(1, *weights.shape)[0]
    scores = None
    if attn.capabilities.bias:  # what a bias can be added to is a score
        i = torch.arange(n_tokens, device=q.device)
        scores = (q @ exact.repeat_kv(k).mT * exact.scale)[0]
        scores = scores if bias is None else scores + bias.block(i[:, None], i[None, :]).double()
    return [
        {
            "head": head,
            **head_numbers(weights[head], None if scores is None else scores[head], visible[head]),
            "weights": weights[head].tolist(),
        }
        for head in range(attn.n_heads)
    ]


def _symbols(attn: Attention, n_tokens: int, seed: int) -> tuple[Tensor, tuple]:
    """Symbols (T), and q, k, v, mask, bias, x for them: every head gets the same codes."""
    draw = torch.Generator().manual_seed(seed)
    symbols = torch.randint(SYMBOLS, (n_tokens,), generator=draw)
    codes = torch.randn(SYMBOLS, attn.head_dim, generator=draw, dtype=torch.float64)
    codes = codes / codes.norm(dim=-1, keepdim=True) * (MATCH / attn.scale) ** 0.5
    code = codes[symbols].expand(1, attn.n_heads, -1, -1)
    values = torch.randn(1, attn.n_kv_heads, n_tokens, attn.head_dim, generator=draw, dtype=torch.float64)
    embeddings = torch.randn(SYMBOLS, attn.n_heads * attn.head_dim, generator=draw, dtype=torch.float64)
    return symbols, (code, code[:, : attn.n_kv_heads], values, Mask(), None, embeddings[symbols][None])
