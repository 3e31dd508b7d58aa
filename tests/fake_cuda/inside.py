"""The child process of test_fake_cuda.py: whole backends and models on a CUDA device that is not there.

python inside.py GUARD.so CASE -> a JSON object on standard output: what was run, and every fault with where it happened.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

if __name__ == "__main__":
    ctypes.CDLL(sys.argv[1])  # before torch, which asks once what there is
sys.path.insert(0, str(Path(__file__).parent))

import torch
from device import Watch, fake_cuda, to_cuda
from torch import Tensor

import attnzoo
from attnzoo import Attention, Capabilities, Mask, register
from attnzoo.model import static
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.training.config import TrainerConfig
from attnzoo.training.optim import Together, build_optimizer

H, D, T, B = 4, 32, 96, 2  # more than one block or chunk of most defaults
PREFILLED, DECODED = 8, 3
SCHEMES = ("rope", "alibi", "learned", "relative", "sinusoidal", "none")
Fault = str
DEVICE = "cuda:1"  # what is made on the current device, cuda:0, is a mix-up
PLANTED = ("planted_wait", "planted_mixup", "planted_current", "planted_unordered")
LEFT_OUT = ("flex", *PLANTED)  # FlexAttention looks for a real device before it computes


def masks(device: str) -> dict[str, Mask]:
    """One of each field; tensors on the device."""
    ids = torch.arange(T, device=device).div(T // 3, rounding_mode="floor").expand(B, -1)
    real = torch.arange(T, device=device).expand(B, -1) >= 3
    return {
        "causal": Mask(), "bidirectional": Mask(causal=False), "window": Mask(window=20),
        "sinks": Mask(window=20, sinks=2), "prefix": Mask(prefix=5), "padding": Mask(key_padding=real),
        "documents": Mask(documents=ids),
    }  # fmt: skip


def said(error: BaseException) -> str:
    """The error's first line with the last place in the package."""
    ours = [f for f in traceback.extract_tb(error.__traceback__) if "attnzoo" in f.filename]
    where = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    if isinstance(error, attnzoo.errors.AttnzooError):
        return f"{error}{where}"
    return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}{where}"


def variants() -> Iterator[tuple[str, int, torch.dtype]]:
    """(mask, key heads, dtype): every mask in half precision, and what a single-precision or grouped kernel is told apart by."""
    yield from ((which, H, torch.bfloat16) for which in masks(DEVICE))
    yield from (("causal", H, torch.float32), ("causal", 1, torch.bfloat16), ("padding", 1, torch.bfloat16))


def backend(name: str) -> Iterator[tuple[str, Fault | None]]:
    """Forward, backward and decoding with every mask it takes, and with fewer key heads."""
    for which, kv_heads, dtype in variants():
        mask, how = masks(DEVICE)[which], {"n_heads": H, "n_kv_heads": kv_heads, "head_dim": D}
        case = f"{name}, {which}, G {kv_heads}, {str(dtype).removeprefix('torch.')}"
        if attnzoo.why_not(name, device=DEVICE, dtype=dtype, mask=mask, **how):
            continue
        try:
            yield case, passes(to_cuda(attnzoo.build(name, d_model=H * D, **how), dtype, DEVICE), mask, dtype)
        except Exception as error:  # every other case runs too
            yield case, said(error)


def passes(attn: Attention, mask: Mask, dtype: torch.dtype) -> Fault | None:
    heads = (attn.n_heads, attn.n_kv_heads, attn.n_kv_heads)
    tensors = [torch.randn(B, h, T, D, device=DEVICE, dtype=dtype, requires_grad=True) for h in heads]
    x = torch.randn(B, T, H * D, device=DEVICE, dtype=dtype)
    attn(*tensors, mask, None, x)  # what is sent to the device once is sent here
    with Watch() as watch:
        attn(*tensors, mask, None, x).float().sum().backward()
    if wrong := [t.grad.device for t in tensors if t.grad is not None and str(t.grad.device) != DEVICE]:
        return f"a gradient lies on {wrong[0]}"
    if watch.waits:
        return f"forward and backward wait for the device: {dict(watch.waits)}"
    if watch.unordered:
        return f"forward or backward adds in no order: {dict(watch.unordered)}"
    if "bidirectional" in mask.fields or not mask.static:
        return None
    return decodes(attn, [t.detach() for t in tensors], mask, x)


