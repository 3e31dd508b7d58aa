"""Decoding in shapes that never change: one graph for all tokens, which on CUDA is replayed as a CUDA graph.

A cache of R slots is always read whole. One step extends a sequence that seems to hold R - 1 tokens already, of which those
not yet there are padding; the new token is the last:

    slot          0  1  2  3  4  …  R-1
    key_padding   x  x  x  .  .  .   x       three tokens before; the fourth, in the last slot and kept in slot 3

So `Mask.key_padding` says what is visible, and positions, which count real tokens, come from it: nothing in the model or in
a rule need know. Where a token lies and what is filled are tensors on the device, written by the step itself.
Not for what counts slots and not tokens: a window, a pattern of blocks, a bias of the scores by distance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from attnzoo.cache import KVCache
from attnzoo.contract import Attention, Request
from attnzoo.errors import Refused
from attnzoo.kernels.compiling import one_graph, torchs_reason
from attnzoo.kernels.recurrent import StateCache
from attnzoo.model import compiled
from attnzoo.model.projection import LayerCache

if TYPE_CHECKING:
    from attnzoo.model.lm import CausalLM, ModelCache

SLOTS = 128
"""A cache has a multiple of them, so that texts of different lengths share a graph."""

_STEPS: WeakKeyDictionary[CausalLM, dict[tuple, Callable[..., Tensor]]] = WeakKeyDictionary()


def room_for(n_tokens: int) -> int:
    """Slots of a cache for so many tokens."""
    return -(-max(n_tokens, 1) // SLOTS) * SLOTS


class FixedKV(KVCache):
    """A `KVCache` that is full but for its last slot, whatever it holds: a new token goes there, and to slot ``at`` (1,)."""

    def __init__(self, held: KVCache, at: Tensor) -> None:
        super().__init__(held.keys, held.values)
        self.at, self.length = at, held.max_tokens - 1

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        for held, new in ((self.keys, k), (self.values, v)):
            held[:, :, -1:] = new
            held.index_copy_(2, self.at, new.to(held.dtype))
        return self.keys, self.values


class StaticDecoding:
    """The steps of one text, compiled: tokens (B, 1) -> logits (B, 1, V).

    Args:
        cache: holds the tokens so far, and takes the new ones; its lengths are right again after `close`.
        key_padding: (B, T) of the tokens so far, True = a real token.

    Raises (when called):
        Refused: the step cannot be traced as one graph, or nothing here compiles it.
    """

    def __init__(self, model: CausalLM, cache: ModelCache, batch_size: int, key_padding: Tensor | None) -> None:
        self.model, self.held, self.length = model, cache, cache.length
        room, device = cache.layers[0].attention.max_tokens, model.embedding.weight.device
        self.at = torch.full((1,), self.length, device=device)
        self.real = torch.zeros(batch_size, room, dtype=torch.bool, device=device)
        self.real[:, : self.length] = True if key_padding is None else key_padding
        self.real[:, -1] = True
        self.tokens = torch.zeros(batch_size, 1, dtype=torch.int64, device=device)
        self.cache = type(cache)([_fixed(layer, self.at) for layer in cache.layers])
        if device.type == "cuda":
            for t in self.tensors():  # written in place, which a CUDA graph does to what it need not copy alone
                torch._dynamo.mark_static_address(t)

    def tensors(self) -> list[Tensor]:
        """What a step reads and writes beside the weights."""
        layers = [(layer.attention, layer.conv) for layer in self.cache.layers]
        held = [t for cache, conv in layers for t in (*vars(cache).values(), conv) if isinstance(t, Tensor)]
        return [self.tokens, self.real, self.at, *held]

    def __call__(self, tokens: Tensor) -> Tensor:
        from torch._dynamo.exc import TorchDynamoException

        self.tokens.copy_(tokens)
        torch.compiler.cudagraph_mark_step_begin()
        try:
            logits = self._compiled()(self.model, self.tokens, self.real, self.at, self.cache)
        except TorchDynamoException as error:
            headline = "this model's decoding step cannot be compiled; generate without compiled='static'"
            raise Refused(headline, [torchs_reason(error)]) from error
        self.length += 1
        return logits

    def close(self) -> None:
        """The cache that was given holds the tokens of the steps as if they had been decoded one by one."""
        for layer in self.held.layers:
            layer.attention.length = self.length

    def _compiled(self) -> Callable[..., Tensor]:
        """One function for each shape: torch allows eight graphs of one."""
        kind = self.model.embedding.weight.device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        shapes = (*((tuple(t.shape), t.dtype, t.device) for t in self.tensors()), autocast)
        steps = _STEPS.setdefault(self.model, {})
        if shapes not in steps:
            graphs = {"mode": "reduce-overhead"} if kind == "cuda" else {}
            steps[shapes] = one_graph(step, compiled.BACKEND, dynamic=False, **graphs)
        return steps[shapes]


def step(model: CausalLM, tokens: Tensor, real: Tensor, at: Tensor, cache: ModelCache) -> Tensor:
    """One token: all that changes is written where it was."""
    before = [(layer.conv, getattr(layer.attention, "state", None)) for layer in cache.layers]
    full = cache.length
    logits = type(model).forward(model, tokens, key_padding=real, cache=cache)
    for layer, (conv, state) in zip(cache.layers, before, strict=True):
        if conv is not None and layer.conv is not None:
            conv.copy_(layer.conv)
            layer.conv = conv
        if state is not None:
            state.copy_(layer.attention.state)
            layer.attention.state, layer.attention.length = state, full
    real.index_fill_(1, at, True)
    at.add_(1)
    return logits


def reasons(model: CausalLM, cache: ModelCache, n_tokens: int) -> list[str]:
    """Every reason why a model does not decode so, up to so many tokens in the cache; none when it does."""
    room = cache.layers[0].attention.max_tokens
    why = [f"the cache has room for {room} tokens, and {n_tokens} are to be in it"] if n_tokens > room else []
    why += [
        f"{scheme.name} positions count slots of the cache, and its empty ones lie between"
        for scheme in model.schemes
        if scheme.needs_bias
    ]
    for block, layer in zip(model.layers, cache.layers, strict=True):
        decoder = block.attention.projection.decoder(block.attention.attention)
        why += _layer_reasons(decoder, layer, model.embedding.weight.device)
    return list(dict.fromkeys(why))


def _layer_reasons(attention: Attention, layer: LayerCache, device: torch.device) -> Iterator[str]:
    held = layer.attention
    if type(held) not in (KVCache, StateCache):
        yield f"{attention.name} keeps a {type(held).__name__}, whose shapes or slots change from token to token"
        return
    slot = torch.zeros(1, 1, dtype=torch.long, device=device)
    if not attention.capabilities.shift_invariant or attention.pattern(slot, slot) is not None:
        yield f"{attention.name} counts slots of the cache, and its empty ones lie between"
    yield from attention.reasons(
        Request(
            attention.n_heads, attention.n_kv_heads, attention.head_dim, device=device.type, dtype=layer.dtype,
            mask_fields=frozenset({"key_padding"}), training=False,
            options=attention.options,
        )
    )  # fmt: skip


def _fixed(layer: LayerCache, at: Tensor) -> LayerCache:
    """A layer's cache as the steps see it, in the same memory."""
    held = layer.attention
    layer.conv = None if layer.conv is None else layer.conv.clone()  # a view of the prompt's until now
    if isinstance(held, KVCache):
        return LayerCache(FixedKV(held, at), layer.conv, layer.dtype)
    held.state = held.state.clone(memory_format=torch.contiguous_format)
    state = StateCache(held.state, held.max_tokens)
    state.length = held.max_tokens - 1
    return LayerCache(state, layer.conv, layer.dtype)
