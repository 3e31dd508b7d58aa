"""`attnzoo help` and docs/configuration.md: every key with its meaning, from the declarations."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attnzoo import components, groups
from attnzoo.cli import main
from attnzoo.completion import complete
from attnzoo.errors import RequestError
from attnzoo.options import meanings
from attnzoo.reference import HIDDEN, component_options, describe, settings, takes, written

ROOT = Path(__file__).resolve().parents[1]


def test_every_key_has_a_meaning_and_all_are_there():
    keys = {key.name: key for key in settings()}
    assert {*keys} == {name for cls in groups.SCHEMAS.values() for name in groups.keys(cls)} - {*HIDDEN} | {
        "attention.name"
    }
    assert not [name for name, key in keys.items() if not key.meaning]
    assert not [(key.name, key.of) for key in component_options() if not key.meaning]


def test_what_is_said_of_keys_of_each_sort():
    (steps,) = describe("trainer.max_steps")
    assert (steps.takes, steps.default, steps.bounds) == (
        "a whole number", "300", ("must be at least 1", "must be at most 1000000000"),
    )  # fmt: skip
    assert describe("logger.wandb")[0].choices == ("offline", "online", "disabled")
    assert {*components.names("metric")} == {*describe("measure.metrics")[0].choices}
    assert describe("backends")[0].commands == ("compare",)
    assert describe("jobs")[0].commands == ("compare", "sweep")
    windows = {key.of: key for key in describe("attention.window")}
    assert windows["backend sliding_window"].default == "64"
    assert windows["backend sink_logit"].takes == "a whole number, or null"
    assert "math" in {key.of: key for key in describe("attention.kernel")}["backend sdpa"].choices
    assert {key.name for key in describe("logger")} >= {"logger.extra", "logger.csv"}
    assert "measure.calibration_bins" in {key.name for key in describe("measure")}


@pytest.mark.parametrize(
    ("word", "near"),
    [("trainr.max_steps", "trainer.max_steps"), ("attention.windw", "attention.window"), ("betas", "trainer.betas"),
     ("measure.rouns", "measure.rounds")],
)  # fmt: skip
def test_a_wrong_key_names_the_nearest(word, near):
    with pytest.raises(RequestError, match=f"did you mean '?{near}"):
        describe(word)


def test_values_and_types_in_words():
    assert [written(value) for value in (None, True, "", [1, 2], (0.9, 0.95), {}, 1e-6)] == [
        "null", "true", "''", "[1,2]", "[0.9,0.95]", "{}", "1e-06",
    ]  # fmt: skip
    assert [takes(hint) for hint in (int | None, bool | str, list[str], tuple[float, float], dict[str, dict])] == [
        "a whole number, or null", "true or false, or a text", "a list of texts", "a list of 2 numbers", "a group of keys",
    ]  # fmt: skip
    both = type("Both", (), {"__doc__": "one, two: of both. three: alone; four: too."})
    assert meanings(both) == {"one": "of both.", "two": "of both.", "three": "alone", "four": "too."}


def test_the_command(capsys):
    assert main(["help", "trainer.tf32", "seed"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("trainer.tf32: true or false; default false\n  float32 products")
    assert "\n\nseed: a whole number; default 0\n" in out
    assert main(["help"]) == 0
    assert "attention, positions, model" in capsys.readouterr().out
    assert main(["help", "--json", "measure.rounds"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["default"] == "15"
    assert main(["help", "measure.rouns", "sed"]) == 2
    said = capsys.readouterr().err
    assert "measure.rounds" in said
    assert "'seed'" in said


def test_completion_has_the_keys_and_options():
    assert complete(["help", "measure.cal"]) == ["measure.calibration_bins"]
    assert "trainer.max_steps" in complete(["help", "trainer."])


def test_no_torch_is_needed_for_it():
    code = "import sys; from attnzoo.cli import main; main(['help', 'attention.window']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_the_page_is_what_is_declared():
    assert (
        subprocess.run([sys.executable, ROOT / "scripts" / "configuration_page.py", "--check"], check=False).returncode
        == 0
    )
