"""The models of the leak tests are shared by several files."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
