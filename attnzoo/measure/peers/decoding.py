"""Races of decoding: against Hugging Face's generate, over context, and with fewer key/value heads."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attnzoo import registry
from attnzoo.measure.cost import decode_contestant, extend
from attnzoo.measure.latency import Contestant
from attnzoo.measure.peers import limits, llama
from attnzoo.measure.peers.race import Bar, Differs, Entry, Race
from attnzoo.measure.peers.sizes import Sizes
from attnzoo.measure.peers.training import model
from attnzoo.measure.step import random_tokens
from attnzoo.model import compiled
from attnzoo.model.config import ModelConfig
from attnzoo.model.lm import CausalLM, ModelCache

LIMIT = "products and softmax alone"
READING = "reading alone"
STATIC_COMPILED = "Hugging Face, static cache, compiled"
Pair = tuple[Entry, Entry]  # a contestant and its limit, which reads the same cache
FLAT = 1 / 1.1  # the longest context at least this many times as fast as the shortest: within 10 %


def decode_races(sizes: Sizes, seed: int) -> Iterator[Race]:
    """Greedy generate, ours and Llama's with each of its caches, from one filled cache, which the limits read too."""
    for batch, new in sizes.decode_batches:
        ours = model(replace(sizes.decoder, qk_norm=False), seed)
        tokens = random_tokens(ours, 1, sizes.decode_context + 1).expand(batch, -1)
        cache = filled_cache(ours, tokens, new)
        entries: dict[str, Callable[[], Entry]] = {
            "ours": partial(_generate, ours, cache, tokens, new),
            "ours, compiled": partial(_generate, copy.deepcopy(ours), cache, tokens, new, is_compiled=True),
        }
        theirs = {
            f"Hugging Face, {kind} cache": partial(_llama, ours, kind, cache, tokens, new) for kind in llama.CACHES
        }
        peers, entries = tuple(theirs), entries | theirs
        entries |= {STATIC_COMPILED: partial(_llama, ours, "static", cache, tokens, new, is_compiled=True)}
        entries |= {LIMIT: partial(_products, ours, cache, tokens.shape[1], new)}
        entries |= {READING: partial(limits.reading, limits.weights(ours), _held(cache), new)}
        work = f"generate at context {sizes.decode_context}, batch {batch}"
        bars = [
            Bar(f"{work}, compiled", "ours, compiled", peers, 2.0, limit=LIMIT),
            Bar(work, "ours", peers, limit=LIMIT),
            Bar(f"{work}, both compiled", "ours, compiled", (STATIC_COMPILED,), limit=LIMIT),
            Bar(f"{work}, the weights and the cache", READING, peers),
        ]
        shape = _shape(sizes.decoder, batch, sizes.decode_context, sizes.decoder.n_heads)
        yield Race(work, shape, ("sdpa",), entries, bars)


def flat_races(sizes: Sizes, seed: int) -> Iterator[Race]:
    """Decoding a token where the state does not grow: the longest context against the shortest, in time and bytes."""
    short, long = sizes.flat_contexts[0], sizes.flat_contexts[-1]
    for name, options in (("sliding_window", {"window": sizes.flat_window}), ("linear", {})):
        ours = model(sizes.flat_model, seed, name, **options)
        work = f"decode with {name}, context {long} against {short}"
        entries = {f"context {n}": partial(_decode, ours, n, sizes.new_tokens) for n in sizes.flat_contexts}
        bars = [
            Bar(work, f"context {long}", (f"context {short}",), FLAT, quantity) for quantity in ("time", "state_bytes")
        ]
        yield Race(work, _shape(sizes.flat_model, 1, long, sizes.flat_model.n_heads), (name,), entries, bars)


