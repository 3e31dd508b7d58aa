"""What is being checked: an attention that can be built at many sizes, run, and compared with its definition."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import torch
from torch import Tensor, nn

from attnzoo import arguments, registry
from attnzoo.arguments import demand
from attnzoo.checks.cases import TILE_EDGES, Case, Inputs, MaskPlan, make_inputs
from attnzoo.checks.compare import Failed, InPrecision, Skip, expect_close, expect_unbiased
from attnzoo.components import read_class
from attnzoo.contract import Attention, Capabilities, Options, Request
from attnzoo.errors import RequestError
from attnzoo.options import cut_down
from attnzoo.seeds import seeded


@dataclass
class Subject:
    """An attention under check.

    Args:
        make: builds it: make(n_heads=, n_kv_heads=, head_dim=, d_model=, dropout=, scale=, options=) -> Attention.
        cls: its class, for the declared capabilities and refusals.
        own: its options as given; `small` is derived from them.
        instance: the module that was handed in, used as it is (copied) at its own sizes.
        dtypes: what to check in; the first is used where one is enough.
        shrink: look for the smallest failing input.
        tile_edges: lengths tried because of a GPU's tiles; `TILE_EDGES` on CUDA when None, none elsewhere.
    """

    name: str
    make: Callable[..., Attention]
    cls: type[Attention]
    own: Options
    device: str = "cpu"
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16, torch.float16)
    instance: Attention | None = None
    shrink: bool = True
    tile_edges: tuple[int, ...] | None = None
    _built: dict = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.tile_edges is None:
            self.tile_edges = TILE_EDGES if self.kind == "cuda" else ()

    @classmethod
    def of(
        cls, what, *, device: str = "cpu", dtype: torch.dtype | None = None, shrink: bool = True, **options
    ) -> Subject:
        """From a registered name, an `Attention` class or instance, or a function that builds one from sizes.

        Raises:
            RequestError: an unknown name or option, or something that is no attention.
        """
        instance = None
        if isinstance(what, Attention) or (isinstance(what, type) and issubclass(what, Attention)):
            kind = what if isinstance(what, type) else type(what)
            read = read_class(kind.Options, "attention", _name(kind), options, "attention.", kind.kernels)
            demand(f"{_name(kind)} cannot take these options", read[1])
        if isinstance(what, str):
            kind, own = registry.get(what), registry.parse_options(what, options)
            name, make = what, kind
        elif isinstance(what, Attention):
            instance, make, kind, own = what, type(what), type(what), dataclasses.replace(what.options, **options)
            name = _name(kind)
        elif isinstance(what, type) and issubclass(what, Attention):
            name, make, kind, own = _name(what), what, what, what.Options(**options)
        elif callable(what) and not isinstance(what, type):
            sample = what(n_heads=2, n_kv_heads=None, head_dim=8, d_model=16, dropout=0.0, scale=None, options=None)
            demand(f"cannot check {what!r}", arguments.instance("what it builds", sample, Attention, "an Attention"))
            name, make, kind, own = getattr(what, "__name__", "factory"), what, type(sample), sample.options
        else:
            raise RequestError(
                f"cannot check {what!r}",
                ["give a registered name, an Attention, its class, or a function that builds one"],
            )
        declared = kind.declared(own, torch.device(device).type).dtypes
        wanted = (
            (dtype,)
            if dtype is not None
            else tuple(t for t in (torch.float32, torch.bfloat16, torch.float16, torch.float64) if t in declared)
        )
        return cls(name, make, kind, own, device, wanted, instance, shrink)

    # -- what is declared ---------------------------------------------------------------------------------------------

    @property
    def kind(self) -> str:
        """The device without its number."""
        return torch.device(self.device).type

    @property
    def can(self) -> Capabilities:
        return self.cls.declared(self.own, self.kind)

    @property
    def dtype(self) -> torch.dtype:
        return self.dtypes[0]

    @property
    def kernels(self) -> tuple[str, ...]:
        """What is tried by name: every kernel, or the one that was asked for."""
        return self.cls.kernels if self.own.kernel == "auto" else (self.own.kernel,)

    @property
    def trains(self) -> bool:
        """Whether it declares a backward on this device."""
        return self.kind in self.can.training_devices

    @property
    def softmax(self) -> bool:
        """Whether its definition is the inherited softmax over visible keys."""
        return (
            self.cls.weights is Attention.weights
            and self.cls.define is Attention.define
            and self.cls.reference is Attention.reference
        )

    def reasons(self, case: Case, training: bool = False) -> list[str]:
        """Why this case cannot be computed, from what is declared."""
        mask = case.mask.build(case.batch, case.n_keys)
        options = self.options(case)
        request = Request(
            n_heads=case.heads, n_kv_heads=case.kv_heads, head_dim=case.dim, value_dim=case.value_dim or case.dim,
            device=self.kind, dtype=case.dtype, mask_fields=mask.fields, contiguous_documents=mask.contiguous_documents,
            cross=case.n_queries != case.n_keys, bias=case.bias, bias_gradient=case.bias_gradient,
            dropout=case.dropout, training=training, options=options,
        )  # fmt: skip
        return self.cls.reasons(request)

    @cached_property
    def small(self) -> Options:
        """The options, cut down to what a few tokens fill."""
        return cut_down(self.own)

    @cached_property
    def others(self) -> dict[str, Options]:
        """By name, the options with settings that its class names beside the defaults."""
        named = {" ".join(f"{k}={v}" for k, v in other.items()): other for other in self.own.others}
        return {name: replace(self.small, **other) for name, other in named.items()}

    @property
    def edges(self) -> tuple[int, ...]:
        """Lengths at which its own options may change what is computed: block, chunk and window sizes."""
        values = (getattr(self.own, f.name) for f in dataclasses.fields(self.own) if f.name != "seed")
        return tuple(sorted({v for v in values if type(v) is int and 8 <= v <= 256}))

    def tile_cases(self, *plans: MaskPlan) -> Iterator[Case]:
        """A case for each of `tile_edges`, plan, and of the types the first and the first half one, which have kernels apart."""
        halves = [dtype for dtype in self.dtypes if dtype.itemsize == 2]
        for dtype, n, plan in product(dict.fromkeys((self.dtype, *halves[:1])), self.tile_edges or (), plans):
            yield replace(self.base, dtype=dtype, n_queries=n, n_keys=n, mask=plan)

    def options(self, case: Case) -> Options:
        options = {"own": self.own, "small": self.small, **self.others}[case.options]
        return options if case.kernel is None else replace(options, kernel=case.kernel)

    @cached_property
    def base(self) -> Case:
        """The plainest case it accepts: two query heads (four where it shares keys by default), the first head dim that fits,
        values as wide as the keys unless it takes only others."""
        for share, heads in product((None, 0.5, 2), (2, 4)):
            for kv_heads in dict.fromkeys((heads, self.cls.default_kv_heads(heads), 1)):
                for dim in (8, 16, 32, 64):
                    value_dim = None if share is None else int(share * dim)
                    case = Case(heads=heads, kv_heads=kv_heads, dim=dim, value_dim=value_dim, dtype=self.dtype)
                    if not self.reasons(case):
                        return case
        return Case(dtype=self.dtype)

    # -- building and running -----------------------------------------------------------------------------------------

    def build(self, case: Case, *, seed: int = 0, fresh: bool = False) -> Attention:
        """The module of a case, cached. Parameters are moved a little off their initial values, so that none is silently 0."""
        key = (case.heads, case.kv_heads, case.dim, self.options(case), case.dropout, case.scale, seed, case.dtype)
        if fresh or key not in self._built:
            module = self._make(case, seed)
            if fresh:
                return module
            self._built[key] = module
        return self._built[key]

    def _make(self, case: Case, seed: int) -> Attention:
        if seed == 0 and (own := self.instance) is not None:
            held = (own.n_heads, own.n_kv_heads, own.head_dim, own.options, own.dropout)
            asked = (case.heads, case.kv_heads, case.dim, self.options(case), case.dropout)
            if held == asked and case.scale in (None, own.scale):
                return copy.deepcopy(own).to(self.device, case.dtype)
        with seeded(seed, self.device):
            module = self.make(
                n_heads=case.heads, n_kv_heads=case.kv_heads, head_dim=case.dim, d_model=self.d_model(case),
                dropout=case.dropout, scale=case.scale, options=self.options(case),
            )  # fmt: skip
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return module.to(self.device, case.dtype)

    def d_model(self, case: Case) -> int | None:
        """C, where its rule reads x."""
        if not self.can.needs_x:
            return None
        own = self.instance
        if own is not None and (own.n_heads, own.head_dim) == (case.heads, case.dim):
            return own.d_model
        return case.heads * case.dim

    def inputs(self, case: Case) -> Inputs:
        return make_inputs(case, self.device, self.d_model(case))

    def new_cache(self, module: Attention, case: Case, max_tokens: int):
        """A cache of the case; the width of its values is said only where it is not D."""
        extra = {"value_dim": case.value_dim} if case.value_dim else {}
        return module.new_cache(case.batch, max_tokens, device=self.device, dtype=case.dtype, **extra)

    def need_weights(self) -> None:
        """Raise `Skip` unless the definition's weights are what multiplies the values."""
        if not self.can.weighted_sum:
            raise Skip(f"the output of {self.name} is not its weights times the values (weighted_sum=False)")

    def exact(self, module: Attention, inputs: Inputs) -> Tensor:
        """The definition's output in float64."""
        return self.defined(module, inputs)[0]

    def defined(self, module: Attention, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The definition's output and weights, the module's own parameters in float64 as well."""
        with torch.no_grad():
            return copy.deepcopy(module).double().reference(*inputs.double())

    def plain(self, module: Attention, inputs: Inputs) -> Tensor | None:
        """The definition computed in the inputs' own precision; None where its code cannot run in it."""
        try:
            with torch.no_grad(), InPrecision(inputs.q.dtype):
                return module.reference(*inputs)[0]
        except RuntimeError:  # such as an operation without a half-precision kernel
            return None

    def expect_definition(self, module: Attention, inputs: Inputs, out: Tensor, what: str = "out") -> None:
        """Raise `Failed` unless ``out`` is the definition of these inputs, in their type, within what plain arithmetic loses."""
        if (out.dtype, out.device) != (inputs.q.dtype, inputs.q.device):
            raise Failed(f"{inputs.q.dtype} on {inputs.q.device}", f"{out.dtype} on {out.device}", what)
        exact, plain = self.exact(module, inputs), self.plain(module, inputs)
        size = inputs.v.abs().max().item() if inputs.v.numel() else 0.0
        expect_close(out, exact, plain, what, moved=lambda: self.moved(module, inputs, exact), cancelling=size)
        if out.dtype.itemsize == 2:
            expect_unbiased(out, exact, plain, what)

    def moved(self, module: Attention, inputs: Inputs, exact: Tensor) -> float:
        """How far the definition's output moves when every input and parameter is rounded once, at random."""
        found = [self.exact(other, near) for other, near, _ in roundings(module, inputs, exact)]
        return max((out - exact).abs().max().item() for out in found)


def roundings(
    module: Attention, inputs: Inputs, upstream: Tensor, draws: int = 4
) -> Iterator[tuple[Attention, Inputs, Tensor]]:
    """The module, its inputs and the gradient from upstream in float64, every number of them moved by about one unit of the
    inputs' type, at random: what no computation in this type can tell from what was given."""
    draw, eps = torch.Generator().manual_seed(11), torch.finfo(inputs.q.dtype).eps

    def near(t: Tensor) -> Tensor:
        noise = torch.randn(t.shape, generator=draw, dtype=torch.float64).to(t.device)
        return t.detach().double() * (1 + eps * noise)

    for _ in range(draws):
        other = copy.deepcopy(module).double()
        for p in other.parameters():
            p.data = near(p)
        yield other, inputs.map(near), near(upstream)


def one_head(subject: Subject) -> Case:
    """The plainest case with as few heads as it takes: for long inputs."""
    base = subject.base
    single = replace(base, heads=1, kv_heads=1)
    return base if subject.reasons(single) else single


@contextmanager
def evaluating(module: nn.Module) -> Iterator[nn.Module]:
    """The module in evaluation, and afterwards as it was."""
    mode = module.training
    try:
        yield module.eval()
    finally:
        module.train(mode)


def _name(cls: type[Attention]) -> str:
    return cls.__name__ if cls.name == "unregistered" else cls.name
