"""The declaration of the record: what is written fits it, what reports read is in it, the published schema is its own."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import attnzoo
from attnzoo.errors import RequestError
from attnzoo.measure.schema import Quality, RunRecord, fields, json_schema, path
from attnzoo.metrics.base import RESERVED
from attnzoo.metrics.build import ALWAYS

jsonschema = pytest.importorskip("jsonschema")
ROOT = Path(__file__).resolve().parents[2]
VALIDATOR = jsonschema.Draft202012Validator(json_schema())
COMMITTED = sorted((ROOT / "experiments").rglob("record.json"))


def faults(record):
    return [f"{'.'.join(map(str, e.absolute_path))}: {e.message}" for e in VALIDATOR.iter_errors(record)]


@pytest.mark.parametrize("file", COMMITTED, ids=lambda file: file.parent.relative_to(ROOT / "experiments").as_posix())
def test_committed_records_fit(file):
    assert not faults(json.loads(file.read_text()))


def test_what_does_not_fit_is_found():
    record = json.loads(COMMITTED[0].read_text())
    assert faults({**record, "qualty": {}})
    assert faults({**record, "status": "fine"})
    assert faults({**record, "cost": {**record["cost"], "train_step": 3}})
    assert faults({**record, "quality": {**record["quality"], "val_loss_nats": "low"}})
    assert faults({key: value for key, value in record.items() if key != "status"})


TINY = (
    "model.n_layers=1", "model.d_model=16", "model.n_heads=2", "trainer.batch_size=2", "trainer.max_steps=2",
    "trainer.log_every=1", "task.n_tokens=16", "logger=disabled", "trainer.device=cpu", "trainer.precision=fp32",
    "trainer.progress=false",
)  # fmt: skip


def trained(folder, *more):
    record = attnzoo.train(attnzoo.compose("train", [*TINY, f"run_dir={folder}", *more]))
    return record, json.loads((folder / "record.json").read_text())


def test_a_fresh_record_of_every_status_fits(tmp_path, monkeypatch):
    from attnzoo.training import run

    full = ("attention=sdpa", "task.validation_tokens=64", "measure=quick", "measure.rounds=2", "measure.seconds=0.5",
            "measure.leak=true", "measure.metrics=[calibration]", "measure.decode_context=8", "measure.decode_tokens=2",
            "probe.enabled=true", "probe.max_steps=1", "probe.task.n_tokens=16")  # fmt: skip
    # the suite has tests of its own; what it hands to the record is here
    monkeypatch.setattr(run, "correctness", lambda *a: attnzoo.check("sdpa", quick=True, only=["definition"]).to_dict())
    record, written = trained(tmp_path / "ok", *full)
    assert record.status == "ok"
    assert not faults(written)
    assert {"quality", "cost", "leak", "correct", "decoding", "metrics", "starts", "kernels"} <= {*written}

    record, written = trained(
        tmp_path / "refused", "attention=flex", "attention.kernel=compiled", "model.attention_dropout=0.1"
    )
    assert record.status == "refused"
    assert not faults(written)

    small = ("attention=sdpa", "task=recall", "measure=none")
    for status, error in (("failed", ZeroDivisionError("x")), ("oom", MemoryError("x"))):

        def breaks(*_, error=error):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(run, "train_main", breaks)
            record, written = trained(tmp_path / status, *small)
        assert record.status == status
        assert not faults(written)

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "train_main", stopped)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "interrupted", *small)
    written = json.loads((tmp_path / "interrupted" / "record.json").read_text())
    assert written["status"] == "interrupted"
    assert not faults(written)


def test_paths_are_checked():
    for good in (
        "quality.val_bits_per_byte", "cost.train_step_ms.ratio.to", "environment.hydra-core", "quality.task_accuracy.a.b",
        "environment.gpu.name", "quality.data.sha256", "options.window", "wandb.id",
    ):  # fmt: skip
        assert path(good) == good
    for wrong, near in (("quality.val_bit_per_byte", "quality.val_bits_per_byte"), ("cots.parameters", "cost"),
                        ("cost.train_step_ms.medan", "cost.train_step_ms.median")):  # fmt: skip
        with pytest.raises(RequestError, match=f"did you mean '{near}'"):
            path(wrong)
    with pytest.raises(RequestError, match=r"seed has no fields"):
        path("seed.first")


def test_reports_read_declared_fields_alone():
    """Every dotted text of the reports that begins with a part of the record, and every key asked of one."""
    wrong, seen = [], 0
    for file in sorted((ROOT / "attnzoo" / "report").glob("*.py")):
        if file.name.startswith("bench"):  # of benchmarks, whose rows are no run records
            continue
        tree = ast.parse(file.read_text())
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and node.value.partition(".")[0] in fields(RunRecord)
            ):
                found = node.value
            elif (
                isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args
                and getattr(node.func.value, "id", "") in ("record", "r") and isinstance(node.args[0], ast.Constant)
            ):  # fmt: skip
                found = node.args[0].value
            else:
                continue
            if " " in found or found.endswith("."):
                continue
            seen += 1
            try:
                path(found)
            except RequestError as error:
                wrong.append(f"{file.name}:{node.lineno}: {error}")
    assert seen > 60
    assert not wrong


def test_metrics_and_the_names_beside_them():
    own = {*fields(Quality)} - {*ALWAYS}
    assert {*ALWAYS} <= {*fields(Quality)}
    assert own <= {*RESERVED}, "a metric could take the place of another number"


def test_the_published_schema_is_the_declared_one():
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert (
        subprocess.run([sys.executable, ROOT / "scripts" / "record_schema.py", "--check"], check=False).returncode == 0
    )


def test_no_torch_is_needed_for_it():
    code = "import sys, attnzoo.measure.schema, attnzoo; attnzoo.load_records, attnzoo.to_frame; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )
