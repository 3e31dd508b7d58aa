"""A comparison that is asked to end, by a signal to it alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from attnzoo.measure.record import Record


def test_sigterm_lets_the_cell_write_its_checkpoint_and_says_how_to_go_on(tmp_path):
    words = [
        "experiment=tiny",
        "backends=[sdpa]",
        "trainer.max_steps=100000",
        "trainer.precision=fp32",
        "logger=disabled",
    ]
    words += ["probe.enabled=false", "measure.enabled=false", "measure.leak=false", f"run_dir={tmp_path / 'out'}"]
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a job in the background ignores it
    )
    code = f"{start}\nimport sys\nfrom attnzoo.cli import main\nsys.exit(main(sys.argv[1:]))"
    child = subprocess.Popen(
        [sys.executable, "-c", code, "compare", *words], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    cell = tmp_path / "out" / "sdpa-seed0"
    try:
        end = time.monotonic() + 120
        rows = cell / "metrics.jsonl"  # there before the first step
        while not (rows.exists() and rows.stat().st_size) and time.monotonic() < end and child.poll() is None:
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        said = child.communicate(timeout=60)[1]
    finally:
        child.kill()
    assert child.returncode == 143, said
    assert f"{tmp_path / 'out'}: stopped by SIGTERM; the same command goes on from there" in said
    assert "Traceback" not in said
    assert Record.load(cell / "record.json").status == "interrupted"
    assert (cell / "checkpoints" / "last.ckpt").exists()
