"""``python -m attnzoo``."""

import sys

from attnzoo.cli import main

sys.argv[0] = "attnzoo"  # run records keep the command
raise SystemExit(main())
