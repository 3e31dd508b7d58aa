"""What is timed is the work that is named: seen from inside the models, call by call, without a clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
import torch

from attnzoo.measure import cost
from attnzoo.measure.config import MeasureConfig
from attnzoo.measure.latency import Timing
from attnzoo.measure.step import TrainStep, adamw, autocast, random_tokens
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig

LAYERS, WIDTH, HEADS, VOCABULARY = 2, 32, 4, 48
BATCH, TOKENS, CONTEXT, NEW, ROUNDS = 2, 16, 9, 3, 2


def model(name: str = "sdpa", **options):
    sizes = ModelConfig(n_layers=LAYERS, d_model=WIDTH, n_heads=HEADS)
    return assemble(sizes, AttentionConfig(name, options), PositionsConfig("rope"), VOCABULARY, 0)


@dataclass(frozen=True)
class Call:
    """One pass as the model sees it; ``held`` and ``room`` are of the cache, None without one."""

    shape: tuple[int, ...]
    training: bool
    recorded: bool
    held: int | None
    room: int | None
    gradients: bool
    bf16: bool


def watched(lm) -> list[Call]:
    calls: list[Call] = []

    def see(module, args, named) -> None:
        cache = named.get("cache")
        calls.append(
            Call(
                tuple(args[0].shape), module.training, torch.is_grad_enabled(), cache and cache.length,
                cache and cache.layers[0].attention.max_tokens, any(p.grad is not None for p in module.parameters()),
                torch.is_autocast_enabled("cpu"),
            )
        )  # fmt: skip

    lm.register_forward_pre_hook(see, with_kwargs=True)
    return calls


class Counted(torch.optim.SGD):
    """Counts its steps, and those taken without gradients."""

    def __init__(self, lm) -> None:
        super().__init__(lm.parameters(), lr=1.0)
        self.seen: list[bool] = []

    def step(self, closure=None):
        self.seen.append(all(p.grad is not None for p in self.param_groups[0]["params"]))
        return super().step(closure)


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def timed(request):
    """Two models timed together: the calls each has seen, its optimiser, the figures, the precision."""
    models = {"first": model(), "second": model("linear", chunk=4)}
    calls, optimizers = {name: watched(lm) for name, lm in models.items()}, {}

    def make(lm):
        name = next(name for name, other in models.items() if other is lm)
        optimizers[name] = Counted(lm)
        return optimizers[name]

    found = cost.time_models(
        models, task_shape=(BATCH, TOKENS), baseline="first", precision=request.param, make_optimizer=make,
        measure=MeasureConfig(rounds=ROUNDS, seconds=3.0, decode_context=CONTEXT, decode_tokens=NEW),
    )  # fmt: skip
    return calls, optimizers, found, request.param


@pytest.mark.parametrize("name", ["first", "second"])
def test_each_model_does_its_own_training_steps_prefills_and_decoding(timed, name):
    calls, optimizers, found, precision = timed
    bf16 = precision == "bf16"
    seen = Counter(calls[name])
    steps = Call((BATCH, TOKENS), True, True, None, None, False, bf16)
    prefill = Call((1, CONTEXT), False, False, 0, CONTEXT, False, bf16)
    first = CONTEXT - (2 + ROUNDS) * NEW // 2
    last = first + (2 + ROUNDS) * NEW
    filling = Call((1, first), False, False, 0, last + 1, False, bf16)
    decoded = [Call((1, 1), False, False, held, last + 1, False, bf16) for held in range(first, last)]
    assert set(seen) == {steps, prefill, filling, *decoded}
    assert seen[filling] == 1
    assert {seen[call] for call in decoded} == {1}  # no length twice, those of the warm-up neither
    assert seen[steps] >= 2 + ROUNDS
    assert seen[prefill] >= 2 + ROUNDS
    assert optimizers[name].seen == [True] * seen[steps]  # each step has gradients and moves the optimiser
    assert found[name]["decode_ms_per_token"]["rounds"] == ROUNDS
    assert (found[name]["prefill_ms"]["ratio"] is None) == (name == "first")


def test_the_figures_are_those_of_the_stage(timed):
    _, _, found, _ = timed
    for name, figures in found.items():
        assert set(figures) == {
            "train_step_ms", "prefill_ms", "decode_ms_per_token", "train_tokens_per_s", "train_matmul_share",
            "matmul_flops_per_s",
        }  # fmt: skip
        lm = model() if name == "first" else model("linear", chunk=4)
        achieved = 3 * BATCH * lm.flops(TOKENS) / figures["train_step_ms"]["median"] * 1000
        assert figures["train_matmul_share"] == pytest.approx(achieved / figures["matmul_flops_per_s"])
        expected = BATCH * TOKENS / figures["train_step_ms"]["median"] * 1000
        assert figures["train_tokens_per_s"] == pytest.approx(expected)


def test_tokens_per_second_by_hand():
    assert cost.tokens_per_second(Timing(samples=[10.0, 20.0, 40.0]), 60) == 3000
    assert cost.tokens_per_second(Timing(samples=[], status="failed"), 60) is None


def test_decoding_and_generation_are_per_token():
    lm = model()
    assert cost.decode_contestant(lm, 1, CONTEXT, NEW, "fp32").units == NEW
    assert cost.generate_contestant(lm, 1, CONTEXT, NEW, "fp32").units == NEW
    assert cost.prefill_contestant(lm, 1, CONTEXT, "fp32").units == 1
    assert cost.train_contestant(lm, 1, CONTEXT, "fp32").units == 1


def lengths(lm, context, new, rounds):
    """The cache's length at each decoded token of so many calls, with room for two."""
    calls, contestant = watched(lm), cost.decode_contestant(lm, 1, context, new, "fp32", calls=2)
    for _ in range(rounds):
        contestant.prepare()
        contestant.run()
    return [call.held for call in calls if call.held]


