"""What else runs: other processes of a launcher, a comparison around this run."""

from __future__ import annotations

import os
from pathlib import Path

from attnzoo.errors import RequestError
from attnzoo.lock import holder

CELL_PATIENCE = 15.0
"""Seconds a cell waits for the process of an earlier start of its comparison, which ends with its parent."""
WORLD = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""What torchrun, srun and mpirun tell each of their processes."""
COMPARISON = "comparison.json"


def process_faults() -> list[str]:
    """Why this process is not alone: each of several would train the same run."""
    names = list(WORLD)
    if "SLURM_PROCID" in os.environ and "SLURM_STEP_NUM_TASKS" not in os.environ:
        names.append("SLURM_NTASKS")  # in the shell of an allocation it says only what may be started there
    sizes = {name: os.environ.get(name, "") for name in names}
    several = [f"{name}={size}" for name, size in sizes.items() if size.strip().isdigit() and int(size) > 1]
    if not several:
        return []
    slurm = " (in a batch job: srun -n 1, or --ntasks=1)" if any("SLURM" in line for line in several) else ""
    start = f"start it without torchrun, srun or mpirun of several tasks{slurm}"
    return [f"{', '.join(several)}: one process trains one run; {start}"]


def refuse_within_comparison(folder: Path) -> None:
    """A cell's folder is its comparison's while that runs.

    Raises:
        RequestError: names who runs it.
    """
    around = folder.absolute().parent
    if (around / COMPARISON).is_file() and (who := holder(around)):
        raise RequestError(f"run_dir={folder} belongs to the comparison in {around}, which {who} is running")
