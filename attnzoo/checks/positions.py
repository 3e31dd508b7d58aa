"""What `check positions:NAME` holds a scheme to: a token's position is all that counts, whatever the cache, padding or packing.

Shapes: see `attnzoo.shapes`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnzoo import components, registry
from attnzoo.arguments import demand
from attnzoo.checks import decode_properties, model_properties
from attnzoo.checks.compare import Failed, Skip, expect_finite, expect_same
from attnzoo.checks.model_properties import Model
from attnzoo.errors import RequestError
from attnzoo.model.config import ModelConfig
from attnzoo.model.lm import CausalLM
from attnzoo.options import Options
from attnzoo.positions import Positions, rotate
from attnzoo.seeds import seeded

SIZES = {"d_model": 32, "n_heads": 4, "head_dim": 8}
VOCABULARY, TOKENS, FAR = 40, 24, 100_000


@dataclass
class Subject:
    """A scheme, and a model of two layers that have it, both with parameters a little off their initial values."""

    cls: type[Positions]
    options: Options
    device: str

    def make(self) -> Positions:
        with seeded(0, self.device):
            scheme = self.cls(self.options, **SIZES)
            with torch.no_grad():
                for parameter in scheme.parameters():
                    parameter.add_(0.3 * torch.randn_like(parameter))
        return scheme.to(self.device).eval()

    @cached_property
    def scheme(self) -> Positions:
        return self.make()

    @cached_property
    def longest(self) -> int:
        """Positions that may be asked for."""
        return FAR if self.scheme.longest is None else self.scheme.longest

    @cached_property
    def model(self) -> Model:
        cfg = ModelConfig(n_layers=2, d_model=SIZES["d_model"], n_heads=SIZES["n_heads"])
        scheme = self.make()
        kept = copy.deepcopy(scheme.state_dict())
        with seeded(0, self.device):
            lm = CausalLM(
                cfg, VOCABULARY, lambda _: registry.build("exact", n_heads=SIZES["n_heads"], head_dim=SIZES["head_dim"]),
                [scheme, scheme],
            )  # fmt: skip
        scheme.load_state_dict(kept)
        return Model(lm.to(self.device).eval(), VOCABULARY, torch.device(self.device), torch.Generator().manual_seed(0))

    def parts(self, scheme: Positions, at: Tensor) -> dict[str, Tensor]:
        """All that the scheme gives tokens at these positions (B, T): what it adds to embeddings (B, T, C), its cosines and sines
        (B, T, D), its bias against the keys at 0, 1 … 7 (B, T, H·8)."""
        found = {}
        with torch.no_grad():
            if self.cls.acts_on_embeddings():
                h = torch.zeros(*at.shape, SIZES["d_model"], device=at.device)
                found["embedding"] = scheme.embed(h, at).expand(len(at), -1, -1)
            if (phases := scheme.phases(at)) is not None:
                found |= {name: t[:, 0] for name, t in zip(("cosines", "sines"), phases, strict=True)}
            if (bias := scheme.bias()) is not None:
                block = bias.block(at[..., None], torch.arange(8, device=at.device))  # (H, B, T, 8)
                found["bias"] = block.permute(1, 2, 0, 3).flatten(2)
        return found

    def at(self, *positions: int) -> Tensor:
        return torch.tensor([positions], device=self.device)


def subject(cls: type[Positions], given: Mapping[str, Any], device: str) -> Subject:
    """``given``: the scheme's own options."""
    options, faults = components.read_class(cls.Options, "positions", cls.name, given, "")
    demand(f"the position scheme {cls.__name__} cannot be checked", faults)
    assert options is not None
    return Subject(cls, cls.Options(**vars(options)), device)


