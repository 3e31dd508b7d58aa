#!/usr/bin/env bash
# Run the tests in .venv; arguments go to pytest: scripts/test.sh tests/masks
source "$(dirname "$0")/env.sh" test
export OMP_NUM_THREADS=1  # the workers share the cores
exec .venv/bin/python -m pytest -n auto --dist worksteal "$@"
