"""A decoder-only language model: pre-norm blocks, the head tied to the embedding or not. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnzoo.arguments import demand, fault
from attnzoo.contract import Attention, ScoreBias
from attnzoo.errors import RequestError
from attnzoo.kernels.linear import linear
from attnzoo.masks import Mask
from attnzoo.model.config import ModelConfig, Recipe
from attnzoo.model.generate import generate
from attnzoo.model.init import initialise
from attnzoo.model.layer import AttentionLayer
from attnzoo.model.projection import LayerCache, Linear, Phases, RMSNorm
from attnzoo.positions import Positions
from attnzoo.shapes import IGNORE
from attnzoo.validate import check_room

INDICES = (torch.int64, torch.int32)


@dataclass
class ModelCache:
    """One cache a layer."""

    layers: list[LayerCache]

    @property
    def length(self) -> int:
        return self.layers[0].length

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)


class MLP(nn.Module):
    """down(act(gate(x)) · up(x)), gate and up in one matrix (arXiv:2002.05202), or without a gate down(act(up(x)))."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.act = F.silu if cfg.mlp == "swiglu" else F.gelu
        hidden = hidden_width(cfg)
        self.gated = cfg.mlp != "gelu"
        self.gate_up = Linear(cfg.d_model, (mlp_matrices(cfg) - 1) * hidden)
        self.down = Linear(hidden, cfg.d_model)

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, up = self.gate_up(x).chunk(2, -1)
            return self.down(self.act(gate) * up)
        return self.down(self.act(self.gate_up(x)))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, cfg: ModelConfig, attention: Attention) -> None:
        super().__init__()
        self.attention_norm = norm(cfg)
        self.attention = AttentionLayer(attention, cfg)
        self.mlp_norm = norm(cfg)
        self.mlp = MLP(cfg)
        self.dropout = cfg.dropout

    def forward(
        self, x: Tensor, mask: Mask, phases: Phases, bias: ScoreBias | None, cache: LayerCache | None
    ) -> Tensor:
        x = x + self._dropped(self.attention(self.attention_norm(x), mask, phases=phases, bias=bias, cache=cache))
        return x + self._dropped(self.mlp(self.mlp_norm(x)))

    def _dropped(self, t: Tensor) -> Tensor:
        return F.dropout(t, self.dropout, self.training) if self.dropout else t


