"""Real processes that hang in one way each, for what reads their state from /proc.

`python wedged.py WAY...` says `ready` once all its threads are where they stay: `lock`, `socket`, `spin`, `child`,
`zombie` or `nothing`, each in a thread of its own; the main thread reads its standard input.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

from stallwatch.node.procfs import Procfs
from stallwatch.snapshot import Launch, Process, Server


def hang(way):
    """Hang in this way, for ever."""
    if way == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif way == "socket":
        ours, _theirs = socket.socketpair()
        ours.recv(1)
    elif way == "spin":
        while True:
            pass
    elif way == "hostile":
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "wb") as file:
            file.write(b"\x1b[31m<b>\nx")
        time.sleep(3600)


@contextlib.contextmanager
def process(*ways, environ=None, arguments=(), **options):
    """Run a process that hangs in these ways; SIGCONT and SIGKILL end it."""
    command = [sys.executable, __file__, *ways, *arguments]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environ or {})}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=found, **options) as running:
        try:
            assert running.stdout.readline() == b"ready\n"
            until(lambda: reads_input(running.pid) and ("spin" in ways or is_settled(running.pid)))
            yield running
        finally:
            running.send_signal(signal.SIGCONT)
            running.kill()


def server_of(*pids, tree=(), name="sglang:30000", **fields):
    """Describe a server whose own processes these are: a launcher, then schedulers."""
    processes = []
    for number, pid in enumerate(pids):
        stat = Procfs().stat(pid)
        role, label, rank = (
            ("scheduler", f"scheduler_TP{number - 1}", f"TP{number - 1}") if number else ("launcher", "launcher", "")
        )
        below = tuple(tree) if number == len(pids) - 1 else ()
        processes.append(Process(pid, stat.start_ticks, stat.started, role, label, rank, below))
    return Server(name, "sglang", Launch(port=30000), tuple(processes), **fields)


def read_as_nobody(source, target):
    """Return what a source of evidence gives of a server to a user without rights, as a worker sends it."""
    code = (
        "import json, os, sys\n"
        "from stallwatch.child import fields_of\n"
        f"from stallwatch.sources.{source} import reader\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "reading, failures = reader({}, lambda _: None)(json.loads(sys.argv[1]), frozenset())\n"
        "print(json.dumps({'reading': reading, 'failures': failures}, default=fields_of))\n"
    )
    command = [sys.executable, "-c", code, json.dumps([target])]
    return subprocess.run(command, capture_output=True, check=True).stdout


def until(condition, within=20.0):
    """Wait until another process has got somewhere, which brings no event."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it never got there"
        time.sleep(0.01)


def state_of(pid, tid=None):
    """Return the letter of a thread's state."""
    with open(f"/proc/{pid}/task/{tid or pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def reads_input(pid):
    """Tell whether its main thread reads its standard input."""
    with open(f"/proc/{pid}/syscall") as file:
        return file.read().split()[1:2] == ["0x0"]


def is_settled(pid):
    """Tell whether all threads have got to where they stay: none of them wakes."""
    before = switches_of(pid)
    time.sleep(0.02)
    return before == switches_of(pid)


def switches_of(pid):
    """Return how often each thread has given its CPU up."""
    found = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/status") as file:
            found[tid] = file.read().rpartition("\nvoluntary_ctxt_switches:")[2]
    return found


def main(ways):
    """Hang in all these ways, and say so."""
    for way in ways:
        if way == "zombie":
            if os.fork() == 0:
                os._exit(0)
        elif way == "child":
            subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        elif way != "nothing":
            threading.Thread(target=hang, args=(way,), name=way, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main([way for way in sys.argv[1:] if not way.startswith("-")])
