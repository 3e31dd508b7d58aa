from dataclasses import dataclass

from attnzoo import Attention, Capabilities, Options, register


@dataclass(frozen=True)
class ReluOptions(Options):
    power: float = 2.0


@register("relu_power")
class ReluPower(Attention):
    """relu(S)^p over the visible keys, divided by its sum; O(T²) time and memory, state as softmax attention."""

    Options = ReluOptions
    source = "arXiv:2302.06461, with a power"
    capabilities = Capabilities(dropout=False)

    def weights(self, q, k, visible, bias, x):
        scores = q @ k.mT * self.scale
        if bias is not None:
            scores = scores + bias
        kept = scores.relu().pow(self.options.power).masked_fill(~visible, 0.0)
        return kept / kept.sum(-1, keepdim=True).clamp(min=1e-6)
