"""A reader for workers under test: it does what its target says."""

import gc
import os
import signal
import sys
import time
from dataclasses import dataclass

from stallwatch.snapshot import Failure, Reading

NAME = "stub"


@dataclass(frozen=True, slots=True)
class StubReading(Reading):
    """What was asked, which process answered, how often it has collected garbage and what it leaves out then."""

    pid: int
    skipped: tuple[str, ...] = ()
    collections: int = 0
    frozen: int = 0


def reader(options, note):
    """Return a function that answers, hangs, dies, or prints what is no reply."""
    actions = {
        "answer": lambda _target: None,
        "hang": lambda _target: time.sleep(3600),
        "nap": lambda _target: time.sleep(0.8),
        "ignore": _ignore_the_end,
        "die": lambda _target: os.kill(os.getpid(), signal.SIGKILL),
        "print": lambda _target: print("a library says hello"),
        "garbage": lambda _target: os.write(_reply_fd(), b"this is no reply\n"),
        "partial": lambda _target: (os.write(_reply_fd(), b'{"id":'), os._exit(0)),
        "raise": lambda _target: {}["no such key"],
    }

    def read(targets, skip):
        for target in targets:
            note(target.get("note", ""))
            actions[target["do"]](target)
        failures = (Failure(NAME, "told", options.get("word", "")),) if "word" in options else ()
        return StubReading(time.monotonic(), os.getpid(), tuple(sorted(skip)), *_tidiness()), failures

    return read


def _tidiness():
    return gc.get_stats()[2]["collections"], gc.get_freeze_count()


def _ignore_the_end(_target):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(3600)


def _reply_fd():
    """Find the pipe that replies go through: the one that is neither standard output nor error."""
    pipes = [fd for fd in range(3, 20) if _link(fd).startswith("pipe:")]
    assert pipes, sys.argv
    return pipes[-1]


def _link(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
