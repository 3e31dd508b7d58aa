"""Timing rounds: every variant of a plan in turns in one process, and what came out in every seed's record. No torch here."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnzoo.comparison.children import Ended, call_alone
from attnzoo.comparison.plan import Cell, Plan
from attnzoo.files import read_json
from attnzoo.measure.failures import NOT_TIMED, failed_timings, failure_lines
from attnzoo.measure.record import Record
from attnzoo.training.config import to_dict

TIMED = (
    "train_step_ms", "train_tokens_per_s", "train_matmul_share", "matmul_flops_per_s", "prefill_ms", "decode_ms_per_token",
    "length_sweep",
)  # fmt: skip
LEAST_SECONDS, LONGEST_SECONDS = 60.0, 3600.0


@dataclass(frozen=True)
class Rounds:
    """One set of rounds: cells that are timed in the same way, and what they are timed against.

    Args:
        cells: every one of the plan, whatever became of it.
        name: of the result and the log in the comparison's folder.
        baseline: the variant that ratios refer to.
    """

    cells: Sequence[Cell]
    name: str
    baseline: str

    def run(self, plan: Plan) -> tuple[float, str]:
        """Time the cells that have trained, unless one set of rounds has timed all of them before.

        Returns:
            The seconds it took, and why there are no timings, or ''.
        """
        trained = [(cell, record) for cell in self.cells if (record := _load(cell))["status"] == "ok"]
        variants: dict[str, Cell] = {}
        for cell, _ in trained:
            variants.setdefault(cell.variant, cell)
        baseline = self.baseline if self.baseline in variants else next(iter(variants), "")
        if not trained or _are_one_set([record for _, record in trained], baseline):
            return 0.0, ""
        print(f"timing {'; '.join(variants)}: all take turns", file=sys.stderr, flush=True)
        out, timing_id = plan.folder / f"{self.name}.json", uuid.uuid4().hex[:12]
        ended = self._call(plan, out, timing_id, baseline, variants)
        timed = read_json(out) if ended.status == 0 and out.is_file() else {}
        if timed.get("id") != timing_id:
            for cell, record in trained:
                _warn(record, [f"{NOT_TIMED}{ended.why}"])
                record.save(cell.folder / "record.json")
            return ended.seconds, f"{ended.why}; the trained cells are kept"
        for cell, record in trained:
            shared = [other.run for other, _ in trained if other.variant == cell.variant]
            _put_in(record, timed, cell.variant, shared)
            record.save(cell.folder / "record.json")
        return ended.seconds, ""

    def _call(self, plan: Plan, out: Path, timing_id: str, baseline: str, variants: Mapping[str, Cell]) -> Ended:
        given = {
            "id": timing_id,
            "baseline": baseline,
            "variants": {variant: to_dict(cell.cfg) for variant, cell in variants.items()},
        }
        return call_alone(
            "attnzoo.comparison.timing", [str(out)], plan.folder / f"{self.name}.log",
            given=json.dumps(given), limit=time_limit(plan, len(variants)),
        )  # fmt: skip


def all_rounds(plan: Plan) -> list[Rounds]:
    """Cells whose timings are taken in the same way, together; a sweep may have several such sets."""
    groups: dict[str, list[Cell]] = {}
    for cell in plan.cells:
        if cell.timed:
            trainer = cell.cfg.trainer
            machine = (trainer.device, trainer.precision, trainer.tf32, trainer.compile)
            how = (trainer.batch_size, *machine, cell.cfg.task.n_tokens, cell.cfg.measure)
            groups.setdefault(repr(how), []).append(cell)
    return [
        Rounds(cells, f"timing-{n}" if n > 1 else "timing", plan.baseline) for n, cells in enumerate(groups.values(), 1)
    ]


def time_limit(plan: Plan, variants: int) -> float:
    """Seconds a set of rounds may take: as much for each variant as a cell, but always enough for the rounds themselves."""
    asked = plan.cells[0].cfg.measure.seconds
    own = LONGEST_SECONDS if plan.time_limit is None else plan.time_limit * variants
    return max(own, LEAST_SECONDS + 4 * asked)


def keep_history(earlier: Record, record: Record) -> None:
    """Carry timings of earlier rounds over into a record that was written anew; they rank with no other ones any more."""
    history = [*earlier.get("cost_history", []), *_rounds_of(earlier)]
    if "train_step_ms" not in record.get("cost", {}) and history:
        record["cost_history"] = history


def _are_one_set(records: Sequence[Record], baseline: str) -> bool:
    """Whether one set of rounds, against this baseline, has timed all of them: several are never read as one."""
    costs = [record.get("cost", {}) for record in records]
    found = {(cost.get("timing_id"), cost.get("timing_baseline")) for cost in costs}
    return len(found) == 1 and costs[0].get("timing_id") is not None and costs[0].get("timing_baseline") == baseline


def _put_in(record: Record, timed: Mapping[str, Any], variant: str, shared_by: list[str]) -> None:
    """The results of these rounds; those of earlier ones become history."""
    if old := _rounds_of(record):
        record["cost_history"] = [*record.get("cost_history", []), *old]
    cost = record.setdefault("cost", {})
    for key in [key for key in cost if key in TIMED or key.startswith("timing_")]:
        del cost[key]
    cost.update(
        timed["cost"][variant],
        timing_id=timed["id"],
        timing_baseline=timed["baseline"],
        timing_shared_by=shared_by,  # one model of the variant was timed: its seeds have one measurement among them
        timing_environment=timed["environment"],
    )
    record["warnings"] = [line for line in record.get("warnings", []) if not line.startswith(NOT_TIMED)]
    cost.pop("failed", None)
    if failed := failed_timings(cost):
        cost["failed"] = failed
    _warn(record, failure_lines(cost))
    if not record["warnings"]:
        del record["warnings"]


def _warn(record: Record, lines: Sequence[str]) -> None:
    kept = [line for line in record.get("warnings", []) if line not in lines]
    record["warnings"] = [*kept, *lines]


def _rounds_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What earlier rounds left in a record, or nothing."""
    cost = record.get("cost", {})
    found = {key: value for key, value in cost.items() if key in TIMED or key.startswith("timing_")}
    return [found] if "train_step_ms" in found else []


def _load(cell: Cell) -> Record:
    return Record.load(cell.folder / "record.json")
