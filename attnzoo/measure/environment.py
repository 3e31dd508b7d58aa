"""Where and with what something ran, and which device and precision that means."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import torch

import attnzoo
from attnzoo.arguments import DEVICE, DEVICES, not_there
from attnzoo.errors import RequestError, unknown
from attnzoo.measure.gpu import gpu
from attnzoo.redact import redacted_command

PACKAGES = (
    "torch", "lightning", "hydra-core", "omegaconf", "wandb", "xformers", "triton", "numpy", "safetensors", "rich",
    "flash-attn", "flash-linear-attention", "datasets", "tokenizers",
)  # fmt: skip
PRECISIONS = ("auto", "fp32", "bf16", "fp16")


def environment(device: str = "cpu", precision: str | None = None, precision_reason: str | None = None) -> dict:
    """Everything about the surroundings that can change a number, as a plain dict; no package is imported for its
    version.

    ``start`` is the time of this call (UTC); whoever ran something adds ``end`` and ``seconds``.
    """
    return {
        "attnzoo": attnzoo.__version__,
        "python": platform.python_version(),
        **versions(),
        "os": " ".join([platform.system(), platform.machine(), *filter(None, platform.libc_ver())]),
        "device": device,
        "device_name": device_name(device),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "gpu": gpu(device),
        "precision": precision,
        "precision_reason": precision_reason,
        **git(),
        "command": redacted_command(sys.argv),
        "start": now(),
    }


def now() -> str:
    """The time, ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, str | None]:
    """Installed version of each package of interest, None where it is not installed."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def resolve_device(device: str = "auto") -> str:
    """'cpu', 'cuda' or 'cuda:1' from a request that may say 'auto'. A CUDA device with a number becomes the current one, on
    which libraries launch their kernels.

    Raises:
        RequestError: an unknown device, or CUDA where there is none.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not DEVICE.fullmatch(device):
        raise RequestError(unknown("device", device, DEVICES))
    kind, _, index = device.partition(":")
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise RequestError("device=cuda: torch finds no CUDA device here", ["device=cpu and device=auto work"])
        if missing := not_there(device):
            raise RequestError(f"device={device}: {missing[0]}")
        if index:
            torch.cuda.set_device(int(index))
    return device if kind == "cuda" else kind


def resolve_precision(precision: str = "auto", device: str = "cpu") -> tuple[str, str]:
    """('fp32', 'bf16' or 'fp16', why). 'auto' takes bf16 only where the device multiplies it in hardware.

    A CPU without such instructions emulates bf16, up to hundreds of times slower than fp32.
    """
    if precision not in PRECISIONS:
        raise RequestError(unknown("precision", precision, PRECISIONS))
    if precision == "fp16" and torch.device(device).type != "cuda":
        raise RequestError(f"precision=fp16: it is for CUDA, and the device is {device}; bf16 and fp32 run on a CPU")
    if precision != "auto":
        return precision, "asked for by name"
    if torch.device(device).type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16", f"asked for auto; {device_name(device)} multiplies bf16 in hardware"
        return "fp32", f"asked for auto; {device_name(device)} has no bf16 hardware"
    fast = fast_bf16_on_cpu()
    if fast:
        return "bf16", f"asked for auto; this CPU has {fast}"
    return "fp32", "asked for auto; this CPU has neither AVX512-BF16 nor AMX"


@cache
def fast_bf16_on_cpu() -> str | None:
    """The instructions with which this CPU multiplies bf16 ('AMX', 'AVX512-BF16'), or None."""
    flags = set()
    for question, name in (("_is_amx_tile_supported", "amx_bf16"), ("_is_avx512_bf16_supported", "avx512_bf16")):
        ask = getattr(torch.cpu, question, None)
        if ask is not None and ask():
            flags.add(name)
    if not flags and Path("/proc/cpuinfo").exists():
        flags = set(re.findall(r"\b(?:amx_bf16|avx512_bf16)\b", Path("/proc/cpuinfo").read_text()))
    return "AMX" if "amx_bf16" in flags else "AVX512-BF16" if flags else None


def device_name(device: str) -> str:
    """The product name of a device."""
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else cpu_model()


@cache
def cpu_model() -> str:
    """The CPU's product name, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


@cache
def git() -> dict[str, str | bool | None]:
    """Commit of the checkout the package runs from, and whether it was changed since; None outside a checkout."""
    root = Path(attnzoo.__file__).parents[1]
    nothing: dict[str, str | bool | None] = {"git_commit": None, "git_dirty": None}
    if not (root / ".git").exists():  # an installed package may lie inside somebody else's repository
        return nothing
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return {"git_commit": commit, "git_dirty": bool(_git(root, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):  # no git program, or not our repository: the commit is unknown
        return nothing


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()
