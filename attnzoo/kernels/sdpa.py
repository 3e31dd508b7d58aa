"""torch's fused softmax attention, with the kernel that ran made known. Shapes: see `attnzoo.shapes`.

Source: `torch.nn.functional.scaled_dot_product_attention`; FlashAttention arXiv:2205.14135, 2307.08691.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnzoo.contract import Capabilities, Request, ScoreBias
from attnzoo.errors import Refused
from attnzoo.kernels import one_query
from attnzoo.kernels.compiling import threads as available
from attnzoo.kernels.derivatives import transformed
from attnzoo.kernels.library import WithLibraries
from attnzoo.masks import Mask
from attnzoo.masks.translate import sdpa_arguments

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
AUTO_ON_CUDA = [KERNELS["flash"], KERNELS["efficient"], KERNELS["math"]]
"""torch 2.11 and later prefer cuDNN on Hopper. Not here: with masks its gradients are NaN where Tk mod 128 = 64
(pytorch#196678), in 2.10 rows without a key see hidden ones (#177842), and it plans anew for every length, some 40 ms at each
decoded token (#191576). By name it runs."""
_NAMES = {backend.value: name for name, backend in KERNELS.items()}
_HALF = (torch.float16, torch.bfloat16)


class FusedSoftmax(WithLibraries):
    """What sdpa, gqa and mqa share; they differ in the head layout they take."""

    capabilities = Capabilities(memory=1.0, products=True)
    kernels = ("auto", "flash", "efficient", "cudnn", "math", "flash_attn", "flash_attn_3")

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        yield from super().refusals(request)
        yield from refusals(request, request.options.kernel)

    def new_cache(self, batch_size, max_tokens, device=None, dtype=None, value_dim=None):
        cache = super().new_cache(batch_size, max_tokens, device, dtype, value_dim)
        alone = self.n_heads == self.n_kv_heads and self.options.kernel == "auto"
        return one_query.laid_out(cache) if alone else cache

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, bias: ScoreBias | None, x: Tensor | None) -> Tensor:
        if self.options.kernel in ("flash_attn", "flash_attn_3"):
            return self.by_flash_attn(q, k, v, mask, bias)
        out, kernel = fused_softmax(
            q, k, v, mask, bias, scale=self.scale, dropout=self.dropout_now, kernel=self.options.kernel
        )
        self.ran(kernel)
        return out


def fused_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    bias: ScoreBias | None = None,
    *,
    scale: float,
    dropout: float = 0.0,
    kernel: str = "auto",
) -> tuple[Tensor, str]:
    """Softmax attention over the mask. q (B,H,Tq,D), k (B,G,Tk,D), v (B,G,Tk,Dv) -> (B,H,Tq,Dv) and the kernel that ran.

    Plain causality with Tq = Tk stays implicit; whatever else is asked for is passed as a dense mask, and the name says so.
    """
    bool_mask, is_causal = sdpa_arguments(mask, q.shape[2], k.shape[2], q.device)
    attn_mask = score_mask(bool_mask, is_causal, bias, q, k.shape[2])
    if kernel == "auto" and not dropout and one_query.suits(q, k, v):
        return one_query.attend(q, k, v, attn_mask, scale), one_query.KERNEL
    if q.device.type == "cpu" and k.stride(-1) != 1:  # a cache made for one query; flash needs whole rows
        k, v = k.contiguous(), v.contiguous()
    return call(q, k, v, attn_mask, is_causal and attn_mask is None, scale=scale, dropout=dropout, kernel=kernel)


def score_mask(
    bool_mask: Tensor | None, is_causal: bool, bias: ScoreBias | None, q: Tensor, n_keys: int
) -> Tensor | None:
    """The additive mask (B or 1, H or 1, Tq, Tk) that carries both visibility and score bias; bool when there is no bias."""
    if bias is None:
        return bool_mask
    i = torch.arange(n_keys - q.shape[2], n_keys, device=q.device)[:, None]
    j = torch.arange(n_keys, device=q.device)[None, :]
    scores = bias.block(i, j).to(q.dtype)[None]
    if is_causal:
        bool_mask = (j <= i)[None, None]
    return scores if bool_mask is None else scores.masked_fill(~bool_mask, float("-inf"))


