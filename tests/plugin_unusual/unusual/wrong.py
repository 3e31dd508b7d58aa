"""A wrong twin of each right attention: one fault, and the check that must turn red on it."""

import torch

from unusual import odd, plain, stateful


class TemperatureOnBias(plain.HeadTemperature):
    """the kernel's temperature divides the score bias too"""

    caught_by = "mask_fields"

    def added(self, block):
        return block / self.temperature(block)


class DistanceSaturates(plain.BuiltInAlibi):
    """past 20 tokens the kernel's distance does not grow"""

    caught_by = "definition"

    def penalty(self, q, k):
        return self.distances(q, k).minimum(20 / torch.arange(1, self.n_heads + 1).double()[:, None, None])


class KeysByTheLongest(plain.Cosine):
    """keys are divided by the length of the longest, instead of each by its own"""

    caught_by = "future_by_change"

    def unit(self, t):
        return t / t.norm(dim=-1, keepdim=True).amax(2, keepdim=True).clamp(min=1e-6)


class CountsTheCall(plain.SquaredRelu):
    """divides by the number of keys in the call, so that a row depends on how many tokens follow it"""

    caught_by = "decoding"

    def count(self, visible):
        return visible.shape[-1]


class StaysWide(plain.Signed):
    """with a score bias the output stays in float64"""

    caught_by = "mask_fields"

    def rounded(self, out, dtype, bias):
        return out.to(dtype) if bias is None else out


class DilationOfTheGroup(plain.HeadDilation):
    """heads that share keys share the dilation too"""

    caught_by = "definition"

    def steps(self):
        return [1 + h // (self.n_heads // self.n_kv_heads) for h in range(self.n_heads)]


class PaddingTakesAPlace(plain.TopKeys):
    """keys that padding hides count among the best before they are left out"""

    caught_by = "hidden_by_change"

    def least(self, scores, visible):
        past = torch.ones_like(scores, dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
        return super().least(scores, past)


class GateOfTheFirst(plain.GatedOutput):
    """a chunk given to a filled cache is gated by its first token's input"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        return super().attend_cached(q, k, v, cache, mask, bias, x[:, :1].expand_as(x) if cache.length else x)


class ScaledByAllTokens(plain.NearAndFar):
    """key features are kept small by the largest number of all tokens; the ratio takes it out, but for the rounding"""

    caught_by = "future_by_change"

    def feature(self, k):
        return (k - k.amax((2, 3), keepdim=True)).exp()


class MaximumFromZero(plain.Maximum):
    """the maximum starts from 0, which negative values do not reach"""

    caught_by = "definition"

    def attend(self, q, k, v, mask, bias, x):
        return super().attend(q, k, v, mask, bias, x).clamp(min=0)


class PaddingBySlot(stateful.OwnRing):
    """decoding reads the padding of the ring's first slots instead of that of the tokens in them"""

    caught_by = "decoding"

    def hidden(self, padding, end, used):
        return padding[:, :used]


class StateDetached(stateful.LeakySum):
    """no gradient flows back across every sixteenth token"""

    caught_by = "gradients"

    def step(self, state, keep, new, t):
        return super().step(state.detach() if t % 16 == 0 else state, keep, new, t)


class CentredOverTokens(stateful.InputBias):
    """the bias from the input is centred over all tokens; softmax takes that out, but not from the gradient"""

    caught_by = "future_by_gradient"

    def added(self, x):
        return super().added(x) - super().added(x).mean(-1, keepdim=True)


class MixedKeyRemembered(stateful.ShortConvolution):
    """the cache remembers the last key mixed, not as it came"""

    caught_by = "decoding"

    def remember(self, cache, k):
        cache.last = cache.mixed[:, :, cache.length - 1 : cache.length].clone()


class OldestKeyLost(stateful.HalfValues):
    """a chunk over more than five earlier keys does not read the oldest"""

    caught_by = "decoding"

    def attend(self, q, k, v, mask, bias, x):
        if k.shape[2] - q.shape[2] > 5 and mask.static:
            k, v = k[:, :, 1:], v[:, :, 1:]
        return super().attend(q, k, v, mask, bias, x)


class MixedTheOtherWay(odd.TalkingHeads):
    """the kernel mixes the weights of the heads by the transposed matrix"""

    caught_by = "definition"

    def attend(self, q, k, v, mask, bias, x):
        self.ran("talking_heads/transposed")
        wide = torch.promote_types(q.dtype, torch.float32)
        visible, k, v = mask.dense(q.shape[2], k.shape[2], q.device), self.repeat_kv(k), self.repeat_kv(v)
        scores = self.mixed(self.before, q.to(wide) @ k.to(wide).mT * self.scale)
        weights = self.mixed(self.after.T, odd.masked_softmax(scores, visible))
        return (weights @ v.to(wide)).to(q.dtype)


class DistanceOfTheCall(odd.ByDistance):
    """the kernel's weights also depend on how many tokens follow"""

    caught_by = "future_by_change"

    def attend(self, q, k, v, mask, bias, x):
        later = 1 + 1e-3 * v[..., -1:, :].to(torch.promote_types(v.dtype, torch.float32)).tanh()
        return (super().attend(q, k, v, mask, bias, x) * later).to(v.dtype)


class OwnTokenSeen(odd.StrictlyPast):
    """the kernel's mask has the diagonal"""

    caught_by = "definition"

    def seen(self, mask, n_queries, n_keys, device):
        return mask.dense(n_queries, n_keys, device)


class MeanOfAll(odd.CentredSoFar):
    """the kernel takes the mean over all keys of the call"""

    caught_by = "definition"

    def attend(self, q, k, v, mask, bias, x):
        out = super().attend(q, k, v, mask, bias, x)
        visible = mask.dense(q.shape[2], k.shape[2], q.device)
        wide = self.repeat_kv(v).to(torch.promote_types(v.dtype, torch.float32))
        mean = (visible.to(wide) / visible.sum(-1, keepdim=True).clamp(min=1)) @ wide
        return (out + mean - wide.mean(-2, keepdim=True)).to(v.dtype)
