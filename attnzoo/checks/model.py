"""Checks of a whole language model and its task: `check_model`. Shapes: see `attnzoo.shapes`.

What an operator can be right about and a model still get wrong: labels, ties, the loss, padding, packed documents,
generation, positions while decoding, leaks.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnzoo import arguments
from attnzoo.arguments import demand, flag, function, having, whole
from attnzoo.arguments import seed as valid_seed
from attnzoo.checks import decode_properties, task_properties
from attnzoo.checks import model_properties as properties
from attnzoo.checks.canary import entropy_canary
from attnzoo.checks.kinds import attempt, skipped
from attnzoo.checks.leak import leak_test
from attnzoo.checks.leak_setup import modules_behind, prepared
from attnzoo.checks.leak_subject import LeakTest
from attnzoo.checks.model_gradients import model_gradients, model_second_derivative
from attnzoo.checks.model_properties import Model
from attnzoo.checks.report import FAILED, PASSED, SKIPPED, CheckReport, Result
from attnzoo.tasks.base import Task

OF_MODEL: tuple[Callable[[Model], str], ...] = (
    properties.tied_weights,
    properties.loss_over_tokens,
    properties.batch_independence,
    properties.left_padding,
    properties.right_padding,
    properties.documents_isolated,
    model_gradients,
    model_second_derivative,
    decode_properties.decode_positions,
    decode_properties.full_cache,
    decode_properties.generation,
    decode_properties.padded_generation,
)
OF_TASK: tuple[Callable[[Task], str], ...] = (task_properties.label_shift, task_properties.splits_disjoint)


def check_model(
    model: Callable[[Tensor], Tensor],
    *,
    vocab_size: int | None = None,
    task: Task | None = None,
    n_tokens: int = 64,
    seed: int = 0,
    device: str | torch.device = "cpu",
    make_model: Callable[[], nn.Module] | None = None,
    quick: bool = False,
) -> CheckReport:
    """Hold a language model, and the task it is trained on, to what every such pair must keep.

    Args:
        model: tokens (B, T) -> logits (B, T, V): an `attnzoo.CausalLM`, or any callable. What it has no argument
            or method for (``key_padding``, ``documents``, ``new_cache``, ``generate``, ``loss``) is skipped, and why.
        vocab_size: V; None takes it from the model or the task.
        task: its batches are checked as well.
        n_tokens: T of the leak tests.
        make_model: a fresh model for the entropy canary; None trains a copy of this one.
        quick: without the canary.

    Raises:
        RequestError: not a callable, or no vocab_size to be found.
    """
    if vocab_size is None:
        vocab_size = getattr(model, "vocab_size", getattr(task, "vocab_size", None))
    demand(
        "this cannot be checked",
        function("model", model, "a callable tokens (B, T) -> logits (B, T, V)"),
        ["vocab_size must be given"] if vocab_size is None else whole("vocab_size", vocab_size, 2),
        having("task", task, ("vocab_size", "train_batch", "validation_batches"), "a task", optional=True),
        whole("n_tokens", n_tokens, 2),
        valid_seed("seed", seed),
        arguments.device("device", device),
        [] if make_model is None else function("make_model", make_model, "a function that makes a fresh model"),
        flag("quick", quick),
    )
    assert vocab_size is not None
    started, device = time.perf_counter(), torch.device(device)
    modules, results = modules_behind(model), []
    # a gain of 1 would hide where it is lost
    with prepared(modules, device, seed, asleep=(0.0, 1.0)):
        subject = Model(model, vocab_size, device, torch.Generator().manual_seed(seed))
        dtype = str(subject(subject.tokens(1, 2)).dtype).removeprefix("torch.")
        results += [attempt(prop, subject) for prop in OF_MODEL]
    results += [attempt(prop, task) if task else skipped(prop, "no task was given") for prop in OF_TASK]
    report = leak_test(model, vocab_size=vocab_size, n_tokens=n_tokens, seed=seed, device=device)
    results += [_from_leak(test, report.setting) for test in report.tests]
    if not quick:
        results.append(_canary(make_model, modules, vocab_size, seed, device))
    name = type(modules[0] if modules else model).__name__
    return CheckReport(name, str(device), (dtype,), quick, results, seconds=time.perf_counter() - started)


def _from_leak(test: LeakTest, setting: str) -> Result:
    status = SKIPPED if test.skipped else PASSED if test.passed else FAILED
    where = "" if test.first_leaking_position is None else f"logit {test.first_leaking_position}"
    change = "" if test.max_change is None else f"a change of {test.max_change:.3g}"
    about = "no logit depends on a later token"
    return Result(f"leak_{test.name}", setting, status, "no change", change, where, test.detail, about)


def _canary(make_model, modules: list[nn.Module], vocab_size: int, seed: int, device: torch.device) -> Result:
    if make_model is None:
        if not modules or not any(p.requires_grad for p in modules[0].parameters()):
            return _from_leak(
                LeakTest("entropy_canary", False, skipped=True, detail="no module to train: pass make_model"), ""
            )
        make_model = lambda: copy.deepcopy(modules[0])  # noqa: E731
    return _from_leak(entropy_canary(make_model, vocab_size, seed=seed, device=device), "fresh uniform tokens")
