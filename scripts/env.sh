# Sourced by demo.sh and test.sh: makes .venv and installs attnzoo with an extra, once for each state of the project's pins.
# Usage: source scripts/env.sh [EXTRA]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
extra=${1:-}
python=${PYTHON:-python3}
unset PYTHONDONTWRITEBYTECODE  # or every process compiles torch anew: 14 s each time
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || {
  echo "attnzoo needs Python 3.11 to 3.13; $python is $("$python" --version 2>&1). Set PYTHON=/path/to/one." >&2
  exit 2
}
[ -x .venv/bin/python ] || "$python" -m venv .venv
stamp=".venv/.installed-${extra:-base}-$(cat pyproject.toml constraints.txt | "$python" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:12])')"
if [ ! -e "$stamp" ]; then
  echo "installing attnzoo${extra:+ with the extra '$extra'} into .venv (a few minutes the first time) …"
  .venv/bin/python -m pip install -qq --disable-pip-version-check --no-compile -c constraints.txt -e ".${extra:+[$extra]}"
  # pip was told not to compile all 9,000 files (40 s); these are the ones that a run loads
  .venv/bin/python -c "import attnzoo.training.preload, wandb.sdk.launch.inputs.internal"
  touch "$stamp"
fi
