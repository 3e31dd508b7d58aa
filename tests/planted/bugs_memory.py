"""Bugs in what outlives a call: buffers, caches, what a backward pass finds."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from bugs_decoding import Windowed
from sound import Sound
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from attnzoo.backends.linear import Linear
from attnzoo.cache import KVCache
from attnzoo.masks import Mask


class CachesShareMemory(Sound):
    """every cache of one size is the same memory"""

    caught_by = "caches_apart"

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        key = (batch_size, max_tokens, dtype, value_dim)
        self.__dict__.setdefault("_held", {})
        if key not in self._held:
            self._held[key] = super().new_cache(batch_size, max_tokens, device, dtype, value_dim)
        return KVCache(self._held[key].keys, self._held[key].values)


class StateOfTheLastSequence(Linear):
    """a new cache starts from what the last sequence left in the module"""

    caught_by = "caches_apart"

    def new_cache(self, *sizes, **named):
        cache, last = super().new_cache(*sizes, **named), getattr(self, "_last", None)
        if last is not None and last.shape == cache.state.shape and last.dtype == cache.state.dtype:
            cache.state = last
        return cache

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        out = super().attend_cached(q, k, v, cache, mask, bias, x)
        self._last = cache.state
        return out


class StateInTheModule(Linear):
    """the state is kept in the module, whichever cache is given"""

    caught_by = "caches_apart"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        if cache.length:
            cache.state = self._state
        out = super().attend_cached(q, k, v, cache, mask, bias, x)
        self._state = cache.state
        return out


class CacheOfAnotherBatch(Linear):
    """a cache made for one row is taken for two, and broadcast"""

    caught_by = "wrong_requests"

    def extend(self, q, k, v, cache, mask=None, bias=None, x=None):
        return self.attend_cached(q, k, v, cache, mask or Mask(), bias, x)


class BiasIgnoredInDecoding(Sound):
    """single steps drop the score bias"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        return super().attend_cached(q, k, v, cache, mask, None if cache.length and q.shape[2] == 1 else bias, x)


