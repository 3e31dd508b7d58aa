"""What is a secret and what only sounds like one, and that no writer lets one through."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from attnzoo.measure.record import Record, config_hash
from attnzoo.redact import names_secret, redacted, redacted_command, redacted_text
from attnzoo.training.config import AttentionConfig, RunConfig, to_dict, to_yaml

SECRET = """api_key apiKey API-KEY apikeys key secret_key ssh_key token hf_token hftoken authToken access_tokens secret secrets
    clientSecret Password db_password passwd passphrase credential aws_credentials bearer logger.api_key secrets.first"""
ORDINARY = """tokenizer n_tokens max_tokens validation_tokens tokens tokens_seen decode_ms_per_token token_shift eos_token monkey
    turkey keyboard keys n_keys key_padding key_dim bypass compass author first_leaking_position attention.window"""


def test_keys_that_name_a_secret():
    assert [key for key in SECRET.split() if not names_secret(key)] == []
    assert [key for key in ORDINARY.split() if names_secret(key)] == []


def test_every_key_of_the_configuration_is_ordinary():
    from attnzoo.groups import keys
    from attnzoo.training.config import CompareConfig

    assert [key for key in keys(CompareConfig) if names_secret(key)] == []


def test_what_was_not_given_is_no_secret_and_every_other_value_is():
    given = {"api_key": ["a", {"b": 1.5}], "token": None, "secret": 7, "password": True, "n_tokens": 8, "at": ("x",)}
    assert redacted(given) == {
        "api_key": ["***", {"b": "***"}], "token": None, "secret": "***", "password": True, "n_tokens": 8, "at": ("x",),
    }  # fmt: skip
    assert given["secret"] == 7  # the caller's stay as they are


@pytest.mark.parametrize(
    "words",
    [
        ["attention.api_key=hush"],
        ["+attention.apiKey=hush,hush2"],
        ["attention.api_key=hush and hush"],
        ["attention={name: mine, api_key: hush hush, window: 3}"],
        ["options={mine:{api_key:[hush,hush],window:3}}"],
        ["--api-key", "hush"],
        ["--token=hush"],
        ["data.repository=https://me:hush@host/x"],
        ["name=hf_hushhushhushhushhush"],
    ],
)
def test_a_command_keeps_no_secret(words):
    shown = redacted_command(["attnzoo", *words, "task.n_tokens=64"])
    assert "hush" not in shown
    assert shown.endswith(" task.n_tokens=64")
    assert "window: 3" in shown or "window: 3" not in words[0]


def test_a_message_keeps_no_secret_and_its_words():
    assert redacted_text("options.mine.api_key=hush: must be longer") == "options.mine.api_key=***: must be longer"
    assert redacted_text("options={'api_key': 'hush', 'n': 1}") == "options={'api_key': ***, 'n': 1}"
    assert (
        redacted_text("The key: a door; n_tokens=3, tokenizer=bytes") == "The key: a door; n_tokens=3, tokenizer=bytes"
    )


@pytest.fixture
def cfg():
    return RunConfig(AttentionConfig("mine", {"api_key": "hush", "window": 3}))


def test_no_writer_lets_one_through(tmp_path, cfg):
    Record(status="ok", options=cfg.attention.options, reasons=["api_key=hush is wrong"]).save(tmp_path / "record.json")
    written = (tmp_path / "record.json").read_text() + to_yaml(cfg)
    assert "hush" not in written
    assert written.count("***") == 3
    assert to_dict(cfg)["attention"] == {"name": "mine", "api_key": "hush", "window": 3}  # what runs keeps it


def test_a_record_of_before_is_shown_without(tmp_path):
    (tmp_path / "record.json").write_text(json.dumps({"schema": 1, "status": "ok", "options": {"api_key": "hush"}}))
    assert Record.load(tmp_path / "record.json").options == {"api_key": "***"}
    (tmp_path / "comparison.json").write_text(json.dumps({"command": "attnzoo compare options.x.api_key=hush"}))
    from attnzoo.report import find_records

    assert find_records(tmp_path).plan.command == "attnzoo compare options.x.api_key=***"


def test_a_secret_tells_no_configurations_apart(cfg):
    """The file has it hidden, and is the same run's."""
    other = RunConfig(AttentionConfig("mine", {"api_key": "***", "window": 3}))
    assert config_hash(to_dict(cfg)) == config_hash(to_dict(other))
    assert config_hash(to_dict(cfg)) != config_hash(to_dict(RunConfig(AttentionConfig("mine", {"window": 4}))))


@pytest.mark.parametrize("text", ["x" * 400_000, "eyJ-" * 100_000, "://a" * 100_000, "a." * 200_000])
def test_a_long_text_takes_no_longer_than_its_length(text):
    """Where a search began anew at each letter, these took minutes: the process is ended."""
    code = "import sys; from attnzoo.redact import redacted_text; print(len(redacted_text('n=1 {' + sys.stdin.read())))"
    done = subprocess.run([sys.executable, "-c", code], input=text, text=True, capture_output=True, timeout=30)
    assert int(done.stdout) == len(text) + 5