def declared_as_given(s: Subject) -> str:
    """It gives what it declares (phases where it ``turns``, a bias where it ``needs_bias``) in the shapes that are asked for, and
    has the learned numbers that it says."""
    at, scheme = torch.arange(6, device=s.device)[None], s.scheme
    phases, bias = scheme.phases(at), scheme.bias()
    for said, declares, has in (("turns", s.cls.turns, phases), ("needs_bias", s.cls.needs_bias, bias)):
        if declares != (has is not None):
            raise Failed(
                f"{said}={has is not None}", f"{said}={declares}", f"{'phases' if said == 'turns' else 'bias'}()"
            )
    h = torch.randn(2, 6, SIZES["d_model"], device=s.device)
    with torch.no_grad():
        shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
            "embed": (tuple(scheme.embed(h, at).shape), (2, 6, SIZES["d_model"]))
        }
        if phases is not None:
            shapes |= {f"phases[{n}]": (tuple(t.shape), (1, 1, 6, SIZES["head_dim"])) for n, t in enumerate(phases)}
        if bias is not None:
            shapes["bias().block"] = (tuple(bias.block(at[0, :, None], at[0, :4]).shape), (SIZES["n_heads"], 6, 4))
    for what, (actual, expected) in shapes.items():
        if actual != expected:
            raise Failed(str(expected), str(actual), what)
    least = s.cls.least_parameters(s.options, d_model=SIZES["d_model"], n_heads=SIZES["n_heads"])
    held = sum(p.numel() for p in scheme.parameters())
    if least > held:
        raise Failed(f"at most the {held} that it has", str(least), "least_parameters")
    return ", ".join(shapes)