def call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    *,
    scale: float,
    dropout: float = 0.0,
    kernel: str = "auto",
) -> tuple[Tensor, str]:
    """One call of torch's function; returns its output and 'sdpa/flash', 'sdpa/flash+mask', …

    Raises:
        Refused: the kernel that was asked for by name cannot run, with torch's reasons.
    """
    packed = _packed(q, k, attn_mask)
    if packed is not None:
        out, ran = call(packed, k, v, attn_mask, False, scale=scale, dropout=dropout, kernel=kernel)
        return out.reshape(*q.shape[:3], v.shape[3]), ran
    suffix = "" if attn_mask is None else "+mask"
    if kernel == "auto" and q.is_cuda and q.shape[1] != k.shape[1] and not _flash_takes(q, k, v, attn_mask, is_causal):
        # the efficient kernel has no grouped heads, and math writes the scores out
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
        suffix += "+repeated"
    grouped = True if q.shape[1] != k.shape[1] else False  # noqa: SIM210  compiled, only a branch makes it a bool
    arguments: dict[str, Any] = {
        "attn_mask": attn_mask,
        "dropout_p": dropout,
        "is_causal": is_causal,
        "scale": scale,
        "enable_gqa": grouped,
    }
    if kernel == "auto" and (transformed() or _empty(q)):
        kernel = "math"  # the others have a gradient and nothing beyond it, and divide by a batch of none
    if kernel == "auto":
        with sdpa_kernel(AUTO_ON_CUDA) if q.is_cuda else nullcontext():
            chosen = "auto" if torch.compiler.is_compiling() else _chosen(q, k, v, arguments)
            return scaled_dot_product_attention(q, k, v, **arguments), f"sdpa/{chosen}{suffix}"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            with sdpa_kernel([KERNELS[kernel]]):
                return scaled_dot_product_attention(q, k, v, **arguments), f"sdpa/{kernel}{suffix}"
        except RuntimeError as error:
            reasons = [str(w.message).split(" (Triggered")[0] for w in said] or [str(error)]
            raise Refused(f"the SDPA kernel {kernel!r} cannot run this", reasons) from error


def _flash_takes(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool) -> bool:
    """Whether torch's flash kernel on CUDA computes this, as its dispatcher decides."""
    aligned = not is_causal or q.shape[2] == k.shape[2]
    return attn_mask is None and q.dtype in _HALF and q.shape[3] == v.shape[3] <= 256 and aligned


def _empty(q: Tensor) -> bool:
    return not torch.compiler.is_compiling() and q.numel() == 0


def _packed(q: Tensor, k: Tensor, attn_mask: Tensor | None) -> Tensor | None:
    """One query a head (B, H, 1, D), fewer heads of keys: the queries that share keys as rows of one head, so that those
    keys are read once and not H/G times. (B, G·s, H/(G·s), D), s the fewest parts that leave no thread idle; None where
    there is nothing to pack.
    """
    batch, heads, n_queries, _ = q.shape
    if n_queries != 1 or heads == k.shape[1]:
        return None
    shared = heads // k.shape[1]
    if attn_mask is not None and attn_mask.shape[1] != 1:
        return None
    threads = available() if q.device.type == "cpu" else 1
    parts = next((s for s in range(1, shared) if shared % s == 0 and batch * k.shape[1] * s >= threads), shared)
    return None if parts == shared else q.reshape(batch, k.shape[1] * parts, shared // parts, -1)


def _chosen(q: Tensor, k: Tensor, v: Tensor, arguments: dict) -> str:
    """The kernel torch will take for these tensors, asked of torch itself."""
    choice = torch._fused_sdp_choice(
        q,
        k,
        v,
        arguments["attn_mask"],
        arguments["dropout_p"],
        arguments["is_causal"],
        scale=arguments["scale"],
        enable_gqa=arguments["enable_gqa"],
    )
    return _NAMES.get(choice, str(choice))


def refusals(request: Request, kernel: str) -> list[str]:
    """Why a kernel asked for by name cannot run the request. Measured on torch 2.13 (CPU) and read in its dispatcher (CUDA)."""
    if kernel in ("auto", "math") or kernel not in KERNELS:
        return []
    why = []
    if request.device == "cpu":
        if kernel != "flash":
            return [f"sdpa/{kernel} has no CPU implementation; on a CPU take flash or math"]
        if request.dropout:
            why.append("sdpa/flash on a CPU has no dropout")
        if request.value_dim not in (None, request.head_dim):
            why.append(f"sdpa/flash needs Dv = D; got {request.value_dim} and {request.head_dim}")
        if request.bias_gradient:
            why.append("sdpa/flash has no gradient for a bias")
        return why
    if request.dtype not in _HALF and kernel != "efficient":
        why.append(f"sdpa/{kernel} needs float16 or bfloat16; got {str(request.dtype).removeprefix('torch.')}")
    if kernel == "flash" and (request.mask_fields or request.bias or request.cross):
        why.append("sdpa/flash on CUDA takes no mask beyond plain causality with Tq = Tk")
    if kernel == "flash" and request.head_dim > 256:
        why.append(f"sdpa/flash needs head_dim of at most 256; got {request.head_dim}")
    if kernel == "cudnn" and request.training and (request.mask_fields or request.bias):
        why.append("sdpa/cudnn: with a mask its gradients are NaN at some lengths (pytorch#196678)")
    if kernel == "efficient" and request.n_heads != request.n_kv_heads:
        why.append("sdpa/efficient takes as many key/value heads as query heads")
    return why
