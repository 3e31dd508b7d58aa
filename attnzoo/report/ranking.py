"""Which row may be called the best of a column. One function decides; terminal, page, CSV and W&B repeat what it says.

A row is the best where it is better than every other one by evidence: by the 95 % interval of its differences within the seeds
that both have, or, of timings, by ratio intervals of the same rounds. Otherwise nobody is, and the reason is said.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnzoo.measure.interval import interval_of_mean
from attnzoo.report.columns import Column
from attnzoo.report.groups import DATA, PLACE
from attnzoo.report.records import dig, mapping, number
from attnzoo.report.values import Value, by_seed, value_of

if TYPE_CHECKING:
    from attnzoo.report.rows import Row

_FIELDS = {"speed": PLACE, "memory": PLACE, "quality": ("quality.tokens_seen", *DATA), "size": ()}
_OTHER_QUESTION = ("data", "task", "probe", "experiment")  # swept, they change what the quality is of


@dataclass(frozen=True)
class Ranking:
    """What can be said of a column.

    Args:
        best: the row that is better than every other; None where the evidence is short, and ``reason`` says of what.
        differ: the settings in which the rows differ, so that they cannot be compared at all.
    """

    best: int | None = None
    reason: str = ""
    differ: tuple[str, ...] = ()


def rank(rows: Sequence[Row], column: Column) -> Ranking | None:
    """The ranking of a column; None where there is nothing to rank: no better direction, one rival, or all alike."""
    rivals = {i: row for i, row in enumerate(rows) if column.key in row.values and not row.unranked}
    if column.better is None or len(rivals) < 2:
        return None
    if differ := _differences(column, rivals.values()):
        return Ranking(reason=f"the rows differ in {', '.join(differ)}", differ=tuple(differ))
    if len({row.values[column.key].value for row in rivals.values()}) == 1:
        return None
    return _by_rounds(column, rivals) if column.kind == "speed" else _by_seeds(column, rivals)


def _differences(column: Column, rows: Iterable[Row]) -> list[str]:
    """The settings in which rivals differ, though the column's numbers depend on them."""
    rows = list(rows)
    good = [record for row in rows for record in row.good]
    found = [
        path.replace(".sha256", "").rpartition(".")[2]
        for path in _FIELDS[column.kind]
        if len({json.dumps(dig(record, path), sort_keys=True, default=str) for record in good}) > 1
    ]
    if column.kind == "quality":
        found += [key for key in _swept_apart(rows) if key.split(".")[0] in _OTHER_QUESTION]
    if column.kind == "speed" and (len({row.timing_set for row in rows}) > 1 or rows[0].timing_set is None):
        found.append("the start they were timed at")
    return list(dict.fromkeys(found))


def _swept_apart(rows: Sequence[Row]) -> list[str]:
    """The swept keys in which rows differ."""
    swept = [mapping(row.records[0], "swept") for row in rows]
    keys = dict.fromkeys(str(key) for each in swept for key in each)
    return [key for key in keys if len({str(each.get(key)) for each in swept}) > 1]


def _by_rounds(column: Column, rivals: Mapping[int, Row]) -> Ranking:
    """By the ratio to the baseline within each round. Two intervals that do not overlap tell two rows apart; the baseline's
    own ratio is 1."""
    ratios = {i: ratio for i, row in rivals.items() if (ratio := _ratio(column, row))}
    without = rivals.keys() - ratios.keys()
    if len(without) == 1:
        ratios |= dict.fromkeys(without, Value(1.0, 1.0, 1.0))
    elif without:
        return Ranking(reason="undecided: no ratios within common rounds")
    best = min(ratios, key=lambda i: ratios[i].value)
    high = ratios[best].high
    rest = [
        i
        for i, ratio in ratios.items()
        if i != best and not (high is not None and ratio.low is not None and high < ratio.low)
    ]
    if rest:
        return Ranking(reason=f"undecided between {_names(rivals, best, rest)}: their ratios overlap")
    return Ranking(best)


def _ratio(column: Column, row: Row) -> Value | None:
    path = f"{column.path.removesuffix('.ratio')}.ratio"
    return value_of(Column(column.key, "", "", path, "speed", "", timing=True), row.timed)


def _by_seeds(column: Column, rivals: Mapping[int, Row]) -> Ranking:
    """By the differences within each seed that two rows have in common, and above chance where chance is known."""
    sign = 1 if column.better == "low" else -1
    best = min(rivals, key=lambda i: sign * rivals[i].values[column.key].value)
    mine, rest, common = by_seed(column, rivals[best].good), [], {}
    for i in rivals.keys() - {best}:
        other = by_seed(column, rivals[i].good)
        pairs = [sign * (mine[seed] - other[seed]) for seed in mine.keys() & other.keys()]
        common[i] = len(pairs)
        if not pairs or interval_of_mean(pairs)[2] >= 0:
            rest.append(i)
    fewest = min(common[i] for i in rest or common)
    seeds = f"{fewest} seed{'' if fewest == 1 else 's'}"
    if min(common.values()) < 2:
        return Ranking(reason=f"undecided at {seeds}")
    chance, low = _chance(column, rivals[best]), rivals[best].values[column.key].low
    if chance is not None and (low is None or low <= chance):
        return Ranking(reason=f"undecided at {seeds}: none can be told from chance ({chance:.3g})")
    if rest:
        return Ranking(reason=f"undecided at {seeds} between {_names(rivals, best, sorted(rest))}")
    return Ranking(best)


def _chance(column: Column, row: Row) -> float | None:
    """What guessing reaches, where the column is a task's accuracy."""
    if not column.path.startswith("quality.task_accuracy."):
        return None
    path = column.path.replace("task_accuracy", "task_chance", 1)
    return max((chance for record in row.good if (chance := number(record, path)) is not None), default=None)


def _names(rivals: Mapping[int, Row], best: int, rest: Sequence[int]) -> str:
    names = [rivals[i].label for i in (best, *rest)]
    return ", ".join(names if len(names) < 6 else [*names[:4], f"{len(names) - 4} more"])
