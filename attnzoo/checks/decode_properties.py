"""The properties of decoding and generation behind `check_model`; see `attnzoo.checks.model_properties`."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor

from attnzoo.checks.compare import Failed, Skip, expect_same
from attnzoo.checks.model_properties import PROMPT, Model, fixed_to_the_start
from attnzoo.errors import RequestError


def decode_positions(m: Model) -> str:
    """A token decoded after four others stands at position 4."""
    new_cache = m.method("new_cache")
    for rows in (2, 1):  # a single row may take other code
        tokens = m.tokens(rows, 6)
        full, cache = m(tokens), new_cache(rows, 8)
        m(tokens[:, :4], cache=cache)
        for position in (4, 5):
            step = m(tokens[:, position : position + 1], cache=cache)[:, 0]
            what = f"decoded against the full pass, batch of {rows}"
            expect_same(step, full[:, position], f"logits of token {position}", m.bound(full), what)
    return "prefill 4, then 1 and 1, batches of 2 and 1"


def full_cache(m: Model) -> str:
    """A token too many is a clear error, and leaves the cache as it was."""
    new_cache = m.method("new_cache")
    tokens, cache = m.tokens(2, 5), new_cache(2, 4)
    m(tokens[:, :3], cache=cache)
    try:
        m(tokens[:, 3:], cache=cache)
    except RequestError:
        if cache.length != 3:
            raise Failed("3 tokens in the cache", str(cache.length), "after the refused tokens") from None
        expect_same(m(tokens[:, 3:4], cache=cache)[:, 0], m(tokens)[:, 3], "logits of token 3", m.bound(m(tokens)))
        return "3 + 2 tokens into 4 places"
    raise Failed("RequestError", "no error", "3 + 2 tokens into 4 places")


def generation(m: Model) -> str:
    """Generating with the cache and without gives the same tokens, greedy and sampled, the prompt kept."""
    generate, prompt = m.method("generate"), m.tokens(2, 5)
    _skip_half(m)
    for how in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 1}):
        cached, plain = (generate(prompt, PROMPT, use_cache=use, **how) for use in (True, False))
        _expect_tokens(cached, plain, f"with a cache against without, {how}")
        _expect_tokens(cached, generate(prompt, PROMPT, use_cache=True, **how), f"twice, {how}")
        _expect_tokens(cached[:, :5], prompt, "the prompt")
        if cached.shape[1] != 5 + PROMPT:
            raise Failed(f"{5 + PROMPT} tokens", str(cached.shape[1]))
    return f"{PROMPT} tokens after 5, greedy and sampled"


def padded_generation(m: Model) -> str:
    """Prompts of unequal length, padded on the left, are continued as each is alone."""
    generate = m.method("generate")
    _skip_half(m)
    if "key_padding" not in inspect.signature(generate).parameters:
        raise Skip("generate takes no key_padding")
    if fixed := fixed_to_the_start(m, 3):
        raise Skip(fixed)
    long, short = m.tokens(1, 7), m.tokens(1, 4)
    batch = torch.cat([long, torch.cat([m.tokens(1, 3), short], 1)])
    real = torch.ones_like(batch, dtype=torch.bool)
    real[1, :3] = False
    together = generate(batch, PROMPT, key_padding=real)
    _expect_tokens(together[:1], generate(long, PROMPT), "the long prompt")
    _expect_tokens(together[1:, 3:], generate(short, PROMPT), "the short prompt, 3 pads before it")
    return "prompts of 7 and 4 tokens"


def _skip_half(m: Model) -> None:
    if m(m.tokens(1, 2)).dtype.itemsize == 2:
        raise Skip("in half precision, rounding may decide between two likely tokens")


def _expect_tokens(actual: Tensor, expected: Tensor, what: str) -> None:
    if not torch.equal(actual, expected):
        expect_same(actual.double(), expected.double(), "tokens", detail=what)
