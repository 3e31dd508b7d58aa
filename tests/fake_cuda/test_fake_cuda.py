"""The whole zoo on a CUDA device without data: forward, backward and decoding, with devices mixed up and waits for the
device found. What a GPU computes is not tested here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def guard(tmp_path_factory) -> Path:
    """The library of guard.cpp, compiled against this torch."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler: a device without data cannot be made")
    if torch.version.cuda is not None:
        pytest.skip("this torch knows CUDA itself")
    home, library = Path(torch.__file__).parent, tmp_path_factory.mktemp("guard") / "guard.so"
    command = [compiler, "-std=c++20", "-O0", "-shared", "-fPIC", f"-I{home}/include", str(HERE / "guard.cpp"), "-o",
               str(library), f"-L{home}/lib", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{home}/lib"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return library


def run(guard: Path, case: str) -> dict:
    done = subprocess.run([sys.executable, str(HERE / "inside.py"), str(guard), case], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_no_backend_mixes_devices_up_or_waits(guard):
    found = run(guard, "zoo")
    assert found["faults"] == {}
    names = {case.partition(",")[0] for case in found["run"]}
    assert {"sdpa", "exact", "linear", "sliding_window", "gated_deltanet", "moba", "nsa"} <= names
    assert len(found["run"]) > 200


def test_no_model_mixes_devices_up_or_waits(guard):
    found = run(guard, "models")
    assert found["faults"] == {}
    assert len(found["run"]) > 190
    assert sum(case.endswith("decoding in fixed shapes") for case in found["run"]) > 40


def test_decoding_in_fixed_shapes_asks_for_cuda_graphs(guard):
    assert run(guard, "fixed")["faults"] == {"asked": "{'dynamic': False, 'mode': 'reduce-overhead'}"}


def test_auto_leaves_cudnn_alone_and_never_writes_the_scores_of_grouped_heads_out(guard):
    kernels = run(guard, "kernels")["faults"]  # the child reports them in that place
    assert kernels["causal, G 4, bfloat16"] == "sdpa/flash"
    assert kernels["causal, G 1, bfloat16"] == "sdpa/flash"
    assert kernels["window, G 2, bfloat16"] == "sdpa/efficient+mask+repeated"
    assert kernels["padding, G 1, bfloat16"] == "sdpa/efficient+mask+repeated"
    assert kernels["causal, G 2, float32"] == "sdpa/efficient+repeated"
    assert not any("cudnn" in kernel or "math" in kernel for kernel in kernels.values())


def test_a_planted_wait_mixup_and_sum_in_no_order_are_found(guard):
    faults = run(guard, "planted")["faults"]
    assert any(case.startswith("planted_wait") and "DataDependent" in fault for case, fault in faults.items()), faults
    for name in ("planted_mixup", "planted_current"):
        assert any(case.startswith(name) and "device" in fault for case, fault in faults.items()), faults
    unordered = [fault for case, fault in faults.items() if case.startswith("planted_unordered")]
    assert any("adds in no order: {'index_add'" in fault for fault in unordered), faults


def test_a_step_of_fp16_does_not_wait_for_the_scaler(guard):
    assert run(guard, "scaled") == {"run": ["first step", "second step"], "faults": {}}
    assert "DataDependent" in run(guard, "scaled_unsupported")["faults"]["first step"]
