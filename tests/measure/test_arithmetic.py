"""What a run computes with: TF32 within its run alone, compiled where it is known, refusals before work starts."""

import pytest
import torch

from attnzoo import build, list_backends, registry
from attnzoo.errors import RequestError
from attnzoo.measure.arithmetic import need_tf32, resolve_compile, tf32


def module(name):
    return build(name, n_heads=4, head_dim=16, d_model=64)


def test_auto_compiles_on_cuda_what_is_known_to_be_the_same():
    assert resolve_compile("auto", "cuda:1", [module("sdpa"), module("gla")])[0] is True
    assert resolve_compile("auto", "cpu", [module("sdpa")]) == (False, "asked for auto; eager on a CPU")
    on, why = resolve_compile("auto", "cuda", [module("sdpa"), module("flex"), module("flex")])
    assert (on, why) == (False, "asked for auto; not shown to give the same numbers compiled: flex")
    for asked in (True, False):
        assert resolve_compile(asked, "cpu", [module("flex")]) == (asked, "asked for by name")


def test_a_library_s_kernel_is_not_known_to_be_the_same():
    cls = registry.get("sliding_window")
    options = cls.Options(kernel="flex")
    assert cls.declared(cls.Options(), "cuda").compiles
    assert not cls.declared(options, "cuda").compiles


def test_what_is_known_compiled_is_what_the_slow_test_compiles():
    """`tests/training/test_training_compiled.py` tries each that trains on a CPU."""
    for name in list_backends():
        can = registry.get(name).capabilities
        assert can.compiles == ("cpu" in can.training_devices), name


def test_tf32_is_set_and_given_back():
    places = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    for on in (True, False):
        with tf32(on, "cuda"):
            assert [place.allow_tf32 for place in places] == [on, on]
        assert [place.allow_tf32 for place in places] == before
    with tf32(True, "cpu"):
        assert [place.allow_tf32 for place in places] == before


def test_tf32_needs_a_device_that_has_it(monkeypatch):
    need_tf32(False, "cpu")
    with pytest.raises(RequestError, match="cpu has no TF32"):
        need_tf32(True, "cpu")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(RequestError, match=r"cuda:1 has compute capability 7\.5, TF32 needs 8\.0"):
        need_tf32(True, "cuda:1")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    need_tf32(True, "cuda:1")
