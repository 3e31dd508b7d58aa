"""Write the tables of comparisons from their records under experiments; ``--check`` only says whether they are up to date.

A page marks where: ``<!-- table: experiments/demo -->`` … ``<!-- /table -->``. The folder holds what the comparison left in
its run folder: comparison.json, summary.csv and each cell's record.json.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnzoo.report.records import Found, dig, find_records
from attnzoo.report.rows import summarise

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = (
    "val_bits_per_byte", "recall_accuracy", "train_step_ms", "train_step_ratio", "train_peak_memory_bytes",
    "decode_ms_per_token", "cache_bytes", "parameters", "train_flops",
)  # fmt: skip
SHORT = ("val_bits_per_byte", "recall_accuracy", "train_step_ratio", "train_peak_memory_bytes", "decode_ms_per_token")
PAGES = {"README.md": SHORT, "experiments/README.md": COLUMNS}
"""Which columns each page has, beside the backend and its leak tests; the longer ones have the kernel too."""
BETWEEN = re.compile(r"(<!-- table: (experiments/\w+) -->\n).*?(<!-- /table -->)", re.DOTALL)


def table(found: Found, shown: str, keys: Sequence[str] = COLUMNS) -> str:
    """The comparison as Markdown: a row a backend, refused ones with their reason, then where it was measured.

    Args:
        shown: the link to its records.
        keys: its columns.
    """
    summary = summarise(found.records)
    columns = [column for key in keys for column in summary.columns if column.key == key]
    last = ["leak tests"] if keys is SHORT else ["leak tests", "kernel"]
    heads = ["backend", *(f"{c.title}{f' ({c.unit})' if c.unit else ''}" for c in columns), *last]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * len(columns)}{'---|' * len(last)}"]
    for row in summary.rows:
        if row.status == "ok":
            cells = [summary.text(row, c, interval=c.key == "train_step_ratio") for c in columns]
            lines.append(f"| `{row.title}` | {' | '.join([*cells, row.leak, row.kernel][: len(cells) + len(last)])} |")
        else:
            why = [f"{row.status}: {row.reasons[0]}"] if keys is SHORT else [row.status, row.reasons[0]]
            lines.append(f"| `{row.label}` | {' | '.join(['–'] * len(columns) + why)} |")
    return "\n".join([*lines, "", where(found, shown)])


def where(found: Found, shown: str) -> str:
    """One line: machine, versions, commit, command."""
    record = next(r for r in found.records if r["status"] == "ok")
    environment, quality = record["environment"], record["quality"]
    seeds = sorted({r["seed"] for r in found.records})
    return (
        f"Measured on {environment['cpu']}, {environment['threads']} of {environment['cores']} threads a cell while training "
        f"and all for the timings, {environment['precision']}, torch {dig(environment, 'torch')}, "
        f"commit {str(environment['git_commit'])[:7]}: {quality['tokens_seen']:,} {trained_on(found)} "
        f"seed {', '.join(map(str, seeds))}. {scored_by(found)} "
        f"Records: [{shown}]({shown}); made by `{found.plan.get('command', 'unknown')}`."
    )


def trained_on(found: Found) -> str:
    """What the tokens are of; ends in a comma."""
    if setting(found, "task.name") != "text":
        return f"symbols of the task {setting(found, 'task.name')},"
    text = str(setting(found, "data.name")).replace("moby_dick", "*Moby-Dick* (single bytes alone: 4.56 bits)")
    return f"tokens of {text},"


def scored_by(found: Found) -> str:
    """What the columns are."""
    main = setting(found, "task.name") == "text"
    symbols = setting(found, "probe.task.n_symbols" if main else "task.n_symbols")
    recall = f"ecall is accuracy on periodic recall (chance {1 / symbols:.2f})" if symbols else ""
    if not main:
        return f"R{recall}."
    return (
        f"Bits per byte of the whole validation split{f'; r{recall}' if recall else ''}. `step ×` is the ratio of "
        "train steps in the same rounds with its 95 % interval."
    )


def setting(found: Found, key: str) -> Any:
    """What all cells have in common there; records before sweeps keep it nested."""
    return found.plan.get("common", {}).get(key, dig(found.plan, f"config.{key}"))


def rewritten(page: str, name: str) -> str:
    """The page with its tables made anew."""

    def made(match: re.Match[str]) -> str:
        folder = match.group(2)
        shown = os.path.relpath(folder, Path(name).parent)
        return f"{match.group(1)}{table(find_records(ROOT / folder), shown, PAGES[name])}\n{match.group(3)}"

    return BETWEEN.sub(made, page)


def main() -> int:
    stale = []
    for name in PAGES:
        page = ROOT / name
        old = page.read_text(encoding="utf-8")
        new = rewritten(old, name)
        if new != old:
            stale.append(name)
            if "--check" not in sys.argv:
                page.write_text(new, encoding="utf-8")
    print("\n".join(stale))
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
