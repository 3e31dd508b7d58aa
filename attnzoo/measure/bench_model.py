"""The attention inside a small language model: training step, prefill, decoding per token."""

from __future__ import annotations

import torch

from attnzoo import registry
from attnzoo.errors import Refused
from attnzoo.measure.bench_row import Setting, Work
from attnzoo.measure.cost import (
    decode_contestant,
    generate_contestant,
    new_cache,
    prefill_contestant,
    train_contestant,
    train_step_flops,
)
from attnzoo.measure.latency import Contestant
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.model.lm import CausalLM

WHOLE = ("train_step", "prefill")  # compiled as they are; the others have a graph for all lengths


def make(name: str, op: str, setting: Setting, n_tokens: int, compiled: bool = False) -> Work:
    """One work of a model with this backend in every layer; T is the length of the step, of the prompt, or of the
    context.

    Raises:
        Refused: the backend has no such pass here.
    """
    options = setting.options.get(name, {})
    precision = {torch.float32: "fp32", torch.bfloat16: "bf16"}.get(setting.dtype)
    if precision is None:
        raise Refused(f"no model in {setting.dtype}", ["a model is measured in float32, or bfloat16 by autocast"])
    model = assemble(
        ModelConfig(
            n_layers=setting.n_layers,
            d_model=setting.n_heads * setting.head_dim,
            n_heads=setting.n_heads,
            n_kv_heads=setting.n_kv_heads,
        ),
        AttentionConfig(name, dict(options)),
        PositionsConfig(),
        setting.vocab_size,
        setting.seed,
    ).to(setting.device)
    kv_heads = model.attention_modules()[0].n_kv_heads
    why = registry.why_not(
        name, device=setting.device, dtype=setting.dtype, n_heads=setting.n_heads, n_kv_heads=kv_heads,
        head_dim=setting.head_dim, training=op == "train_step", **options,
    )  # fmt: skip
    if why:
        raise Refused(f"{name} cannot run {op}", why)
    if compiled and op in WHOLE:
        model.compile(dynamic=False)
    contestant, flops, n_bytes = _contestant(model, op, setting, n_tokens, precision, compiled)
    extra = {} if op == "train_step" else {"state_bytes": model.new_cache(setting.batch_size, n_tokens).nbytes}
    extra["parameters"] = model.parameter_count()
    return Work(contestant, kv_heads, flops, n_bytes, lambda: "compiled" if compiled else model.kernel, extra)


def _contestant(
    model: CausalLM, op: str, setting: Setting, n_tokens: int, precision: str, compiled: bool
) -> tuple[Contestant, float, float]:
    """The work, and its operations and bytes a unit. Bytes count what no kernel can spare: parameters once, with AdamW's
    two moments read and written in a training step; a prompt's state written once, and read once a token."""
    batch, new = setting.batch_size, setting.decode_tokens
    weights = sum(p.nbytes for p in model.parameters())
    if op == "train_step":
        flops = train_step_flops(model, batch, n_tokens)
        return train_contestant(model, batch, n_tokens, precision), flops, 6 * weights
    state = new_cache(model, batch, n_tokens, precision).nbytes
    prompt = batch * model.flops(n_tokens)
    if op == "prefill":
        return prefill_contestant(model, batch, n_tokens, precision), prompt, weights + state
    each = batch * decode_flops(model, n_tokens)
    if op == "decode":
        return decode_contestant(model, batch, n_tokens, new, precision, compiled), each, weights + state
    contestant = generate_contestant(model, batch, n_tokens, new, precision, compiled)
    return contestant, prompt / new + each, (1 + 1 / new) * (weights + state)


def decode_flops(model: CausalLM, context: int) -> float:
    """Forward operations of one more token after ``context`` tokens, one sequence."""
    decoders = [block.attention.projection.decoder(block.attention.attention) for block in model.layers]
    return model.flops(1) + sum(a.decode_flops(context) - a.flops(1, 1) for a in decoders)
