"""Records to rows: seeds gathered, speeds withheld where nothing proves them correct, and what the rows can claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnzoo.report.columns import Column, columns, decimals_for, fixed
from attnzoo.report.groups import distinct, groups_of, labels_of, line
from attnzoo.report.notes import gaps, has_diverged, proven, reasons_of, verdict, warnings_of, why_withheld
from attnzoo.report.ranking import Ranking, rank
from attnzoo.report.records import dig, number, timing_set
from attnzoo.report.values import Value, of_one_start, value_of


@dataclass
class Row:
    """One backend as it was set up, with all its seeds (or one cell).

    Args:
        label: the backend's name, with what sets it apart from another row of the same backend.
        status: ok where any seed is; else the status of the first.
        reasons: of every seed that is not ok, why a speed is withheld, why another number is missing.
        warnings: what a reader of its numbers must know.
        values: column key -> Value; missing where there is nothing to show.
        leak, correct: "pass", "fail" or "–" (not tested).
        unranked: why it takes no part in any ranking; empty where it does.
        timed: the records its speeds are of: proven, and timed in the same rounds, which ``timing_set`` names.
    """

    label: str
    records: list[Mapping[str, Any]]
    status: str
    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    values: dict[str, Value] = field(default_factory=dict)
    leak: str = "–"
    correct: str = "–"
    unranked: list[str] = field(default_factory=list)
    timed: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def good(self) -> list[Mapping[str, Any]]:
        return [record for record in self.records if record.get("status") == "ok"]

    @property
    def timing_set(self) -> str | None:
        return timing_set(self.timed[0]) if self.timed else None

    @property
    def kernel(self) -> str:
        return ", ".join(distinct(line(dig(record, "kernel_resolved", "")) for record in self.records))

    @property
    def title(self) -> str:
        """The label as tables and plots show it: with what disqualifies the row."""
        return f"{self.label} ({', '.join(self.unranked)})" if self.unranked else self.label

    @property
    def said(self) -> list[str]:
        """Reasons, then warnings."""
        return [*self.reasons, *self.warnings]

    @property
    def note(self) -> str:
        """All that is said of it in one line that names the backend."""
        said = "; ".join(self.said)
        return said if said.startswith(f"{self.label}:") else f"{self.label}: {said}"

    @property
    def status_text(self) -> str:
        part = 0 < len(self.good) < len(self.records)
        return f"ok {len(self.good)}/{len(self.records)}" if part else self.status


@dataclass
class Summary:
    """Rows and columns of one comparison, and what can be said of each column.

    Args:
        rankings: column key -> its ranking, where there is something to rank.
    """

    rows: list[Row]
    columns: list[Column]
    rankings: dict[str, Ranking] = field(default_factory=dict)

    @property
    def best(self) -> dict[str, int]:
        """Column key -> index of the row that is better there than every other."""
        return {key: ranking.best for key, ranking in self.rankings.items() if ranking.best is not None}

    def best_in(self, row: Row) -> list[str]:
        """The keys of the columns in which the row is the best."""
        return [key for key, index in self.best.items() if self.rows[index] is row]

    @property
    def remarks(self) -> list[str]:
        """What a mark means, and why shown columns have none; as sentences."""
        said = []
        if self.best:
            said.append(
                "marked: better than every other row by 95 % intervals, paired by seed; timings by ratios within the same rounds"
            )
        reasons: dict[str, list[str]] = {}
        for column in self.page:
            if (ranking := self.rankings.get(column.key)) and ranking.reason:
                reasons.setdefault(ranking.reason, []).append(column.title)
        said += [f"no best in {', '.join(titles)}: {reason}" for reason, titles in reasons.items()]
        if out := [row.title for row in self.rows if row.unranked and row.good]:
            said.append(f"not ranked: {', '.join(out)}")
        return said

    def text(self, row: Row, column: Column, *, interval: bool = False) -> str:
        """The shown number, '–' for none; with ``interval`` followed by '[low, high]' or '± half'."""
        value = row.values.get(column.key)
        if value is None:
            return "–"
        shown = self.shown(column, value.value)
        if not interval or value.low is None or value.high is None:
            return shown
        if column.timing:
            return f"{shown} [{self.shown(column, value.low)}, {self.shown(column, value.high)}]"
        return f"{shown} ± {self.shown(column, (value.high - value.low) / 2)}"

    def shown(self, column: Column, stored: float) -> str:
        """With the decimals and unit of its column."""
        decimals = column.decimals
        if decimals is None:
            decimals = decimals_for([r.values[column.key].value / column.scale for r in self.filled(column)])
        return fixed(stored / column.scale, decimals)

    @property
    def page(self) -> list[Column]:
        """The columns of the HTML table."""
        return [column for column in self.columns if column.shown != "csv"]

    def filled(self, column: Column) -> list[Row]:
        return [row for row in self.rows if column.key in row.values]


def summarise(records: Sequence[Mapping[str, Any]], *, group: bool = True) -> Summary:
    """Rows of the records, in their order; ``group`` gathers the seeds of a backend into one row."""
    chosen = columns(records)
    groups = groups_of(records) if group else [[record] for record in records]
    rows = [_row(label, members, chosen) for label, members in zip(labels_of(groups, group), groups, strict=True)]
    summary = Summary(rows, [column for column in chosen if any(column.key in row.values for row in rows)])
    for row in rows:
        row.reasons += _missing(row, summary)
    for column in summary.columns:
        if ranking := rank(rows, column):
            summary.rankings[column.key] = ranking
    return summary


def _row(label: str, records: list[Mapping[str, Any]], chosen: Sequence[Column]) -> Row:
    good = [record for record in records if record.get("status") == "ok"]
    row = Row(label, records, "ok" if good else line(records[0].get("status")))
    row.leak, row.correct = verdict(good, "leak"), verdict(good, "correct")
    row.reasons, row.warnings = reasons_of(records), warnings_of(records)
    sound = [] if "fail" in (row.leak, row.correct) else [record for record in good if proven(record)]
    row.timed = of_one_start(sound)
    if len(sound) < len(good) and any(number(record, "cost.train_step_ms.median") is not None for record in good):
        row.reasons.append(f"speed withheld: {why_withheld(good)}")
    if len(row.timed) < len(sound):
        seeds = ", ".join(line(record.get("seed")) for record in row.timed)
        row.warnings.append(f"its seeds were timed at different starts; the timings are those of seed {seeds}")
    row.unranked = _disqualified(row)
    for column in chosen:
        value = value_of(column, row.timed if column.kind == "speed" else good)
        if value is not None:
            row.values[column.key] = value
    return row


def _disqualified(row: Row) -> list[str]:
    """Why it takes no part in any ranking, in words that stand beside its name."""
    return [
        *(["LEAKS"] if row.leak == "fail" else []),
        *(["incorrect"] if row.correct == "fail" else []),
        *(["diverged"] if any(map(has_diverged, row.good)) else []),
        *(["no longer in the plan"] if row.records[0].get("planned") is False else []),
    ]


def _missing(row: Row, summary: Summary) -> list[str]:
    """Why numbers that other rows have are missing from its ok records; a withheld speed has been explained."""
    expected = [
        column
        for column in summary.columns
        if column.shown == "everywhere"
        and column.key != "train_step_ratio"
        and not column.path.startswith("quality.task_accuracy")
    ]
    withheld = any("speed withheld" in reason for reason in row.reasons)
    return gaps(row.good, [column for column in expected if not (withheld and column.kind == "speed")])
