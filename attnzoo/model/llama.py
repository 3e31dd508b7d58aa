"""Models whose layout Hugging Face transformers has too: written for it and read from it, without importing it.

Without QK-norm the equal is `LlamaForCausalLM`, with it `Qwen3ForCausalLM`, which is Llama with an RMSNorm over each head of
q and k. Both turn channel c with c + D/2 and read key/value heads interleaved, as here.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from attnzoo.arguments import demand, path, text
from attnzoo.errors import Refused, RequestError, unknown
from attnzoo.files import json_text, read_json, write_folder_atomic
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig, Recipe, attention_of_layers, head_dim_of
from attnzoo.model.export import check_export, recipe_of
from attnzoo.model.lm import CausalLM, hidden_width
from attnzoo.tokenizers import Tokenizer

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
    tensors, why = _without_frequencies(config, tensors)
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
        "rope_theta": recipe.positions.options["base"],  # read up to transformers 4
        "rope_parameters": {"rope_type": "default", "rope_theta": recipe.positions.options["base"]},
        "max_position_embeddings": recipe.max_tokens,
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
    names = _shards(index) if index.exists() else ["model.safetensors"]
    tensors: dict[str, Tensor] = {}
    for name in names:
        try:
            tensors |= safetensors.torch.load_file(folder / name)
        except FileNotFoundError:
            raise RequestError(f"{folder} holds no weights: {name} is missing") from None
        except (OSError, safetensors.SafetensorError) as error:
            raise RequestError(f"{folder / name} cannot be read: {error}") from error
    return config, tensors


def _shards(index: Path) -> list[str]:
    """The files that an index names: beside it, and nowhere else."""
    read = read_json(index)
    held = read.get("weight_map") if isinstance(read, dict) else None
    if not isinstance(held, dict) or not held:
        raise RequestError(f"{index} names no files: its weight_map must say the file of each weight")
    wrong = {
        repr(name) for name in held.values() if not isinstance(name, str) or not re.fullmatch(r"[\w-][\w.-]*", name)
    }
    if wrong:
        raise RequestError(f"{index} names files elsewhere, or none: {', '.join(sorted(wrong)[:3])}")
    return sorted(set(held.values()))


def _rope(config: Mapping[str, Any]) -> tuple[float, list[str]]:
    """The base of the rotary frequencies, and why they are not plain ones. Base and type may stand at the top,
    in ``rope_parameters`` (transformers 5) and in ``rope_scaling``: all of them are read, and must agree."""
    places = {"": config} | {name: config[name] for name in ("rope_parameters", "rope_scaling") if config.get(name)}
    why = [
        f"{name}={place!r}: must be a group of keys" for name, place in places.items() if not isinstance(place, Mapping)
    ]
    said = {
        f"{name}.{key}".lstrip("."): place[key]
        for name, place in places.items()
        if isinstance(place, Mapping)
        for key in ("rope_theta", "rope_type", "type", "partial_rotary_factor")
        if place.get(key) is not None and (name or not key.endswith("type"))
    }
    for name, place in places.items():
        if name and isinstance(place, Mapping) and any(isinstance(value, Mapping) for value in place.values()):
            why.append(f"{name} differs by kind of layer: here all layers have one rope")
    bases = {key: value for key, value in said.items() if key.endswith("rope_theta")}
    odd = [key for key, value in bases.items() if not _number(value) or not 0 < value < math.inf]
    why += [f"{key}={bases[key]!r}: must be a number, more than 0" for key in odd]
    if not odd and len({float(value) for value in bases.values()}) > 1:
        why.append(f"the base of rope is said twice: {', '.join(f'{key}={value}' for key, value in bases.items())}")
    plain = {"rope_type": "default", "type": "default", "partial_rotary_factor": 1}
    scaled = [f"{key}={value}" for key, value in said.items() if plain.get(key.rpartition(".")[2], value) != value]
    if scaled:
        why.append(f"rope is scaled or partial ({', '.join(scaled)}): here it is plain")
    return (float(next(iter(bases.values()), 10000.0)) if not odd else 10000.0), why


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _without_frequencies(
    config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """The weights without ``rotary_emb.inv_freq``, which some files hold and the base gives; why one is not as by the base."""
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}
    base, _ = _rope(config)
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    expected = base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    why = []
    for name in tensors.keys() - kept.keys():
        held = tensors[name]
        bound = 4 * torch.finfo(held.dtype if held.is_floating_point() else torch.float64).eps  # rounded once or twice
        if held.shape != expected.shape or not torch.allclose(held.double(), expected, rtol=max(bound, 1e-6), atol=0):
            why.append(f"{name} holds other frequencies than the base {base:g} gives")
    return kept, why


def _size_reasons(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[str]:
    """Sizes that are none, or more than the weights hold: nothing is allocated for them."""
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    optional = ("num_key_value_heads", "head_dim", "max_position_embeddings")
    asked = {key: config.get(key) for key in sizes} | {k: config[k] for k in optional if config.get(k) is not None}
    why = [
        f"{key}={value!r}: must be a whole number, 1 or more"
        for key, value in asked.items()
        if type(value) is not int or value < 1
    ]
    why += [
        f"{key}={config[key]!r}: must be a number"
        for key in ("attention_dropout", "rms_norm_eps")
        if config.get(key) is not None and not _number(config[key])
    ]
    if why:
        return why
    held = sum(tensor.numel() for tensor in tensors.values())
    width, heads = config["hidden_size"], config["num_attention_heads"]
    needed = {
        "vocab_size": config["vocab_size"] * width,
        "intermediate_size": 3 * config["intermediate_size"] * width,
        "num_attention_heads": 2 * heads * (config.get("head_dim") or max(width // heads, 1)) * width,
    }
    why = [f"{key}={config[key]}: more than the {held} numbers of its files" for key, n in needed.items() if n > held]
    if config["num_hidden_layers"] > len(tensors):
        why.append(f"num_hidden_layers={config['num_hidden_layers']}: its files hold {len(tensors)} tensors")
    if config.get("max_position_embeddings", 1) > MOST_POSITIONS:
        why.append(f"max_position_embeddings={config['max_position_embeddings']}: at most {MOST_POSITIONS}")
    return why


MOST_POSITIONS = 2**31


def _their_reasons(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[str]:
    """What of a Hugging Face model has no equal here."""
    if str(config.get("model_type")) not in KINDS:
        return [unknown("model_type", str(config.get("model_type")), KINDS)]
    why = _size_reasons(config, tensors)
    if config.get("hidden_act", "silu") != "silu":
        why.append(f"hidden_act {config['hidden_act']}: the MLP here is SwiGLU, with silu")
    why += [f"{key}: the projections here have no bias" for key in ("attention_bias", "mlp_bias") if config.get(key)]
    why += _rope(config)[1]
    if config.get("use_sliding_window") or "sliding_attention" in str(config.get("layer_types")):
        why.append("some layers have a sliding window")
    if config.get("tie_word_embeddings") and not _head_is_embedding(tensors):
        why.append("tie_word_embeddings is true, but lm_head has weights of its own")
    return why


def _head_is_embedding(tensors: Mapping[str, Tensor]) -> bool:
    head, embedding = tensors.get("lm_head.weight"), tensors.get("model.embed_tokens.weight")
    return head is None or (embedding is not None and torch.equal(head, embedding))


def _empty(config: Mapping[str, Any], attention: str, tied: bool) -> CausalLM:
    """A model of that layout; ``tied`` where the configuration does not say."""
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
    positions = PositionsConfig("rope", options={"base": _rope(config)[0]})
    lm = assemble(model, AttentionConfig(attention, {}), positions, config["vocab_size"], seed=0)
    assert lm.recipe is not None
    lm.recipe.max_tokens = config.get("max_position_embeddings", lm.recipe.max_tokens)
    return lm


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
