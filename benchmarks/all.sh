#!/bin/sh
# Measure all that docs/performance.md tells, into .cache/bench, and write the page anew; `--quick` compares, and no more.
set -eu
here=$(dirname "$0")
results=.cache/bench
measure() { name=$1; shift; "$here/../tests/private_python.sh" "$here/$name.py" --json "$results/$name.json" "$@" || failed="$failed $name"; }
failed=""
mkdir -p "$results"
if [ "${1:-}" = --quick ]; then
  "$here/../tests/private_python.sh" "$here/compare.py" --quick
  exit
fi
measure compare
measure growth
measure log_flood
measure start
measure watched
"$here/../.venv/bin/python" "$here/../docs/make_performance.py"
[ -z "$failed" ] || { echo "not what is promised:$failed" >&2; exit 1; }
