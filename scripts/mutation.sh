#!/usr/bin/env bash
# What of the edits people make by mistake no test sees, for the commit at HEAD, in a throwaway clone.
#
#   scripts/mutation.sh                              attnzoo/masks/{spec,translate}.py under tests/masks, by cosmic-ray in a
#                                                    throwaway environment; 20 minutes of one core. Results: docs/mutation.md
#   scripts/mutation.sh FOLDER TESTS [PYTEST ARGUMENT…]    any folder or file under any tests, by mutation_edits.py;
#                                                    SAMPLE=40 draws so many edits a file, ONLY=text takes files whose path has it
source "$(dirname "$0")/env.sh" test
base=$PWD place=${1:-attnzoo/masks}
[ $# -eq 0 ] && set -- attnzoo/masks tests/masks && masks=1
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT

git clone --quiet . "$work/repo"
PATH=$base/.venv/bin:$PATH
if [ "${masks:-}" ]; then
  .venv/bin/python -m venv "$work/env"
  purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
  "$base/.venv/bin/python" -c "$purelib" > "$("$work/env/bin/python" -c "$purelib")/base.pth"
  "$work/env/bin/python" -m pip install --quiet --disable-pip-version-check cosmic-ray==8.7.0
  PATH=$work/env/bin:$PATH
fi

cd "$work/repo"
export PATH PYTHONPATH=$PWD OMP_NUM_THREADS=1 MUTATION_SOCKET=$work/socket
# no byte code: two mutants written within a second with one length would pass for the same file
export PYTHONDONTWRITEBYTECODE=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
nice -n 19 python scripts/mutation_server.py serve "${@:2}" > "$work/tests.log" 2>&1 &
server=$!
until [ -S "$MUTATION_SOCKET" ]; do kill -0 "$server" || { cat "$work/tests.log"; exit 1; }; sleep 1; done
python scripts/mutation_server.py ask || { cat "$work/tests.log"; echo "the tests fail without a mutation" >&2; exit 1; }

git log -1 --format='commit %h of %cs'
if [ -z "${masks:-}" ]; then
  nice -n 19 python scripts/mutation_edits.py "$place" --sample "${SAMPLE:-0}" --only "${ONLY:-}"
  exit
fi
cosmic-ray init scripts/mutation.toml "$work/session.sqlite"
cr-filter-operators "$work/session.sqlite" scripts/mutation.toml
nice -n 19 cosmic-ray exec scripts/mutation.toml "$work/session.sqlite"
python scripts/mutation_server.py score "$work/session.sqlite"
