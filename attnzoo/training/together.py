"""What else runs: other processes of a launcher, a comparison around this run."""

from __future__ import annotations

import os
from pathlib import Path

from attnzoo.errors import RequestError
from attnzoo.lock import holder

CELL_PATIENCE = 15.0
"""Seconds a cell waits for the process of an earlier start of its comparison, which ends with its parent."""
WORLD = ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""What torchrun, srun and mpirun tell each of their processes. A batch job's own SLURM_NTASKS says only what it may start."""
COMPARISON = "comparison.json"


def process_faults() -> list[str]:
    """Why this process is not alone: each of several would train the same run."""
    sizes = {name: os.environ.get(name, "") for name in WORLD}
    several = [f"{name}={size}" for name, size in sizes.items() if size.strip().isdigit() and int(size) > 1]
    if not several:
        return []
    return [
        f"{', '.join(several)}: one process trains one run; start it without torchrun, srun or mpirun of several tasks"
    ]


def refuse_within_comparison(folder: Path) -> None:
    """A cell's folder is its comparison's while that runs.

    Raises:
        RequestError: names who runs it.
    """
    around = folder.absolute().parent
    if (around / COMPARISON).is_file() and (who := holder(around)):
        raise RequestError(f"run_dir={folder} belongs to the comparison in {around}, which {who} is running")
