"""The entropy canary: uniform random tokens cannot be predicted, so a model that learns to predict them sees them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.checks.leak_subject import LeakTest, check_logits
from attnzoo.errors import RequestError
from attnzoo.seeds import seeded

DEVIATIONS = 5.0
"""How many standard errors below the entropy count as chance: one false alarm in three million."""
MOST_SYMBOLS = 64
"""Tokens are drawn from at most this many symbols: fewer are learned sooner, and the bound is their entropy."""


def entropy_canary(
    make_model: Callable[[], nn.Module],
    vocab_size: int,
    n_tokens: int = 32,
    steps: int = 150,
    seed: int = 0,
    *,
    batch_size: int = 16,
    learning_rate: float = 3e-3,
    device: str | torch.device = "cpu",
    alphabet: Sequence[int] | None = None,
    within: Callable[[], AbstractContextManager] = nullcontext,
    name: str = "entropy_canary",
) -> LeakTest:
    """Train a fresh model briefly (AdamW) on fresh uniform tokens and hold its loss to their entropy.

    Each batch is scored before the model is trained on it. Whatever a causal model has learned, its expected loss there
    is at least ln V (Gibbs' inequality). The mean over the second half of the steps may fall below by chance, by at
    most `DEVIATIONS` of its standard errors, estimated from the same losses. A leak that serves few predictions, or
    is hard to use, needs more steps: the perturbation tests are sharper.

    Args:
        make_model: a new module, tokens (B, T) -> logits (B, T, V); a copy of a trained one serves as well.
        vocab_size: V. Tokens are drawn from min(V, 64) symbols, and the bound is the logarithm of that.
        n_tokens, batch_size, steps, learning_rate: T, B, and the training.
        alphabet: the symbols, where a trained model knows some tokens better than others; None: the first ones.
        within: the context of its forward pass, such as autocast.

    Returns:
        The test ``name``. ``max_change`` is how far the loss lies below the entropy, in nats a token, or 0;
        ``first_leaking_position`` the logit that predicts best, when it failed.

    Raises:
        RequestError: sizes that make no sense, a model without parameters, or logits of another shape.
    """
    if vocab_size < 2 or n_tokens < 2 or steps < 2 or batch_size < 1:
        raise RequestError(
            "the canary needs vocab_size, n_tokens and steps of at least 2, and batch_size of at least 1"
        )
    symbols = torch.arange(vocab_size) if alphabet is None else torch.tensor(list(alphabet))
    symbols, device = symbols[:MOST_SYMBOLS], torch.device(device)
    with seeded(seed, device), torch.enable_grad():
        model = make_model().to(device).train()
        losses = _losses(model, vocab_size, symbols, n_tokens, steps, batch_size, learning_rate, seed, device, within)
    return _verdict(name, losses, math.log(len(symbols)))


def _losses(model, vocab_size, symbols, n_tokens, steps, batch_size, learning_rate, seed, device, within) -> Tensor:
    """(n, T - 1): nats of each prediction in the second half of the training, each before the model saw its target."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise RequestError("the canary trains a model, and this one has no parameters to train")
    optimiser = torch.optim.AdamW(parameters, lr=learning_rate)
    draw, kept = torch.Generator().manual_seed(seed), []
    for step in range(steps):
        tokens = symbols[torch.randint(len(symbols), (batch_size, n_tokens), generator=draw)].to(device)
        with within():
            out = model(tokens)
        logits = check_logits(out, tokens, vocab_size)[:, :-1].float()
        loss = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        if step >= steps // 2:
            kept.append(loss.detach().double().cpu())
        optimiser.zero_grad()
        loss.mean().backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
    return torch.cat(kept)


def _verdict(name: str, losses: Tensor, entropy: float) -> LeakTest:
    mean = float(losses.mean())
    if not math.isfinite(mean):
        return LeakTest(name, False, detail="the loss on random tokens is not finite")
    slack = DEVIATIONS * float(losses.std()) / math.sqrt(losses.numel())
    below = max(entropy - mean, 0.0)
    said = f"loss {mean:.3f} on fresh uniform tokens, entropy {entropy:.3f}, sampling allows {slack:.3f} below"
    if below <= slack:
        return LeakTest(name, True, max_change=below, detail=said)
    best = int(losses.mean(0).argmin())
    detail = f"{said}: it sees what it predicts, logit {best} best (loss {float(losses[:, best].mean()):.3f})"
    return LeakTest(name, False, max_change=below, first_leaking_position=best, detail=detail)
