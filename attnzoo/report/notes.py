"""What must be said beside the numbers of a row: why one is missing, what a reader must be warned of, what it may not claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnzoo.measure.diverged import diverged
from attnzoo.report.columns import Column
from attnzoo.report.groups import clean, distinct, line
from attnzoo.report.records import dig, items, mapping, number

Records = Sequence[Mapping[str, Any]]
LONGEST = 600  # characters of one reason; the record has all of it


def brief(text: Any) -> str:
    """Cleaned, and cut where an exception brought its whole input along."""
    shown = clean(text)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]} … ({len(shown):,} characters in the record)"


def reasons_of(records: Records) -> list[str]:
    """Why cells are not ok; the seed is named where not all of them say the same."""
    bad = [record for record in records if record.get("status") != "ok"]
    each = [[brief(reason) for reason in texts(record, "reasons")] or ["no reason recorded"] for record in bad]
    if len(bad) == len(records) and all(reasons == each[0] for reasons in each):
        return each[0]
    return [
        f"seed {line(record.get('seed'))} {line(record.get('status'))}: {'; '.join(reasons)}"
        for record, reasons in zip(bad, each, strict=True)
    ]


def warnings_of(records: Records) -> list[str]:
    """Every warning once; the seeds are named where not all records have it."""
    found: dict[str, list[str]] = {}
    for record in records:
        for warning in distinct(brief(text) for text in texts(record, "warnings")):
            found.setdefault(warning, []).append(line(record.get("seed")))
    alone = len(records) == 1
    return [
        warning if alone or len(seeds) == len(records) else f"seed {', '.join(seeds)}: {warning}"
        for warning, seeds in found.items()
    ]


def texts(record: Mapping[str, Any], path: str) -> list[Any]:
    """What should be a list of sentences; a single one counts as such a list."""
    held = dig(record, path, [])
    return held if isinstance(held, list) else [held]


def has_diverged(record: Mapping[str, Any]) -> bool:
    """Its training ended in a loss that means nothing, by its numbers or by its own warning."""
    quality = {name: number(record, f"quality.{name}") for name in mapping(record, "quality")}
    return diverged({"quality": quality}) is not None or any(
        "diverged" in str(warning) for warning in texts(record, "warnings")
    )


def proven(record: Mapping[str, Any]) -> bool:
    """A correctness check of this backend passed on the device the speed was taken on."""
    here = dig(record, "environment.device")
    return dig(record, "correct.passed") is True and dig(record, "correct.device", here) == here


def why_withheld(records: Records) -> str:
    """Why the speed of these, not all proven, is not shown."""
    for part, check in (("correct", "correctness check"), ("leak", "leak test")):
        failed = distinct(
            line(t.get("name")) for r in records for t in items(r, f"{part}.tests") if t.get("passed") is False
        )
        if any(dig(record, f"{part}.passed") is False for record in records):
            return f"{check} failed ({', '.join(failed)})" if failed else f"{check} failed"
    return "no correctness check of this backend on this device"


def verdict(records: Records, part: str) -> str:
    """'fail' where one failed, 'pass' where all passed, else '–'."""
    passed = [dig(record, f"{part}.passed") for record in records]
    if False in passed:
        return "fail"
    return "pass" if passed and all(verdict is True for verdict in passed) else "–"


def gaps(records: Records, columns: Sequence[Column]) -> list[str]:
    """Why an ok record lacks a number: what its parts say of themselves, and each of ``columns`` that says nothing."""
    found: list[str] = []
    for record in records:
        warned = " ".join(map(str, texts(record, "warnings")))
        said = list(_unfinished(record.get("cost"), "cost"))
        found += [f"{_title(path, columns)}: {why}" for path, why in said if why.partition(": ")[2] not in warned]
        silent = [
            c for c in columns if number(record, c.number_path) is None and not any(c.path in path for path, _ in said)
        ]
        found += [f"{column.title}: no number in the record" for column in silent]
    return distinct(found)


def _unfinished(part: Any, path: str) -> Iterator[tuple[str, str]]:
    """(path, 'failed: reasons') of every part of a record with a status of its own that is not ok."""
    if isinstance(part, Mapping):
        status = part.get("status")
        if isinstance(status, str) and status != "ok":
            length = part.get("n_tokens")
            why = "; ".join(brief(reason) for reason in texts(part, "reasons")) or "no reason recorded"
            yield path, f"{f'at {length} tokens ' if length else ''}{line(status)}: {why}"
        for name, inner in part.items():
            if name != "reasons":
                yield from _unfinished(inner, f"{path}.{name}")
    elif isinstance(part, list):
        for inner in part:
            yield from _unfinished(inner, path)


def _title(path: str, columns: Sequence[Column]) -> str:
    named = {column.path: column.title for column in columns} | {"cost.train_memory": "peak memory"}
    return named.get(path, path.removeprefix("cost.").replace("_", " "))