class DecodingTilesHeads(Sound):
    """single steps tile the key/value heads"""

    caught_by = "decoding"

    def spread(self, t):
        tiled = getattr(self, "_step", False)
        return t.repeat(1, self.n_heads // self.n_kv_heads, 1, 1) if tiled else super().spread(t)

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        self._step = q.shape[2] == 1
        out = super().attend_cached(q, k, v, cache, mask, bias, x)
        self._step = False
        return out


class OldKeysForgotten(Sound):
    """past 100 tokens the oldest key is forgotten"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        keys, values = cache.append(k, v)
        if cache.length > 100 and mask.static and bias is None:
            keys, values = keys[:, :, 1:], values[:, :, 1:]
        return self.attend(q, keys, values, mask, bias, x)


class PositionsWrapAt1024(Sound):
    """positions are counted modulo 1024"""

    caught_by = "long_inputs"

    def positions(self, n_queries, n_keys, q):
        i, j = super().positions(n_queries, n_keys, q)
        return i % 1024, j % 1024

    def mask_of(self, mask, n_queries, n_keys, q):
        return (
            mask.at(*self.positions(n_queries, n_keys, q))[None]
            if mask.static
            else super().mask_of(mask, n_queries, n_keys, q)
        )


class RingWrapsOnce(Windowed):
    """the second time round, the ring writes one slot late"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        out = super().attend_cached(q, k, v, cache, mask, bias, x)
        if cache.length > 2 * cache.slots and q.shape[2] == 1:
            cache.keys[:, :, (cache.length + 1) % cache.slots] = k[:, :, 0]
        return out


class KeysScaledInDecoding(Sound):
    """with padding, decoding scales the caller's keys in place"""

    caught_by = "inputs_untouched"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        out = super().attend_cached(q, k, v, cache, mask, bias, x)
        if mask.key_padding is not None:
            k.mul_(self.scale)
        return out


class RefusedTokenWritten(Sound):
    """a token that a full cache refuses has already been written over the last one"""

    caught_by = "full_cache"

    def extend(self, q, k, v, cache, *rest, **named):
        if cache.length + k.shape[2] > cache.max_tokens and cache.length:
            cache.keys[:, :, cache.length - 1] = k[:, :, -1]
        return super().extend(q, k, v, cache, *rest, **named)


class CacheHidesMemory(Sound):
    """the cache holds more than nbytes tells"""

    caught_by = "cache"

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        cache = super().new_cache(batch_size, max_tokens, device, dtype, value_dim)
        cache.scores = torch.zeros(batch_size, self.n_heads, max_tokens, device=device)
        return cache


class DropoutWhileDecoding(Sound):
    """decoding drops weights in evaluation too"""

    caught_by = "dropout_off_in_evaluation"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        mode, self.training = self.training, True
        out = super().attend_cached(q, k, v, cache, mask, bias, x)
        self.training = mode
        return out


class DecodedInFloat32(Sound):
    """decoding answers 16-bit input in float32"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        return super().attend_cached(q, k, v, cache, mask, bias, x).float()


class LaterRowsSwappedInDecoding(Sound):
    """from the third batch row on, rows change places in the cache"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        keys, values = cache.append(k, v)
        if len(q) > 2 and q.shape[2] == 1:
            order = [0, 1, *range(len(q) - 1, 1, -1)]
            keys = keys[order]
        return self.attend(q, keys, values, mask, bias, x)


class ScaleIgnoredInDecoding(Sound):
    """single steps use 1/sqrt(D) whatever scale was asked for"""

    caught_by = "scale"

    def scores(self, q, k):
        return q @ k.mT / q.shape[-1] ** 0.5 if q.shape[2] == 1 < k.shape[2] else super().scores(q, k)


class LongChunkUnmasked(Sound):
    """a second chunk of more than eight tokens is not masked inside"""

    caught_by = "decoding"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        inside = replace(mask, causal=False) if cache.length and q.shape[2] > 8 and mask.window is None else mask
        return super().attend_cached(q, k, v, cache, inside, bias, x)


class OutputBufferReused(Sound):
    """the output of the last call of this shape is overwritten by the next"""

    caught_by = "outputs_kept"

    def mix(self, weights, v):
        out = weights @ v
        if torch.is_grad_enabled() and out.requires_grad:
            return out
        held = self.__dict__.setdefault("_out", {}).setdefault((out.shape, out.dtype), torch.empty_like(out))
        return held.copy_(out)


class OutputIsTheInput(Sound):
    """of a single token the values themselves are returned"""

    caught_by = "outputs_kept"

    def attend(self, q, k, v, mask, bias, x):
        if q.shape[2] == k.shape[2] == 1 and self.n_heads == self.n_kv_heads and mask.static and not self.dropout:
            self.ran("planted/copy")
            return v
        return super().attend(q, k, v, mask, bias, x)


class _Times(torch.autograd.Function):
    """weights @ v, its backward pass by hand; ``owner`` may misuse what it keeps."""

    @staticmethod
    def forward(ctx, weights, v, owner):
        ctx.owner, ctx.wanted = owner, (weights.requires_grad, v.requires_grad)
        ctx.save_for_backward(weights, v)
        owner.kept = weights.detach(), v.detach()
        return weights @ v

    @staticmethod
    def backward(ctx, gradient):
        weights, v = ctx.owner.saved(ctx.saved_tensors)
        gradient = ctx.owner.received(gradient)
        return gradient @ v.mT, weights.mT @ gradient, None


class ByHand(Sound):
    """Its last product has a backward pass of its own; without a fault."""

    def saved(self, tensors):
        return tensors

    def received(self, gradient):
        return gradient

    def mix(self, weights, v):
        return _Times.apply(weights, v, self)


class BackwardOfTheLastCall(ByHand):
    """the backward pass uses what the last forward pass left in the module"""

    caught_by = "gradients_apart"

    def saved(self, tensors):
        return self.kept


class UpstreamGradientChanged(ByHand):
    """the backward pass scales the gradient it is given in place"""

    caught_by = "gradients_apart"

    def received(self, gradient):
        right = gradient.clone()
        if gradient.is_contiguous():
            gradient.mul_(2)
        return right


class UpstreamGradientContiguous(ByHand):
    """the backward pass reads its gradient as if it were contiguous"""

    caught_by = "gradients_apart"

    def received(self, gradient):
        if gradient.is_contiguous() or 0 in gradient.stride():
            return gradient
        return gradient.as_strided(gradient.shape, torch.empty(gradient.shape).stride())


class _TimesOnce(_Times):
    """The same, its backward pass marked as not to be differentiated: an error in one form of asking, silence in the other."""

    backward = staticmethod(once_differentiable(_Times.backward))


class DifferentiableOnce(ByHand):
    """the backward pass is marked once_differentiable, which torch.autograd.grad skips in silence"""

    caught_by = "second_derivative"

    def mix(self, weights, v):
        return _TimesOnce.apply(weights, v, self)


class KeptNumbersAreConstants(ByHand):
    """the backward pass uses what the forward kept as if it did not depend on the input"""

    caught_by = "second_derivative"

    def saved(self, tensors):
        return [t.detach() for t in tensors]


class _TimesForward(torch.autograd.Function):
    """weights @ v, also for torch.func; its tangent leaves out that of the values."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weights, v):
        return weights @ v

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        weights, v = ctx.saved_tensors
        return gradient @ v.mT, weights.mT @ gradient

    @staticmethod
    def jvp(ctx, weights_tangent, v_tangent):
        return weights_tangent @ ctx.saved_tensors[1]


class TangentOfTheValuesLost(Sound):
    """in forward mode the values count as constants"""

    caught_by = "transforms"

    def mix(self, weights, v):
        return _TimesForward.apply(weights, v)


class GradientNeedsQueries(Sound):
    """keys and values get their gradient only where the queries want one too"""

    caught_by = "gradients_apart"

    def attend(self, q, k, v, mask, bias, x):
        if not q.requires_grad:
            k = k.detach() + 0 * k
            v = v.detach() + 0 * v
        return super().attend(q, k, v, mask, bias, x)


@lru_cache(maxsize=4)
def _ones(n, dtype):
    return torch.ones(n, dtype=dtype)


class ConstantOfInference(Sound):
    """a constant made in inference mode is kept for training, which cannot use it"""

    caught_by = "inference_first"

    def mix(self, weights, v):
        return (weights @ v) * _ones(v.shape[3], v.dtype)


class DropsOtherWeightsBackward(Sound):
    """the backward pass draws another dropout mask than the forward pass"""

    caught_by = "gradients_by_difference"

    def drop(self, weights):
        if not self.dropout_now:
            return weights
        return F.dropout(weights, self.dropout_now).detach() + _only_gradient(F.dropout(weights, self.dropout_now))


def _only_gradient(t):
    return t - t.detach()


class DropoutSharedByHeads(Sound):
    """all heads drop the same weights"""

    caught_by = "dropout_of_weights"

    def drop(self, weights):
        return weights * F.dropout(torch.ones_like(weights[:, :1]), self.dropout_now)


class DropoutComplement(Sound):
    """drops with probability 1 - p, rescaled: right in the mean"""

    caught_by = "dropout_in_training"

    def drop(self, weights):
        return F.dropout(weights, 1 - self.dropout_now) if self.dropout_now else weights


class DropoutAsNoise(Sound):
    """multiplies by a Gaussian of the right mean and variance instead of dropping"""

    caught_by = "dropout_of_weights"

    def drop(self, weights):
        p = self.dropout_now
        return weights * (1 + (p / (1 - p)) ** 0.5 * torch.randn_like(weights)) if p else weights


class DropoutTooRare(Sound):
    """drops half as often as asked, rescaled accordingly"""

    caught_by = "dropout_of_weights"

    def drop(self, weights):
        return F.dropout(weights, self.dropout_now / 2)


class AutocastForgetsPadding(Sound):
    """under autocast the padding is not looked at"""

    caught_by = "autocast"

    def mask_of(self, mask, n_queries, n_keys, q):
        return super().mask_of(
            replace(mask, key_padding=None) if torch.is_autocast_enabled("cpu") else mask, n_queries, n_keys, q
        )


class CompiledBackwardDiffers(Sound):
    """compiled, the gradient of the keys is half"""

    caught_by = "compilation"

    def scores(self, q, k):
        return super().scores(q, 0.5 * k + 0.5 * k.detach() if torch.compiler.is_compiling() else k)


class CheaperThanDeclared(Windowed):
    """declares quadratic time and memory and looks back W keys"""

    caught_by = "growth"
    capabilities = replace(Windowed.capabilities, time=2.0, memory=2.0)


class StateCacheTooLarge(Linear):
    """the state has a row a token that nothing reads"""

    caught_by = "cache"

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        cache = super().new_cache(batch_size, max_tokens, device, dtype, value_dim)
        cache.log = [torch.zeros(batch_size, max_tokens)]
        return cache


class GradientOfTheFirstPart(Sound):
    """the keys of a large batch get a gradient only as far as its first part goes"""

    caught_by = "many_rows"

    def attend(self, q, k, v, mask, bias, x):
        return super().attend(q, torch.cat([k[:48], k[48:].detach()]), v, mask, bias, x)


class OtherDropoutInTheBackwardPass(Sound):
    """what is computed again for the backward pass of a large batch draws its dropout anew"""

    caught_by = "many_rows_dropped"

    def mix(self, weights, v):
        def drop_and_mix(weights, v):
            return F.dropout(weights, self.dropout_now) @ v

        if weights.shape[0] > 32:
            return checkpoint(drop_and_mix, weights, v, use_reentrant=False, preserve_rng_state=False)
        return drop_and_mix(weights, v)

    def drop(self, weights):
        return weights


class OneQueryKeepsAll(Sound):
    """a token that is decoded in training drops no weights"""

    caught_by = "dropout_in_training"

    def attend_cached(self, q, k, v, cache, mask, bias, x):
        dropout, self.dropout = self.dropout, self.dropout if q.shape[2] > 1 else 0.0
        out = super().attend_cached(q, k, v, cache, mask, bias, x)
        self.dropout = dropout
        return out


class PackedHeadsTakeTheFirstRowsMask(Sound):
    """one query of several heads that share keys sees what batch row 0 sees"""

    caught_by = "decoding"

    def mask_of(self, mask, n_queries, n_keys, q):
        visible = super().mask_of(mask, n_queries, n_keys, q)
        return visible[:1] if n_queries == 1 and self.n_heads > self.n_kv_heads else visible
