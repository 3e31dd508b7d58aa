"""Races of a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnzoo.measure.cost import train_contestant
from attnzoo.measure.environment import fast_bf16_on_cpu
from attnzoo.measure.latency import Contestant
from attnzoo.measure.peers import limits, llama, lucidrains, plain
from attnzoo.measure.peers.race import Bar, Entry, Race, expect_same
from attnzoo.measure.peers.sizes import Sizes
from attnzoo.measure.step import random_tokens
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.model.lm import CausalLM

VOCABULARY = 256
LIMIT = "products and flash alone"
UNIT = 256  # a matrix product small enough for emulated bf16


def train_races(sizes: Sizes, seed: int) -> Iterator[Race]:
    """sdpa in our model, the same model in a plain loop, and, without QK-norm, Llama and x-transformers; the limit is the
    same for all."""
    for title, cfg in sizes.models:
        # x-transformers' norm has no epsilon, and none of the two has QK-norm
        ours, bare = model(cfg, seed), model(replace(cfg, qk_norm=False, norm_eps=1e-12), seed)
        entries: dict[str, Callable[[], Entry]] = {
            "ours": partial(_ours, ours, sizes),
            "plain loop": partial(_peer, partial(_plain, ours, sizes), ours, sizes),
            "ours, no QK-norm": partial(_ours, bare, sizes),
            "Hugging Face Llama": partial(_peer, partial(_llama, bare, sizes), bare, sizes),
            "x-transformers": partial(_peer, partial(_x_transformer, bare, sizes), bare, sizes),
            LIMIT: partial(limits.train_products, bare, sizes.batch_size, sizes.train_tokens),
        }
        work = f"train step, {title}"
        bars = [
            Bar(work, "ours", ("plain loop",), 1.0, limit=LIMIT),
            Bar(work, "ours, no QK-norm", ("Hugging Face Llama",), 1.15, limit=LIMIT),
            Bar(work, "ours, no QK-norm", ("x-transformers",)),
        ]
        yield Race(
            f"{work}, B {sizes.batch_size}, T {sizes.train_tokens}", _shape(cfg, sizes), ("sdpa",), entries, bars
        )


def bf16_races(sizes: Sizes, seed: int) -> Iterator[Race]:
    """A step under bf16 autocast against the same in float32; only a matrix product where the CPU emulates bf16."""
    units = fast_bf16_on_cpu()
    for title, cfg in sizes.models:
        work = f"train step under bf16 autocast, {title}"
        if units is None:
            why = f"this CPU has neither AMX nor AVX512-BF16; the figures are of a {UNIT}² matrix product"
            entries = {
                name: partial(_product, kind) for name, kind in (("bf16", torch.bfloat16), ("fp32", torch.float32))
            }
        else:
            why, ours = None, model(cfg, seed)
            entries = {name: partial(_ours, ours, sizes, name) for name in ("bf16", "fp32")}
        yield Race(work, _shape(cfg, sizes), ("sdpa",), entries, [Bar(work, "bf16", ("fp32",), 1.3, unreachable=why)])
        if why:
            return


def model(cfg: ModelConfig, seed: int, attention: str = "sdpa", **options: Any) -> CausalLM:
    """Our language model over bytes, with rope."""
    return assemble(cfg, AttentionConfig(attention, options), PositionsConfig("rope"), VOCABULARY, seed)


def _ours(ours: CausalLM, sizes: Sizes, precision: str = "fp32") -> Entry:
    contestant = train_contestant(ours, sizes.batch_size, sizes.train_tokens, precision)
    return Entry(contestant, lambda: ours.kernel)


def _peer(
    make: Callable[[], tuple[nn.Module, Callable[[Tensor], Tensor], nn.Parameter]], ours: CausalLM, sizes: Sizes
) -> Entry:
    """A peer's training loop, once its logits and the gradient of its embedding, which all others pass through, are ours."""
    theirs, logits, embedding = make()
    tokens, targets = (random_tokens(ours, 1, sizes.train_tokens, seed=n) for n in range(2))
    found = []
    for call, weight in ((logits, embedding), (ours, ours.embedding.weight)):
        out = call(tokens)
        found.append((out, torch.autograd.grad(CausalLM.loss(out, targets), weight)[0]))
    for what, peer, own in zip(("logits", "the embedding's gradient"), *found, strict=True):
        expect_same(peer, own, what)
    batch = [random_tokens(ours, sizes.batch_size, sizes.train_tokens, seed=n) for n in range(2)]
    return Entry(plain.training_loop(theirs, logits, *batch))


def _plain(ours: CausalLM, sizes: Sizes):
    theirs = plain.plain_copy(ours.state_dict(), ours.cfg, sizes.train_tokens)
    return theirs, theirs, theirs.embedding.weight


def _llama(ours: CausalLM, sizes: Sizes):
    theirs = llama.llama_copy(ours, sizes.train_tokens)
    return theirs, lambda tokens: theirs(input_ids=tokens, use_cache=False).logits, theirs.model.embed_tokens.weight


def _x_transformer(ours: CausalLM, sizes: Sizes):
    theirs = lucidrains.x_transformer_copy(ours, sizes.train_tokens)
    return theirs, theirs, theirs.token_emb.emb.weight


def _product(dtype: torch.dtype) -> Entry:
    a = torch.randn(UNIT, UNIT).to(dtype)
    return Entry(Contestant(lambda: a @ a))


def _shape(cfg: ModelConfig, sizes: Sizes) -> dict[str, Any]:
    return {
        "T": sizes.train_tokens, "B": sizes.batch_size, "H": cfg.n_heads, "G": cfg.n_heads,
        "D": cfg.d_model // cfg.n_heads, "dtype": "float32",
    }  # fmt: skip
