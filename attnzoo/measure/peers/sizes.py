"""How large the work of every race is."""

from __future__ import annotations

from dataclasses import dataclass

from attnzoo.model.config import ModelConfig


@dataclass(frozen=True)
class Sizes:
    """`FULL` are the sizes that the bars speak of.

    Args:
        n_tokens, n_heads, head_dim: T, H, D of the operators.
        window: W of the window against others.
        block: c of block_sparse.
        models: title -> the model of a training step.
        batch_size, train_tokens: B, T of a training step.
        decoder: the model that decodes against others.
        decode_batches: (rows, tokens decoded a call); decode_context: tokens in the cache.
        new_tokens: decoded a call elsewhere.
        flat_model, flat_contexts, flat_window: for decoding whose cost must not depend on the context.
        grouped_context, grouped_batches: tokens in the cache, (rows, tokens decoded a call) where G = H/8 meets G = H.
    """

    n_tokens: int
    n_heads: int
    head_dim: int
    window: int
    block: int
    models: tuple[tuple[str, ModelConfig], ...]
    batch_size: int
    train_tokens: int
    decoder: ModelConfig
    decode_batches: tuple[tuple[int, int], ...]
    decode_context: int
    new_tokens: int
    flat_model: ModelConfig
    flat_contexts: tuple[int, ...]
    flat_window: int
    grouped_context: int
    grouped_batches: tuple[tuple[int, int], ...]


_LARGE = ModelConfig(n_layers=6, d_model=384, n_heads=8)
_TINY = ModelConfig(n_layers=2, d_model=64, n_heads=8)

FULL = Sizes(
    n_tokens=8192, n_heads=4, head_dim=64, window=128, block=128,
    models=(("default model, 3 M", ModelConfig()), ("10 M", _LARGE)), batch_size=8, train_tokens=256,
    decoder=_LARGE, decode_batches=((1, 32), (16, 4)), decode_context=4096, new_tokens=32,
    flat_model=ModelConfig(), flat_contexts=(1024, 4096, 16384), flat_window=256, grouped_context=8192,
    grouped_batches=((1, 32), (16, 8)),
)  # fmt: skip
QUICK = Sizes(
    n_tokens=256, n_heads=2, head_dim=16, window=16, block=8,
    models=(("tiny", _TINY),), batch_size=2, train_tokens=32,
    decoder=_TINY, decode_batches=((1, 4), (2, 4)), decode_context=32, new_tokens=4,
    flat_model=_TINY, flat_contexts=(32, 64), flat_window=16, grouped_context=64, grouped_batches=((1, 4), (2, 4)),
)  # fmt: skip
