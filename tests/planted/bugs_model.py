"""Wrong language models: each function plants one fault into the code of a right one, which `attnzoo check --model` must see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch.autograd.function import once_differentiable

import attnzoo.kernels.norm as norm
import attnzoo.positions.rotation as positions
from attnzoo.checks.model import check_model
from attnzoo.checks.report import CheckReport
from attnzoo.errors import RequestError
from attnzoo.model import layer, lm, projection
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig

Plant = Callable[[pytest.MonkeyPatch], None]
V = 23


@dataclass(frozen=True)
class Bug:
    """A fault, the property of `check_model` that is meant to see it, and how it is planted."""

    name: str
    about: str
    caught_by: str
    plant: Plant


BUGS: list[Bug] = []


def caught_by(prop: str) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        BUGS.append(Bug(plant.__name__, (plant.__doc__ or "").rstrip("."), prop, plant))
        return plant

    return add


def report() -> CheckReport:
    """The checks of a model that has every part: latent keys, a convolution, gates, norms of heads, an untied head."""
    sizes = ModelConfig(
        n_layers=2, d_model=32, n_heads=4, short_conv=3, output_gate="headwise", head_norm=True, tie_embeddings=False
    )
    model = assemble(sizes, AttentionConfig("exact", {}), PositionsConfig("rope"), V, 0)
    return check_model(model, vocab_size=V, n_tokens=9, quick=True)


def _norm_backward(patch: pytest.MonkeyPatch, backward: Callable) -> None:
    class Wrong(norm._RMSNorm):
        @staticmethod
        def backward(ctx, gradient):
            x, gain, scale = ctx.saved_tensors
            d_x, d_gain, _ = norm_backward(ctx, gradient)
            return *backward(gradient, x, gain, scale, d_x, d_gain), None

    norm_backward = norm._RMSNorm.backward
    patch.setattr(norm, "_RMSNorm", Wrong)


def _rotation_backward(patch: pytest.MonkeyPatch, backward: Callable) -> None:
    class Wrong(positions._Rotation):
        @staticmethod
        def backward(ctx, gradient):
            return backward(gradient, *ctx.saved_tensors), None, None

    patch.setattr(positions, "_Rotation", Wrong)


@caught_by("model_gradients")
def norm_without_its_mean(patch):
    """The norm's backward pass treats the root mean square as a constant."""
    _norm_backward(patch, lambda g, x, gain, r, d_x, d_gain: (g * gain * r, d_gain))


@caught_by("model_gradients")
def norm_with_a_square(patch):
    """The norm's backward pass has r² where r³ belongs."""
    _norm_backward(patch, lambda g, x, gain, r, d_x, d_gain: (g * gain * r + (d_x - g * gain * r) / r, d_gain))


@caught_by("model_gradients")
def norm_gradient_without_its_gain(patch):
    """The norm's backward pass forgets the gain on its way to x."""
    _norm_backward(patch, lambda g, x, gain, r, d_x, d_gain: (d_x + g * r - g * gain * r, d_gain))


@caught_by("model_gradients")
def gain_gradient_unscaled(patch):
    """The gradient of the norm's gain is summed before the rows are scaled."""
    _norm_backward(patch, lambda g, x, gain, r, d_x, d_gain: (d_x, (g * x).flatten(0, -2).sum(0)))


@caught_by("model_second_derivative")
def norm_scale_a_constant(patch):
    """The second derivative takes the norm's root mean square, kept from the forward pass, for a constant."""
    right = norm._RMSNorm.backward

    def wrong(ctx, gradient):
        x, gain, r = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return right(ctx, gradient)
        products = gradient * x
        along = (products * gain).mean(-1, keepdim=True)
        return gradient * gain * r - x * r**3 * along, (products * r).flatten(0, -2).sum(0), None

    patch.setattr(norm._RMSNorm, "backward", staticmethod(wrong))


@caught_by("model_second_derivative")
def norm_differentiable_once(patch):
    """The norm's backward pass is marked once_differentiable, which torch.autograd.grad skips in silence."""

    class Once(norm._RMSNorm):
        backward = staticmethod(once_differentiable(norm._RMSNorm.backward))

    patch.setattr(norm, "_RMSNorm", Once)


@caught_by("model_gradients")
def gain_lost_while_recording(patch):
    """The norm's forward pass with gradients leaves out the gain."""
    right = norm._RMSNorm.apply
    patch.setattr(norm._RMSNorm, "apply", lambda x, gain, eps: right(x, torch.ones_like(gain), eps) + 0 * gain)


@caught_by("model_gradients")
def rotation_turned_on(patch):
    """The rotation's backward pass turns further instead of back."""
    _rotation_backward(patch, lambda g, cos, sin: positions._turned(g, cos, sin, 1))


@caught_by("model_gradients")
def rotation_left_out(patch):
    """The rotation's backward pass does not turn."""
    _rotation_backward(patch, lambda g, cos, sin: g)


@caught_by("model_gradients")
def embedding_detached(patch):
    """The embedding learns from nothing."""
    right = lm.CausalLM._embedded
    patch.setattr(lm.CausalLM, "_embedded", lambda self, tokens: right(self, tokens).detach())


@caught_by("model_gradients")
def residual_detached(patch):
    """What a block adds to has no gradient."""
    right = lm.Block.forward
    patch.setattr(lm.Block, "forward", lambda self, x, *how: right(self, x, *how) - x + x.detach())


@caught_by("decode_positions")
def one_row_without_gain(patch):
    """The norm of a single row leaves out the gain."""
    right = norm.rms_norm

    def wrong(x, gain, eps):
        return right(x, torch.ones_like(gain) if x.numel() == x.shape[-1] else gain, eps)

    patch.setattr(projection, "rms_norm", wrong)


@caught_by("decode_positions")
def convolution_forgets(patch):
    """Decoding, the convolution keeps the inputs it began with."""
    right = projection.Projection._convolved

    def wrong(self, parts, mask, cache):
        before = None if cache is None else cache.conv
        out = right(self, parts, mask, cache)
        if cache is not None:
            cache.conv = before
        return out

    patch.setattr(projection.Projection, "_convolved", wrong)


@caught_by("full_cache")
def refused_tokens_remembered(patch):
    """Tokens that a full cache refuses stay in the convolution's memory."""
    right = layer.AttentionLayer.forward

    def wrong(self, x, mask, *, cache=None, **how):
        try:
            return right(self, x, mask, cache=cache, **how)
        except RequestError:
            cache.conv = self.projection.qkv(x)[:, -cache.conv.shape[1] :]
            raise

    patch.setattr(layer.AttentionLayer, "forward", wrong)


@caught_by("documents_isolated")
def convolution_across_documents(patch):
    """The convolution reads the end of the document before."""
    right = projection.ShortConv.forward
    patch.setattr(projection.ShortConv, "forward", lambda self, x, past, documents: right(self, x, past, None))


@caught_by("left_padding")
def convolution_hears_padding(patch):
    """The convolution reads padding as if it were tokens."""
    right = projection.Projection._convolved
    patch.setattr(
        projection.Projection,
        "_convolved",
        lambda self, parts, mask, cache: right(self, parts, lm.Mask(documents=mask.documents), cache),
    )


@caught_by("tied_weights")
def head_tied_in_secret(patch):
    """The head is the embedding where it is declared to be its own."""
    patch.setattr(lm.CausalLM, "head_weight", property(lambda self: self.embedding.weight))
