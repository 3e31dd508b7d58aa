"""A right task passes `attnzoo check`; each property turns red on one planted fault, and on no other property's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import attnzoo
from attnzoo import IGNORE, Options, Task, cli, components
from attnzoo.checks import kinds
from attnzoo.errors import RequestError


@pytest.mark.parametrize("name", [each for each in components.built_in("task") if each != "text"])
def test_every_task_passes(name: str) -> None:
    report = attnzoo.check(f"task:{name}")
    assert report.passed, report
    assert report.subject == f"task:{name}"


@dataclass(frozen=True)
class RoundOptions(Options):
    """n_symbols: V."""

    n_symbols: int = 8


class Round(Task):
    """The sum of the last two symbols, modulo V, comes next."""

    source = "here"
    Options = RoundOptions
    options: RoundOptions

    @property
    def vocab_size(self) -> int:
        return self.options.n_symbols

    @property
    def chance(self) -> float:
        return 1 / self.options.n_symbols

    def rows(self, random, n):
        v = self.options.n_symbols
        row = random.integers(0, v, (n, self.n_tokens + 1))
        row[:, 2::3] = (row[:, 0:-2:3] + row[:, 1:-1:3])[:, : row[:, 2::3].shape[1]] % v
        scored = np.arange(1, self.n_tokens + 1) % 3 == 2
        return row[:, :-1], np.where(scored, row[:, 1:], IGNORE)

    def solve(self, tokens):
        before = np.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
        return (tokens + before) % self.options.n_symbols


def failed(cls: type[Task], **options: int) -> list[str]:
    return attnzoo.check(cls, **options).failed_checks()


def test_a_right_task_passes_at_every_size() -> None:
    report = attnzoo.check(Round)
    assert not report.failures, report
    assert report.counts()["skipped"] == 0
    assert failed(Round, n_symbols=3, n_tokens=33) == []


class Overlapping(Round):
    """Validation is drawn from the stream of training."""

    def validation_batches(self, batch_size):
        for step in range(self.n_validation_rows // 4):
            batch = self._drawn(np.random.Generator(np.random.Philox(step)), 4)
            for start in range(0, 4, batch_size):
                yield batch.rows(start, batch_size)

    def train_batch(self, step, batch_size):
        return self._drawn(np.random.Generator(np.random.Philox(step + 1000 * self.seed)), batch_size)


class Historic(Round):
    """A batch depends on how many were drawn."""

    drawn = 0

    def train_batch(self, step, batch_size):
        self.drawn += 1
        return super().train_batch(self.drawn, batch_size)


class Global(Round):
    """Targets come from numpy's global generator."""

    def rows(self, random, n):
        tokens, _ = super().rows(random, n)
        return tokens, np.random.randint(0, 8, tokens.shape)


class Seedless(Round):
    """Every seed trains on the same batches."""

    def train_batch(self, step, batch_size):
        return Round(self.options, n_tokens=self.n_tokens).train_batch(step, batch_size)


class Drifting(Round):
    """Every seed is validated on rows of its own."""

    def validation_batches(self, batch_size):
        drawn = self._drawn(np.random.Generator(np.random.Philox(10**6 + self.seed)), self.n_validation_rows)
        for start in range(0, self.n_validation_rows, batch_size):
            yield drawn.rows(start, batch_size)


class Unshifted(Round):
    """The answer stands in the input."""

    def rows(self, random, n):
        tokens, targets = super().rows(random, n)
        return tokens, np.where(targets == IGNORE, IGNORE, tokens)


class Outside(Round):
    """A symbol past the vocabulary."""

    def rows(self, random, n):
        tokens, targets = super().rows(random, n)
        return np.where(tokens == 7, 8, tokens), targets


class Hopeful(Round):
    """Its chance is that of a vocabulary it does not answer from."""

    chance = 1 / 64


class Modest(Round):
    """Its chance is more than guessing reaches."""

    chance = 0.5


class Clueless(Round):
    """Its solver guesses."""

    def solve(self, tokens):
        return np.zeros_like(tokens)


class Foreseeing(Round):
    """Its solver reads the next token."""

    def solve(self, tokens):
        return np.roll(tokens, -1, 1)


