"""Continue a text token by token, with the model's cache or, to check it, without."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from attnzoo.arguments import demand, fault, flag, having, number, tensor, whole
from attnzoo.arguments import seed as valid_seed
from attnzoo.errors import Refused
from attnzoo.model import static
from attnzoo.model.compiled import decoding_step

if TYPE_CHECKING:
    from attnzoo.model.lm import CausalLM, ModelCache


COLDEST = 1e-30  # below it logits / temperature overflows float32, and the likeliest token is certain anyway


@torch.no_grad()
def generate(
    model: CausalLM,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    seed: int | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    use_cache: bool = True,
    key_padding: Tensor | None = None,
    cache: ModelCache | None = None,
    compiled: bool | Literal["static"] = False,
) -> Tensor:
    """Continue each row.

    Args:
        tokens: (B, T) prompts; rows of unequal length are padded on the left.
        max_new_tokens: how many to add.
        temperature: 0 takes the likeliest token; otherwise logits are divided by it and sampled.
        seed: of the sampling; None draws a fresh one.
        top_k, top_p: sample among the k likeliest tokens, and among the fewest whose probability reaches p.
        use_cache: decode with a cache; False recomputes all tokens at each step, which must give the same.
        key_padding: (B, T) bool, True = a real token.
        cache: one that holds the first tokens already, fewer than T, with room for the rest but the very last; None
            makes a new one.
        compiled: each token after the prompt as one graph, by torch.compile (`attnzoo.model.compiled`): some seconds to a
            minute at the first call for a model, faster afterwards. Needs a C++ compiler. "static" reads a cache of fixed
            size whole at each token (`attnzoo.model.static`): on CUDA every token is one CUDA graph.

    Returns:
        (B, T + max_new_tokens).

    Raises:
        RequestError: arguments of a wrong type or out of range, all at once.
        Refused: ``compiled``, and the model's step cannot be one graph; "static", and a layer counts slots of the cache.
    """
    _check(tokens, max_new_tokens, temperature, seed, top_k, top_p, use_cache, key_padding, cache, compiled)
    start, end = tokens.shape[1], tokens.shape[1] + max_new_tokens
    text = F.pad(tokens, (0, max_new_tokens))
    real = None if key_padding is None else F.pad(key_padding, (0, max_new_tokens), value=True)
    was_training, fixed = model.training, None
    if use_cache and cache is None:
        room = end if compiled != "static" else static.room_for(end - 1)
        cache = model.new_cache(tokens.shape[0], room)
    if compiled == "static" and cache is not None and (why := static.reasons(model, cache, end - 1)):
        raise Refused("this model cannot decode in fixed shapes; take compiled=True", why)
    model.eval()
    try:
        draw = None if temperature < COLDEST else torch.Generator(device=tokens.device)
        if draw is not None:
            draw.manual_seed(seed) if seed is not None else draw.seed()
        new = text[:, 0 if cache is None else cache.length : start]
        new = new.clone(memory_format=torch.contiguous_format)  # strides are a condition of a compiled graph
        for n in range(start, end):
            padding = None if real is None else real[:, :n]
            if compiled == "static" and cache is not None and n > start:
                before = None if real is None else real[:, : n - 1]
                fixed = fixed or static.StaticDecoding(model, cache, tokens.shape[0], before)
                logits = fixed(new)[:, -1]
            else:
                step = decoding_step(model) if compiled is True and _is_step(new, cache) else model
                logits = step(new, key_padding=padding, cache=cache)[:, -1]
            new = _pick(logits.float(), temperature, top_k, top_p, draw)
            text[:, n : n + 1] = new
            if cache is None:
                new = text[:, : n + 1]
        return text
    finally:
        if fixed is not None:
            fixed.close()
        model.train(was_training)


def _is_step(new: Tensor, cache: ModelCache | None) -> bool:
    """One token a row after others: an empty cache is a graph of its own."""
    return new.shape[1] == 1 and cache is not None and cache.length > 0


def _pick(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, draw: torch.Generator | None
) -> Tensor:
    """(B, V) -> the next token (B, 1)."""
    if temperature < COLDEST:
        return logits.argmax(-1, keepdim=True)
    logits = logits / temperature
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if top_p is not None:
        ordered, order = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        # a token stays while the likelier ones have not reached p: the likeliest always stays
        logits = logits.masked_fill((before >= top_p).gather(1, order.argsort(1)), float("-inf"))
    return torch.multinomial(logits.softmax(-1), 1, generator=draw)


def _check(tokens, max_new_tokens, temperature, seed, top_k, top_p, use_cache, key_padding, cache, compiled) -> None:
    demand(
        "this cannot be generated",
        tensor("tokens", tokens, "of integers (B, T)"),
        whole("max_new_tokens", max_new_tokens, 1),
        number("temperature", temperature, lambda t: 0 <= t < math.inf, "0 or more"),
        valid_seed("seed", seed, optional=True),
        whole("top_k", top_k, 1, optional=True),
        number("top_p", top_p, lambda p: 0 < p <= 1, "in (0, 1]", optional=True),
        flag("use_cache", use_cache),
        _compiled(compiled),
        tensor("key_padding", key_padding, "of bool (B, T)", optional=True),
        having("cache", cache, ("layers", "length"), "what the model's new_cache makes", optional=True),
        _unfit(tokens, use_cache, cache, compiled),
    )


def _unfit(tokens: Any, use_cache: Any, cache: Any, compiled: Any) -> Iterator[str]:
    """What is wrong with the prompt's shape, and with a cache beside it."""
    if cache is not None and use_cache is False:
        yield "use_cache=False with a cache"
    if not _compiled(compiled) and compiled and use_cache is False:
        yield f"compiled={compiled} needs the cache: without it each step has another shape"
    if not isinstance(tokens, Tensor):
        return
    if tokens.dim() != 2 or tokens.shape[1] < 1:
        yield f"the prompt must be (B, T) with T ≥ 1; got {tuple(tokens.shape)}"
    elif cache is not None and hasattr(cache, "layers") and cache.length >= tokens.shape[1]:
        yield f"the cache holds {cache.length} tokens already and the prompt has {tokens.shape[1]}"


def _compiled(value: Any) -> list[str]:
    known = isinstance(value, bool) or (isinstance(value, str) and value == "static")
    return [] if known else fault("compiled", value, "True, False or 'static'")