def by_position_alone(s: Subject) -> str:
    """What a token gets follows from its position, not from its place in the call: asked for alone, later, in another order or
    within a batch it is the same. A cache's offset, padding and documents reach a scheme as positions."""
    n = min(TOKENS, s.longest)
    every = torch.arange(n, device=s.device)
    whole = s.parts(s.scheme, every[None])
    if not whole:
        return "it gives tokens nothing"
    draw = torch.Generator().manual_seed(0)
    mixed = torch.stack([torch.randperm(n, generator=draw) for _ in range(3)]).to(s.device)
    asked = {
        "after a cache of half of them": every[None, n // 2 :],
        "one token after the others": every[None, n - 1 :],
        "positions that begin anew": torch.cat([every[: n // 2], every[: n - n // 2]])[None],
        "a batch of three orders": mixed,
    }
    for said, at in asked.items():
        for what, part in s.parts(s.scheme, at).items():
            due = whole[what][0][at]
            # float32 functions may differ in the last place by how many numbers a call has
            expect_same(part.expand_as(due), due, what, 4e-7 * float(due.abs().max()), said)
    return f"{', '.join(whole)} of {n} positions, in {len(asked)} ways"


def far_positions(s: Subject) -> str:
    """Far positions are finite, told apart beyond 256, and those of its ``reference(positions)`` in float64 where it has one."""
    last = s.longest - 1
    far = [p for p in (255, 256, 257, 4095, 65_535) if p <= last] + [last]
    found = s.parts(s.scheme, s.at(*dict.fromkeys(far)))
    for what, part in found.items():
        expect_finite(part, what)
    reference = getattr(s.scheme, "reference", None)
    if reference is None:
        return f"up to {last}"
    exact = reference(s.at(*dict.fromkeys(far)))
    names = ("embedding",) if isinstance(exact, Tensor) else ("cosines", "sines")
    for what, due in zip(names, (exact,) if isinstance(exact, Tensor) else exact, strict=True):
        part = found[what].double()
        due = due.reshape(part.shape)
        # an angle is a position times a frequency, either rounded to float32: off by 2 eps of itself; rounding of the function
        allowed = (
            torch.finfo(torch.float32).eps * (2.0 * s.at(*dict.fromkeys(far))[..., None] + 4) * float(due.abs().max())
        )
        if ((part - due).abs() > allowed).any():
            row, place, channel = ((part - due).abs() > allowed).nonzero()[0].tolist()
            raise Failed(
                f"{due[row, place, channel]:.9g}", f"{part[row, place, channel]:.9g}", what, f"position {far[place]}"
            )
    return f"up to {last}, against float64"


def relative_by_difference(s: Subject) -> str:
    """Where it is declared ``relative``, the score of a query and a key depends on the difference of their positions alone."""
    if not s.cls.relative:
        raise Skip("relative=False: positions count from the start")
    draw = torch.Generator().manual_seed(1)
    q, k = (torch.randn(1, SIZES["n_heads"], 9, SIZES["head_dim"], generator=draw).to(s.device) for _ in range(2))

    def scores(offset: int) -> Tensor:
        at = torch.arange(offset, offset + 9, device=s.device)
        with torch.no_grad():
            phases, bias = s.scheme.phases(at[None]), s.scheme.bias()
            found = rotate(q, phases) @ rotate(k, phases).mT
            return found if bias is None else found + bias.block(at[:, None], at)

    first, offsets = scores(0), [n for n in (1, 100, 1000) if n + 9 <= s.longest]
    for offset in offsets:
        # two angles, each off by eps times its position
        allowed = torch.finfo(torch.float32).eps * 8 * (offset + 9) * float(first.abs().max())
        expect_same(scores(offset), first, "scores", allowed, f"both {offset} further on")
    return f"moved by {', '.join(map(str, offsets))}"


def types_kept(s: Subject) -> str:
    """In a model of 16-bit types embeddings keep their type, and positions 256 and 257 are still two."""
    for dtype in (torch.bfloat16, torch.float16):
        cast = s.make().to(dtype)
        h = torch.zeros(1, 2, SIZES["d_model"], dtype=dtype, device=s.device)
        with torch.no_grad():
            out = cast.embed(h, s.at(0, 1))
        if out.dtype != dtype:
            raise Failed(str(dtype), str(out.dtype), "embed")
        if next(s.scheme.parameters(), None) is not None or s.longest <= 257:
            continue  # its own numbers are rounded
        before, after = (s.parts(scheme, s.at(256, 257)) for scheme in (s.scheme, cast))
        for what in before:
            expect_same(after[what], before[what], what, detail=f"the model in {dtype}, positions 256 and 257")
    return "bfloat16 and float16"


def call_changes_nothing(s: Subject) -> str:
    """It writes into neither embeddings nor positions, and gives the same twice."""
    at, h = torch.arange(6, device=s.device)[None], torch.randn(2, 6, SIZES["d_model"], device=s.device)
    kept, places = h.clone(), at.clone()
    with torch.no_grad():
        first, second = s.scheme.embed(h, at), s.scheme.embed(h, at)
    expect_same(h, kept, "the embeddings that it was given")
    one, other = s.parts(s.scheme, at), s.parts(s.scheme, at)
    expect_same(at.double(), places.double(), "the positions that it was given")
    expect_same(second, first, "embed", detail="the second call")
    for what in one:
        expect_same(other[what], one[what], what, detail="the second call")
    return "2 calls"


def _of_model(prop: Callable[[Model], str]) -> Callable[[Subject], str]:
    """A property of whole models, asked of one with this scheme in both of its layers."""

    def run(s: Subject) -> str:
        if s.longest < 64:
            raise Skip(f"it has {s.longest} positions; a model needs 64")
        try:
            with torch.no_grad():
                return prop(s.model)
        except RequestError as error:
            raise Failed("logits", str(error), prop.__name__) from error

    run.__name__, run.__doc__ = prop.__name__, prop.__doc__
    return run


PROPERTIES = (
    declared_as_given, by_position_alone, far_positions, relative_by_difference, types_kept, call_changes_nothing,
    *map(_of_model, (
        decode_properties.decode_positions, decode_properties.generation, decode_properties.padded_generation,
        model_properties.left_padding, model_properties.right_padding, model_properties.documents_isolated,
    )),
)  # fmt: skip
