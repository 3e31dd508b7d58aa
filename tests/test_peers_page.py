"""docs/peers.md is what the records say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from peers_page import agreement  # noqa: E402


def test_the_page_is_that_of_the_records():
    subprocess.run([sys.executable, "scripts/peers_page.py", "--check"], cwd=ROOT, check=True)


def test_two_runs_are_held_side_by_side():
    def run(low, high):
        ratio = {"median": (low + high) / 2, "low": low, "high": high}
        side = {"name": "ours", "median": 1.0, "low": 1.0, "high": 1.0}
        bar = {
            "work": "w",
            "quantity": "time",
            "bar": None,
            "ratio": ratio,
            "at_most": None,
            "ours": side,
            "peer": side,
        }
        return {"bars": [bar | {"limit": None, "verdict": "no bar", "reasons": []}]}

    assert "| yes |" in agreement("a", run(1.0, 2.0), run(2.0, 3.0))
    apart = agreement("a", run(1.0, 2.0), run(2.1, 3.0))
    assert "| w | ours | 1.50 × [1.00, 2.00] | 2.55 × [2.10, 3.00] | **no** |" in apart
    assert "0 of 1 meet" in apart
