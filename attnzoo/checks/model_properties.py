"""The properties behind `check_model`: each returns the input on which it held, or raises `Failed` or `Skip`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo.checks.compare import Failed, Skip, expect_same
from attnzoo.checks.leak_setup import modules_behind, rounding
from attnzoo.contract import Attention
from attnzoo.shapes import IGNORE

PROMPT, PADS = 11, 32


@dataclass
class Model:
    """The model under check, in evaluation mode, and random tokens for it."""

    fn: Callable[..., Tensor]
    vocab_size: int
    device: torch.device
    draw: torch.Generator

    def __call__(self, tokens: Tensor, **how: Any) -> Tensor:
        return self.fn(tokens, **how).clone()  # the next call may write into the same memory

    def tokens(self, *shape: int) -> Tensor:
        return torch.randint(self.vocab_size, shape, generator=self.draw).to(self.device)

    def other(self, tokens: Tensor) -> Tensor:
        """Another token in every place."""
        step = torch.randint(1, self.vocab_size, tokens.shape, generator=self.draw).to(self.device)
        return (tokens + step) % self.vocab_size

    def needs_argument(self, name: str) -> None:
        """Skip unless the model takes the argument ``name``."""
        taken = inspect.signature(self.fn.forward if isinstance(self.fn, nn.Module) else self.fn).parameters
        if name not in taken:
            raise Skip(f"the model takes no {name}")

    def method(self, name: str) -> Any:
        """A method of the model; skip if there is none."""
        found = getattr(self.fn, name, None)
        if found is None:
            raise Skip(f"the model has no {name}")
        return found

    def bound(self, logits: Tensor) -> float:
        """How far rounding may move these logits where the same is computed in other shapes."""
        return rounding(logits.dtype, modules_behind(self.fn), self.device)[0] * float(logits.abs().max())


# -- parameters and loss -----------------------------------------------------------------------------------------------


def tied_weights(m: Model) -> str:
    """A tied weight is one parameter: counted once, and used at both ends; one that is declared untied is not."""
    embedding = next((e for e in _modules(m) if isinstance(e, nn.Embedding) and e.num_embeddings == m.vocab_size), None)
    if embedding is None:
        raise Skip("the model has no nn.Embedding of the vocabulary")
    owners: dict[tuple, set[int]] = {}
    for top in modules_behind(m.fn):
        for _, p in top.named_parameters(remove_duplicate=False):
            owners.setdefault((p.data_ptr(), p.shape), set()).add(id(p))
    split = [shape for (_, shape), ids in owners.items() if len(ids) > 1]
    if split:
        raise Failed("one parameter", "two parameters over one memory", f"shape {tuple(split[0])}")
    if (count := getattr(m.fn, "parameter_count", None)) is not None:
        unique = sum(p.numel() for p in m.fn.parameters())  # type: ignore[attr-defined]
        if count() != unique:
            raise Failed(f"{unique} parameters, each once", str(count()), "parameter_count()")
    tokens = m.tokens(1, 3)
    unread = next(v for v in range(m.vocab_size) if not (tokens == v).any())
    before, row = m(tokens), embedding.weight[unread].clone()
    try:
        embedding.weight[unread] += 1.0
        moved = (m(tokens) != before).any(dim=(0, 1))
    finally:
        embedding.weight[unread] = row
    declared = getattr(getattr(m.fn, "cfg", None), "tie_embeddings", None)
    if declared is not None and declared != bool(moved.any()):
        tied, own = "the head is the embedding", "the head has weights of its own"
        expected, actual = (tied, own) if declared else (own, tied)
        raise Failed(expected, actual, f"tie_embeddings={declared}")
    if not moved.any():
        if declared is None:
            raise Skip("the head has weights of its own")
        return "untied, as declared: no logit moves with the embedding of a token that is not read"
    if not moved[unread] or moved.sum() > 1:
        raise Failed(
            f"logit {unread} moves with row {unread} of the tied weight", f"logits {moved.nonzero()[:, 0].tolist()}"
        )
    return f"the head uses row {unread} of the embedding for logit {unread}"


def loss_over_tokens(m: Model) -> str:
    """The loss is the mean over scored tokens, whatever batch they stand in, and does not see the others."""
    loss, v = m.method("loss"), m.vocab_size
    logits = torch.randn(3, 6, v, generator=m.draw).to(m.device)
    targets = m.tokens(3, 6)
    targets[0, 1:], targets[1, 4:] = IGNORE, IGNORE  # 1, 4 and 6 scored tokens
    nats = -logits.double().log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    scored = targets != IGNORE
    right, found = float(nats[scored].mean()), float(loss(logits, targets))
    # float32 sums of 11 terms of a few nats: 1e-5 is a hundred units
    if not abs(found - right) < 1e-5 * max(1.0, abs(right)):
        by_row = float(torch.stack([n[s].mean() for n, s in zip(nats, scored, strict=True)]).mean())
        hint = "the mean of the rows' means" if abs(found - by_row) < 1e-5 else ""
        raise Failed(f"{right:.6f}", f"{found:.6f}", "rows with 1, 4 and 6 scored tokens", hint)
    changed = torch.where(scored[..., None], logits, torch.randn(3, 6, v, generator=m.draw).to(m.device))
    expect_same(loss(changed, targets), loss(logits, targets), "loss", detail="a logit that is not scored counts")
    return "rows with 1, 4 and 6 scored tokens"


# -- rows, padding, documents ------------------------------------------------------------------------------------------


def batch_independence(m: Model) -> str:
    """A row gives the same logits alone and in a batch, within rounding."""
    tokens = m.tokens(8, PROMPT)
    together = m(tokens)
    alone = torch.cat([m(row[None]) for row in tokens])
    expect_same(alone, together, "logits", m.bound(together), "batch of 1 against batch of 8")
    return "batch of 1 and of 8"


def left_padding(m: Model) -> str:
    """Padding on the left changes no logit of a real token."""
    return _padding(m, left=True)


def right_padding(m: Model) -> str:
    """Padding on the right changes no logit of a real token."""
    return _padding(m, left=False)


def _padding(m: Model, left: bool) -> str:
    m.needs_argument("key_padding")
    tokens, pads = m.tokens(2, PROMPT), m.tokens(2, PADS)
    real = torch.ones_like(tokens, dtype=torch.bool)
    order = slice(None, None, -1 if left else 1)
    mask = torch.cat([real, torch.zeros_like(pads, dtype=torch.bool)][order], 1)

    def padded(with_pads: Tensor) -> Tensor:
        out = m(torch.cat([tokens, with_pads][order], 1), key_padding=mask)
        return out[:, PADS:] if left else out[:, :PROMPT]

    alone, first, second = m(tokens), padded(pads), padded(m.other(pads))
    side = f"{PADS} pads on the {'left' if left else 'right'}"
    expect_same(second, first, "logits", 0.0 if _exact(m) else m.bound(alone), f"{side}, their ids changed")
    if left and (fixed := fixed_to_the_start(m, PADS)):
        return f"{side}, their ids changed; {fixed}"
    expect_same(first, alone, "logits", m.bound(alone), f"{side} against none")
    return side


def documents_isolated(m: Model) -> str:
    """A packed document gives the logits it gives alone, and does not change with its neighbours."""
    m.needs_argument("documents")
    first, second = m.tokens(2, PROMPT), m.tokens(2, PROMPT + 2)
    ids = torch.cat([torch.zeros_like(first), torch.ones_like(second)], 1)
    packed = m(torch.cat([first, second], 1), documents=ids)
    changed = m(torch.cat([m.other(first), second], 1), documents=ids)
    allowed = 0.0 if _exact(m) else m.bound(packed)
    expect_same(changed[:, PROMPT:], packed[:, PROMPT:], "logits of document 1", allowed, "document 0 changed")
    said = f"documents of {PROMPT} and {PROMPT + 2} tokens"
    if fixed := fixed_to_the_start(m, PROMPT):
        return f"{said}; {fixed}"
    for part, alone in ((packed[:, :PROMPT], m(first)), (packed[:, PROMPT:], m(second))):
        expect_same(part, alone, "logits", m.bound(alone), "packed against alone")
    return said


# -- helpers -----------------------------------------------------------------------------------------------------------


def _modules(m: Model) -> list[nn.Module]:
    return [part for top in modules_behind(m.fn) for part in top.modules()]


def _exact(m: Model) -> bool:
    """Whether no attention of the model declares that its kernel may round differently."""
    return all(part.capabilities.bitwise_prefix for part in _modules(m) if isinstance(part, Attention))


def fixed_to_the_start(m: Model, by: int) -> str:
    """Why a sequence that starts ``by`` tokens later is another one to this model; empty if it is not."""
    i = torch.arange(48, device=m.device)[:, None]
    for part in _modules(m):
        if isinstance(part, Attention) and (here := part.pattern(i, i.mT)) is not None:
            there = part.pattern(i + by, i.mT + by)
            if there is None or not torch.equal(here, there):
                return f"{part.name} counts its blocks from the first token, so that a shifted sequence sees others"
    return ""
