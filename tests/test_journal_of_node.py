"""A real journal: a server whose output a service manager gave to it is found there, with its phases."""

import json
import os
import subprocess
import sys
from pathlib import Path

from contained import as_root, control_group

JOURNALD = "/lib/systemd/systemd-journald"
ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
UNIT = "stallwatch-test-kimi.service"
SETUP = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/journal /run/systemd/journald.conf.d "/run/log/journal/$(cat /etc/machine-id)"
printf '[Journal]\\nAudit=no\\nReadKMsg=no\\nStorage=volatile\\n' > /run/systemd/journald.conf.d/test.conf
"$JOURNALD" &
journald=$!
while [ ! -S /run/systemd/journal/stdout ]; do sleep 0.05; done
status=0
"$@" || status=$?
kill "$journald"
wait "$journald" || true
exit "$status"
"""
"""A /run of its own in a mount namespace of its own: this journal is the node's for whoever looks from there."""


@as_root
def test_a_server_that_logs_to_the_journal_is_followed_there(tmp_path):
    """By the name of its unit, lines with colours too; evidence has the telling ones, and nobody its secrets."""
    program = Path(__file__).with_name("journal_node.py")
    paths = os.pathsep.join(path for path in sys.path if path.endswith("exporter"))
    with control_group(f"system.slice/{UNIT}") as group:
        done = subprocess.run(
            [*ALONE, "sh", "-c", SETUP, "sh", sys.executable, str(program), str(tmp_path), str(group)],
            env={**os.environ, "PYTHONPATH": paths, "JOURNALD": JOURNALD},
            check=False,
            capture_output=True,
            text=True,
            timeout=55,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["path"] == f"journal:_SYSTEMD_UNIT={UNIT},_TRANSPORT=stdout"
    assert (found["loading"]["phase"], found["loading"]["progress"]) == ("loading_weights", 0.5)
    assert (found["loaded"]["phase"], found["loaded"]["last_marker_rank"]) == ("loaded", "TP0")
    assert "Load weight end" in found["lines"][-1]
    assert "canary" not in done.stdout
