"""The delta rule: what its variants share. Shapes: see `attnzoo.shapes`; the chunked form is in `attnzoo.kernels.scan`."""

from __future__ import annotations

import torch
from torch import Tensor

from attnzoo.kernels.gates import Gate
from attnzoo.kernels.recurrent import FROM_X, Recurrent, Terms
from attnzoo.kernels.scan import chunk_for


class DeltaRule(Recurrent):
    """S_t = (I - β_t k_t k_t^T) Diag(α_t) S_{t-1} + β_t k_t v_t^T, O_t = s S_t^T q_t; a variant gives α.

    q and k have length 1, β_t = σ(x_t w) a head; s is 1 unless ``scale`` says otherwise, so that what is written under a
    key is read back whole.
    """

    capabilities = FROM_X

    def __init__(self, *, scale: float | None = None, **how) -> None:
        super().__init__(scale=1.0 if scale is None else scale, **how)
        self.beta = Gate(self.d_model, self.n_kv_heads, 1)

    def log_decay(self, x: Tensor) -> Tensor | None:
        """log α, (B, G, T, 1 or D); None for 1."""
        return None

    def write_strength(self, x: Tensor) -> Tensor:
        """β, (B, G, T)."""
        return self.beta(x)[..., 0].sigmoid()

    def terms(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor | None) -> Terms:
        assert x is not None
        return Terms(unit(q) * self.scale, unit(k), v, self.log_decay(x), self.write_strength(x))

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        assert x is not None
        decay = self.log_decay(x)
        decay = None if decay is None else self.repeat_kv(decay)
        return delta_weights(unit(q) * self.scale, unit(k), self.repeat_kv(self.write_strength(x)), visible, decay)

    def flops(self, n_queries: int, n_keys: int) -> float:
        c, d = chunk_for(self.options.chunk, n_keys), self.head_dim
        solved = n_keys * (c + 1) * (d + 2 * d) + 4.0 * n_keys * d * d  # products of keys, the triangular solve, W S
        return super().flops(n_queries, n_keys) + self.n_kv_heads * solved


def unit(t: Tensor, eps: float = 1e-6) -> Tensor:
    """t / sqrt(|t|² + eps), as the reference implementation: a vector of zeros stays one, with a finite gradient."""
    return t * torch.rsqrt(t.square().sum(-1, keepdim=True) + eps)


def delta_weights(q: Tensor, k: Tensor, beta: Tensor, visible: Tensor, decay: Tensor | None = None) -> Tensor:
    """The definition: the recurrence, read by q_t, as a matrix over the values. O(T²·D).

    What the state holds of v_j is a key r_j: β_j k_j when written, then decayed and projected by each later token.

    Args:
        q, k: (B, H, T, D); beta (B, H, T); log decay (B, H, T, 1 or D).
        visible: (B or 1, 1, T, T); a token that does not see itself is padding, and does nothing.
    """
    held, rows = torch.zeros_like(k), []
    for t in range(k.shape[2]):
        real = visible[..., t, t][..., None, None]
        key, strength = k[:, :, t, None], torch.where(real, beta[:, :, t, None, None], 0.0)
        if decay is not None:
            held = held * torch.where(real, decay[:, :, t, None], 0.0).exp()
        held = held - strength * (held @ key.mT) * key
        held = held + strength * key * (torch.arange(k.shape[2], device=k.device) == t)[:, None]
        held = held * visible[..., t, :, None]
        rows.append((held @ q[:, :, t, :, None])[..., 0])
    return torch.stack(rows, 2)
