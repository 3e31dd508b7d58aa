"""The perturbation and gradient tests behind `attnzoo.leak_test`, one function each. Shapes: see `attnzoo.shapes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from attnzoo.checks.leak_subject import LeakTest, Subject, Worst, distance, skip
from attnzoo.errors import Refused

MOST_CUTS, ROUNDS = 16, 4
"""In training mode: cuts that are tried, and cuts of each row."""


def repeatable(s: Subject) -> list[LeakTest]:
    """Two calls on the same tokens give the same logits, the random state left to run on: evaluation draws nothing."""
    move = distance(s.logits_fn(s.tokens), s.logits)
    allowed, largest = s.allowed, float(move.max())
    detail = "two calls on the same tokens are equal"
    if largest > allowed:
        detail = f"two calls on the same tokens differ by {largest:.2g}: dropout, or other noise, at evaluation"
    return [LeakTest("repeatable", largest <= allowed, max_change=largest, detail=detail)]


def suffix_perturbation(s: Subject) -> list[LeakTest]:
    """All tokens from a cut on are changed: logits before it stand still, and logits after it do move.

    After the last cuts none need move: a strictly causal model does not read its own token, a slower one not its last few.
    """
    name, worst, moving = "suffix_perturbation", Worst(s.allowed), 0
    for cut in s.cuts:
        move = s.moved(s.changed(slice(cut, None)))
        worst.see(move[:, :cut], cut)
        moving += bool((move[:, cut:] > s.allowed).any())
    if not moving and not worst.leaks:
        detail = f"no logit moved when every token from {s.cuts[0]} on was changed: the test proves nothing"
        return [LeakTest(name, False, max_change=worst.largest, detail=detail)]
    bad = _who_saw_what(s, worst) if worst.leaks else ""
    followed = "what followed did" if moving == len(s.cuts) else f"what followed did after {moving} of them"
    return [worst.result(name, f"{_cuts(s)}: nothing before the cut moved, {followed}", bad)]


def single_token(s: Subject) -> list[LeakTest]:
    """One token is changed: earlier logits stand still. Whether later ones move tells if the past is read at all."""
    worst, heard, reads_past = Worst(s.allowed), False, 0
    tokens = s.some(64)
    for token in tokens:
        move = s.moved(s.changed(token))
        worst.see(move[:, :token], token)
        heard |= bool((move[:, token:] > s.allowed).any())
        reads_past += bool((move[:, token + 1 :] > s.allowed).any())
    bad = f"logit {worst.position} of row {worst.row} saw token {worst.cut}: changing that token alone moved it"
    if not heard and not worst.leaks:
        detail = "changing a token moved no logit at all: the test proves nothing"
        return [LeakTest("single_token", False, max_change=worst.largest, detail=detail)]
    found = worst.result("single_token", f"{len(tokens)} tokens, each changed alone: no earlier logit moved", bad)
    if reads_past:
        return [
            found,
            LeakTest("reads_the_past", True, detail=f"{reads_past} of the changed tokens moved later logits"),
        ]
    return [
        found,
        skip("reads_the_past", "no changed token moved a later logit: nothing here shows how the past is mixed"),
    ]


def gradient_probe(s: Subject, name: str = "gradient_probe") -> list[LeakTest]:
    """The gradient of logit i is exactly 0 in the embedding of every token j > i, and not 0 in some j ≤ i of some logit."""
    if not s.modules:
        return [skip(name, "the callable shows no nn.Module whose embedding could be probed: pass model=")]
    try:
        with torch.enable_grad():
            logits, embedded = _embedded(s)
    except (Refused, NotImplementedError) as error:
        return [skip(name, f"no backward here: {' '.join(str(error).split())}")]
    if embedded is None:
        return [skip(name, "no nn.Embedding of the module reads the tokens")]
    if not logits.requires_grad:
        return [skip(name, "the logits carry no gradient: the callable detaches them or runs under no_grad")]
    upstream = torch.randn(s.vocab_size, generator=s.draw).to(logits)
    largest, leaks, deaf, n_rows = 0.0, [], [], len(s.tokens)
    positions = [cut - 1 for cut in s.cuts]
    for group in (positions[n : n + n_rows] for n in range(0, len(positions), n_rows)):
        weighted = torch.zeros_like(logits)
        for row, i in enumerate(group):  # rows do not mix, so each asks about another logit
            weighted[row, i] = upstream
        (gradient,) = torch.autograd.grad(logits, embedded, weighted, retain_graph=True, materialize_grads=True)
        sizes = distance(gradient, torch.zeros_like(gradient))
        allowed = 0.0 if s.exact else s.rounding * float(sizes.max())
        for i, size in zip(group, sizes, strict=False):
            largest = max(largest, float(size[i + 1 :].max()))
            if (size[i + 1 :] > allowed).any():
                leaks.append((i, i + 1 + int((size[i + 1 :] > allowed).nonzero()[0]), float(size[i + 1 :].max())))
            elif not size[: i + 1].any():
                deaf.append(i)
    if leaks:
        i, j, size_ij = leaks[0]
        detail = f"logit {i} saw token {j}: its gradient in that token's embedding is {size_ij:.2g}, not 0"
        return [LeakTest(name, False, max_change=largest, first_leaking_position=i, detail=detail)]
    if len(deaf) == len(positions):
        return [LeakTest(name, False, max_change=largest, detail="no logit has a gradient in any token it may see")]
    heard = f"not 0 in earlier ones{f', but for {len(deaf)} logits that see none' if deaf else ''}"
    return [
        LeakTest(
            name, True, max_change=largest, detail=f"{len(s.cuts)} logits: gradient 0 in every later token, {heard}"
        )
    ]


def recording_gradients(s: Subject) -> list[LeakTest]:
    """The same in evaluation while gradients are recorded, and in batches as large as in training."""
    name = "recording_gradients"
    try:
        return [_first_failed(name, [lambda: _staggered(s, False), lambda: _staggered(s, True)])]
    except (Refused, NotImplementedError) as error:
        return [skip(name, f"it does not run so here: {' '.join(str(error).split())}")]


def training_mode(s: Subject) -> list[LeakTest]:
    """In training mode, where a model may take another path: batches as in training, with gradients recorded and without,
    and the gradient of each logit; buffers are put back."""
    name = "training_mode"
    if not s.modules:
        return [skip(name, "the callable shows no nn.Module that could be put in training mode: pass model=")]
    buffers = [(b, b.clone()) for m in s.modules for b in m.buffers()]
    for module in s.modules:
        module.train()
    try:
        ways = [
            lambda: _staggered(s, False),
            lambda: _staggered(s, True),
            lambda: gradient_probe(_as_trained(s), name)[0],
        ]
        return [_first_failed(name, ways)]
    except (Refused, NotImplementedError) as error:
        return [skip(name, f"it does not run in training mode here: {' '.join(str(error).split())}")]
    finally:
        for module in s.modules:
            module.eval()
        for buffer, held in buffers:
            buffer.copy_(held)


def _first_failed(name: str, ways: Sequence[Callable[[], LeakTest]]) -> LeakTest:
    """The tests in turn up to one that fails; else the first that passed, else the first skipped one."""
    found = []
    for way in ways:
        found.append(replace(way(), name=name))
        if found[-1].status == "FAILED":
            return found[-1]
    return next((test for test in found if test.passed), found[0])


def _as_trained(s: Subject) -> Subject:
    """The subject with a batch of the size it is trained in."""
    return s if len(s.tokens) == s.training_batch else s.of_rows(s.training_batch)


def _staggered(s: Subject, gradients: bool) -> LeakTest:
    """Suffix perturbation in a batch as in training, each row with a cut of its own, and over the rounds every row several;
    ``gradients``: while they are recorded."""
    how = f"batches of {s.training_batch}, gradients {'recorded' if gradients else 'not recorded'}"
    with torch.set_grad_enabled(gradients):
        n_rows, s = s.training_batch, s.of_rows(s.training_batch)
        if s.moved(s.tokens).any():
            return skip("", f"two calls with the same seed differ: {how}")
        cuts, worst, heard = s.some(MOST_CUTS), Worst(s.allowed), False
        rounds = max(-(-len(cuts) // n_rows), min(ROUNDS, len(cuts)))
        for n in range(rounds):
            own = torch.tensor([cuts[(row * rounds + n) % len(cuts)] for row in range(n_rows)], device=s.tokens.device)
            later = torch.arange(s.n_tokens, device=own.device) >= own[:, None]
            move = s.moved(torch.where(later, s.changed(slice(None)), s.tokens))
            heard |= bool((move[later] > s.allowed).any())
            for row, cut in enumerate(own.tolist()):
                worst.see(move[row : row + 1, :cut], cut, row)
    if not heard and not worst.leaks:
        return LeakTest(
            "", False, max_change=worst.largest, detail=f"no logit moved at all: the test proves nothing; {how}"
        )
    bad = f"logit {worst.position} of row {worst.row} moved when the tokens from {worst.cut} on were changed; {how}"
    return worst.result("", f"{len(cuts)} cuts: nothing before the cut moved; {how}", bad)


def batch_isolation(s: Subject) -> list[LeakTest]:
    """Changing every token of the other rows moves nothing in the first one."""
    name = "batch_isolation"
    if s.tokens.shape[0] < 2:
        return [skip(name, "one row only")]
    worst = Worst(s.allowed)
    worst.see(s.moved(s.changed(slice(None), rows=slice(1, None)))[:1], 0)
    bad = f"logit {worst.position} of row 0 moved when only the other rows of the batch were changed"
    return [worst.result(name, "other rows changed: row 0 did not move", bad)]


def _embedded(s: Subject) -> tuple[Tensor, Tensor | None]:
    """Logits, and the token embeddings (B, T, C) they are a function of; None when no nn.Embedding read the tokens."""
    leaf: list[Tensor] = []

    def cut_graph(module: nn.Module, args: tuple, kwargs: dict, output: Tensor) -> Tensor | None:
        read = [*args, *kwargs.values()][0]
        if leaf or read.shape != s.tokens.shape or not torch.equal(read, s.tokens):
            return None
        leaf.append(output.detach().requires_grad_())
        return leaf[0]

    tables = {id(m): m for top in s.modules for m in top.modules() if isinstance(m, nn.Embedding)}
    hooks = [table.register_forward_hook(cut_graph, with_kwargs=True) for table in tables.values()]
    try:
        logits = s.run(s.tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return logits, leaf[0] if leaf else None


def _who_saw_what(s: Subject, worst: Worst) -> str:
    """Which single token moves the leaking logit."""
    logit = f"logit {worst.position} of row {worst.row}"
    for token in range(worst.position + 1, s.n_tokens):
        move = s.moved(s.changed(token))[worst.row, worst.position]
        if move > s.allowed:
            return f"{logit} saw token {token}: changing that token moved it by {move:.2g}"
    return f"{logit} moved when the tokens from {worst.cut} on were changed"


def _cuts(s: Subject) -> str:
    return f"{len(s.cuts)} cuts" + (" (every position)" if len(s.cuts) == s.n_tokens - 1 else "")
