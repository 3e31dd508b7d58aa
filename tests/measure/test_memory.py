import math

import pytest
import torch

from attnzoo import build
from attnzoo.measure import memory
from attnzoo.measure.memory import peak_memory, train_step_memory
from attnzoo.model.config import ModelConfig
from attnzoo.training.config import AttentionConfig, RunConfig


def test_peak_counts_what_lives_at_once():
    def work():
        a = torch.zeros(250_000)  # 1 MB
        b = a + 1  # 2 MB
        del a
        c = b + 1  # 2 MB again
        del b, c

    peak, method = peak_memory(work)
    assert 2_000_000 <= peak < 2_010_000  # small bookkeeping tensors on top
    assert "profiler" in method


def growth(name: str, lengths: tuple[int, ...], **options) -> float:
    """Exponent of the peak of a forward and backward between the first and the last length."""
    attn = build(name, n_heads=2, head_dim=16, **options)
    peaks = []
    for n_tokens in lengths:
        q, k, v = (torch.randn(1, 2, n_tokens, 16, requires_grad=True) for _ in range(3))

        def work(q=q, k=k, v=v):
            torch.autograd.grad(attn(q, k, v).sum(), (q, k, v))

        work()
        peaks.append(peak_memory(work)[0])
    return math.log(peaks[-1] / peaks[0]) / math.log(lengths[-1] / lengths[0])


@pytest.mark.parametrize(
    ("name", "options"),
    [("sliding_window", {"window": 32}), ("block_sparse", {"block": 16}), ("linear", {"chunk": 32})],
)
def test_linear_backends_grow_linearly(name, options):
    assert growth(name, (512, 1024, 2048), **options) == pytest.approx(1.0, abs=0.05)


def test_exact_grows_quadratically():
    # (a n² + b n) with b n a few percent at n = 512: the exponent lies a little below 2
    assert growth("exact", (512, 1024)) == pytest.approx(2.0, abs=0.1)


def test_a_training_step_in_a_fresh_process():
    cfg = RunConfig(attention=AttentionConfig("exact", {}), model=ModelConfig(n_layers=1, d_model=32, n_heads=2))
    short, long = (train_step_memory(cfg, vocab_size=32, batch_size=2, n_tokens=n) for n in (512, 1024))
    assert long["status"] == "ok", long["reasons"]
    scores = 2 * 2 * 1024**2 * 4  # one matrix of scores (B, H, T, T) in float32
    assert long["bytes"] - long["resting_bytes"] > 2 * scores  # backward holds weights and their gradient at once
    # the process sees the same growth; what it loads at the first step, up to 20 MB whatever the length, drops out of the
    # difference, and allocator slack and page rounding stay below a quarter of these 50 MB
    grown = [found["bytes"] - found["resting_bytes"] for found in (short, long)]
    assert long["process_bytes"] - short["process_bytes"] == pytest.approx(grown[1] - grown[0], rel=0.25)


def test_a_refused_model_says_why():
    cfg = RunConfig(attention=AttentionConfig("flex", {}), model=ModelConfig(n_layers=1, d_model=32, n_heads=2))
    found = memory._measure(memory._describe(cfg, 32, 1, 16, "cpu", "fp32"))  # what the process of its own runs
    assert found["status"] == "refused"
    assert "backward" in found["reasons"][0]
    assert found["bytes"] is None