class CausalLM(nn.Module):
    """The language model.

    Args:
        cfg: sizes and layer options.
        vocab_size: V.
        attention: layer number -> a new backend for it.
        positions: the scheme of each layer, one module where several layers share it.
    """

    def __init__(
        self,
        cfg: ModelConfig,
        vocab_size: int,
        attention: Callable[[int], Attention],
        positions: Sequence[Positions],
    ) -> None:
        super().__init__()
        self.cfg, self.vocab_size = cfg, vocab_size
        self.recipe: Recipe | None = None  # set by what builds it from settings
        self.embedding = nn.Embedding(vocab_size, cfg.d_model)
        self.positions = positions[0]
        schemes = list(dict.fromkeys(positions))
        for n, scheme in enumerate(schemes[1:], 1):
            self.add_module(f"positions_{n}", scheme)
        self.scheme_of = [schemes.index(scheme) for scheme in positions]
        self.dropout = nn.Dropout(cfg.dropout) if cfg.dropout else nn.Identity()
        self.blocks = nn.ModuleList(Block(cfg, attention(layer)) for layer in range(cfg.n_layers))
        self.norm = norm(cfg)
        self.head = None if cfg.tie_embeddings else nn.Linear(cfg.d_model, vocab_size, bias=False)
        initialise(self, cfg.n_layers)

    def forward(
        self,
        tokens: Tensor,
        key_padding: Tensor | None = None,
        documents: Tensor | None = None,
        cache: ModelCache | None = None,
    ) -> Tensor:
        """Logits of the next token at each position.

        Args:
            tokens: (B, T) integers.
            key_padding: (B, Tk) bool, True = a real token, on either side; positions count real tokens only.
            documents: (B, Tk) integer ids of packed documents; each starts at position 0 and sees itself only.
            cache: extended by these tokens; Tk is then the tokens so far, these included, else T.

        Returns:
            (B, T, V). Logits at padding mean nothing.

        Raises:
            RequestError: tokens of a wrong shape or outside the vocabulary, a full cache.
        """
        if not (isinstance(tokens, Tensor) and tokens.dim() == 2 and tokens.shape[1] and tokens.dtype in INDICES):
            demand("the model reads tokens", fault("tokens", tokens, "a tensor of int64 or int32 (B, T) with T ≥ 1"))
        if cache is not None and not isinstance(cache, ModelCache):
            demand("the model extends its own cache", fault("cache", cache, "what the model's new_cache makes"))
        start = 0 if cache is None else cache.length
        mask = Mask(key_padding=key_padding, documents=documents)
        mask.check_lengths(start + tokens.shape[1], tokens.shape[0])
        ids = position_ids(start, tokens.shape[1], mask, tokens.device)
        h = self.dropout(self.positions.embed(self._embedded(tokens), ids, start + tokens.shape[1]))
        given = [(scheme.phases(ids), scheme.bias()) for scheme in self.schemes]
        for layer, block in enumerate(self.blocks):
            phases, bias = given[self.scheme_of[layer]]
            h = block(h, mask, phases, bias, None if cache is None else cache.layers[layer])
        return linear(self.norm(h), self.head_weight)

    def new_cache(
        self,
        batch_size: int,
        max_tokens: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> ModelCache:
        """Decoding state for ``max_tokens`` tokens, on the model's device and in the dtype of its keys (of its weights, or
        autocast's within it) unless told otherwise."""
        check_room(batch_size, max_tokens, device, dtype)
        weight = self.embedding.weight
        device = weight.device if device is None else device
        if dtype is None:
            kind = weight.device.type
            dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        return ModelCache([block.attention.new_cache(batch_size, max_tokens, device, dtype) for block in self.layers])

    def generate(
        self,
        tokens: Tensor,
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int | None = None,
        *,
        top_k: int | None = None,
        top_p: float | None = None,
        use_cache: bool = True,
        key_padding: Tensor | None = None,
        cache: ModelCache | None = None,
        compiled: bool | Literal["static"] = False,
    ) -> Tensor:
        """tokens (B, T) continued: (B, T + max_new_tokens); see `attnzoo.model.generate`."""
        return generate(
            self, tokens, max_new_tokens, temperature=temperature, seed=seed, top_k=top_k, top_p=top_p,
            use_cache=use_cache, key_padding=key_padding, cache=cache, compiled=compiled,
        )  # fmt: skip

    def _embedded(self, tokens: Tensor) -> Tensor:
        try:
            return self.embedding(tokens)
        except IndexError:
            least, most = int(tokens.min()), int(tokens.max())
            raise RequestError(f"tokens must lie in 0..V-1 = 0..{self.vocab_size - 1}; got {least} to {most}") from None

    @property
    def head_weight(self) -> Tensor:
        """(V, C): what turns the last layer's output into logits."""
        return self.embedding.weight if self.head is None else self.head.weight

    @property
    def schemes(self) -> list[Positions]:
        """The different position schemes of the layers; ``scheme_of[layer]`` is the place of a layer's among them. One that acts
        on the embeddings is the only one."""
        more = range(1, max(self.scheme_of) + 1)
        return [self.positions, *(cast(Positions, getattr(self, f"positions_{n}")) for n in more)]

    @property
    def longest(self) -> int | None:
        """Tokens that it has positions for; None is any number."""
        return min((scheme.longest for scheme in self.schemes if scheme.longest is not None), default=None)

    @property
    def layers(self) -> list[Block]:
        """The blocks, as what they are."""
        return cast("list[Block]", list(self.blocks))

    def attention_modules(self) -> list[Attention]:
        """The backend of each layer."""
        return [block.attention.attention for block in self.layers]

    @property
    def kernel(self) -> str:
        """What the layers really ran last; several names where they differ."""
        return ", ".join(sorted({attention.kernel for attention in self.attention_modules()}))

    def flops(self, n_tokens: int) -> float:
        """Forward floating-point operations of one sequence of T tokens, two per multiply-add; norms and activations excluded."""
        weights = self.head_weight.numel() + sum(p.numel() for b in self.layers for p in b.mlp.parameters())
        return 2.0 * n_tokens * weights + sum(b.attention.flops(n_tokens, n_tokens) for b in self.layers)

    def parameter_count(self) -> int:
        """Trainable numbers; a tied head counts once."""
        return sum(p.numel() for p in self.parameters())

    @staticmethod
    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy in nats over the targets (B, T) that are not `IGNORE`, in float32."""
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORE)


def norm(cfg: ModelConfig) -> nn.RMSNorm | nn.LayerNorm:
    """A norm over C."""
    if cfg.norm == "layer":
        return nn.LayerNorm(cfg.d_model, eps=cfg.norm_eps, bias=False)
    return RMSNorm(cfg.d_model, eps=cfg.norm_eps)


def mlp_matrices(cfg: ModelConfig) -> int:
    """Matrices of C times the hidden width in an MLP."""
    return 2 if cfg.mlp == "gelu" else 3


def hidden_width(cfg: ModelConfig) -> int:
    """Width of the MLP's hidden layer: as given, or mlp_ratio · C, up to a multiple of 8."""
    if cfg.mlp_width is not None:
        return cfg.mlp_width
    return -(-int(cfg.mlp_ratio * cfg.d_model) // 8) * 8


def position_ids(start: int, n_tokens: int, mask: Mask, device: torch.device) -> Tensor:
    """(B or 1, T) position of the tokens from ``start`` on: real tokens before it in its document."""
    if mask.static:
        return torch.arange(start, start + n_tokens, device=device)[None]
    total = start + n_tokens
    if mask.key_padding is None:
        count = torch.arange(total, device=device)[None]
    else:
        count = (mask.key_padding.cumsum(1) - 1).clamp(min=0)
    if mask.documents is not None:
        docs = mask.documents
        begins = F.pad(docs[:, 1:] != docs[:, :-1], (1, 0), value=True)
        count = count - torch.where(begins, count, 0).cummax(1).values
    return count[:, start:]
