"""Python programs that stand still or spin, programs in the place of py-spy, and servers made of such processes."""

import subprocess
import sys

from stallwatch.node.procfs import Procfs
from stallwatch.snapshot import Launch, Process, Server
from stallwatch.sources import stacks

LOCK = "import threading; lock = threading.Lock(); lock.acquire()"
STUCK = f"""
{LOCK}
def stuck_in_a_lock():
    print("here", flush=True); lock.acquire()
stuck_in_a_lock()
"""
RECEIVING = """
import socket, sys
ours, theirs = socket.socketpair()
def stuck_in_a_read():
    print("here", flush=True); ours.recv(1)
stuck_in_a_read()
"""
SPINNING = """
def spin():
    while print("here", flush=True) or True:
        while True: pass
spin()
"""
MANY = f"""
{LOCK}
def wait():
    lock.acquire()
def deep(left):
    deep(left - 1) if left else wait()
for number in range(80):
    threading.Thread(target=deep, args=(100,), name=f"sk-{{'a' * 30}}", daemon=True).start()
print("here", flush=True)
wait()
"""
ZOMBIE = "import os, time; pid = os.fork(); pid or os._exit(0); print(pid, flush=True); time.sleep(600)"
WRITING = """
import os, sys, threading
def write():
    os.write(os.open(sys.argv[1], os.O_RDWR), b"x")
print("here", flush=True)
sys.stdin.readline()
threading.Thread(target=write).start()
"""


class Programs:
    """Python programs that are killed after the test."""

    def __init__(self):
        self._begun = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._begun:
            process.kill()
            process.communicate(timeout=10)

    def start(self, code, *arguments):
        """Start one and wait until it has said a word."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._begun.append(subprocess.Popen([sys.executable, "-c", code, *arguments], **pipes))
        self._begun[-1].word = self._begun[-1].stdout.readline().strip()
        return self._begun[-1]


def in_place_of_py_spy(folder, code):
    """Write a program and return what finds it."""
    path = folder / "py-spy"
    path.write_text(f"#!{sys.executable}\nimport json, os, signal, sys, time\n{code}\n")
    path.chmod(0o755)
    return lambda: str(path)


def server(*pids):
    """Return a server of these processes, the ranks TP0, TP1, ..."""
    ranks = []
    for number, pid in enumerate(pids):
        stat = Procfs().stat(pid)
        ranks.append(Process(pid, stat.start_ticks, stat.started, "scheduler", f"scheduler_TP{number}", f"TP{number}"))
    return Server("here", "sglang", Launch(), tuple(ranks))


def names(stack):
    """Return the functions of a thread, the innermost first."""
    return [frame.name for frame in stack.frames]


async def one(process, **keywords):
    """Return the stacks of one process."""
    reading, failures = await stacks.read(server(process.pid), **keywords)
    assert failures == ()
    return reading.processes[0]


async def refused(*pids, **keywords):
    """Return the only failure of a read that gives nothing."""
    reading, (failure,) = await stacks.read(server(*pids), **keywords)
    assert reading is None
    return failure
