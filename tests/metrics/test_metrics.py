"""Metrics as components: their values by hand, what the record and the reports have of them, the checks of the kind."""

from __future__ import annotations

import json
import math
from dataclasses import fields

import pytest
import torch

import attnzoo
from attnzoo import IGNORE, Batch, Metric, Options, RequestError, components
from attnzoo.checks.kinds import check_component
from attnzoo.checks.metrics import Posed
from attnzoo.metrics.base import declaration
from attnzoo.metrics.build import ALWAYS, always, build_metrics
from attnzoo.report.columns import columns

pytestmark = pytest.mark.usefixtures("files_forgotten")
POSED = Posed(Options(), n_tokens=4)
BUILT_IN = components.built_in("metric")


def scored(name, logits, targets, **options):
    cls = components.get("metric", name)
    metric = cls(components.parse("metric", name, options), POSED)
    metric.update(torch.tensor(logits), Batch(torch.zeros_like(torch.tensor(targets)), torch.tensor(targets)))
    return metric.value()


def test_values_by_hand():
    logits = [[[math.log(3), 0.0], [0.0, math.log(9)], [5.0, 5.0]]]  # p = 3/4, 1/4; 1/10, 9/10; not scored
    targets = [[0, 0, IGNORE]]
    nats = -(math.log(3 / 4) + math.log(1 / 10)) / 2
    assert scored("val_loss_nats", logits, targets) == pytest.approx(nats, rel=1e-6)
    assert scored("val_perplexity", logits, targets) == pytest.approx(math.exp(nats), rel=1e-6)
    assert scored("val_bits_per_byte", logits, targets) == pytest.approx(nats / math.log(2) / 3.7, rel=1e-6)
    assert scored("val_accuracy", logits, targets) == 0.5
    # two bins: both confidences in the upper one, mean 0.825, half of them right; ten bins: one each
    assert scored("calibration", logits, targets, calibration_bins=2) == pytest.approx(0.325, rel=1e-6)
    assert scored("calibration", logits, targets, calibration_bins=10) == pytest.approx((0.25 + 0.9) / 2, rel=1e-6)


def test_what_applies_and_what_every_run_has():
    assert [metric.name for metric in build_metrics(POSED)] == [*ALWAYS]
    POSED.chance, POSED.bytes_per_token = None, None
    try:
        assert [metric.name for metric in build_metrics(POSED)] == ["val_loss_nats", "val_perplexity"]
    finally:
        del POSED.chance, POSED.bytes_per_token
    made = build_metrics(POSED, ["calibration", "calibration", "val_accuracy"], {"calibration_bins": 3})
    assert [metric.name for metric in made] == [*ALWAYS, "calibration"]
    assert made[-1].options.calibration_bins == 3
    with pytest.raises(RequestError, match="at least 1"):
        build_metrics(POSED, ["calibration"], {"calibration_bins": 0})


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_metrics_pass_the_checks_of_their_kind(name):
    report = check_component(components.get("metric", name), {})
    assert report.passed, report
    assert {result.status for result in report.results} == {"passed"}


def metric_class(**body):
    base = {
        "__doc__": "One.", "source": "a test", "title": "t",
        "update": lambda self, logits, batch: self.add(s=_right(logits, batch).sum(), n=(batch.targets != IGNORE).sum()),
        "value": lambda self: self.total("s") / max(self.total("n"), 1),
    }  # fmt: skip
    return type("Planted", (Metric,), base | body)


def _right(logits, batch):
    return logits.argmax(-1) == batch.targets


def mean_of_means(self, logits, batch):
    n = (batch.targets != IGNORE).sum()
    self.add(s=_right(logits, batch).sum() / n.clamp(min=1), n=torch.tensor(1))


def counts_unscored(self, logits, batch):
    self.add(s=logits.argmax(-1).sum(), n=(batch.targets != IGNORE).sum())


def keeps_graph(self, logits, batch):
    self.sums["s"] = self.sums.get("s", 0) + logits[batch.targets != IGNORE].sum()


def in_place(self, logits, batch):
    logits.mul_(2)
    self.add(s=_right(logits, batch).sum(), n=(batch.targets != IGNORE).sum())


def over_nothing(self):
    return (self.sums["s"] / self.sums["n"]).item()


def infinite(self, logits, batch):
    p = logits[batch.targets != IGNORE].softmax(-1)
    self.add(s=-(p.min(-1).values.log()).sum(), n=(batch.targets != IGNORE).sum())


SHARED: dict = {}


def remembers(self, logits, batch):
    self.sums = SHARED
    self.add(s=_right(logits, batch).sum().double() + 1, n=(batch.targets != IGNORE).sum())


