"""Does a language model see the future? Works on any callable tokens (B, T) -> logits (B, T, V).

A leak shows as a training loss that is too good; comparing with a reference within a tolerance does not find it. These
tests change or differentiate what lies ahead of a logit, where the right answer is exactly nothing.
Shapes: see `attnzoo.shapes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from attnzoo import arguments
from attnzoo.arguments import demand, fault, flag, function, instance, whole
from attnzoo.arguments import seed as valid_seed
from attnzoo.checks import leak_probes as probes
from attnzoo.checks.leak_decoding import decoding, truncation
from attnzoo.checks.leak_setup import modules_behind, prepared, rounding
from attnzoo.checks.leak_subject import LeakTest, Subject, check_logits
from attnzoo.contract import Attention

EVERY_POSITION = 128
"""Up to this T each position is a cut; beyond it, edges of blocks and chunks."""
ANYWHERE = 16
"""Further cuts beyond it, drawn by the seed."""

PROBES: tuple[Callable[[Subject], list[LeakTest]], ...] = (
    probes.repeatable,
    probes.suffix_perturbation,
    probes.single_token,
    probes.gradient_probe,
    probes.recording_gradients,
    probes.training_mode,
    probes.batch_isolation,
    truncation,
    decoding,
)


OTHER_FAULTS = {"decoding": "decoding differs", "repeatable": "evaluation draws", "finite_logits": "not finite"}
"""Tests whose failure does not show that a logit sees the future, and what it shows."""
NO_LEAK = {"decoding"}
"""Where nevertheless the others have told that none does."""


@dataclass(frozen=True)
class LeakReport:
    """What the tests found.

    ``passed``: nothing shows that a logit depends on a later token, and at least one test could tell. That decoding differs
    from the parallel pass is a fault of another kind: it stands in ``failed`` and ``verdict``. A skipped test has its reason
    in ``detail``.
    """

    tests: list[LeakTest]
    setting: str

    @property
    def passed(self) -> bool:
        return any(t.passed for t in self.tests) and all(t.name in NO_LEAK for t in self.failed)

    @property
    def verdict(self) -> str:
        """'no leak', 'leaks', or what else is wrong: 'decoding differs', 'evaluation draws', 'not finite', 'proves nothing'."""
        failed = {t.name: t for t in self.failed}
        if not failed:
            return "no leak" if self.passed else "proves nothing"
        if shown := [t for t in failed.values() if t.name not in OTHER_FAULTS]:
            return "proves nothing" if all("proves nothing" in t.detail for t in shown) else "leaks"
        return "; ".join(OTHER_FAULTS[name] for name in failed)

    @property
    def failed(self) -> list[LeakTest]:
        return [t for t in self.tests if not (t.passed or t.skipped)]

    def __getitem__(self, name: str) -> LeakTest:
        return next(t for t in self.tests if t.name == name)

    def to_dict(self) -> dict:
        """The run record's ``leak``: passed, verdict, setting, and ``tests``; a change that is not finite is None."""
        tests = [_plain(t) for t in self.tests]
        return {"passed": self.passed, "verdict": self.verdict, "setting": self.setting, "tests": tests}

    def __str__(self) -> str:
        skipped = sum(t.skipped for t in self.tests)
        verdict = "passed" if not self.failed else f"FAILED, {self.verdict}"
        counts = f"{sum(t.passed for t in self.tests)} passed, {len(self.failed)} failed, {skipped} skipped"
        rows = [f"  {t.status:8}{t.name:21}{t.detail}" for t in self.tests]
        return "\n".join([f"leak test {verdict}: {counts} ({self.setting})", *rows])


