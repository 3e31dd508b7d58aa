"""The translation to flash-linear-attention: against its documented conventions in plain loops, and where the package is there
against its own definitions and, in Triton's interpreter, against the kernels themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import library_stand_ins as stand_ins
import pytest
import torch
from torch.nn import functional as F

import attnzoo
from attnzoo import Mask
from attnzoo.errors import Refused
from attnzoo.kernels import fla, optional, recurrent
from attnzoo.masks.translate import piece_bounds

HERE = Path(__file__).parent
RULES = ("linear", "retention", "gla", "mamba2", "deltanet", "gated_deltanet", "kda")
NEEDS_FLA = pytest.mark.skipif(
    not find_spec("fla") or not find_spec("triton"), reason="flash-linear-attention is not installed"
)
DOCUMENTS = torch.tensor([[0] * 4 + [1] * 7 + [2] * 2, [3] * 13])
PADDING = torch.tensor([[True] * 13, [False] * 3 + [True] * 10])


@pytest.fixture
def documented(monkeypatch):
    """fla is there, takes float64 on a CPU, and does what its documentation says."""
    monkeypatch.setattr(fla, "missing", lambda *_: [])
    monkeypatch.setattr(fla, "DTYPES", (torch.float64,))
    monkeypatch.setattr(fla, "load", stand_ins.fla)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # gates and states go there in float32


def built(name: str, heads: int = 2, kv_heads: int = 2, **options):
    torch.manual_seed(0)
    module = attnzoo.build(
        name, n_heads=heads, n_kv_heads=kv_heads, head_dim=5, d_model=6, **{"kernel": "fla", **options}
    )
    return module.double()


def inputs(heads: int = 2, kv_heads: int = 2, n: int = 13):
    torch.manual_seed(1)
    q, k, v, x = (
        torch.randn(2, heads, n, 5),
        torch.randn(2, kv_heads, n, 5),
        torch.randn(2, kv_heads, n, 3),
        torch.randn(2, n, 6),
    )
    return [t.double() for t in (q, k, v)], x.double()


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    "mask", [Mask(), Mask(documents=DOCUMENTS), Mask(key_padding=PADDING)], ids=("plain", "documents", "padding")
)
def test_it_is_the_definition(documented, name, mask):
    for kv_heads in (2, 1):
        module, (qkv, x) = built(name, kv_heads=kv_heads), inputs(kv_heads=kv_heads)
        out = module(*qkv, mask, x=x)
        assert module.kernel.startswith("fla/chunk_")
        # another order of sums of up to 13 tokens of 5 channels, in float64
        torch.testing.assert_close(out, module.reference(*qkv, mask, x=x)[0], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", RULES)
def test_it_goes_on_from_a_cache(documented, name):
    module, ((q, k, v), x) = built(name), inputs()
    cache = module.new_cache(2, 13, dtype=torch.float64, value_dim=3)
    mask = Mask(documents=DOCUMENTS)
    outs, names = [], []
    with torch.no_grad():
        for start, end in ((0, 6), (6, 11), (11, 12), (12, 13)):  # a document begins at 4, and with the token 11
            now = slice(start, end)
            parts = (t[:, :, now] for t in (q, k, v))
            outs.append(module.extend(*parts, cache, Mask(documents=mask.documents[:, :end]), x=x[:, now]))
            names.append(module.kernel)
    torch.testing.assert_close(torch.cat(outs, 2), module.reference(q, k, v, mask, x=x)[0], rtol=1e-10, atol=1e-11)
    assert [n.split("/")[1].split("_")[0] for n in names] == ["chunk", "chunk", "fused", "fused"]


@pytest.mark.parametrize(("n_queries", "n_keys"), [(4, 9), (9, 4)])
def test_the_last_query_is_aligned_with_the_last_key(documented, n_queries, n_keys):
    module, ((q, k, v), _) = built("linear"), inputs()
    q, k, v = q[:, :, :n_queries], k[:, :, :n_keys], v[:, :, :n_keys]
    torch.testing.assert_close(module(q, k, v), module.reference(q, k, v)[0], rtol=1e-10, atol=1e-11)


def test_a_gradient_never_takes_a_kernel_without_one():
    called = []
    one = torch.ones(1, 1, 1, 16)
    for recording in (True, False):
        with pytest.MonkeyPatch.context() as patch, torch.set_grad_enabled(recording):
            patch.setattr(fla, "load", stand_ins.fla)
            called.append(fla.scan(one, one, one, dtype=torch.float32, beta=torch.ones(1, 1, 1))[2])
    assert called == ["fla/chunk_delta_rule", "fla/fused_recurrent_delta_rule"]


@pytest.fixture
def on_cuda(documented, monkeypatch):
    """Tensors that say they lie on a GPU."""
    recurrent._fla_takes.cache_clear()
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    yield
    recurrent._fla_takes.cache_clear()


@pytest.mark.parametrize("name", RULES)
def test_auto_takes_fla_on_a_gpu_where_it_computes_the_same(on_cuda, monkeypatch, name):
    (qkv, x), mask = inputs(), Mask(documents=DOCUMENTS)
    auto, chunked = built(name, kernel="auto"), built(name, kernel="chunked")
    torch.testing.assert_close(auto(*qkv, mask, x=x), chunked(*qkv, mask, x=x), rtol=1e-10, atol=1e-11)
    assert auto.kernel.startswith("fla/chunk_")
    assert chunked.kernel == f"{name}/chunked"
    single = [t.float() if t.dtype == torch.float32 else t.to(torch.float32) for t in qkv]
    auto.to(torch.float32)(*single, x=x.to(torch.float32))
    assert auto.kernel == f"{name}/chunked", "a type that fla does not multiply in"
    recurrent._fla_takes.cache_clear()
    monkeypatch.setattr(fla, "missing", lambda *_: ["not installed"])
    other = built(name, kernel="auto")
    other(*qkv, x=x)
    assert other.kernel == f"{name}/chunked"


def test_auto_keeps_the_chunks_on_a_cpu_and_where_fla_refuses(documented, monkeypatch):
    (qkv, x), module = inputs(), built("gla", kernel="auto")
    module(*qkv, x=x)
    assert module.kernel == "gla/chunked"
    recurrent._fla_takes.cache_clear()
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    whole = built("linear", kernel="auto")
    whole(*qkv, Mask(causal=False))
    assert whole.kernel == "linear/whole"
    for name in ("performer", "based"):
        other = built(name, kernel="auto")
        other(*qkv, x=x)
        assert "fla" not in other.kernel
    recurrent._fla_takes.cache_clear()


def test_bounds_of_documents_are_made_once_a_mask(documented, monkeypatch):
    """On a GPU each time is a wait."""
    made = []
    monkeypatch.setattr(recurrent, "piece_bounds", lambda starts: made.append(1) or piece_bounds(starts))
    monkeypatch.setattr(fla, "piece_bounds", None)
    (qkv, x), mask = inputs(), Mask(documents=DOCUMENTS)
    for name in RULES:
        built(name)(*qkv, mask, x=x)
    assert len(made) == 1


def test_refusals_come_all_at_once(monkeypatch):
    monkeypatch.setattr(optional, "find_spec", lambda _: None)
    why = attnzoo.why_not("gla", kernel="fla", head_dim=300, mask=Mask(window=3))
    assert [any(word in reason for reason in why) for word in ("window", "attnzoo[gpu]", "CUDA", "float32", "300")] == [
        True
    ] * 5
    assert attnzoo.why_not("linear", kernel="fla", dtype=torch.float16, mask=Mask(causal=False))[-2:] == [
        "fla takes linear under a causal mask only",
        "fla gives the sums that linear divides by in float16, where they overflow: give bfloat16",
    ]
    module = attnzoo.build("deltanet", n_heads=1, head_dim=8, d_model=8, kernel="fla")
    with pytest.raises(Refused, match="is not installed"):
        module(*(torch.zeros(1, 1, 2, 8) for _ in range(3)), x=torch.zeros(1, 2, 8))


def test_rules_that_are_others_there_have_no_such_kernel():
    for name in ("performer", "based", "nsa", "moba"):
        assert "fla" not in attnzoo.registry.get(name).kernels


@NEEDS_FLA
@pytest.mark.parametrize("name", ["retention", "gla", "mamba2", "deltanet", "gated_deltanet", "kda"])
def test_the_definition_is_fla_s_own(name):
    """The float64 definition here against fla's naive functions, which are plain PyTorch."""
    from fla.ops.delta_rule.naive import delta_rule_recurrence
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
    from fla.ops.gla.naive import naive_recurrent_gla
    from fla.ops.kda.naive import naive_recurrent_kda
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    options = {"normalise": False} if name == "retention" else {}
    module = attnzoo.build(name, n_heads=2, head_dim=4, d_model=6, **options)
    torch.manual_seed(0)
    q, k, v, x = *(torch.randn(2, 2, 9, 4) for _ in range(3)), torch.randn(2, 9, 6)
    right = module.reference(q, k, v, x=None if name == "retention" else x)[0].float()
    with torch.no_grad():
        t = module.terms(q, k, v, x)
        there = [s.transpose(1, 2) for s in (t.q * (module.scale if name == "retention" else 1), t.k, t.v)]
        g = None if t.decay is None else t.decay.expand(2, -1, -1, -1).transpose(1, 2)
        beta = None if t.beta is None else t.beta.transpose(1, 2)
        if name == "deltanet":
            found = delta_rule_recurrence(t.q * 2, t.k, t.v, t.beta)[0]  # it divides by sqrt(D) itself
        elif name == "gated_deltanet":
            found = naive_recurrent_gated_delta_rule(*there, beta, g[..., 0], scale=1.0)[0].transpose(1, 2)
        elif name == "kda":
            found = naive_recurrent_kda(*there, g, beta, scale=1.0)[0].transpose(1, 2)
        elif name == "gla":
            found = naive_recurrent_gla(there[0] * 2, *there[1:], g)[0].transpose(1, 2)
        else:
            found = naive_recurrent_simple_gla(*there, g[..., 0], scale=1.0)[0].transpose(1, 2)
    # float32 sums of 9 tokens of 4 channels
    torch.testing.assert_close(found.float(), right, rtol=1e-4, atol=1e-5)


@NEEDS_FLA
def test_the_kernels_in_triton_s_interpreter_agree_with_the_scan():
    code = [sys.executable, str(HERE / "interpreted_fla.py")]
    done = subprocess.run(code, capture_output=True, text=True, env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout
    assert done.stdout.count("agrees") == 6


def test_padding_the_channels_changes_nothing():
    t = torch.randn(1, 2, 3, 5)
    there = fla._there(t, 2)
    assert there.shape == (1, 3, 4, 16)
    assert torch.equal(there[..., :5], t.repeat_interleave(2, 1).transpose(1, 2))
    assert not F.pad(there, (-5, 0)).any()