@pytest.mark.parametrize(
    ("body", "check"),
    [
        ({"update": mean_of_means}, "batches_do_not_matter"),
        ({"update": counts_unscored}, "unscored_tokens_do_not_count"),
        ({"update": keeps_graph, "value": lambda self: float(self.sums["s"])}, "keeps_no_gradient"),
        ({"update": in_place}, "leaves_its_input"),
        ({"update": infinite}, "value_is_finite"),
        ({"update": remembers}, "starts_anew"),
        ({}, None),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_planted_fault_is_found(body, check):
    SHARED.clear()
    report = check_component(metric_class(**body), {})
    assert (check in report.failed_checks()) if check else report.passed, report


def test_a_metric_says_what_it_lacks():
    with pytest.raises(RequestError) as error:
        attnzoo.register("lacking")(type("Lacking", (Metric,), {"better": "up"}))
    assert error.value.reasons == [
        "it has no docstring", "it names no source (a paper or a document)", "it has no title",
        "better='up': valid: 'low', 'high', None", "it has no update", "it has no value",
    ]  # fmt: skip
    with pytest.raises(RequestError, match="another number called 'curve'"):
        attnzoo.register("curve")(metric_class())


def test_reports_have_a_column_of_what_the_record_declares():
    assert [column.key for column in columns([])][:3] == [*ALWAYS[:3]]  # accuracy stands in the columns of tasks
    assert {name: declaration(components.get("metric", name)) for name in ALWAYS} == always()
    said = {"title": "top\x1b[31m 5", "unit": "acc.", "better": "high", "decimals": 2, "shown": "page", "how": "h"}
    more = columns([{"metrics": {"mine": said, "bad": {"better": 3, "decimals": "x"}, "worse": 1}}])
    mine, bad, worse = more[4], more[3], more[5]
    assert (mine.key, mine.path, mine.title, mine.better, mine.decimals, mine.shown) == (
        "mine", "quality.mine", "top\N{REPLACEMENT CHARACTER}[31m 5", "high", 2, "page",
    )  # fmt: skip
    assert (bad.title, bad.better, bad.decimals, bad.shown) == ("bad", None, None, "everywhere")
    assert worse.title == "worse"


OVERRIDES = (
    "attention=sdpa", "model.n_layers=1", "model.d_model=16", "model.n_heads=2", "trainer.max_steps=2", "measure=none",
    "trainer.batch_size=2", "trainer.eval_every=1", "trainer.log_every=1", "task.n_tokens=16", "logger=disabled",
    "trainer.device=cpu", "trainer.precision=fp32", "trainer.progress=false",
)  # fmt: skip
MINE = '''
import attnzoo
from attnzoo import IGNORE

class Mine(attnzoo.Metric):
    """Share of targets among the five likeliest."""
    source = "a test"
    title, unit, better = "top-5", "acc.", "high"
    def update(self, logits, batch):
        hit = (logits.topk(5, -1).indices == batch.targets[..., None]).any(-1)
        self.add(hit=hit.sum(), scored=(batch.targets != IGNORE).sum())
    def value(self):
        return self.total("hit") / self.total("scored")
'''


def test_a_metric_of_a_file_is_everywhere(tmp_path):
    from attnzoo.report.records import find_records
    from attnzoo.report.rows import summarise
    from attnzoo.training.progress import summary

    (tmp_path / "mine.py").write_text(MINE)
    chosen = f"measure.metrics=[calibration,{tmp_path}/mine.py:Mine]"
    cfg = attnzoo.compose("train", [*OVERRIDES, "task.validation_tokens=64", chosen, f"run_dir={tmp_path}/run"])
    record = attnzoo.train(cfg)
    assert 0 <= record.quality.Mine <= 1
    assert record.metrics.Mine.how == "Share of targets among the five likeliest."
    assert [tokens for tokens, _ in record.quality.curves.Mine] == [32, 64]
    assert record.quality.curves.calibration[-1][1] == record.quality.calibration
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["Mine"] == record.quality.Mine
    assert "top-5" in summary(lines[-1])
    shown = summarise(find_records(tmp_path / "run").records)
    assert {"calibration", "Mine"} <= {column.key for column in shown.page}


def test_a_metric_that_means_nothing_for_the_task_is_refused_before_training(tmp_path):
    more = ["task=recall", "measure.metrics=[val_bits_per_byte]", f"run_dir={tmp_path}/always"]
    assert (
        attnzoo.train(attnzoo.compose("train", [*OVERRIDES, *more])).status == "ok"
    )  # of every run: nothing was asked for
    (tmp_path / "text.py").write_text(MINE.replace("class Mine", "class OfText") + (
        "    @classmethod\n    def applies(cls, task):\n        return task.tokenizer is not None\n"))  # fmt: skip
    cfg = attnzoo.compose(
        "train", [*OVERRIDES, "task=recall", f"measure.metrics=[{tmp_path}/text.py:OfText]", f"run_dir={tmp_path}/run"]
    )
    with pytest.raises(RequestError, match="OfText does not apply to the task recall"):
        attnzoo.train(cfg)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_settings_without_metrics_keep_their_hash():
    cfg = attnzoo.compose("train", ["attention=sdpa"])
    from attnzoo.training.config import to_dict

    assert "metrics" not in to_dict(cfg)["measure"]
    assert {f.name for f in fields(cfg.measure)} >= {"metrics", "options"}
