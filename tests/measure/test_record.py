import copy
import json
import math
import pickle

import pytest

from attnzoo.errors import RequestError
from attnzoo.measure.record import Record, config_hash
from attnzoo.training.config import AttentionConfig, LoggerConfig, RunConfig


def test_attributes_and_keys_are_the_same_thing():
    record = Record(status="ok", cost={"prefill_ms": {"median": 1.0}}, reasons=[{"a": 1}])
    assert record.cost.prefill_ms.median == record["cost"]["prefill_ms"]["median"] == 1.0
    assert record.reasons[0].a == 1
    record.quality = {"val_loss_nats": 2.0}
    assert record.quality.val_loss_nats == 2.0
    record.setdefault("leak", {})["passed"] = True
    assert record.leak.passed
    with pytest.raises(AttributeError, match="has no 'nothing'"):
        record.nothing


def test_survives_the_disk_pickle_and_copy(tmp_path):
    record = Record(status="ok", cost={"x": math.nan, "y": [math.inf, 1]}, options={"window": 8})
    path = record.save(tmp_path / "new" / "record.json")
    assert json.loads(path.read_text())["schema"] == 1
    read = Record.load(path)
    assert read.cost.x is None
    assert read.cost.y == [None, 1]
    assert read.options.window == 8
    for other in (pickle.loads(pickle.dumps(record)), copy.deepcopy(record)):
        assert other.options.window == 8
        assert isinstance(other.options, Record)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "no JSON object"),
        ('{"schema": 9, "status": "ok"}', "schema 9"),
        ('{"schema": 1}', "status None"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path, text, reason):
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(RequestError, match=reason):
        Record.load(tmp_path / "record.json")


def test_hash_names_what_changes_the_result_and_nothing_else():
    cfg = RunConfig(attention=AttentionConfig("sdpa", {}))
    first = config_hash(cfg)
    assert len(first) == 12
    cfg.run_dir, cfg.logger, cfg.trainer.progress, cfg.trainer.resume = (
        "elsewhere",
        LoggerConfig(wandb="online"),
        False,
        True,
    )
    assert config_hash(cfg) == first
    cfg.trainer.device = "cpu"
    assert config_hash(cfg) != first
    assert config_hash({"a": 1, "b": (1, 2)}) == config_hash({"b": [1, 2], "a": 1})


@pytest.mark.parametrize(
    "path",
    ["run_dir", "logger", "trainer.progress", "trainer.resume", "trainer.restart", "trainer.init_from", "data.sha256"],
)
def test_what_changes_no_result_is_no_part_of_the_hash(path):
    *parents, last = path.split(".")
    plain = {"seed": 0, "run_dir": "a", "logger": 1, "trainer": {"lr": 1}, "data": {"name": "x"}}
    other = json.loads(json.dumps(plain))
    (other[parents[0]] if parents else other)[last] = "another"
    assert config_hash(other) == config_hash(plain)
    assert config_hash(plain | {"trainer": {"lr": 2}}) != config_hash(plain)
    if parents:  # at the top it is another key
        assert config_hash(plain | {last: "seen"}) != config_hash(plain)


def test_where_a_text_lies_is_no_setting():
    def of(**data):
        return config_hash({"data": {"name": "files", "paths": [], **data}, "seed": 0})

    assert of() == of(paths=["a.txt"]) == of(paths=["b.txt"], sha256="0" * 64)
    assert of() != of(name="hf")
    assert config_hash({"data": {"name": "files"}, "seed": 0}) != of()  # as before such a key came


def test_the_hash_of_an_embedded_text_is_that_of_before():
    """Pinned: comparisons find their finished cells by it."""
    assert config_hash({"data": {"name": "moby_dick", "paths": []}, "seed": 0}) == "6f378d12bfa8"
