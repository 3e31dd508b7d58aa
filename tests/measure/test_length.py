from attnzoo.measure.config import MeasureConfig
from attnzoo.measure.length import length_sweep
from attnzoo.model.build import assemble
from attnzoo.model.config import AttentionConfig, ModelConfig, PositionsConfig


def model(name: str, positions: str = "rope", **options):
    sizes = ModelConfig(n_layers=1, d_model=16, n_heads=2)
    return assemble(sizes, AttentionConfig(name, options), PositionsConfig(positions, max_tokens=200), 32, 0)


def test_memory_grows_as_the_rule_and_what_fails_keeps_its_place():
    models = {"exact": model("exact"), "window": model("sliding_window", window=16), "short": model("sdpa", "learned")}
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
