"""docs/peers.md is what the records say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_is_that_of_the_records():
    subprocess.run([sys.executable, "scripts/peers_page.py", "--check"], cwd=ROOT, check=True)
