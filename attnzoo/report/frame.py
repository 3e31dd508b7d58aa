"""Run records for one's own analysis: read from folders, as a table with a row a cell, and their curves in tidy rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnzoo.errors import RequestError
from attnzoo.measure.record import Record
from attnzoo.report.records import find_records, mapping, points

if TYPE_CHECKING:
    import pandas


def load_records(*folders: str | os.PathLike[str], broken: bool = False) -> list[Record]:
    """The records of run folders, comparisons, sweeps or whatever holds them, such as ``experiments/zoo``, one a cell.

    A cell that a plan names and that left no record is there as interrupted. Beside what ``record.json`` holds, each has ``run``,
    its folder within the one given.

    Args:
        broken: keep records that cannot be read as failed ones that say why, instead of raising.

    Raises:
        RequestError: no folder, one without records, or records that cannot be read; every one is named.
    """
    if not folders:
        raise RequestError("load_records: name the folders")
    found, faults = [], []
    for folder in folders:
        try:
            records = find_records(folder).records
        except RequestError as error:
            faults.append("; ".join([error.message, *error.reasons]))
            continue
        found += records
        faults += [] if broken else [fault for record in records if (fault := _fault(Path(folder), record))]
    if faults:
        raise RequestError("these records cannot be read", faults)
    return found


def _fault(folder: Path, record: Mapping[str, Any]) -> str | None:
    """Why a record could not be read; `find_records` puts that into one without a schema."""
    file = folder / str(record["run"]) / "record.json"
    if "schema" in record or not file.is_file():
        return None
    return "; ".join(map(str, record["reasons"]))


def to_frame(records: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """A row a record, its numbers and texts in columns named by their dotted paths: ``quality.val_bits_per_byte``.

    Lists of plain values, as ``reasons``, are cells; curves are in `to_curves`; tests of leaks and correctness are left out.
    Speeds are as measured: ``correct.passed`` says whether the attention was checked on that device.

    Raises:
        RequestError: pandas is not installed.
    """
    return _pandas().DataFrame([dict(_flat(record)) for record in records])


def to_curves(records: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """The validation curves, a row a point: run, attention, seed, name (``val_loss_nats``, another metric, or
    ``task_accuracy.recall``), tokens, value.

    Raises:
        RequestError: pandas is not installed.
    """
    columns = ["run", "attention", "seed", "name", "tokens", "value"]
    rows = [
        (record.get("run"), record.get("attention"), record.get("seed"), name, tokens, value)
        for record in records for name, path in _curves(record) for tokens, value in points(record, path)
    ]  # fmt: skip
    return _pandas().DataFrame(rows, columns=columns)


def _curves(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, path) of each curve that a record has."""
    yield "val_loss_nats", "quality.curve"
    yield from ((str(name), f"quality.curves.{name}") for name in mapping(record, "quality.curves"))
    yield from (
        (f"task_accuracy.{name}", f"quality.task_curve.{name}") for name in mapping(record, "quality.task_curve")
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list) or not any(isinstance(item, (Mapping, list)) for item in value):
            yield prefix + key, value


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise RequestError("to_frame and to_curves need pandas: pip install 'attnzoo[pandas]'") from error
    return pandas
