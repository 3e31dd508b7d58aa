#!/usr/bin/env bash
# Checks, benches, trains and decodes every backend on a GPU in under 6 minutes; on a CPU, or with GPU_SMALL=1, a few at
# small sizes. Needs the source tree and a Python with torch (PYTHON=…); wheels in the folder WHEELS are used where given.
# JSON goes to OUT, experiments/gpu by default, after every job: what a part leaves out, a later start goes on with.
# SCALE=2 gives every part twice its seconds, STEPS has other ones. OUT/page.md compares with the targets; `attnzoo report FOLDER` shows all.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-experiments/gpu}
python=${PYTHON:-python3}
mkdir -p "$out" || exit 2
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
if [ -n "${WHEELS:-}" ]; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl || exit 2
  export PYTHONPATH="$PYTHONPATH:$site"
fi
failed=0
# part:seconds[:backends or libraries]; each line leaves something that can be used, the most telling first
steps=${STEPS:-check:20:sdpa,sliding_window operators:10:sdpa,sliding_window train:20:sdpa
  check:12:flex window:20
  check:15:fla,flash_attn kernels:20
  check:10:xformers operators:5:xformers
  check:30 operators:25 decode:20 growth:20 train:30}
for step in $steps; do
  IFS=: read -r part seconds only <<< "$step"
  seconds=$(awk "BEGIN { print $seconds * ${SCALE:-1} }")
  grace=$(awk "BEGIN { print int($seconds) + ${GRACE:-45} }") # the part ends its workers itself; this is for a part that cannot
  timeout --kill-after 5 "$grace" "$python" scripts/gpu.py "$part" --seconds "$seconds" --out "$out" \
    ${only:+--only "$only"} || { echo "$step ended with status $?" >&2; failed=1; }
done
"$python" scripts/gpu.py page --out "$out" || failed=1
exit $failed
