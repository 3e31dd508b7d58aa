"""What of a CUDA device and its libraries can change a number: versions, clocks, and the arithmetic it is allowed."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import torch

SMI = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu"
"""Asked of nvidia-smi; clocks in MHz, power in W, temperature in °C."""


def gpu(device: str) -> dict[str, Any] | None:
    """Plain values about the device a run uses; None for a CPU.

    Returns:
        {name, uuid, visible_devices (CUDA_VISIBLE_DEVICES, as it is set),
        capability, memory_bytes, multiprocessors, cuda, cudnn, tf32: {matmul, cudnn}, float32_matmul_precision,
        and what nvidia-smi says: driver_version, clocks.sm, …, or why it says nothing}.
    """
    place = torch.device(device)
    if place.type != "cuda":
        return None
    about = torch.cuda.get_device_properties(place)
    return {
        "name": about.name,
        "uuid": str(getattr(about, "uuid", "")) or None,
        "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "capability": f"{about.major}.{about.minor}",
        "memory_bytes": about.total_memory,
        "multiprocessors": about.multi_processor_count,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "tf32": {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32},
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        **from_smi(str(getattr(about, "uuid", "")) or str(place.index or 0)),
    }


def from_smi(which: str) -> dict[str, str]:
    """What nvidia-smi says of one device, named by its UUID (the order of CUDA's numbers may be another)."""
    which = which if which.isdigit() or which.startswith("GPU-") else f"GPU-{which}"
    command = ["nvidia-smi", f"--id={which}", f"--query-gpu={SMI}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {"nvidia_smi": f"{type(error).__name__}: {str(error)[:200]}"}
    values = [value.strip() for value in done.stdout.strip().splitlines()[0].split(",")] if done.stdout.strip() else []
    keys = SMI.split(",")
    if len(values) != len(keys):
        return {"nvidia_smi": f"said {done.stdout.strip()[:200]!r}"}
    return dict(zip(keys, values, strict=True))
