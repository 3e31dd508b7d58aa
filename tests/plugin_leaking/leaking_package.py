from attnzoo import Attention, Capabilities, register


@register("relu_leaking")
class ReluLeaking(Attention):
    """relu(S) over the visible keys, divided by its sum over all keys: the future is in the normaliser."""

    source = "tests/plugin, with a leak"
    capabilities = Capabilities(bias=False, dropout=False)

    def weights(self, q, k, visible, bias, x):
        kept = (q @ k.mT * self.scale).relu()
        return kept.masked_fill(~visible, 0.0) / kept.sum(-1, keepdim=True).clamp(min=1e-6)
