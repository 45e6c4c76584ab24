"""A server whose output a service manager gave to the journal, and what is read of it there: told as JSON.

    python tests/journal_node.py FOLDER GROUP

It is run where the journal of the node is one of the test's own; FOLDER is for its files, GROUP the server's service.
"""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from stallwatch.collectors import log
from stallwatch.discovery import reader as discovery
from stallwatch.sources import lines

STREAM = "/run/systemd/journal/stdout"
SERVER = """
import subprocess, sys, time
rank = "import setproctitle, time; setproctitle.setproctitle('sglang::scheduler_TP0'); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", rank])
def say(text):
    print(text, file=sys.stderr, flush=True)
say("[2026-11-30 07:00:00] server_args=ServerArgs(model_path='/m', api_key='sk-canary', tp_size=1)")
say("[2026-11-30 07:00:05 TP0] Load weight begin. avail mem=178.00 GB")
say("\\x1b[1mLoading safetensors checkpoint shards:  50% Completed | 1/2 [00:03<00:03,  3.00s/it]\\x1b[0m")
sys.stdin.readline()
say("[2026-11-30 07:01:05 TP0] Load weight end. type=DeepseekV3ForCausalLM, avail mem=98.9 GB, mem usage=76.1 GB.")
time.sleep(600)
"""


def start(folder, group):
    """Start the server as systemd does: in its group, its output a stream to the journal that it is told of."""
    package = folder / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(SERVER)
    output = socket.socket(socket.AF_UNIX)
    output.connect(STREAM)
    # Its name, its unit, priority, whether priorities stand before lines, and where else they go.
    output.sendall(f"sglang\n{group.name}\n6\n0\n0\n0\n0\n".encode())
    stream = os.fstat(output.fileno())
    launch = [sys.executable, "-m", "sglang.launch_server", "--model-path", "/m", "--tp", "1", "--port", "30999"]
    return subprocess.Popen(
        ["sh", "-c", 'echo 0 > "$0/cgroup.procs" && exec "$@"', str(group), *launch],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env={**os.environ, "PYTHONPATH": str(folder), "JOURNAL_STREAM": f"{stream.st_dev}:{stream.st_ino}"},
    )


class Node:
    """What is read of this node, look by look."""

    def __init__(self):
        self._find = discovery({"procfs": "/proc", "below": str(os.getpid())}, str)
        self._follow, self._last = log.reader({}, str), lines.reader({}, str)

    def once(self, phase, within=20.0):
        """Return the server, its log and its telling lines once the log tells of this phase."""
        end, told = time.monotonic() + within, []
        while time.monotonic() < end:
            servers = [one for one in self._find([], frozenset())[0].servers if one.ranks]
            wanted = [target for one in servers if (target := log.target(one))]
            reading, failures = self._follow(wanted, frozenset())
            told = [*failures, *reading.logs, *(one.log_absence for one in servers)]
            if reading.logs and reading.logs[0].phase == phase:
                return servers[0], reading.logs[0], self._last(wanted, frozenset())[0].logs[0]
            time.sleep(0.1)
        raise SystemExit(f"{phase} was not seen: {told}")


def main(folder, group):
    """Play it and tell of it."""
    server, node = start(folder, group), Node()
    try:
        _, loading, _ = node.once("loading_weights")
        server.stdin.write(b"\n")
        server.stdin.flush()
        found, loaded, telling = node.once("loaded")
    finally:
        (group / "cgroup.kill").write_text("1")
        server.wait()
    texts = [line.text for line in telling.lines]
    print(json.dumps({"path": found.log_path, "loading": asdict(loading), "loaded": asdict(loaded), "lines": texts}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
