"""Write the README's table from the records in experiments/demo; ``--check`` only says whether it is up to date.

experiments/demo holds what `scripts/demo.sh` left in runs/demo: comparison.json, summary.csv and each cell's record.json.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from attnzoo.report.records import Found, dig, find_records
from attnzoo.report.rows import summarise

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = (
    "val_bits_per_byte", "recall_accuracy", "train_step_ms", "train_step_ratio", "train_peak_memory_bytes",
    "decode_ms_per_token", "cache_bytes", "parameters", "train_flops",
)  # fmt: skip
BETWEEN = re.compile(r"(<!-- table: experiments/demo -->\n).*?(<!-- /table -->)", re.DOTALL)


def table(found: Found) -> str:
    """The comparison as Markdown: a row a backend, refused ones with their reason, then where it was measured."""
    summary = summarise(found.records)
    columns = [column for key in COLUMNS for column in summary.columns if column.key == key]
    heads = ["backend", *(f"{c.title}{f' ({c.unit})' if c.unit else ''}" for c in columns), "leak tests", "kernel"]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * len(columns)}---|---|"]
    for row in summary.rows:
        if row.status == "ok":
            cells = [summary.text(row, c, interval=c.key == "train_step_ratio") for c in columns]
            lines.append(f"| `{row.label}` | {' | '.join([*cells, row.leak, row.kernel])} |")
        else:
            lines.append(f"| `{row.label}` | {' | '.join('–' * len(columns))} | {row.status} | {row.reasons[0]} |")
    return "\n".join([*lines, "", where(found)])


def where(found: Found) -> str:
    """One line: machine, versions, commit, command."""
    record = next(r for r in found.records if r["status"] == "ok")
    environment, quality = record["environment"], record["quality"]
    seeds = sorted({r["seed"] for r in found.records})
    return (
        f"Measured on {environment['cpu']}, {environment['threads']} of 2 threads a cell while training and 2 for the timings, "
        f"{environment['precision']}, torch {dig(environment, 'torch')}, commit {str(environment['git_commit'])[:7]}: "
        f"{quality['tokens_seen']:,} tokens of *Moby-Dick*, seed {', '.join(map(str, seeds))}. "
        "Bits per byte of the whole validation split (single bytes alone: 4.56); recall is accuracy on periodic recall "
        "(chance 0.02). `step` is the train step over `sdpa`'s in the same rounds with its 95 % interval. "
        f"Records: [experiments/demo](experiments/demo); made by `{found.plan.get('command', 'scripts/demo.sh')}`."
    )


def main() -> int:
    readme = ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    made = table(find_records(ROOT / "experiments" / "demo"))
    new = BETWEEN.sub(lambda m: f"{m.group(1)}{made}\n{m.group(2)}", old)
    if "--check" in sys.argv:
        return int(new != old)
    readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
