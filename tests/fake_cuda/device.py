"""A CUDA device without data and without a GPU: shapes, types and devices are real, values are not.

Only in a process that has loaded the library of guard.cpp before torch. Reading a value is an error there, as it would wait
for the device; what crosses between host and device is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from attnzoo import Mask

ATOMIC = ("index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_")
"""What adds up in the order in which threads come: floats are other bits in each run."""
WAITS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "unique_dim", "unique_consecutive")


class Watch(TorchDispatchMode):
    """Counts what makes the host wait for the device: values read, tensors sent there or fetched."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.unordered: Counter[str] = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        name = getattr(getattr(operator, "overloadpacket", operator), "__name__", str(operator))
        devices = {t.device.type for t in (*args, result) if isinstance(t, Tensor)}
        if name in WAITS and "cuda" in devices:
            self.waits[name] += 1
        if name in ATOMIC and isinstance(result, Tensor) and result.is_floating_point() and "cuda" in devices:
            self.unordered[name] += 1
        if name in ("_to_copy", "copy_") and len(devices) > 1:
            self.waits["copy between host and device"] += 1
        return result


@contextmanager
def fake_cuda() -> Iterator[FakeTensorMode]:
    """Within it tensors hold no data, and torch says that there are two CUDA devices."""
    stood_in: dict[Any, dict[str, Any]] = {
        torch.cuda: {
            "is_available": lambda: True, "device_count": lambda: 2, "current_device": lambda: 0,
            "synchronize": lambda *_: None, "get_device_name": lambda *_: "fake", "is_bf16_supported": lambda **_: True,
        },
        torch: {"_fused_sdp_choice": sdp_choice},
        Mask: {"contiguous_documents": True},  # read from the ids, once a mask
    }  # fmt: skip
    before = {(place, name): vars(place)[name] for place, names in stood_in.items() for name in names}
    for place, names in stood_in.items():
        for name, value in names.items():
            setattr(place, name, value)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            yield mode
    finally:
        for (place, name), value in before.items():
            setattr(place, name, value)


def sdp_choice(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False) -> int:
    """The kernel that torch 2.13 takes for these tensors on an H100, as its dispatcher is written: cuDNN in half precision
    unless it is switched off, then flash without a mask, else efficient where the heads are alike, else math."""
    from torch.nn.attention import SDPBackend

    alike = q.shape[1] == k.shape[1]
    half = q.dtype in (torch.float16, torch.bfloat16)
    if half and torch.backends.cuda.cudnn_sdp_enabled():
        return SDPBackend.CUDNN_ATTENTION.value
    if half and attn_mask is None and q.shape[3] == v.shape[3] <= 256 and (not is_causal or q.shape[2] == k.shape[2]):
        return SDPBackend.FLASH_ATTENTION.value
    learned = attn_mask is not None and attn_mask.requires_grad
    return (SDPBackend.EFFICIENT_ATTENTION if alike and not learned else SDPBackend.MATH).value


def to_cuda(module: torch.nn.Module, dtype: torch.dtype | None = None, device: str = "cuda") -> torch.nn.Module:
    """As ``module.to(device)``, which cannot swap tensors without data: parameters and buffers, and nothing else."""
    for part in module.modules():
        for name, p in list(part._parameters.items()):
            if p is not None:
                moved = p.detach().to(device, dtype if p.is_floating_point() else None)
                part._parameters[name] = torch.nn.Parameter(moved, requires_grad=p.requires_grad)
        for name, b in list(part._buffers.items()):
            if b is not None:
                part._buffers[name] = b.to(device, dtype if b.is_floating_point() else None)
    return module
