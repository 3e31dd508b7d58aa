"""The plain cache of keys and values. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from torch import Tensor


class KVCache:
    """Keys and values of the tokens seen so far, in memory allocated once. Slots past ``length`` are never read."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values, self.length = keys, values, 0

    @property
    def max_tokens(self) -> int:
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        return held_bytes(self.keys, self.values)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store n new tokens and return views of all keys (B, G, length, D) and values (B, G, length, Dv)."""
        end = self.length + k.shape[2]
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


def held_bytes(keys: Tensor, values: Tensor) -> int:
    """What keys and values take; values that are the keys take nothing."""
    shared = keys.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
    return keys.nbytes + (0 if shared else values.nbytes)
