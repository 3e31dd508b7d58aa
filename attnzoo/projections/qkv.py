"""Every head from x. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from attnzoo.components import register
from attnzoo.contract import Attention
from attnzoo.model.config import ModelConfig
from attnzoo.model.projection import Heads, Phases, Projection, RMSNorm
from attnzoo.positions import rotate


@register("qkv")
class QKV(Projection):
    """q, k and v of every head straight from x (arXiv:1706.03762), QK-norm on each head, positions on q and k."""

    source = "arXiv:1706.03762"

    def __init__(self, attention: Attention, cfg: ModelConfig) -> None:
        d = attention.head_dim
        super().__init__(cfg, (attention.n_heads * d, attention.n_kv_heads * d, attention.n_kv_heads * d))
        self.head_dim = d
        self.q_norm = RMSNorm(d, eps=cfg.norm_eps) if cfg.qk_norm else None
        self.k_norm = RMSNorm(d, eps=cfg.norm_eps) if cfg.qk_norm else None

    def heads(self, parts: Sequence[Tensor], phases: Phases) -> Heads:
        # the axes are swapped last: until then a token's heads lie side by side, which a CPU walks four times as fast
        q, k, v = [t.view(*t.shape[:2], -1, self.head_dim) for t in parts]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if phases is not None:
            beside = phases[0].transpose(1, 2), phases[1].transpose(1, 2)
            q, k = rotate(q, beside), rotate(k, beside)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
