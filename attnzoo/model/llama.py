"""Models whose layout Hugging Face transformers has too: written for it and read from it, without importing it.

Without QK-norm the equal is `LlamaForCausalLM`, with it `Qwen3ForCausalLM`, which is Llama with an RMSNorm over each head of
q and k. Both turn channel c with c + D/2 and read key/value heads interleaved, as here.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from attnzoo.arguments import demand, path, text
from attnzoo.data.tokenizer import Tokenizer
from attnzoo.errors import Refused, RequestError, unknown
from attnzoo.files import json_text, read_json, write_folder_atomic
from attnzoo.model.build import assemble, head_dim_of
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig, Recipe, attention_of_layers
from attnzoo.model.export import check_export, recipe_of
from attnzoo.model.lm import CausalLM, hidden_width

SOFTMAX = ("exact", "flex", "gqa", "mqa", "sdpa", "xformers")
"""The backends that compute plain softmax attention, which is Llama's."""
KINDS = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
CARRIED = {
    "n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "mlp_ratio", "mlp_width", "qk_norm", "attention_dropout",
    "norm_eps", "attention_pattern", "attention_options", "tie_embeddings",
}  # fmt: skip
"""Settings that the configuration of either has a place for, or that `SOFTMAX` is checked through."""


def export_llama(model: CausalLM, folder: str | os.PathLike[str], tokenizer: Tokenizer | None = None) -> Path:
    """Write a folder that ``from_pretrained`` of `KINDS` loads, its logits equal but for rounding.

    Args:
        folder: a new one; whole or not at all.
        tokenizer: written as ``tokenizer.json``.

    Raises:
        Refused: the model has no equal there, with every reason.
    """
    check_export(model, folder, tokenizer)
    recipe = recipe_of(model)
    why = _reasons(recipe, model)
    if why:
        raise Refused("this model has no equal among Hugging Face's Llama and Qwen3", why)
    config = llama_config(model)
    tensors = {their: t.detach().cpu().contiguous() for their, t in llama_weights(model).items()}
    files = {
        "config.json": json_text(config).encode(),
        "model.safetensors": safetensors.torch.save(tensors, {"format": "pt"}),
    }
    if tokenizer is not None:
        files["tokenizer.json"] = _tokenizer_json(tokenizer).encode()
        files["tokenizer_config.json"] = json_text({"tokenizer_class": "PreTrainedTokenizerFast"}).encode()
    return write_folder_atomic(folder, files)


def from_llama(source: Any, attention: str = "sdpa") -> CausalLM:
    """A Hugging Face Llama or Qwen3 as a model of this package, in float32 on the CPU, in evaluation mode.

    Args:
        source: a folder with config.json and safetensors, or a model of transformers.
        attention: what computes the softmax, one of `SOFTMAX`.

    Raises:
        Refused: it has something that has no equal here, with every reason.
        RequestError: no such folder, or a broken one.
    """
    demand(
        "this model cannot be taken over",
        [] if hasattr(source, "state_dict") and hasattr(source, "config") else path("source", source),
        text("attention", attention),
    )
    config, tensors = _read(source)
    why = [] if attention in SOFTMAX else [unknown("softmax backend", attention, SOFTMAX)]
    why += _their_reasons(config, tensors)
    if why:
        raise Refused("this model cannot be taken over", why)
    model = _empty(config, attention, tied=_head_is_embedding(tensors))
    with torch.no_grad():
        own = llama_weights(model)
        why = [f"{name} is missing" for name in own if name not in tensors]
        tied = {"lm_head.weight"} if model.head is None else set()  # some write it out all the same
        why += [f"{name} has no place here" for name in tensors if name not in own and name not in tied]
        why += [
            f"{name} is {tuple(tensors[name].shape)}, expected {tuple(tensor.shape)}"
            for name, tensor in own.items()
            if name in tensors and tensors[name].shape != tensor.shape
        ]
        if why:
            raise Refused("this model cannot be taken over", why)
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
    return model.eval()


def llama_weights(model: CausalLM) -> dict[str, Tensor]:
    """Each weight under its name in transformers; parts of a fused matrix are views of it."""
    weights = {"model.embed_tokens.weight": model.embedding.weight, "model.norm.weight": model.norm.weight}
    if model.head is not None:
        weights["lm_head.weight"] = model.head.weight
    for n, block in enumerate(model.layers):
        held = {name.rsplit(".", 2)[-2]: p for name, p in block.named_parameters()}  # by the name of the module
        attn, layer = block.attention.attention, f"model.layers.{n}"
        heads = [attn.n_heads, attn.n_kv_heads, attn.n_kv_heads]
        q, k, v = held["qkv"].split([count * attn.head_dim for count in heads])
        gate, up = held["gate_up"].chunk(2)
        weights |= {
            f"{layer}.self_attn.q_proj.weight": q,
            f"{layer}.self_attn.k_proj.weight": k,
            f"{layer}.self_attn.v_proj.weight": v,
            f"{layer}.self_attn.o_proj.weight": held["out"],
            f"{layer}.mlp.gate_proj.weight": gate,
            f"{layer}.mlp.up_proj.weight": up,
            f"{layer}.mlp.down_proj.weight": held["down"],
            f"{layer}.input_layernorm.weight": held["attention_norm"],
            f"{layer}.post_attention_layernorm.weight": held["mlp_norm"],
        }
        weights |= {f"{layer}.self_attn.{norm}.weight": held[norm] for norm in ("q_norm", "k_norm") if norm in held}
    return weights


