"""A right position scheme passes `attnzoo check`; a planted fault is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import attnzoo
from attnzoo import Positions, ScoreBias, cli, components
from attnzoo.positions.rope import Rope
from attnzoo.positions.sinusoidal import Sinusoidal


@pytest.mark.parametrize("name", components.built_in("positions"))
def test_every_scheme_passes(name: str) -> None:
    report = attnzoo.check(f"positions:{name}")
    assert report.passed, report


def failed(cls: type[Positions], **options: object) -> set[str]:
    return set(attnzoo.check(cls, **options).failed_checks())


class FromTheStart(Rope):
    """A rope that counts from the first token of the call, not from the cache's offset."""

    def phases(self, positions):
        return super().phases(torch.arange(positions.shape[1], device=positions.device)[None])


class Rounded(Rope):
    """A rope whose phases take the model's type."""

    def __init__(self, options, **sizes):
        super().__init__(options, **sizes)
        self.unit = torch.nn.Buffer(torch.zeros(()))

    def phases(self, positions):
        return super().phases(positions.to(self.unit.dtype))


class Inexact(Rope):
    """A rope whose angles are a tenth of a percent too large."""

    def phases(self, positions):
        return super().phases(positions * 1.001)


class Writing(Sinusoidal):
    """Sines that are added in place."""

    def embed(self, h, positions, end=None):
        return h.add_(super().embed(torch.zeros_like(h), positions))


class Widening(Sinusoidal):
    """Sines that turn half types into float32."""

    def embed(self, h, positions, end=None):
        return h + super().embed(torch.zeros_like(h).float(), positions)


class Undeclared(Rope):
    """A rope that does not say that it turns pairs of channels."""

    turns = False


class Absolute(Positions):
    """A bias by the key's position alone, declared as relative."""

    source = "here"
    needs_bias = True
    relative = True

    def bias(self):
        class ByKey(ScoreBias):
            def block(self, i, j):
                return (0.1 * j + 0 * i).expand(4, *torch.broadcast_shapes(i.shape, j.shape))

        return ByKey()


class Counting(Sinusoidal):
    """Sines that move on at each call."""

    calls = 0

    def embed(self, h, positions, end=None):
        self.calls += 1
        return super().embed(h, positions + self.calls)


@pytest.mark.parametrize(
    ("cls", "checks"),
    [
        (FromTheStart, {"by_position_alone", "decode_positions", "generation"}),
        (Rounded, {"types_kept"}),
        (Inexact, {"far_positions"}),
        (Writing, {"call_changes_nothing"}),
        (Widening, {"types_kept"}),
        (Undeclared, {"declared_as_given"}),
        (Absolute, {"relative_by_difference"}),
        (Counting, {"by_position_alone", "call_changes_nothing", "decode_positions"}),
    ],
)
def test_a_planted_fault_is_found(cls: type[Positions], checks: set[str]) -> None:
    found = failed(cls)
    assert checks <= found
    if len(checks) == 1:
        assert found == checks


FILE = """
import torch
from attnzoo import Positions
from attnzoo.positions.rope import Rope

class Later(Rope):
    \"\"\"A rope that leaves the cache's offset out.\"\"\"

    def phases(self, positions):
        return super().phases(positions - positions[:, :1])
"""


@pytest.mark.usefixtures("files_forgotten")
def test_the_command_finds_a_scheme_of_a_file_that_ignores_the_offset(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    assert cli.main(["check", f"{tmp_path / 'mine.py'}:Later", "positions:rope", "rope.base=500", "--json"]) == 1
    mine, rope = json.loads(capsys.readouterr().out)
    assert (mine["subject"], rope["passed"]) == ("positions:Later", True)
    wrong = {test["name"]: test["detail"] for test in mine["tests"] if not test["passed"]}
    assert {"by_position_alone", "decode_positions"} <= set(wrong)
    assert "after a cache of half of them" in wrong["by_position_alone"]
