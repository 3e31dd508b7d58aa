"""Write docs/peers.md from the records in experiments/bench; ``--check`` only says whether it is up to date.

Each record is the bench.json that `attnzoo bench peers RACE … --out FOLDER` wrote.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnzoo.report.bars import bar_lines, bar_reasons
from attnzoo.report.bench_table import compile_lines
from attnzoo.report.benches import find_benches

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "peers.md"
HEAD = """# Against what people would use instead

Written by `scripts/peers_page.py` from the records in [experiments/bench](../experiments/bench). All contestants of a line took
turns in the same rounds, in shuffled order; a peer is timed only once its numbers (output and gradients, logits, or the tokens
it generates) have been found to be ours. The ratio says how many times as fast, or as small, ours is, with the distribution-free
95 % interval of its median, the whole range under nine rounds. *Within noise*: the interval holds the bar. *At most* is the
ratio that a limit reached in the same rounds: the same kernels doing only what nobody can leave out. Of a training step that is
the products with every weight, those of both gradients and flash attention forward and backward, without norms, activations,
loss and optimiser; of a decoded token the products with every weight and with the cache and the softmax between, or, on a line
of its own, reading all of them once. *Out of reach*: the whole interval of that ratio is under the bar. Other lines that miss
their bar are explained in [LOG.md](../LOG.md).
"""


def page(folder: Path) -> str:
    """One section a record, in order of name, and one for each that was run again: NAME.json and NAME_again.json."""
    held = {path.stem: record for path, record in find_benches(folder).items() if record.get("bars")}
    parts = [HEAD, *map(section, held.values())]
    parts += [agreement(name, held[name], held[f"{name}_again"]) for name in held if f"{name}_again" in held]
    return "\n".join(parts)


def agreement(name: str, first: Mapping[str, Any], again: Mapping[str, Any]) -> str:
    """The ratios in time of two runs side by side, and whether their intervals have a value in common."""
    lines = [
        f"## Two runs: {name}",
        "",
        "| work | ours | ratio | again | the intervals meet |",
        "|---|---|---:|---:|---|",
    ]
    meet = []
    for bar, line, other, other_line in zip(
        first["bars"], bar_lines(first["bars"]), again["bars"], bar_lines(again["bars"]), strict=True
    ):
        if bar["quantity"] == "time" and bar["ratio"] and other["ratio"]:
            a, b = bar["ratio"], other["ratio"]
            meet.append(max(a["low"], b["low"]) <= min(a["high"], b["high"]))
            word = "yes" if meet[-1] else "**no**"
            lines.append(f"| {line.work} | {bar['ours']['name']} | {line.ratio} | {other_line.ratio} | {word} |")
    return "\n".join([*lines, "", f"{sum(meet)} of {len(meet)} meet.", ""])


def section(held: Mapping[str, Any]) -> str:
    """The lines of one run, what it could not answer, and where it ran."""
    machine = held["machine"]
    lines = [f"## `{machine['command']}`", ""]
    lines += [
        "| work | ours | the other | ratio | bar | | at most | rounds |",
        "|---|---:|---:|---:|---:|---|---:|---:|",
    ]
    for bar, line in zip(held["bars"], bar_lines(held["bars"]), strict=True):
        most = f"{line.at_most}, {line.limit}" if line.limit else ""
        lines.append(
            f"| {line.work} | {line.ours} | {line.other} | {line.ratio} | {line.bar} | {line.verdict} | {most} "
            f"| {bar['rounds']} |"
        )
    commit = str(machine["git_commit"])[:7] + (" with changes" if machine["git_dirty"] else "")
    where = (
        f"{machine['cpu']}, {machine['threads']} threads, {machine['dtype']}, torch {machine['torch']}, commit {commit}, "
        f"{machine['start'][:16].replace('T', ' ')} UTC; matrix products {machine['matmul_flops_per_s'] / 1e9:.0f} GFLOP/s, "
        f"copies {machine['copy_bytes_per_s'] / 1e9:.0f} GB/s."
    )
    said = [*bar_reasons(held["bars"]), *compile_lines(held["rows"])]
    return "\n".join([*lines, "", *(f"{line}." for line in said), where, ""])


def main() -> int:
    made = page(ROOT / "experiments" / "bench")
    if "--check" in sys.argv:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != made)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
