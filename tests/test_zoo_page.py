"""docs/zoo.md is what the backends say of themselves."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def script():
    spec = importlib.util.spec_from_file_location("zoo_page", ROOT / "scripts" / "zoo_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_and_its_pictures_are_not_stale():
    run = [sys.executable, ROOT / "scripts" / "zoo_page.py", "--check"]
    done = subprocess.run(run, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run scripts/zoo_page.py\n{done.stdout}{done.stderr}"


class Said:
    """O = V.

    With ``v`` and a_b.
    Cost: time O(T). State: 2·T.
    Gives up every look back. Use: never; at no Cost at all.
    """


def test_a_docstring_is_taken_apart():
    found = script().sections(Said)
    assert found == {
        "title": "O = V.",
        "body": r"With `v` and a\_b.",
        "Cost": "time O(T).",
        "State": "2·T.",
        "Gives up": "every look back.",
        "Use": "never; at no Cost at all.",
    }


def test_a_card_that_lacks_something_is_an_error():
    class Empty:
        """Nothing."""

    with pytest.raises(SystemExit, match="lacks Cost, State, Use"):
        script().card("empty", Empty)


def test_what_is_not_declared_is_listed_as_refused():
    from attnzoo import registry

    assert script().refused(registry.get("exact")) == ""
    assert (
        script().refused(registry.get("linear")) == "the mask fields prefix, sinks, window; bias, dropout, scale, mla"
    )


def test_a_card_says_how_long_gates_remember_and_what_positions_there_are():
    from attnzoo import registry

    cards = {name: script().card(name, registry.get(name)) for name in ("mamba2", "forgetting", "deltanet", "sdpa")}
    assert "**Memory at first**: 14 tokens until" in cards["mamba2"]
    assert "**Memory at first**: 1.4 tokens until" in cards["forgetting"]
    assert ["**Memory" in card for card in cards.values()] == [True, True, False, False]
    assert ["**Positions**: none" in card for card in cards.values()] == [True, True, True, False]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("deltanet", ["1/sqrt(D)", "SiLU", "`model.head_norm`"]),
        ("gated_deltanet", ["[0, 16\\]", "SiLU gate", "2 D channels"]),
        ("mamba2", ["no skip D·X", "SiLU", "QK-norm"]),
        ("retention", ["Σ\\_j \\|R\\_ij\\|", "no gradient", "`model.head_norm`", "xPos"]),
        ("nsa", ["block's own last token"]),
        ("differential", ["G \\< H", "eager"]),
        ("mla", ["YaRN"]),
        ("gla", ["half as wide"]),
    ],
)
def test_a_card_names_what_a_publication_has_otherwise(name, words):
    from attnzoo import registry

    said = script().card(name, registry.get(name))
    assert [word for word in words if word not in said] == []