@torch.no_grad()
def decodes(attn: Attention, tensors: list[Tensor], mask: Mask, x: Tensor) -> Fault | None:
    cache = attn.new_cache(B, T, device=DEVICE, dtype=x.dtype)
    attn.extend(*(t[:, :, :PREFILLED] for t in tensors), cache, mask, None, x[:, :PREFILLED])
    attn.extend(
        *(t[:, :, PREFILLED : PREFILLED + 1] for t in tensors), cache, mask, None, x[:, PREFILLED : PREFILLED + 1]
    )
    with Watch() as watch:
        for n in range(PREFILLED + 1, PREFILLED + DECODED):
            attn.extend(*(t[:, :, n : n + 1] for t in tensors), cache, mask, None, x[:, n : n + 1])
    return f"decoding waits for the device: {dict(watch.waits)}" if watch.waits else None


def model(attention: str = "sdpa", scheme: str = "rope", **layer: object) -> Iterator[tuple[str, Fault | None]]:
    """A language model: a training step under autocast, then decoding under it."""
    for padded in (False, True):
        case = ", ".join([attention, scheme, *(f"{key}={value}" for key, value in layer.items()), *["padded"] * padded])
        try:
            size = ModelConfig(n_layers=2, d_model=H * D, n_heads=H, **layer)
            lm = to_cuda(assemble(size, AttentionConfig(attention, {}), PositionsConfig(scheme), 64, 0), device=DEVICE)
            tokens = torch.randint(64, (B, T), device=DEVICE)
            real = torch.arange(T, device=DEVICE).expand(B, -1) >= 3 if padded else None
            yield f"{case}, training", trains(lm, tokens, real)
            yield f"{case}, decoding", continues(lm.eval(), tokens, real)
            yield f"{case}, decoding in fixed shapes", continues_fixed(lm, tokens, real)
        except attnzoo.errors.Refused:
            continue
        except Exception as error:  # every other case runs too
            yield case, said(error)


def trains(lm: torch.nn.Module, tokens: Tensor, real: Tensor | None) -> Fault | None:
    with torch.no_grad():
        lm(tokens, key_padding=real)
    with Watch() as watch, torch.autocast("cuda", torch.bfloat16):
        lm.loss(lm(tokens, key_padding=real), tokens).backward()
    return f"a training step waits for the device: {dict(watch.waits)}" if watch.waits else None


@torch.no_grad()
def continues(lm: torch.nn.Module, tokens: Tensor, real: Tensor | None) -> Fault | None:
    cache = lm.new_cache(B, T, dtype=torch.bfloat16)
    padding = [None if real is None else real[:, :n] for n in range(T + 1)]
    with torch.autocast("cuda", torch.bfloat16):
        lm(tokens[:, :PREFILLED], key_padding=padding[PREFILLED], cache=cache)
    with Watch() as watch, torch.autocast("cuda", torch.bfloat16):
        for n in range(PREFILLED, PREFILLED + DECODED):
            lm(tokens[:, n : n + 1], key_padding=padding[n + 1], cache=cache)
        prompt = None if real is None else real[:, : cache.length + 1]
        lm.generate(tokens[:, : cache.length + 1], DECODED, key_padding=prompt, cache=cache)
    return f"decoding waits for the device: {dict(watch.waits)}" if watch.waits else None


@torch.no_grad()
def continues_fixed(lm: torch.nn.Module, tokens: Tensor, real: Tensor | None) -> Fault | None:
    """As it is compiled, but not compiled: that would need values."""
    with torch.autocast("cuda", torch.bfloat16):
        cache = lm.new_cache(B, static.room_for(T))
        if static.reasons(lm, cache, T):
            raise attnzoo.errors.Refused("not in fixed shapes")
        lm(tokens[:, :PREFILLED], key_padding=None if real is None else real[:, :PREFILLED], cache=cache)
        with Watch() as watch:
            prompt = None if real is None else real[:, : PREFILLED + 1]
            lm.generate(tokens[:, : PREFILLED + 1], DECODED, key_padding=prompt, cache=cache, compiled="static")
    return f"decoding in fixed shapes waits for the device: {dict(watch.waits)}" if watch.waits else None


def names() -> list[str]:
    return [name for name in attnzoo.list_backends() if name not in LEFT_OUT]


def designs() -> list[dict]:
    """Every backend in a model, every position scheme, every projection."""
    layers = [{"short_conv": 4}, {"projection": "mla"}, {"norm": "layer"}, {"qk_norm": False}, {"dropout": 0.1}]
    return [{"attention": name} for name in names()] + [{"scheme": s} for s in SCHEMES] + layers