@pytest.mark.parametrize(
    ("cls", "checks"),
    [
        (Overlapping, ["splits_apart"]),
        (Historic, ["train_batches_by_seed_and_step"]),
        (Seedless, ["train_batches_by_seed_and_step"]),
        (Drifting, ["validation_fixed"]),
        (Outside, ["batches_well_formed", "targets_follow"]),
        (Hopeful, ["chance_met"]),
        (Modest, ["chance_met"]),
        (Clueless, ["solvable"]),
    ],
)
def test_a_planted_fault_is_found_by_its_own_check(cls: type[Task], checks: list[str]) -> None:
    assert failed(cls) == checks


def test_a_task_that_draws_elsewhere_gives_its_answer_away_or_looks_ahead_is_found() -> None:
    assert "train_batches_by_seed_and_step" in failed(Global)
    assert "targets_follow" in failed(Unshifted)
    assert "not shifted" in str(attnzoo.check(Unshifted, n_tokens=64))
    report = attnzoo.check(Foreseeing)
    assert report.failed_checks() == ["solvable"]
    assert "tokens from 32 on changed" in str(report)


def test_targets_of_another_form_are_left_alone() -> None:
    class Echo(Round):
        """The token three places back."""

        def rows(self, random, n):
            tokens = random.integers(0, 8, (n, self.n_tokens))
            return tokens, np.where(np.arange(self.n_tokens) < 3, IGNORE, np.roll(tokens, 3, 1))

        def solve(self, tokens):
            return np.roll(tokens, 3, 1)

    report = attnzoo.check(Echo)
    assert report.passed, report
    assert [r.detail for r in report.results if r.skipped] == ["its targets are not the next token"]


FILE = """
from attnzoo import IGNORE, Task

class Copied(Task):
    \"\"\"Rows out of one table.\"\"\"
    source, vocab_size, chance = "here", 8, 1 / 8

    def rows(self, random, n):
        import numpy as np
        table = np.random.default_rng(0).integers(0, 8, (20, self.n_tokens + 1))
        row = table[random.integers(0, 20, n)]
        return row[:, :-1], row[:, 1:]
"""


@pytest.mark.usefixtures("files_forgotten")
def test_the_command_takes_a_name_a_kind_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    assert cli.main(["check", f"{tmp_path / 'mine.py'}:Copied", "task:recall", "recall.n_symbols=16", "--json"]) == 1
    mine, recall = json.loads(capsys.readouterr().out)
    assert mine["subject"] == "task:Copied"
    assert "splits_apart" in [test["name"] for test in mine["tests"] if not test["passed"]]
    assert recall["passed"]
    assert cli.main(["check", "recall", "--only", "chance_met"]) == 0
    assert "task:recall on cpu: passed (1 passed" in capsys.readouterr().out
    assert cli.main(["check", f"{tmp_path / 'mine.py'}:Copied", f"{tmp_path / 'mine.py'}:Copied.n_tokens=33"]) == 1


def test_a_name_is_found_in_its_kind() -> None:
    assert kinds.resolve("sdpa") == ("attention", "sdpa")
    assert kinds.resolve("recall") == kinds.resolve("task:recall") == ("task", "recall")
    for word, said in (
        ("recal", "did you mean task:recall"),
        ("task:recal", "unknown task 'recal'; did you mean 'recall'"),
        ("taks:recall", "unknown kind 'taks'; did you mean 'task'"),
        ("spda", "unknown backend 'spda'; did you mean 'sdpa'"),
    ):
        with pytest.raises(RequestError, match=said):
            kinds.resolve(word)
    with pytest.raises(RequestError, match="unknown option of recall 'n_symbol'; did you mean 'n_symbols'"):
        attnzoo.check("recall", n_symbol=3)
    with pytest.raises(RequestError, match="unknown check of a task"):
        attnzoo.check("recall", only=["definition"])


def test_a_name_of_two_kinds_is_the_backends_and_else_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"attention": ["gla", "same"], "task": ["same", "both"], "third": ["both"]}
    monkeypatch.setattr(kinds.components, "names", lambda kind: known[kind])
    monkeypatch.setattr(kinds, "KINDS", dict.fromkeys(known))
    assert kinds.resolve("same") == ("attention", "same")
    with pytest.raises(RequestError, match="both is of several kinds: task:both, third:both"):
        kinds.resolve("both")
