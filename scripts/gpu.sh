#!/usr/bin/env bash
# Checks, benches, trains and decodes every backend on a GPU in under 6 minutes; on a CPU, or with GPU_SMALL=1, a few at
# small sizes. Needs the source tree and a Python with torch (PYTHON=…); wheels in the folder WHEELS are used where given.
# JSON goes to OUT, experiments/gpu by default; `attnzoo report FOLDER` shows it.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-experiments/gpu}
python=${PYTHON:-python3}
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
if [ -n "${WHEELS:-}" ]; then
  site=$(mktemp -d)
  "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl
  export PYTHONPATH="$PYTHONPATH:$site"
fi
failed=0
for part in check:70 operators:60 window:20 train:75 decode:30 kernels:35; do # 290 s, and some 10 s a part to start
  seconds=${part#*:}
  timeout $((seconds + 12)) "$python" scripts/gpu.py "${part%:*}" --seconds "$seconds" --out "$out" ||
    { echo "${part%:*} ended with status $?" >&2; failed=1; }
done
exit $failed
