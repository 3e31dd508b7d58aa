"""The CUDA devices that cells trained at once are spread over, found without torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from itertools import takewhile

from attnzoo.comparison.plan import Cell
from attnzoo.errors import RequestError

VISIBLE = "CUDA_VISIBLE_DEVICES"


def cuda_devices() -> list[str]:
    """What `VISIBLE` may name in a process started here: what it names already, or a number for each GPU of nvidia-smi."""
    asked = os.environ.get(VISIBLE)
    if asked is not None:
        return list(takewhile(lambda word: word not in ("", "-1"), (word.strip() for word in asked.split(","))))
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):  # no driver, no device
        return []
    return [str(n) for n, _ in enumerate(line for line in done.stdout.splitlines() if line.startswith("GPU "))]


def device_each(cells: Sequence[Cell], jobs: int) -> list[str]:
    """A device for each of the jobs; none where there is one job, or no device that a cell could take.

    Raises:
        RequestError: fewer devices than jobs, or all cells on one by name: they would share it, in time and in memory.
    """
    asked = {cell.cfg.trainer.device for cell in cells} - {"cpu", "cpu:0"}
    if jobs == 1 or not asked or not (there := cuda_devices()):
        return []
    ways = ["trainer.device=cpu"]
    if named := sorted(device for device in asked if ":" in device):
        ways.insert(0, f"trainer.device=cuda gives each cell one of the {len(there)} that are there")
        raise RequestError(f"jobs={jobs} with trainer.device={named[0]}: all cells would share one device", ways)
    if jobs > len(there):
        ways.insert(0, f"jobs={len(there)}")
        found = "is 1 CUDA device" if len(there) == 1 else f"are {len(there)} CUDA devices"
        raise RequestError(f"jobs={jobs}: there {found}, and a cell trains on one of its own", ways)
    return there[:jobs]