@register("planted_wait")
class PlantedWait(Attention):
    """Softmax attention that reads a value for every token it decodes."""

    source = "planted"
    capabilities = Capabilities()

    def attend(self, q, k, v, mask, bias, x):
        if q.shape[2] == 1 and bool(k[:, :, -1].abs().amax() > 1e9):
            return q
        return super().attend(q, k, v, mask, bias, x)


@register("planted_mixup")
class PlantedMixup(Attention):
    """Softmax attention with a table that stays on the host."""

    source = "planted"
    capabilities = Capabilities()

    def attend(self, q, k, v, mask, bias, x):
        return super().attend(q * torch.ones(q.shape[2], 1), k, v, mask, bias, x)


@register("planted_current")
class PlantedCurrent(Attention):
    """Softmax attention with a table on the current device, whichever its tensors are on."""

    source = "planted"
    capabilities = Capabilities()

    def attend(self, q, k, v, mask, bias, x):
        return super().attend(q * torch.ones(q.shape[2], 1, device="cuda"), k, v, mask, bias, x)


@register("planted_unordered")
class PlantedUnordered(Attention):
    """Softmax attention whose backward adds the gradients of rows in no order."""

    source = "planted"
    capabilities = Capabilities()

    def attend(self, q, k, v, mask, bias, x):
        return super().attend(q, k.index_select(2, torch.arange(k.shape[2], device=k.device)), v, mask, bias, x)


def chosen() -> Iterator[tuple[str, Fault | None]]:
    """The kernel that sdpa and gqa say they took."""
    for which, kv_heads, dtype in (*variants(), ("window", 2, torch.bfloat16), ("causal", 2, torch.float32)):
        attn = attnzoo.build("gqa", n_heads=H, n_kv_heads=kv_heads, head_dim=D)
        q, k, v = (torch.randn(B, h, T, D, device=DEVICE, dtype=dtype) for h in (H, kv_heads, kv_heads))
        attn(q, k, v, masks(DEVICE)[which])
        yield f"{which}, G {kv_heads}, {str(dtype).removeprefix('torch.')}", attn.kernel


def scaled(support: bool) -> Iterator[tuple[str, Fault | None]]:
    """Two steps of Muon and AdamW in float16 under a scaler; without its support the scaler reads whether to step."""
    Together._step_supports_amp_scaling = support
    size = ModelConfig(n_layers=2, d_model=H * D, n_heads=H)
    lm = to_cuda(assemble(size, AttentionConfig("sdpa", {}), PositionsConfig("rope"), 64, 0), device=DEVICE)
    optimizer, scaler = build_optimizer(lm, TrainerConfig()), torch.amp.GradScaler("cuda")
    tokens = torch.randint(64, (B, T), device=DEVICE)
    for step in ("first", "second"):
        try:
            with Watch() as watch:
                with torch.autocast("cuda", torch.float16):
                    loss = lm.loss(lm(tokens), tokens)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                norm = torch.nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
                optimizer.skip_if((~norm.isfinite()).float())
                scaler.step(optimizer)
                scaler.update()
            yield (
                f"{step} step",
                f"it waits for the device: {dict(watch.waits)}" if step == "second" and watch.waits else None,
            )
        except Exception as error:  # the reason is what is asked for
            yield f"{step} step", said(error)


ASKED: list[dict] = []
"""What the compiler would have been asked for."""


def fixed_shapes() -> Iterator[tuple[str, Fault | None]]:
    """What one model asks the compiler for, where nothing is at fault."""
    yield from model("gqa")
    yield "asked", str(ASKED[0])


CASES: dict[str, Callable[[], Iterator[tuple[str, Fault | None]]]] = {
    "zoo": lambda: (done for name in names() for done in backend(name)),
    "models": lambda: (done for how in designs() for done in model(**how)),
    "kernels": chosen,
    "fixed": fixed_shapes,
    "scaled": lambda: scaled(support=True),
    "scaled_unsupported": lambda: scaled(support=False),
    "planted": lambda: (done for name in PLANTED for done in backend(name)),
}

if __name__ == "__main__":
    static.one_graph = lambda function, backend, **how: ASKED.append(how) or function
    with fake_cuda():
        done = dict(CASES[sys.argv[2]]())
    print(json.dumps({"run": list(done), "faults": {case: fault for case, fault in done.items() if fault}}), flush=True)
    os._exit(0)  # autograd's threads of a device that is not there may end the process with an abort
