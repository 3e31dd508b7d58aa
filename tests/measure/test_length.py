from attnzoo.measure import length
from attnzoo.measure.config import MeasureConfig
from attnzoo.measure.latency import Timing
from attnzoo.measure.length import length_sweep
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig


def model(name: str, positions: str = "rope", max_tokens: int | None = None, **options):
    scheme = PositionsConfig(positions, options={"max_tokens": max_tokens} if max_tokens else {})
    sizes = ModelConfig(n_layers=1, d_model=16, n_heads=2)
    return assemble(sizes, AttentionConfig(name, options), scheme, 32, 0)


def test_memory_grows_as_the_rule_and_what_fails_keeps_its_place():
    models = {
        "exact": model("exact"),
        "window": model("sliding_window", window=16),
        "short": model("sdpa", "learned", 200),
    }
    found = length_sweep(models, measure=MeasureConfig(rounds=2, seconds=30.0, lengths=[128, 256, 512]))
    assert all([part["n_tokens"] for part in found[name]] == [128, 256, 512] for name in models)
    assert all(part["low"] <= part["train_step_ms"] <= part["high"] for part in found["exact"])

    def added(name: str) -> float:
        """Bytes that 256 … 512 add over those that 128 … 256 add: parameters drop out; 2 for n, 4 for n²."""
        first, second, third = (part["peak_memory_bytes"] for part in found[name])
        return (third - second) / (second - first)

    assert 3.5 < added("exact") < 4.1
    assert 1.8 < added("window") < 2.2
    assert [part["status"] for part in found["short"]] == ["ok", "failed", "failed"]
    assert "past the learned table" in found["short"][1]["reasons"][0]


def test_what_the_turns_are_told_and_what_is_made_of_them(monkeypatch):
    told, made = {}, []

    class Step:
        def __init__(self, lm, batch_size, n_tokens, *, precision, make_optimizer, **_):
            made.append((lm, batch_size, n_tokens, precision, make_optimizer(lm)))
            self.n_tokens = n_tokens

        def resting_bytes(self):
            return 1000

    def turns(works, **how):
        told.update(how, order=list(works))
        good = Timing(samples=[1.0, 2.0, 3.0])
        return {key: good if key[1] < 64 else Timing(status="interrupted", reasons=["so"]) for key in works}

    monkeypatch.setattr(length, "TrainStep", Step)
    monkeypatch.setattr(length, "take_turns", turns)
    monkeypatch.setattr(length, "peak_memory", lambda step, device: (step.n_tokens, device))
    models = {"a": model("sdpa"), "b": model("linear")}
    measure = MeasureConfig(rounds=7, seconds=9.0, lengths=[64, 16, 32])
    found = length_sweep(models, measure=measure, precision="bf16", seed=5)
    assert told.pop("limit").asked == 9.0
    assert told.pop("order") == [(name, n) for n in (16, 32, 64) for name in "ab"]  # the long ones last
    assert told == {"rounds": 7, "seconds": 9.0, "warmup": 1, "seed": 5, "device": "cpu"}
    assert [(lm, *given) for lm, *given, _ in made] == [
        (lm, 1, n, "bf16") for lm in models.values() for n in measure.lengths
    ]
    assert len({id(optimizer) for *_, optimizer in made}) == 2  # one a model: its state is weighed once
    numbers = {"status": "ok", "reasons": [], "train_step_ms": 2.0, "low": 1.0, "high": 3.0, "rounds": 3}
    parts = [{"n_tokens": n, **numbers, "peak_memory_bytes": 1000 + n} for n in (16, 32)]
    parts.append({"n_tokens": 64, "status": "interrupted", "reasons": ["so"]})
    assert found == {"a": parts, "b": parts}
