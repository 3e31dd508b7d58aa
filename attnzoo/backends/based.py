"""Based."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.contract import ScoreBias
from attnzoo.kernels.features import taylor
from attnzoo.kernels.recurrent import FROM_QKV, ChunkOptions, Recurrent, StateCache, Terms
from attnzoo.kernels.ring import RingCache
from attnzoo.kernels.window import WindowAttention
from attnzoo.masks import Mask
from attnzoo.registry import register


@dataclass(frozen=True)
class BasedOptions(ChunkOptions):
    """feature_dim: n, what q and k are brought down to before the Taylor map. window: W of the exact branch; 0 for none."""

    feature_dim: int = 16
    window: int = 64

    def faults(self) -> list[str]:
        faults = [f"feature_dim={self.feature_dim}: at least 1"] if self.feature_dim < 1 else []
        faults += [f"window={self.window}: at least 1 key, or 0 for no window"] if self.window < 0 else []
        return [*super().faults(), *faults]


class Window(WindowAttention):
    """The exact branch; not registered (sliding_window is)."""

    window = 0

    def __init__(self, window: int, **sizes) -> None:
        super().__init__(**sizes)
        self.window = window


class BasedCache:
    """The state of the linear branch and the ring of the exact one."""

    def __init__(self, far: StateCache, near: RingCache | None) -> None:
        self.far, self.near, self.max_tokens = far, near, far.max_tokens

    @property
    def length(self) -> int:
        return self.far.length

    @property
    def nbytes(self) -> int:
        return self.far.nbytes + (0 if self.near is None else self.near.nbytes)


@register("based")
class Based(Recurrent):
    """Linear attention with the second-order Taylor map of exp for the whole past, and an exact small window.

    O = (1 - g) O_far + g O_near, g = σ(λ) a learned number of each head, 1/2 at first. O_far,i = Σ_{j≤i} p_ij v_j / Σ_j p_ij,
    p_ij = 1 + y + y²/2, y = (W_q q_i)·(W_k k_j) / sqrt(n); O_near is softmax attention over the last W keys.
    Cost: time O(T·(n²/2·Dv + W·D)), memory O(T·n²/2). State: G·(1 + n + n(n+1)/2)·(Dv+1) float32 and a ring 2·W·G·D.
    Departures: the paper puts the two into alternating layers, with convolutions between; here one layer holds both.
    ``window=0`` is the paper's linear layer, to be alternated with sliding_window. W_q and W_k act on each head's q and k
    (the paper projects x straight to n). The published layers have no positions: ``positions=auto`` gives rope, which turns q
    and k before both. Equal products of two channels are kept once, which halves the state.
    Use: for more recall than a plain linear state gives, at a larger one of fixed size.
    """

    Options = BasedOptions
    source = "arXiv:2402.18668"
    capabilities = replace(FROM_QKV, scale=False)
    kernels = ("auto", "chunked")  # see `attnzoo.kernels.fla`
    options: BasedOptions
    ones = 1

    def __init__(self, **how) -> None:
        super().__init__(**how)
        d, n = self.head_dim, self.options.feature_dim
        self.q_map = nn.Parameter(torch.randn(self.n_heads, d, n) / math.sqrt(d))
        self.k_map = nn.Parameter(torch.randn(self.n_kv_heads, d, n) / math.sqrt(d))
        self.near = None
        if self.options.window:
            sizes = {"n_heads": self.n_heads, "n_kv_heads": self.n_kv_heads, "head_dim": d, "scale": self.scale}
            self.near = Window(self.options.window, **sizes)
            self.mix = nn.Parameter(torch.zeros(self.n_heads))

    @property
    def state_width(self) -> int:
        n = self.options.feature_dim
        return 1 + n + n * (n + 1) // 2

    def terms(self, q: Tensor, k: Tensor, v: Tensor, x: Tensor | None) -> Terms:
        with torch.autocast(q.device.type, enabled=False):  # squares cancel below: bfloat16 would lose their digits
            q, k = q @ self.q_map.to(q.dtype), k @ self.k_map.to(k.dtype)
        return Terms(taylor(q / math.sqrt(self.options.feature_dim)), taylor(k), F.pad(v, (0, 1), value=1.0))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        far = super().attend(q, k, v, mask, bias, x)
        return far if self.near is None else self._mixed(far, self.near.attend(q, k, v, mask, bias, x))

    def attend_cached(self, q, k, v, cache, mask: Mask, bias, x) -> Tensor:
        far = super().attend_cached(q, k, v, cache.far, mask, bias, x)
        return (
            far if self.near is None else self._mixed(far, self.near.attend_cached(q, k, v, cache.near, mask, bias, x))
        )

    def _mixed(self, far: Tensor, near: Tensor) -> Tensor:
        return far + self._share(far.dtype) * (
            near.to(far.dtype) - far
        )  # under autocast the two come in different dtypes

    def _share(self, dtype: torch.dtype) -> Tensor:
        """g, (H, 1, 1)."""
        return self.mix.to(dtype).sigmoid()[:, None, None]

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        sizes = (batch_size, max_tokens, device, dtype, value_dim)
        return BasedCache(super().new_cache(*sizes), None if self.near is None else self.near.new_cache(*sizes))

    def cache_bytes(self, batch_size, max_tokens, dtype, value_dim=None) -> int:
        near = 0 if self.near is None else self.near.cache_bytes(batch_size, max_tokens, dtype, value_dim)
        return super().cache_bytes(batch_size, max_tokens, dtype, value_dim) + near

    def flops(self, n_queries: int, n_keys: int) -> float:
        maps = 2.0 * self.head_dim * self.options.feature_dim * (self.n_heads * n_queries + self.n_kv_heads * n_keys)
        near = 0.0 if self.near is None else self.near.flops(n_queries, n_keys)
        return super().flops(n_queries, n_keys) + maps + near

    def decode_flops(self, context: int) -> float:
        more = 0.0 if self.near is None else self.near.decode_flops(context) - self.near.flops(1, 1)
        return super().decode_flops(context) + more

    def weights(self, q: Tensor, k: Tensor, visible: Tensor, bias: Tensor | None, x: Tensor | None) -> Tensor:
        small_q, small_k = q @ self.q_map.to(q.dtype), k @ self.repeat_kv(self.k_map[None])[0].to(k.dtype)
        far = taylor(small_q / math.sqrt(self.options.feature_dim)) @ taylor(small_k).mT
        far = far.masked_fill(~visible, 0.0)
        total = far.sum(-1, keepdim=True)
        far = far / total.masked_fill(total == 0, 1.0)
        if self.near is None:
            return far
        i = torch.arange(k.shape[2] - q.shape[2], k.shape[2], device=q.device)[:, None]
        inside = self.near.pattern(i, torch.arange(k.shape[2], device=q.device))
        assert inside is not None
        return torch.lerp(far, self.near.weights(q, k, visible & inside, None, None), self._share(q.dtype))
