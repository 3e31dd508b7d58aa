"""Bugs that begin thousands of keys on, or many batch rows, heads or channels on: small inputs do not reach them."""

from __future__ import annotations

from dataclasses import replace

import torch
from sound import Sound


class LeaksBeyond2048Keys(Sound):
    """from key 2048 on each query reads the key after its own"""

    caught_by = "far_keys"

    def mask_of(self, mask, n_queries, n_keys, q):
        i, j = self.positions(n_queries, n_keys, q)
        return super().mask_of(mask, n_queries, n_keys, q) | ((j == i + 1) & (j >= 2048))


class LeaksBeyond4096Keys(Sound):
    """from key 4096 on each query reads the key after its own"""

    caught_by = "far_keys"

    def mask_of(self, mask, n_queries, n_keys, q):
        i, j = self.positions(n_queries, n_keys, q)
        return super().mask_of(mask, n_queries, n_keys, q) | ((j == i + 1) & (j >= 4096))


class GradientOffBeyond2048Keys(Sound):
    """the gradient of the keys is a tenth too large beyond 2048 of them"""

    caught_by = "far_keys"

    def scores(self, q, k):
        return super().scores(q, 1.1 * k - 0.1 * k.detach() if k.shape[2] > 2048 else k)


class FarPaddingIgnored(Sound):
    """beyond 2048 keys padding is not looked at"""

    caught_by = "far_keys"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(replace(mask, key_padding=None) if n_keys > 2048 else mask, n_queries, n_keys, q)


class LateRowsScaled(Sound):
    """in a pass over more than 1200 queries, rows from 1024 on are a thousandth too large"""

    caught_by = "far_rows"

    def mix(self, weights, v):
        late = torch.arange(weights.shape[2])[:, None] >= (1024 if weights.shape[2] > 1200 else weights.shape[2])
        return weights @ v * torch.where(late, 1.001, 1.0).to(v)


class FarDecodingDropsKeys(Sound):
    """a single query beyond 2048 keys no longer reads the first one"""

    caught_by = "far_rows"

    def mask_of(self, mask, n_queries, n_keys, q):
        seen = super().mask_of(mask, n_queries, n_keys, q)
        first = torch.arange(n_keys, device=q.device) == 0
        return seen & ~first if n_queries == 1 and n_keys > 2048 else seen


class PaddingIgnoredFromRow8(Sound):
    """from batch row 8 on padding is not looked at"""

    caught_by = "far_batches"

    def mask_of(self, mask, n_queries, n_keys, q):
        seen = super().mask_of(mask, n_queries, n_keys, q)
        loose = super().mask_of(replace(mask, key_padding=None), n_queries, n_keys, q)
        return torch.cat([seen[:8], loose.expand(len(seen), -1, -1, -1)[8:]])


class DocumentsOfRow15(Sound):
    """from batch row 16 on the documents of row 15"""

    caught_by = "far_batches"

    def mask_of(self, mask, n_queries, n_keys, q):
        if mask.documents is not None and len(mask.documents) > 16:
            first = mask.documents[:16]
            mask = replace(mask, documents=torch.cat([first, first[-1:].expand(len(mask.documents) - 16, -1)]))
        return super().mask_of(mask, n_queries, n_keys, q)


class NinthHeadOff(Sound):
    """from the ninth head on the scores are a tenth larger"""

    caught_by = "far_batches"

    def scores(self, q, k):
        return super().scores(q, k) * (1 + 0.1 * (torch.arange(q.shape[1]) >= 8).view(-1, 1, 1).to(q))


class WideHeadsLosePadding(Sound):
    """from 128 channels on padding is not looked at"""

    caught_by = "far_batches"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(replace(mask, key_padding=None) if q.shape[3] > 127 else mask, n_queries, n_keys, q)


class Row8WithoutGradient(Sound):
    """batch rows from the ninth on give the keys no gradient"""

    caught_by = "far_batches"

    def spread(self, t):
        return super().spread(t if len(t) < 9 else torch.cat([t[:8], t[8:].detach()]))
