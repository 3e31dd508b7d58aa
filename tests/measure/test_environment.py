import importlib.metadata
import json
import subprocess
from datetime import UTC, datetime
from types import SimpleNamespace

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


@pytest.fixture
def cuda(monkeypatch):
    """Two devices that multiply bf16, or not; and what became the current one."""
    current = []
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "set_device": current.append,
        "get_device_name": lambda device: f"Example {device}",
        "is_bf16_supported": lambda including_emulation: not including_emulation,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return current


def test_cuda_devices_by_number(cuda):
    assert [env.resolve_device(device) for device in ("auto", "cuda", "cuda:1", "cpu")] == [
        "cuda",
        "cuda",
        "cuda:1",
        "cpu",
    ]
    assert cuda == [1]
    with pytest.raises(RequestError, match="there are 2 CUDA devices"):
        env.resolve_device("cuda:2")
    assert (env.device_name("cuda:1"), env.device_name("cpu")) == ("Example cuda:1", env.cpu_model())


def test_precision_on_cuda(cuda, monkeypatch):
    assert env.resolve_precision("auto", "cuda") == ("bf16", "asked for auto; Example cuda multiplies bf16 in hardware")
    assert env.resolve_precision("fp16", "cuda") == ("fp16", "asked for by name")
    with pytest.raises(RequestError, match="it is for CUDA"):
        env.resolve_precision("fp16", "cpu")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
    assert env.resolve_precision("auto", "cuda") == ("fp32", "asked for auto; Example cuda has no bf16 hardware")


@pytest.mark.parametrize(
    ("amx", "avx", "text", "found"),
    [
        (True, True, "", "AMX"),
        (True, False, "", "AMX"),
        (False, True, "flags: amx_bf16", "AVX512-BF16"),  # torch has answered
        (False, False, "flags: avx2 amx_bf16 avx512_bf16", "AMX"),
        (False, False, "flags: avx2 avx512_bf16", "AVX512-BF16"),
        (False, False, "flags: avx2 avx512_bf16x", None),
        (None, None, "flags: avx512f", None),
        (None, None, None, None),
    ],
)
def test_what_a_cpu_multiplies_bf16_with(monkeypatch, amx, avx, text, found):
    for question, answer in (("_is_amx_tile_supported", amx), ("_is_avx512_bf16_supported", avx)):
        monkeypatch.setattr(
            torch.cpu, question, answer if answer is None else lambda answer=answer: answer, raising=False
        )
    monkeypatch.setattr(env, "Path", lambda _: SimpleNamespace(exists=lambda: text is not None, read_text=lambda: text))
    assert env.fast_bf16_on_cpu.__wrapped__() == found


def test_the_name_of_a_cpu(monkeypatch):
    info = "processor : 0\nmodel name\t: Example CPU @ 2 GHz \nmodel name : another\n"
    monkeypatch.setattr(env, "Path", lambda _: SimpleNamespace(exists=lambda: bool(info), read_text=lambda: info))
    assert env.cpu_model.__wrapped__() == "Example CPU @ 2 GHz"
    monkeypatch.setattr(env.platform, "processor", lambda: "")
    monkeypatch.setattr(env.platform, "machine", lambda: "arch")
    info = ""
    assert env.cpu_model.__wrapped__() == "arch"
    info = "flags: x"
    assert env.cpu_model.__wrapped__() == "arch"


def test_the_commit_and_whether_it_was_changed(tmp_path, monkeypatch):
    package = tmp_path / "attnzoo"
    package.mkdir()
    (package / "__init__.py").write_text("1")
    monkeypatch.setattr(env.attnzoo, "__file__", str(package / "__init__.py"))

    def git(*words):
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(
            ["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "x")
    head = git("rev-parse", "HEAD").strip()
    (tmp_path / "untracked").write_text("x")
    assert env.git.__wrapped__() == {"git_commit": head, "git_dirty": False}
    (package / "__init__.py").write_text("2")
    assert env.git.__wrapped__() == {"git_commit": head, "git_dirty": True}
    monkeypatch.setenv("PATH", "")
    assert env.git.__wrapped__() == {"git_commit": None, "git_dirty": None}


def test_every_entry_says_what_it_is(monkeypatch):
    monkeypatch.setattr(env.sys, "argv", ["/bin/attnzoo", "train", "api_key=abc"])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(env.os, "cpu_count", lambda: 5)
    monkeypatch.setattr(env, "git", lambda: {"git_commit": "c", "git_dirty": True})
    found = env.environment("cpu", "bf16", "why")
    told = (
        "device",
        "device_name",
        "cpu",
        "cores",
        "threads",
        "cuda",
        "gpu",
        "precision",
        "precision_reason",
        "git_commit",
    )
    assert [found[key] for key in told] == [
        "cpu",
        env.cpu_model(),
        env.cpu_model(),
        5,
        3,
        None,
        None,
        "bf16",
        "why",
        "c",
    ]
    assert found["command"] == "attnzoo train api_key=***"
    assert found["python"] == env.platform.python_version()
    assert found["attnzoo"] == env.attnzoo.__version__
    assert found["os"].startswith(f"{env.platform.system()} {env.platform.machine()}")
    start = datetime.fromisoformat(found["start"])
    assert len(found["start"]) == len("2026-01-02T03:04:05+00:00")
    assert start.tzinfo is UTC
    assert abs((datetime.now(UTC) - start).total_seconds()) < 60
    versions = env.versions()
    assert versions["numpy"] == importlib.metadata.version("numpy")
    monkeypatch.setattr(env, "PACKAGES", ("nobody-has-this",))
    assert env.versions() == {"nobody-has-this": None}
