"""A device is named as torch names it, cuda:N too, wherever one is accepted; one that is not there is refused with the count."""

import pytest
import torch

import attnzoo
from attnzoo.commands import flags
from attnzoo.config import compose
from attnzoo.errors import RequestError
from attnzoo.measure.environment import resolve_device
from attnzoo.training.validation import faults


@pytest.fixture
def two_devices(monkeypatch):
    """What torch says where there are two; returns what was made the current one."""
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


def test_a_number_is_kept_and_becomes_the_current_device(two_devices):
    assert [resolve_device(name) for name in ("auto", "cuda", "cuda:1", "cuda:0", "cpu", "cpu:0")] == [
        "cuda", "cuda", "cuda:1", "cuda:0", "cpu", "cpu",
    ]  # fmt: skip
    assert two_devices == [1, 0]


@pytest.mark.parametrize(("count", "said"), [(2, "there are 2 CUDA devices"), (1, "there is 1 CUDA device")])
def test_one_that_is_not_there_is_refused_everywhere(two_devices, monkeypatch, count, said):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(RequestError, match=f"device=cuda:2: {said}, counted from 0"):
        resolve_device("cuda:2")
    assert attnzoo.why_not("sdpa", device="cuda:2") == [f"{said}, counted from 0"]
    with pytest.raises(RequestError, match=f"device='cuda:2': {said}"):
        attnzoo.check("sdpa", device="cuda:2")
    assert two_devices == []


def test_a_backend_declares_for_the_kind_of_device(two_devices):
    assert attnzoo.why_not("sdpa", device="cuda:1") == []


def test_settings_and_options_take_the_same_names():
    for name in ("auto", "cpu", "cuda", "cuda:0", "cuda:13"):
        assert not faults(compose("train", [f"trainer.device={name}"])), name
        assert flags.device(name) == name
    for name in ("gpu", "cuda:", "cuda:x", "cuda:-1", "cpu:1", "mps"):
        with pytest.raises(RequestError, match="valid: auto, cpu, cuda, cuda:N"):
            compose("train", [f"trainer.device={name}"])
        with pytest.raises(Exception, match="cuda:N"):
            flags.device(name)
