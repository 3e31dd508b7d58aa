"""A task, a corpus, a position scheme, an optimiser, a metric and a logger of somebody's own, each in one file, in one run; and a
planted fault in each is found by ``attnzoo check FILE.py:NAME``."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "my_task.py": '''
import numpy as np
from dataclasses import dataclass
from attnzoo import IGNORE, Options, Task


@dataclass(frozen=True)
class LaterOptions(Options):
    """symbols: size of the alphabet."""

    symbols: int = 16


class Later(Task):
    """The first half of the row once more."""

    source = "me"
    Options = LaterOptions
    least_tokens = 2

    @property
    def vocab_size(self):
        return self.options.symbols

    @property
    def chance(self):
        return 1 / self.options.symbols

    def rows(self, random, n):
        half = (self.n_tokens + 1) // 2
        said = random.integers(0, self.options.symbols, (n, half))
        row = np.concatenate([said, said], 1)[:, : self.n_tokens + 1]
        row = np.pad(row, ((0, 0), (0, self.n_tokens + 1 - row.shape[1])))
        targets = np.where(np.arange(1, self.n_tokens + 1) > half, row[:, 1:], IGNORE)
        targets[:, 2 * half - 1 :] = IGNORE
        return row[:, :-1], targets
''',
    "my_corpus.py": '''
from attnzoo import Corpus


class Counting(Corpus):
    """The numbers, written one after another."""

    source = "me"

    def read(self):
        return "\\n".join(map(str, range(4000))).encode()
''',
    "my_positions.py": '''
import torch
from attnzoo import Positions


class Ramp(Positions):
    """A number that grows with the position, on the first channel."""

    source = "me"

    def embed(self, h, positions, end=None):
        ramp = torch.zeros_like(h)
        ramp[..., 0] = positions.to(h.dtype) / 1000
        return h + ramp
''',
    "my_optimizer.py": '''
import torch
from dataclasses import dataclass
from attnzoo import Optimizer, Options


@dataclass(frozen=True)
class HeavyOptions(Options):
    """heavy_lr: learning rate. heavy_momentum: share of the last step that is kept."""

    heavy_lr: float = 0.01
    heavy_momentum: float = 0.9


class Heavy(Optimizer):
    """Gradient descent with momentum."""

    source = "me"
    Options = HeavyOptions

    def build(self, groups):
        return torch.optim.SGD(groups.two(0.0), lr=self.options.heavy_lr, momentum=self.options.heavy_momentum)
''',
    "my_metric.py": '''
import torch
from attnzoo import IGNORE, Metric


class Surprise(Metric):
    """How often the likeliest token is not the right one."""

    source = "me"
    title = "surprise"
    better = "low"

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.wrong = self.scored = 0

    def update(self, logits, batch):
        scored = batch.targets != IGNORE
        self.wrong += int((logits.argmax(-1) != batch.targets)[scored].sum())
        self.scored += int(scored.sum())

    def value(self):
        return self.wrong / max(self.scored, 1)
''',
    "my_logger.py": '''
import json
from attnzoo import Logger


class Lines(Logger):
    """A line of my own for each step."""

    source = "me"

    def start(self, folder, config):
        self.file = folder / "mine.txt"

    def log(self, step, numbers):
        with self.file.open("a") as out:
            out.write(json.dumps({"step": step, **numbers}) + "\\n")
''',
}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("six")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def attnzoo(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "attnzoo", *words], cwd=folder, capture_output=True, text=True, timeout=300
    )


def test_all_six_train_together_and_each_has_its_place_everywhere(site: Path) -> None:
    done = attnzoo(
        site, "compare", "experiment=tiny", "probe=recall", "measure.timing=false", "measure.memory=false", "measure.leak=false",
        "probe.task.name=my_task.py:Later", "probe.task.symbols=12", "data=my_corpus.py:Counting",
        "positions=my_positions.py:Ramp",
        "trainer.optimizer=my_optimizer.py:Heavy", "trainer.heavy_lr=0.02", "measure.metrics=[my_metric.py:Surprise]",
        "logger.extra=[my_logger.py:Lines]", "backends=[sdpa,linear]", "run_dir=out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads((site / "out/sdpa-seed0/record.json").read_text())
    assert record["status"] == "ok"
    assert set(record["quality"]["task_accuracy"]) == {"Later"}
    assert record["quality"]["task_chance"] == {"Later": 1 / 12}
    assert record["positions"] == "Ramp"
    assert record["quality"]["data"]["source"] == "Counting"
    surprise = record["quality"]["Surprise"]
    assert 0 < surprise <= 1
    kept = json.dumps(record) + (site / "out/sdpa-seed0/config.yaml").read_text()
    for name, kind in (("Later", "task"), ("Counting", "corpus"), ("Ramp", "positions"), ("Heavy", "optimizer")):
        assert f"{kind}:{name}" in kept
    lines = [json.loads(line) for line in (site / "out/sdpa-seed0/mine.txt").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    (row,) = [row for row in csv.DictReader((site / "out/summary.csv").open()) if row["attention"] == "sdpa"]
    assert float(row["Surprise"]) == pytest.approx(surprise)
    assert "surprise" in done.stdout
    assert "surprise" in (site / "out/report.html").read_text()


@pytest.mark.parametrize(
    "name",
    [
        f"{file}:{cls}"
        for file, cls in zip(FILES, ("Later", "Counting", "Ramp", "Heavy", "Surprise", "Lines"), strict=True)
    ],
)
def test_each_passes_the_checks_of_its_kind(site: Path, name: str) -> None:
    done = attnzoo(site, "check", name, "--quick")
    assert done.returncode == 0, done.stdout + done.stderr


SEEN_BEFORE = """    def train_batch(self, step, batch_size):
        return next(self.validation_batches(batch_size))

    def rows(self"""
MEAN_OF_MEANS = """self.wrong += float((logits.argmax(-1) != batch.targets)[scored].float().mean())
        self.scored += 1"""
PLANTED = {
    "my_task.py:Later": ("    def rows(self", SEEN_BEFORE),
    "my_corpus.py:Counting": ("range(4000)", "range(4000 + __import__('random').randrange(99))"),
    "my_positions.py:Ramp": ("positions.to(h.dtype)", "torch.arange(h.shape[1]).to(h.dtype)"),
    "my_optimizer.py:Heavy": ("return torch.optim.SGD(", "return Forgets("),
    "my_metric.py:Surprise": (
        """self.wrong += int((logits.argmax(-1) != batch.targets)[scored].sum())
        self.scored += int(scored.sum())""",
        MEAN_OF_MEANS,
    ),
}
FORGETS = """

class Forgets(torch.optim.SGD):
    def state_dict(self):
        return {**super().state_dict(), "state": {}}
"""


@pytest.mark.parametrize("name", list(PLANTED))
def test_a_planted_fault_is_found(site: Path, tmp_path: Path, name: str) -> None:
    file = name.partition(":")[0]
    right, wrong = PLANTED[name]
    assert FILES[file].count(right) == 1
    (tmp_path / file).write_text(FILES[file].replace(right, wrong) + (FORGETS if "Heavy" in name else ""))
    done = attnzoo(tmp_path, "check", name, "--quick")
    assert done.returncode == 1, done.stdout + done.stderr
