"""The attention inside a small language model: training step, prefill, decoding per token."""

from __future__ import annotations

import torch

from attnzoo import registry
from attnzoo.errors import Refused
from attnzoo.measure.bench import Setting, Work
from attnzoo.measure.cost import decode_contestant, prefill_contestant, train_contestant, train_step_flops
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig
from attnzoo.model.lm import CausalLM

OPS = ("train_step", "prefill", "decode")
VOCABULARY = 256


def make(name: str, op: str, setting: Setting, n_tokens: int) -> Work:
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
        VOCABULARY,
        setting.seed,
    ).to(setting.device)
    kv_heads = model.attention_modules()[0].n_kv_heads
    why = registry.why_not(
        name, device=setting.device, dtype=setting.dtype, n_heads=setting.n_heads, n_kv_heads=kv_heads,
        head_dim=setting.head_dim, training=op == "train_step", **options,
    )  # fmt: skip
    if why:
        raise Refused(f"{name} cannot run {op}", why)
    batch, new = setting.batch_size, setting.decode_tokens
    if op == "train_step":
        contestant, flops = (
            train_contestant(model, batch, n_tokens, precision),
            train_step_flops(model, batch, n_tokens),
        )
    elif op == "prefill":
        contestant, flops = prefill_contestant(model, batch, n_tokens, precision), batch * model.flops(n_tokens)
    else:
        contestant = decode_contestant(model, batch, n_tokens, new, precision)
        flops = batch * decode_flops(model, n_tokens)
    weigh = None if op == "decode" else contestant.run
    extra = {} if op == "train_step" else {"state_bytes": model.new_cache(batch, n_tokens).nbytes}
    extra["parameters"] = model.parameter_count()
    return Work(contestant, kv_heads, flops, 0.0, lambda: model.kernel, weigh, extra)


def decode_flops(model: CausalLM, context: int) -> float:
    """Forward operations of one more token after ``context`` tokens, one sequence."""
    attention = sum(a.flops(1, context + 1) - a.flops(1, 1) for a in model.attention_modules())
    return model.flops(1) + attention
