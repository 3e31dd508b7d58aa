"""The record of a GPU, from a torch and an nvidia-smi that are stood in for."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from attnzoo.measure import environment, roofline
from attnzoo.measure.bench_row import machine
from attnzoo.measure.gpu import SMI, from_smi, gpu


@pytest.fixture
def one_gpu(monkeypatch, tmp_path):
    about = SimpleNamespace(
        name="NVIDIA H200", major=9, minor=0, total_memory=150_000_000_000, multi_processor_count=132, uuid="ab-cd"
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: about)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: about.name)
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\necho "$@" > "$(dirname "$0")/asked"\necho "580.82, 1980, 1980, 3201, 700.00, 31"\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def test_versions_clocks_and_arithmetic_are_kept(one_gpu, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    said = gpu("cuda:0")
    assert json.loads(json.dumps(said)) == said
    assert (said["name"], said["capability"], said["multiprocessors"]) == ("NVIDIA H200", "9.0", 132)
    assert (said["cudnn"], said["driver_version"], said["clocks.sm"]) == (91002, "580.82", "1980")
    assert said["tf32"] == {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32}
    assert said["float32_matmul_precision"] == torch.get_float32_matmul_precision()
    assert (one_gpu / "asked").read_text().split()[:2] == ["--id=GPU-ab-cd", f"--query-gpu={SMI}"]


def test_a_benchmark_and_a_record_hold_it(one_gpu):
    assert environment.environment("cuda")["gpu"]["driver_version"] == "580.82"
    shown = machine("cuda", torch.bfloat16, {})
    assert shown["gpu"]["clocks.max.sm"] == "1980"
    assert {"triton", "xformers", "flash-attn", "flash-linear-attention"} <= set(shown)
    assert environment.environment("cpu")["gpu"] is None
    assert "triton" not in machine("cpu", torch.float32, {})


def test_why_nvidia_smi_says_nothing_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert from_smi("0")["nvidia_smi"].startswith("FileNotFoundError")
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho No devices were found\n")
    smi.chmod(0o755)
    assert from_smi("0") == {"nvidia_smi": "said 'No devices were found'"}


def test_the_copy_does_not_fit_into_a_gpus_cache(monkeypatch):
    made = []
    zeros = torch.zeros
    monkeypatch.setattr(roofline.torch, "randn", lambda *shape, device: torch.empty(0))
    monkeypatch.setattr(roofline.torch, "zeros", lambda n, **_: made.append(n) or zeros(1, dtype=torch.uint8))
    interval = SimpleNamespace(interval=SimpleNamespace(median=1.0))
    monkeypatch.setattr(roofline, "take_turns", lambda works, **_: dict.fromkeys(works, interval))
    roofline.machine_rates("cuda", torch.float32)
    assert made == [2**30]
