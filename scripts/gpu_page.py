"""What scripts/gpu.sh has left, on one page: the targets with what was measured, and what is missing, part by part."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from attnzoo.errors import RequestError
from attnzoo.files import read_json, write_text_atomic
from attnzoo.report.bars import HEAD, bar_lines
from attnzoo.report.groups import clean


def page(out: Path, parts: list[str]) -> int:
    """Print the page and write ``page.md``; 0 when every part is there and all of its jobs ended well."""
    found = {part: read_part(out / f"{part}.json") for part in parts}
    lines = [*targets(found), "", "## Parts", "", *(part_line(part, held) for part, held in found.items())]
    lines += ["", "## Not done, or not verified", "", *(missing(found) or ["Nothing."])]
    text = "\n".join(lines) + "\n"
    write_text_atomic(out / "page.md", text)
    print(text)
    whole = all(held and all(job["status"] == "ok" for job in held["jobs"].values()) for held in found.values())
    return 0 if whole else 1


def read_part(path: Path) -> dict[str, Any] | None:
    """None where there is none; a broken file counts as none and is named in the page."""
    if not path.exists():
        return None
    try:
        held = read_json(path)
        return {"jobs": dict(held["jobs"]), **{key: held.get(key, []) for key in ("checks", "rows", "bars")},
                "machine": held.get("machine") or {}}  # fmt: skip
    except (RequestError, KeyError, TypeError, ValueError):
        return None


def targets(found: dict[str, dict[str, Any] | None]) -> list[str]:
    """The machine, and a table of the bars that have a factor."""
    machine: dict[str, Any] = next((held["machine"] for held in found.values() if held), {})
    shown = ", ".join(str(machine[key]) for key in ("device_name", "torch", "dtype", "git_commit") if machine.get(key))
    bars = [bar for held in found.values() if held for bar in held["bars"]]
    rows = [" | ".join(clean(str(cell)) for cell in line[:6]) for line in [HEAD, *bar_lines(bars)]]
    table = (
        [f"| {rows[0]} |", "|" + "---|" * 6, *(f"| {row} |" for row in rows[1:])] if bars else ["No race has ended."]
    )
    return [
        "# Measured on a GPU" if machine.get("device") != "cpu" else "# Measured on a CPU",
        "",
        clean(shown),
        "",
        *table,
    ]


def part_line(part: str, held: dict[str, Any] | None) -> str:
    if held is None:
        return f"- {part}: no record"
    ended = Counter(job["status"] for job in held["jobs"].values())
    seconds = sum(job["seconds"] for job in held["jobs"].values())
    counts = ", ".join(f"{number} {status}" for status, number in ended.items()) or "no job"
    return f"- {part}: {counts}; {seconds:.0f} s; {sum(bool(row['timing']) for row in held['rows'])} rows with a time"


def missing(found: dict[str, dict[str, Any] | None]) -> list[str]:
    """Each job that did not end well with its reason, each failed check, each row whose backend has no finished check."""
    lines = []
    for part, held in found.items():
        for key, job in (held or {"jobs": {}})["jobs"].items():
            if job["status"] != "ok":
                lines.append(f"- {part}, {key}: {job['status']}: {'; '.join(job['reasons'])}")
        for report in (held or {"checks": []})["checks"]:
            if failed := [test["name"] for test in report["tests"] if not test["passed"]]:
                lines.append(f"- {report['subject']}, {', '.join(report['dtypes'])} FAILS {', '.join(failed)}")
        rows = (held or {"rows": []})["rows"]
        unverified = dict.fromkeys(row["backend"] for row in rows if row["timing"] and row.get("verified") is False)
        lines += [f"- {part}, {backend}: timed, unverified" for backend in unverified]
    return [clean(line) for line in lines]