def test_decoding_never_meets_a_length_twice():
    """Rounds beyond those that were thought of go on in a longer cache; a learned table ends, and there it starts over."""
    assert lengths(model(), 20, 3, 5) == list(range(17, 17 + 15))
    assert lengths(model(), 1, 3, 3) == list(range(1, 10))  # no room below
    lm = model()
    lm.positions.longest = 22
    assert lengths(lm, 20, 3, 4) == [*range(16, 22)] * 2


def test_generation_reads_the_prompt_and_adds_the_tokens():
    lm = model()
    calls = watched(lm)
    cost.generate_contestant(lm, BATCH, CONTEXT, NEW, "fp32").run()
    assert [call.shape for call in calls] == [(BATCH, CONTEXT)] + [(BATCH, 1)] * (NEW - 1)
    assert {call.room for call in calls} == {CONTEXT + NEW}


def test_costs_by_hand():
    lm, heads = model(), HEADS
    found = cost.model_costs(lm, batch_size=BATCH, n_tokens=TOKENS, context=CONTEXT)
    assert found["cache_bytes"] == found["cache_bytes_formula"] == LAYERS * 2 * heads * CONTEXT * (WIDTH // heads) * 4
    assert found["parameters"] == sum({id(p): p.numel() for p in lm.parameters()}.values())
    assert found["train_flops"] == 3 * BATCH * lm.flops(TOKENS)
    assert found["shape"] == {"batch_size": BATCH, "n_tokens": TOKENS, "context": CONTEXT, "decode_batch_size": 1}


def test_the_cache_has_the_type_of_the_precision():
    lm = model()
    wide, narrow = (cost.new_cache(lm, 3, 5, precision) for precision in ("fp32", "bf16"))
    assert wide.nbytes == 2 * narrow.nbytes == LAYERS * 2 * 3 * 5 * WIDTH * 4


def test_the_device_of_the_models():
    assert cost.device_of({}) == "cpu"
    assert cost.device_of({"a": model().to("meta")}) == "meta"


def test_a_step_rests_with_parameters_moments_and_its_batch():
    lm = model()
    step = TrainStep(lm, BATCH, TOKENS)
    weights = sum(p.nbytes for p in lm.parameters())
    held = sum(b.nbytes for b in lm.buffers()) + 2 * BATCH * TOKENS * 8
    assert step.resting_bytes() == weights + held
    step()
    counters = 4 * len(list(lm.parameters()))  # each parameter's number of steps
    assert step.resting_bytes() == 3 * weights + held + counters
    assert not torch.equal(step.tokens, step.targets)
    assert all(p.grad is None for p in lm.parameters())
    assert [group["lr"] for group in step.optimizer.param_groups] == [0.0]
    assert type(adamw(lm)) is torch.optim.AdamW
    assert adamw(lm).defaults["fused"] is True  # as people train


def test_tokens_are_the_same_each_time_and_of_the_whole_vocabulary():
    lm = model()
    tokens = random_tokens(lm, 64, 32)
    assert torch.equal(tokens, random_tokens(lm, 64, 32))
    assert not torch.equal(tokens, random_tokens(lm, 64, 32, seed=1))
    assert (tokens.shape, int(tokens.min()), int(tokens.max())) == ((64, 32), 0, VOCABULARY - 1)


def test_autocast_is_bf16_or_nothing():
    product = torch.ones(2, 2)
    with autocast("fp32", "cpu"):
        assert (product @ product).dtype == torch.float32
    with autocast("bf16", "cpu"):
        assert (product @ product).dtype == torch.bfloat16


def test_each_stage_has_its_share_of_the_time_and_the_settings(monkeypatch):
    told = []
    monkeypatch.setattr(cost, "take_turns", lambda works, **how: told.append(how) or {n: Timing([1.0]) for n in works})
    measure = MeasureConfig(rounds=7, seconds=6.0, decode_context=CONTEXT, decode_tokens=NEW)
    cost.time_models({"a": model()}, task_shape=(BATCH, TOKENS), measure=measure, baseline="a", seed=5)
    assert told == [{"baseline": "a", "rounds": 7, "seconds": 2.0, "seed": 5, "device": "cpu"}] * 3