def grouped_races(sizes: Sizes, seed: int) -> Iterator[Race]:
    """Decoding with G = H/8 against G = H: the attention alone, and a model with one row and with several."""
    cfg, context = sizes.flat_model, sizes.grouped_context
    few, many = max(cfg.n_heads // 8, 1), cfg.n_heads
    models = {g: model(replace(cfg, n_kv_heads=g), seed, "gqa") for g in (few, many)}
    works: list[tuple[str, int, Callable[[int], Pair]]] = [
        ("attention alone", 1, partial(_attention_alone, cfg, context, sizes.new_tokens)),
        *((f"batch {n}", n, lambda g, n=n, new=new: _decode_rows(models[g], n, context, new))
          for n, new in sizes.grouped_batches),
    ]  # fmt: skip
    for title, batch, make in works:
        work = f"decode with G {few} against G {many}, context {context}, {title}"
        entries = {
            name: lambda entry=entry: entry
            for g in (few, many)
            for name, entry in zip((f"G = {g}", f"G = {g}, {LIMIT}"), make(g), strict=True)
        }
        own, other = f"G = {few}", f"G = {many}"
        bars = [
            Bar(work, own, (other,), 2.0, limit=f"{own}, {LIMIT}"),
            Bar(f"{work}, {LIMIT}", f"{own}, {LIMIT}", (f"{other}, {LIMIT}",)),
            Bar(work, own, (other,), 8.0, "state_bytes"),
        ]
        yield Race(work, _shape(cfg, batch, context, few), ("gqa",), entries, bars)


def _attention_alone(cfg: ModelConfig, context: int, new: int, kv_heads: int) -> Pair:
    """One layer's attention, a token after the other, over a filled cache."""
    head_dim = cfg.d_model // cfg.n_heads
    attn = registry.build("gqa", n_heads=cfg.n_heads, n_kv_heads=kv_heads, head_dim=head_dim)
    cache = attn.new_cache(1, context + new)
    cache.append(*(torch.randn(1, kv_heads, context, head_dim) for _ in range(2)))
    q = torch.randn(1, cfg.n_heads, 1, head_dim)
    k, v = (torch.randn(1, kv_heads, 1, head_dim) for _ in range(2))

    def prepare() -> None:
        cache.length = context

    @torch.no_grad()
    def run() -> None:
        for _ in range(new):
            attn.extend(q, k, v, cache)

    own = Entry(Contestant(run, prepare, new), lambda: attn.kernel, cache.nbytes)
    return own, limits.decode_products([], [(cache.keys, cache.values)], cfg.n_heads, context + 1, new)


def _decode_rows(ours: CausalLM, batch: int, context: int, new: int) -> Pair:
    """Tokens one after the other after a context that all rows share, so that it need be read once."""
    tokens = random_tokens(ours, 1, context + 1).expand(batch, -1)
    cache = filled_cache(ours, tokens, new)

    def run() -> None:
        for _ in range(new):
            extend(ours, tokens[:, -1:], cache, "fp32")

    own = Entry(Contestant(run, partial(_rewind, cache, context), new), lambda: ours.kernel, cache.nbytes)
    return own, _products(ours, cache, context + 1, new)


def _products(ours: CausalLM, cache: ModelCache, n_keys: int, new: int) -> Entry:
    return limits.decode_products(limits.weights(ours), _held(cache), ours.cfg.n_heads, n_keys, new)


def filled_cache(ours: CausalLM, tokens: Tensor, new: int) -> ModelCache:
    """A cache with room for ``new`` more, that holds all but the last of ``tokens`` (B, T), whose rows are alike."""
    one = ours.new_cache(1, tokens.shape[1])
    extend(ours, tokens[:1, :-1], one, "fp32")
    cache = ours.new_cache(tokens.shape[0], tokens.shape[1] + new)
    for layer, row in zip(cache.layers, _held(one), strict=True):
        keys, values = (held[:, :, : one.length].expand(len(tokens), -1, -1, -1) for held in row)
        layer.attention.append(keys, values)
    return cache


def _generate(ours: CausalLM, cache: ModelCache, tokens: Tensor, new: int, is_compiled: bool = False) -> Entry:
    expected = _expected(ours, cache, tokens, new)
    run = partial(ours.generate, tokens, new, cache=cache, compiled=is_compiled)
    contestant = Contestant(run, partial(_rewind, cache, tokens.shape[1] - 1), units=new)
    compile_s = _compared(contestant, expected)
    return Entry(contestant, lambda: ours.kernel, cache.nbytes, compile_s if is_compiled else None)


def _rewind(cache: ModelCache, context: int) -> None:
    """What a cache of keys and values holds past its length is never read."""
    for layer in cache.layers:
        layer.attention.length = context


def _llama(ours: CausalLM, kind: str, cache: ModelCache, tokens: Tensor, new: int, is_compiled: bool = False) -> Entry:
    expected, context = _expected(ours, cache, tokens, new), tokens.shape[1] - 1
    filled = [(keys[:, :, :context], values[:, :, :context]) for keys, values in _held(cache)]
    theirs = llama.llama_copy(ours, tokens.shape[1] + new)
    if is_compiled:  # as its documentation does
        theirs.forward = torch.compile(theirs.forward, fullgraph=True, backend=compiled.BACKEND)
    contestant = llama.generation(theirs, kind, filled, tokens, new)
    compile_s = _compared(contestant, expected)
    return Entry(contestant, compile_s=compile_s if is_compiled else None)


def _expected(ours: CausalLM, cache: ModelCache, tokens: Tensor, new: int) -> Tensor:
    """(B, T + new): what every contestant must give."""
    _rewind(cache, tokens.shape[1] - 1)
    return ours.generate(tokens, new, cache=cache)


def _compared(contestant: Contestant, expected: Tensor) -> float:
    """Raise `Differs` unless it gives these tokens; the seconds that its first call took beyond its second."""
    seconds = []
    for _ in range(2):
        if contestant.prepare:
            contestant.prepare()
        start = time.perf_counter()
        found = contestant.run()
        seconds.append(time.perf_counter() - start)
        if not (isinstance(found, Tensor) and torch.equal(found, expected)):
            raise Differs("it computes something else", ["it generates other tokens than ours"])
    return seconds[0] - seconds[1]


def _held(cache: ModelCache) -> list[limits.Held]:
    return [(layer.attention.keys, layer.attention.values) for layer in cache.layers]


def _decode(ours: CausalLM, context: int, new: int) -> Entry:
    contestant = decode_contestant(ours, 1, context, new, "fp32")
    return Entry(contestant, lambda: ours.kernel, ours.new_cache(1, context + new).nbytes)


def _shape(cfg: ModelConfig, batch: int, context: int, kv_heads: int) -> dict[str, Any]:
    return {
        "T": context, "B": batch, "H": cfg.n_heads, "G": kv_heads, "D": cfg.d_model // cfg.n_heads, "dtype": "float32"
    }  # fmt: skip
