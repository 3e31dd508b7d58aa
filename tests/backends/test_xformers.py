"""xformers on a machine without CUDA: what its operators say they take, and where its bias objects lie."""

from __future__ import annotations

import pytest
import torch

from attnzoo import Mask, registry
from attnzoo.contract import Request
from attnzoo.masks.translate import xformers_bias

pytest.importorskip("xformers.ops.fmha")
DOCUMENTS = Mask(documents=torch.tensor([[0, 0, 1, 1]]))


def reasons(dtype=torch.bfloat16, dim=64, mask=Mask(), training=True, **more) -> list[str]:
    asked = Request(
        n_heads=4, n_kv_heads=4, head_dim=dim, value_dim=dim, device="cuda", dtype=dtype, mask_fields=mask.fields,
        training=training, options=registry.parse_options("xformers", {}), **more,
    )  # fmt: skip
    return list(registry.get("xformers").refusals(asked))


@pytest.mark.parametrize("mask", [Mask(), Mask(causal=False), Mask(window=3), DOCUMENTS], ids=str)
def test_what_one_operator_takes_forward_and_another_backward_is_taken(mask):
    assert reasons(mask=mask) == []
    assert reasons(mask=mask, training=False, dtype=torch.float32) == []


def test_a_window_in_float32_has_no_backward():
    (flash, cutlass) = reasons(torch.float32, mask=Mask(window=3))
    assert "dtype=torch.float32" in flash
    assert "attn_bias type" in cutlass
    assert reasons(torch.float32, mask=Mask(window=3), training=False) == []


@pytest.mark.parametrize(
    ("dtype", "dim", "step"), [(torch.bfloat16, 12, 8), (torch.float16, 4, 8), (torch.float32, 6, 4)]
)
def test_channels_that_the_operators_cannot_read(dtype, dim, step):
    (said,) = reasons(dtype, dim)
    assert f"{step} channels" in said
    assert reasons(dtype, 2 * step) == []


def test_wide_heads_are_cutlass_alone():
    assert reasons(dim=512) == []
    assert any("> 256" in said for said in reasons(dim=512, mask=Mask(window=3)))


def test_bias_objects_lie_with_the_documents_and_not_on_the_current_device(monkeypatch):
    """Left to itself xformers asks for the current device."""
    from xformers.ops.fmha import attn_bias

    places = []
    monkeypatch.setattr(
        attn_bias, "_get_default_bias_device", lambda device: places.append(device) or torch.device("cpu")
    )
    for device in (None, torch.device("cuda:1")):
        places.clear()
        xformers_bias(DOCUMENTS, 4, 4, 1, device)
        assert set(places) <= {device or torch.device("cpu"), torch.device("cpu")}
        assert (device or torch.device("cpu")) in places
