import json

import pytest
import torch

from attnzoo.errors import RequestError
from attnzoo.measure import environment as env


def test_environment_is_plain_and_complete():
    found = env.environment("cpu", *env.resolve_precision("fp32"))
    json.dumps(found, allow_nan=False)
    assert found["torch"] == torch.__version__.split("+")[0] or found["torch"] == torch.__version__
    for key in ("python", "os", "cpu", "threads", "git_commit", "git_dirty", "command", "start", "precision_reason"):
        assert key in found


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("logger.api_key=abc", "logger.api_key=***"),
        ("WANDB_API_KEY=abc", "WANDB_API_KEY=***"),
        ("hf_token=abc", "hf_token=***"),
        ("password=abc", "password=***"),
        ("task.n_tokens=64", "task.n_tokens=64"),
        ("measure.decode_tokens=8", "measure.decode_tokens=8"),
        ("name=hf_abcdefghijklmnopqrstuv", "name=***"),
        ("name=" + "0123456789abcdef" * 3, "name=***"),
    ],
)
def test_secrets_stay_out_of_the_command(word, shown):
    assert env.redacted_command(["/bin/attnzoo", "train", word]) == f"attnzoo train {shown}"


def test_auto_precision_follows_the_hardware(monkeypatch):
    monkeypatch.setattr(env, "fast_bf16_on_cpu", lambda: None)
    assert env.resolve_precision("auto", "cpu")[0] == "fp32"
    monkeypatch.setattr(env, "fast_bf16_on_cpu", lambda: "AMX")
    precision, reason = env.resolve_precision("auto", "cpu")
    assert precision == "bf16"
    assert "AMX" in reason
    assert env.resolve_precision("bf16", "cpu") == ("bf16", "asked for by name")
    with pytest.raises(RequestError, match="did you mean 'bf16'"):
        env.resolve_precision("bf1", "cpu")


def test_devices(monkeypatch):
    assert env.resolve_device("cpu") == "cpu"
    assert env.resolve_device("auto") in ("cpu", "cuda")
    with pytest.raises(RequestError, match="valid: auto, cpu, cuda"):
        env.resolve_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert env.resolve_device("auto") == "cpu"
    with pytest.raises(RequestError, match="no CUDA device"):
        env.resolve_device("cuda")


def test_no_commit_is_claimed_outside_the_checkout(tmp_path, monkeypatch):
    package = tmp_path / "site-packages" / "attnzoo"
    package.mkdir(parents=True)
    monkeypatch.setattr(env.attnzoo, "__file__", str(package / "__init__.py"))
    env.git.cache_clear()
    try:
        assert env.git() == {"git_commit": None, "git_dirty": None}
    finally:
        env.git.cache_clear()
