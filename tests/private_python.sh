#!/bin/sh
# A Python with processes of its own: its tests see neither those of another nor those of this machine, and leave none behind.
as_root=$([ "$(id -u)" = 0 ] || echo "--user --map-root-user")
# bash is its process 1, which waits for those that nobody else waits for.
# shellcheck disable=SC2086
exec unshare $as_root --pid --fork --kill-child --mount-proc bash -c '"$0" "$@"; exit $?' "$(dirname "$0")/../.venv/bin/python" "$@"