def leak_test(
    logits_fn: Callable[[Tensor], Tensor],
    *,
    vocab_size: int,
    n_tokens: int = 64,
    seed: int = 0,
    device: str | torch.device = "cpu",
    exact: bool | None = None,
    cuts: Sequence[int] | None = None,
    batch_size: int = 2,
    training_batch: int | None = None,
    model: nn.Module | None = None,
) -> LeakReport:
    """Test that no logit depends on a later token.

    Modules that the callable shows (itself, the owner of a method, what a lambda refers to) are put in evaluation mode
    and back. Weights that start at exactly 0 would hide the path behind them (a zero output projection hides the whole
    attention): they hold small noise during the test and are put back.

    Args:
        logits_fn: tokens (B, T) int64 -> logits (B, T, V). A Hugging Face model: ``lambda t: hf(t).logits``.
        vocab_size: V.
        n_tokens: T. A leak that begins at some length is seen only from there on: take the longest that is trained.
        seed: of the tokens; two runs with one seed are equal.
        device: where the tokens go.
        exact: whether earlier logits must stay bitwise equal. None: yes, unless an attention of the model declares that
            its kernel cannot promise it; then, as with False, a change within `rounding` of the logits is let pass.
        cuts: positions whose token, and all after it, are changed. None: each one up to T = 128; beyond that 1, 2,
            T - 1, around the edges of blocks and chunks, and 16 drawn by the seed. A future key seen by one row only, just
            ahead of it, is certain to be found only where each position is a cut.
        batch_size: B.
        training_batch: B in training, where a model may take another path; None: as ``batch_size``.
        model: the module behind the callable, where it cannot be found from it.

    Raises:
        RequestError: not a callable, sizes that make no sense, or an output that is not (B, T, V) floats.
    """
    demand(
        "this cannot be tested for leaks",
        function("logits_fn", logits_fn, "a callable tokens (B, T) -> logits (B, T, V)"),
        whole("vocab_size", vocab_size, 2, hint="or no token can be changed"),
        whole("n_tokens", n_tokens, 2, hint="or there is no future"),
        _cut_faults(cuts, n_tokens),
        valid_seed("seed", seed),
        arguments.device("device", device),
        flag("exact", exact, optional=True),
        whole("batch_size", batch_size, 1),
        [] if training_batch is None else whole("training_batch", training_batch, 1),
        instance("model", model, nn.Module, "the nn.Module behind logits_fn", optional=True),
    )
    modules = modules_behind(logits_fn) if model is None else [model]
    device = torch.device(device)
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab_size, (batch_size, n_tokens), generator=draw).to(device)
    chosen = sorted(set(cuts)) if cuts is not None else default_cuts(n_tokens, seed)
    if exact is None:
        exact = all(a.capabilities.bitwise_prefix for m in modules for a in m.modules() if isinstance(a, Attention))
    with prepared(modules, device, seed) as woken:
        logits = check_logits(logits_fn(tokens), tokens, vocab_size)
        terms, dtype = rounding(logits.dtype, modules, device)
        bound = terms * float(logits.abs().max())
        subject = Subject(
            logits_fn, modules, vocab_size, tokens, logits, chosen, exact, terms, bound, dtype, seed, draw,
            training_batch or batch_size,
        )  # fmt: skip
        tests = _run(subject)
    prefix = "bitwise" if exact else f"within rounding ({bound:.2g})"
    setting = f"T = {n_tokens}, B = {batch_size}, V = {vocab_size}, {str(dtype).removeprefix('torch.')}, {device}"
    setting += f", seed {seed}; prefix compared {prefix}" + (f"; {woken} zero weights held noise" if woken else "")
    return LeakReport(tests, setting)


def _run(s: Subject) -> list[LeakTest]:
    broken = ~s.logits.isfinite().all(-1)
    if not broken.any():
        finite = LeakTest("finite_logits", True, detail="every logit is finite")
        return [finite, *(test for probe in PROBES for test in probe(s))]
    row, position = (int(n) for n in broken.nonzero()[broken.nonzero()[:, 1].argmin()])
    detail = f"logit {position} of row {row} is not finite: nothing else can be tested"
    return [LeakTest("finite_logits", False, max_change=math.inf, detail=detail)]


def default_cuts(n_tokens: int, seed: int = 0) -> list[int]:
    """Positions to cut at, ascending, in 1..T-1; see `leak_test`."""
    if n_tokens <= EVERY_POSITION:
        return list(range(1, n_tokens))
    powers = [2**p for p in range(5, n_tokens.bit_length())]
    edges = {*powers, *(3 * p for p in powers), n_tokens // 4, n_tokens // 2, 3 * n_tokens // 4}
    draw = torch.Generator().manual_seed(seed)
    some = torch.randint(1, n_tokens, (ANYWHERE,), generator=draw).tolist()
    near = {e + d for e in edges for d in (-1, 0, 1)} | {1, 2, n_tokens - 1, *some}
    return sorted(c for c in near if 0 < c < n_tokens)


def _cut_faults(cuts: Sequence[int] | None, n_tokens: int) -> list[str]:
    if cuts is None or whole("n_tokens", n_tokens):
        return []
    expected = f"positions in 1..T-1 = 1..{n_tokens - 1}"
    if not isinstance(cuts, (list, tuple, range, set)) or not cuts:
        return fault("cuts", cuts, f"a list of {expected}")
    outside = [cut for cut in cuts if whole("", cut, 1) or cut >= n_tokens]
    return fault("cuts", outside, expected) if outside else []


def _plain(test: LeakTest) -> dict:
    change = test.max_change
    return {**asdict(test), "max_change": change if change is None or math.isfinite(change) else None}
