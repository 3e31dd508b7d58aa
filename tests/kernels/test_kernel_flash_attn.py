"""The calls of flash-attn, against its documented conventions in plain PyTorch; on a GPU that has it, the package itself."""

from __future__ import annotations

from importlib.util import find_spec

import library_stand_ins as stand_ins
import pytest
import torch

import attnzoo
from attnzoo import Mask
from attnzoo.errors import Refused
from attnzoo.kernels import flash_attn, flash_attn_3, optional
from attnzoo.positions.alibi import AlibiBias
from attnzoo.positions.relative import RelativeBias

DOCUMENTS = torch.tensor([[0] * 4 + [1] * 5, [2] * 9])
BACKENDS = {"sdpa": {}, "gqa": {}, "sliding_window": {"window": 3}, "softcap": {"cap": 0.5}}


@pytest.fixture
def documented(monkeypatch):
    """flash-attn is there, takes float32 on a CPU, and does what its documentation says."""
    monkeypatch.setattr(flash_attn, "missing", lambda *_: [])
    monkeypatch.setattr(flash_attn, "DTYPES", (torch.float32,))
    monkeypatch.setattr(flash_attn, "load", lambda name: getattr(stand_ins, name))
    monkeypatch.setattr(flash_attn_3, "missing", lambda *_: [])


def qkv(n_queries: int = 9, kv_heads: int = 2, device: str = "cpu", dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    shapes = (2, 4, n_queries, 16), (2, kv_heads, 9, 16), (2, kv_heads, 9, 16)
    return [torch.randn(shape).to(device, dtype) for shape in shapes]


def built(name: str, **options):
    return attnzoo.build(
        name, n_heads=4, n_kv_heads=2, head_dim=16, **({"kernel": "flash_attn"} | BACKENDS[name] | options)
    )


def agrees(module, tensors, mask=Mask(), bias=None, rtol=1e-5, atol=1e-6):
    """In float32, sums of 16 products and 9 weights."""
    out = module(*tensors, mask, bias)
    torch.testing.assert_close(out.double(), module.reference(*tensors, mask, bias)[0], rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", BACKENDS)
def test_it_is_the_definition(documented, name):
    module = built(name)
    masks = [Mask(), Mask(causal=False), Mask(window=2), Mask(window=5, causal=False), Mask(documents=DOCUMENTS)]
    for mask in [*masks, Mask(documents=DOCUMENTS, window=2)]:
        for n_queries in (9, 4, 1, 12):
            agrees(module, qkv(n_queries), mask)
    assert module.kernel == "flash_attn/varlen"
    agrees(module, qkv(), bias=AlibiBias(4))
    assert module.kernel == "flash_attn/func"


@pytest.mark.parametrize("name", BACKENDS)
def test_flash_attention_3_is_the_definition_too(documented, name):
    module = built(name, kernel="flash_attn_3")
    for mask in (
        Mask(),
        Mask(causal=False),
        Mask(window=2),
        Mask(window=5, causal=False),
        Mask(documents=DOCUMENTS, window=2),
    ):
        for n_queries in (9, 4, 1, 12):
            agrees(module, qkv(n_queries), mask)
    assert module.kernel == "flash_attn_3/varlen"
    agrees(module, qkv())
    assert module.kernel == "flash_attn_3/func"
    with pytest.raises(Refused, match="flash_attn_3 takes no score bias"):
        module(*qkv(), Mask(), AlibiBias(4))
    assert "flash_attn_3 cannot drop" in str(attnzoo.why_not(name, kernel="flash_attn_3", device="cpu", dropout=0.1))


def test_the_bounds_of_documents_are_made_once_a_mask(documented, monkeypatch):
    made, pack, mask = [], flash_attn.flash_attn_packing, Mask(documents=DOCUMENTS)
    monkeypatch.setattr(flash_attn, "flash_attn_packing", lambda *a: made.append(1) or pack(*a))
    for kernel in ("flash_attn", "flash_attn_3", "flash_attn"):
        agrees(built("sdpa", kernel=kernel), qkv(), mask)
    assert len(made) == 1


def test_a_window_goes_on_from_its_ring(documented):
    module = built("sliding_window")
    q, k, v = qkv()
    mask, cache = Mask(documents=DOCUMENTS), module.new_cache(2, 9)
    with torch.no_grad():
        parts = [
            module.extend(q[:, :, now], k[:, :, now], v[:, :, now], cache, Mask(documents=DOCUMENTS[:, : now.stop]))
            for now in (slice(0, 5), slice(5, 8), slice(8, 9))
        ]
    torch.testing.assert_close(torch.cat(parts, 2).double(), module.reference(q, k, v, mask)[0], rtol=1e-5, atol=1e-6)


def test_refusals_come_all_at_once(monkeypatch):
    monkeypatch.setattr(optional, "find_spec", lambda _: None)
    why = attnzoo.why_not(
        "sdpa", kernel="flash_attn", head_dim=300, mask=Mask(prefix=2, key_padding=DOCUMENTS > 0), bias=True
    )
    for part in ("pip install flash-attn", "CUDA", "float32", "300", "'key_padding'", "'prefix'", "ALiBi"):
        assert any(part in reason for reason in why), part
    dropped = attnzoo.why_not("softcap", kernel="flash_attn", dropout=0.1)
    assert "flash_attn does not drop weights under a soft cap" in dropped
    assert "flash_attn takes documents as contiguous runs of one id only" in attnzoo.why_not(
        "gqa", kernel="flash_attn", mask=Mask(documents=torch.tensor([[0, 1, 0]]))
    )


def test_only_alibi_s_slopes_pass_for_a_bias(documented):
    module, tensors = built("sdpa"), qkv()
    with pytest.raises(attnzoo.errors.Refused, match="ALiBi"):
        module(*tensors, bias=RelativeBias(4, 8, 16))


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or not find_spec("flash_attn"), reason="needs a CUDA device and flash-attn"
)
@pytest.mark.parametrize("name", BACKENDS)
def test_the_package_itself(name):
    module = built(name).cuda()
    for bias in (None, AlibiBias(4)):
        agrees(module, qkv(device="cuda", dtype=torch.bfloat16), bias=bias, rtol=0, atol=2**-5)