def llama_config(model: CausalLM) -> dict[str, Any]:
    """The configuration of its equal in transformers, for a model that has one."""
    recipe = recipe_of(model)
    cfg, kind = recipe.model, "qwen3" if recipe.model.qk_norm else "llama"
    config = {
        "architectures": [KINDS[kind]],
        "model_type": kind,
        "vocab_size": recipe.vocab_size,
        "hidden_size": cfg.d_model,
        "intermediate_size": hidden_width(model.cfg),
        "num_hidden_layers": cfg.n_layers,
        "num_attention_heads": cfg.n_heads,
        "num_key_value_heads": model.attention_modules()[0].n_kv_heads,
        "head_dim": head_dim_of(cfg),
        "hidden_act": "silu",
        "rms_norm_eps": cfg.norm_eps,
        "rope_theta": recipe.positions.base,  # read up to transformers 4
        "rope_parameters": {"rope_type": "default", "rope_theta": recipe.positions.base},
        "max_position_embeddings": recipe.positions.max_tokens,
        "attention_bias": False,
        "attention_dropout": cfg.attention_dropout,
        "tie_word_embeddings": cfg.tie_embeddings,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
    }
    return config | ({"mlp_bias": False} if kind == "llama" else {"use_sliding_window": False})


def _reasons(recipe: Recipe, model: CausalLM) -> list[str]:
    names = dict.fromkeys(choice.name for choice in attention_of_layers(recipe.model, recipe.attention))
    why = [f"attention {name}: only {', '.join(SOFTMAX)} have one" for name in names if name not in SOFTMAX]
    if recipe.positions.name != "rope":
        why.append(f"positions {recipe.positions.name}: theirs are rope")
    for field in dataclasses.fields(ModelConfig):
        value, plain = getattr(recipe.model, field.name), getattr(ModelConfig(), field.name)
        if field.name not in CARRIED and value != plain:
            why.append(f"model.{field.name}={value}: they have nothing but {plain}")
    if len({attn.n_kv_heads for attn in model.attention_modules()}) > 1:
        why.append("the layers have different numbers of key/value heads: theirs have one")
    return why


def _read(source: Any) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
    """Configuration and weights of a folder or of a model in memory."""
    if hasattr(source, "state_dict") and hasattr(source, "config"):
        return source.config.to_dict(), source.state_dict()
    folder = Path(source)
    config = read_json(folder / "config.json")
    if not isinstance(config, dict):
        raise RequestError(f"{folder / 'config.json'} holds no configuration")
    index = folder / "model.safetensors.index.json"
    names = sorted(set(read_json(index)["weight_map"].values())) if index.exists() else ["model.safetensors"]
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            tensors |= safetensors.torch.load_file(folder / name)
        except FileNotFoundError:
            raise RequestError(f"{folder} holds no weights: {name} is missing") from None
        except (OSError, safetensors.SafetensorError) as error:
            raise RequestError(f"{folder / name} cannot be read: {error}") from error
    return config, tensors


def _their_reasons(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[str]:
    """What of a Hugging Face model has no equal here."""
    if config.get("model_type") not in KINDS:
        return [unknown("model_type", str(config.get("model_type")), KINDS)]
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    why = [f"{key}={config.get(key)!r}: must be a whole number" for key in needed if type(config.get(key)) is not int]
    if config.get("hidden_act", "silu") != "silu":
        why.append(f"hidden_act {config['hidden_act']}: the MLP here is SwiGLU, with silu")
    why += [f"{key}: the projections here have no bias" for key in ("attention_bias", "mlp_bias") if config.get(key)]
    rope = config.get("rope_parameters") or {}
    scaled = config.get("rope_scaling") or rope
    if (
        scaled.get("rope_type", scaled.get("type", "default")) != "default"
        or rope.get("partial_rotary_factor", 1.0) != 1.0
    ):
        why.append(f"rope is scaled or partial ({scaled}): here it is plain")
    if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or []):
        why.append("some layers have a sliding window")
    if config.get("tie_word_embeddings") and not _head_is_embedding(tensors):
        why.append("tie_word_embeddings is true, but lm_head has weights of its own")
    return why


def _head_is_embedding(tensors: Mapping[str, Tensor]) -> bool:
    head, embedding = tensors.get("lm_head.weight"), tensors.get("model.embed_tokens.weight")
    return head is None or (embedding is not None and torch.equal(head, embedding))


def _empty(config: Mapping[str, Any], attention: str, tied: bool) -> CausalLM:
    """A model of that layout; ``tied`` where the configuration does not say."""
    rope = config.get("rope_parameters") or {}
    model = ModelConfig(
        n_layers=config["num_hidden_layers"],
        d_model=config["hidden_size"],
        n_heads=config["num_attention_heads"],
        n_kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
        head_dim=config.get("head_dim"),
        mlp_width=config["intermediate_size"],
        qk_norm=config["model_type"] == "qwen3",
        attention_dropout=config.get("attention_dropout", 0.0),
        norm_eps=config.get("rms_norm_eps", 1e-6),
        tie_embeddings=bool(config.get("tie_word_embeddings", tied)),
    )
    base = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    positions = PositionsConfig("rope", base, config.get("max_position_embeddings", 2048))
    return assemble(model, AttentionConfig(attention, {}), positions, config["vocab_size"], seed=0)


def _tokenizer_json(tokenizer: Tokenizer) -> str:
    """The tokenizer in the format of the tokenizers library; bytes are a BPE without merges."""
    state = tokenizer.state()
    if state["name"] == "bpe":
        return state["model"]
    vocab = {_spelt(byte): byte for byte in range(256)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    bpe: dict[str, Any] = {
        "type": "BPE",
        "unk_token": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": vocab,
        "merges": [],
    }
    return json_text({"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": bpe})


def _spelt(byte: int) -> str:
    """GPT-2's spelling of a byte: itself where it prints, else a letter from U+0100 on."""
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte) if byte in prints else chr(256 + [b for b in range(256) if b not in prints].index(byte))
