"""Which records belong to one row, and what the row is called."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnzoo.report.records import dig, mapping

PLACE = (
    "environment.device", "environment.cpu", "environment.precision", "environment.threads", "environment.tf32",
    "environment.compiled", "environment.gpu.name", "cost.shape",
)  # fmt: skip
DATA = ("data.sha256", "quality.data.sha256")
LONGEST = 80  # characters of a name
_PLACED = ("source", "planned")
_SETTINGS = ("swept", "options", "positions", "n_heads", "n_kv_heads", "kernel_requested")
_SIZES = ("cost.parameters", "quality.tokens_seen", *DATA, *PLACE)


def clean(text: Any) -> str:
    """``text`` without control characters (a terminal obeys them, XML forbids them); line ends and tabs stay."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in str(text))


def line(text: Any) -> str:
    """`clean`, on one line: for names and labels."""
    return " ".join(clean(text).split())


def short(text: Any, most: int) -> str:
    """`line`, cut to ``most`` characters."""
    whole = line(text)
    return whole if len(whole) <= most else f"{whole[: most - 1]}…"


def distinct(items: Iterable[Any]) -> list[str]:
    """The non-empty items as text, each once, in order."""
    return list(dict.fromkeys(str(item) for item in items if item not in (None, "")))


def _setting(record: Mapping[str, Any]) -> dict[str, str]:
    return {name: json.dumps(record.get(name) or None, sort_keys=True, default=str) for name in _SETTINGS}


def _shown(record: Mapping[str, Any]) -> dict[str, str]:
    """What may tell rows of one backend apart: the swept values, or else the settings; the folder and the data in any case."""
    swept = {short(key, LONGEST): short(value, LONGEST) for key, value in mapping(record, "swept").items()}
    settings = {key: line(text.strip('"')) for key, text in _setting(record).items() if key != "swept"}
    data = next((sha for path in DATA if (sha := dig(record, path))), None)
    return (swept or settings) | {
        "folder": line(record.get("source") or ""),
        "data": "" if data is None else line(data)[:8],
    }


def groups_of(records: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Records that differ in nothing but the seed; a seed seen twice starts another group, so nothing is averaged over
    two configurations, two comparisons, or with what a plan no longer has. A cell that left no record has no settings, and
    joins the first group that it could be of."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for n in sorted(range(len(records)), key=lambda n: _is_bare(records[n])):
        record = records[n]
        swept = json.dumps(record.get("swept") or {}, sort_keys=True, default=str)
        key = (str(record.get("attention")), *(str(record.get(name)) for name in _PLACED), swept)
        mine = () if _is_bare(record) else tuple(_setting(record).values())
        theirs = (group for group in groups if group[: len(key + mine)] == key + mine)
        free = (group for group in theirs if _fits(record, [records[m] for m in groups[group]]))
        groups.setdefault(next(free, (*key, *mine, str(len(groups)))), []).append(n)
    return [[records[n] for n in sorted(members)] for members in sorted(groups.values(), key=min)]


def _is_bare(record: Mapping[str, Any]) -> bool:
    return record.get("status") == "interrupted" and "options" not in record


def _fits(record: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> bool:
    """Another seed of the same run; a cell that failed has no sizes and joins by its settings alone."""
    if any(member.get("seed") == record.get("seed") for member in members):
        return False
    finished = [member for member in (record, *members) if member.get("status") == "ok"]
    return len({json.dumps([dig(r, path) for path in _SIZES], default=str) for r in finished}) < 2


def labels_of(groups: Sequence[Sequence[Mapping[str, Any]]], grouped: bool) -> list[str]:
    """Backend names, with the settings in which rows of the same backend differ, else a running number."""
    names = [short(members[0].get("attention") or "?", LONGEST) for members in groups]
    labels: list[str] = []
    for name, members in zip(names, groups, strict=True):
        rivals = [_shown(other[0]) for other, its in zip(groups, names, strict=True) if its == name]
        mine = _shown(members[0])
        apart = [f"{key}={text}" for key, text in mine.items() if text and len({r.get(key) for r in rivals}) > 1]
        if not grouped and len(distinct(m.get("seed") for g in groups for m in g)) > 1:
            apart.append(f"seed={line(members[0].get('seed'))}")
        label = f"{name} ({', '.join(apart)})" if apart else name
        count = 1 + sum(other == label or other.startswith(f"{label} #") for other in labels)
        labels.append(f"{label} #{count}" if count > 1 else label)
    return labels
