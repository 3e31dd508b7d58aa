"""Rules that mix heads, read no query and no key, see nothing of their own token, or sum to nothing."""

import torch
from torch import nn

from attnzoo import Attention, Capabilities
from attnzoo.softmax import masked_softmax


class TalkingHeads(Attention):
    """P softmax(L S): both the scores and the weights are mixed over the heads, L and P learned."""

    source = "arXiv:2003.02436"
    capabilities = Capabilities(bias=False, dropout=False, heads_apart=False)

    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.before, self.after = (nn.Parameter(torch.eye(self.n_heads)) for _ in range(2))

    def mixed(self, by, t):
        return torch.einsum("hg,bgij->bhij", by.to(t.dtype), t)

    def weights(self, q, k, visible, bias, x):
        scores = self.mixed(self.before, q @ k.mT * self.scale)
        return self.mixed(self.after, masked_softmax(scores, visible))


class ByDistance(Attention):
    """Weights 2^(j - i) over their sum, for all rows and heads the same: they are given once, and q and k are not read."""

    source = "a test"
    capabilities = Capabilities(bias=False, dropout=False, scale=False)

    def weights(self, q, k, visible, bias, x):
        i, j = torch.arange(k.shape[2] - q.shape[2], k.shape[2]), torch.arange(k.shape[2])
        kept = torch.where(visible, self.decay(i[:, None].to(q.device), j.to(q.device)).to(q.dtype), 0.0)
        return kept / kept.sum(-1, keepdim=True).clamp(min=1e-30)

    def decay(self, i, j):
        return 2.0 ** -(i - j).abs().clamp(max=60).double()


class StrictlyPast(Attention):
    """Softmax over the tokens before, the own one left out: the first row sees nothing, the last key is seen by nobody."""

    source = "a test"
    capabilities = Capabilities(bias=False, dropout=False)

    def pattern(self, i, j):
        return j < i

    def attend(self, q, k, v, mask, bias, x):
        self.ran("strictly_past/plain")
        wide = torch.promote_types(q.dtype, torch.float32)
        visible = self.seen(mask, q.shape[2], k.shape[2], q.device)
        weights = super().weights(q.to(wide), self.repeat_kv(k).to(wide), visible, None, None)
        return (weights @ self.repeat_kv(v).to(wide)).to(v.dtype)

    def seen(self, mask, n_queries, n_keys, device):
        return self.visible(mask, n_queries, n_keys, device)


class CentredSoFar(Attention):
    """softmax(S) v less the mean of the visible values: rows sum to 0, and the first row is 0."""

    source = "a test"
    capabilities = Capabilities(bias=False, dropout=False)

    def weights(self, q, k, visible, bias, x):
        count = self.count(visible).clamp(min=1)
        return super().weights(q, k, visible, None, None) - visible.to(q.dtype) / count

    def count(self, visible):
        return visible.sum(-1, keepdim=True)
