"""What did a server write to the journal of its node since the last look?

`journalctl` is asked, which knows the journal's files, their forms and their rotation: once for what is there already,
up to its end, and then for what comes. It is read without waiting, so that a journal which does not answer stops
nobody. A message with colours, or with bytes that are no UTF-8, comes as a list of numbers.

A log of which the journal shows not one line is taken for one that we may not see, not for one that is silent.
"""

import contextlib
import json
import math
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

from stallwatch.logs.tail import LONGEST_LINE, LOOK_BYTES, LOOK_SECONDS, PIECE, clean

PREFIX = "journal:"
PROGRAM = "journalctl"
HISTORY_LINES = 20_000
LONGEST_ENTRY = 1 << 20
TRY_AGAIN_SECONDS = 10.0
ASKED_SECONDS = 5.0
HOLDS_SECONDS = 2.0
END_SECONDS = 0.5

_MATCH = re.compile(r"(?:_SYSTEMD_UNIT|_SYSTEMD_USER_UNIT)=[\w.@:\\-]{1,255}|CONTAINER_ID_FULL=[0-9a-f]{64}")
_WRITTEN = re.compile(rb'"__REALTIME_TIMESTAMP":"(\d{1,20})"')
_CURSOR = re.compile(rb'"__CURSOR":"([\w=;]{1,400})"')
_UNITS = re.compile(
    r"^\d+:(?:name=systemd)?:(?:/[^/\n]+\.slice)*/([^/\n]+\.service)(?:(?:/[^/\n]+\.slice)*/([^/\n]+\.service))?",
    re.MULTILINE,
)


def path_of_unit(cgroup: str) -> str | None:
    """Name what the journal holds of the service whose control groups these are, as `/proc/PID/cgroup` lists them.

    A service of a user is one within the service of that user's manager.
    """
    for unit, of_user in _UNITS.findall(cgroup):
        matches = [f"_SYSTEMD_UNIT={unit}", *([f"_SYSTEMD_USER_UNIT={of_user}"] if of_user else [])]
        if all(map(_MATCH.fullmatch, matches)):
            return PREFIX + ",".join(matches)
    return None


def path_of_container(container_id: str) -> str:
    """Name what the journal holds of a container, as Docker and Podman mark it."""
    return f"{PREFIX}CONTAINER_ID_FULL={container_id}"


def is_here(program: str = PROGRAM) -> bool:
    """Say whether a journal can be asked at all."""
    return shutil.which(program) is not None


def holds(path: str, program: str = PROGRAM) -> bool:
    """Say whether the journal shows us anything of this; takes some milliseconds."""
    return bool(recent(path, 1, program, HOLDS_SECONDS)) if is_here(program) else False


def recent(path: str, lines: int = HISTORY_LINES, program: str = PROGRAM, within: float = ASKED_SECONDS) -> bytes:
    """Return the last lines of a log as a server wrote them; raises OSError."""
    command = [*_command(path, program), f"--lines={lines}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=within)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{program} has not answered in {within:g} s") from error
    if done.returncode:
        raise _error(done.stderr, done.returncode)
    return clean(b"".join(map(_message, done.stdout.splitlines())))


def _command(path: str, program: str) -> list[str]:
    matches = path.removeprefix(PREFIX).split(",")
    if not all(map(_MATCH.fullmatch, matches)):
        raise FileNotFoundError(f"{path}: not a place in the journal")
    shape = ("--quiet", "--no-pager", "--all", "--output=json", "--output-fields=MESSAGE")
    return [program, *shape, *matches]


def _message(entry: bytes) -> bytes:
    """Return what one entry says, as a line; nothing where it is none."""
    try:
        fields = json.loads(entry)
        said = _bytes_of(fields["MESSAGE"])
    except (ValueError, TypeError, KeyError):
        return b""
    return said[:LONGEST_LINE] + b"\n"


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode(errors="replace")
    if isinstance(value, list):
        return bytes(value) if all(isinstance(one, int) for one in value) else b"\n".join(map(_bytes_of, value))
    return b""


def _error(said: bytes, code: int) -> OSError:
    if b"permission" in said.lower():
        return PermissionError("the journal may not be read")
    return OSError(f"journalctl ended with {code}")


class Journal:
    """Follows what the journal holds of one service or container, as `Tail` does a file."""

    unfinished = b""  # the journal holds whole lines only
    rotations = 0

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic, program: str = PROGRAM) -> None:
        self._command = _command(path, program)
        self._clock = clock
        self._child: subprocess.Popen[bytes] | None = None
        self._past = True  # what is there already is being read
        self._again = -math.inf  # not before then
        self._why = OSError("the journal has not answered yet")
        self._last = b""  # the last whole entry
        self._rest = b""
        self._dropping = False
        self.size = 0
        self.modified = 0.0  # Unix time
        self.skipped_bytes = 0
        self.grew = False  # in the last look
        self.behind = False  # more is there than one look may read

    def look(self) -> Iterator[bytes]:
        """Yield the whole lines that are new, in pieces; raise OSError where the journal shows us none."""
        self.grew = False
        until, left = self._clock() + LOOK_SECONDS, LOOK_BYTES
        while left > 0 and (now := self._clock()) < until:
            piece = _read(self._running(), until - now if self._past else 0.0)
            if piece is None:
                break
            if not piece:
                self._end()
            left -= len(piece)
            if lines := self._lines(piece):
                self.grew = True
                yield lines
        self.behind = self._past or left <= 0
        if not self._last:  # it has shown us nothing, which is not silence
            raise self._why

    def close(self) -> None:
        """End the program."""
        if self._child:
            self._child.terminate()
            _ended(self._child)
            self._child = None

    def goes_on_at(self, path: str, root: str = "") -> bool:  # noqa: ARG002 as that of a file has them
        """Say that another path is another log."""
        return False

    def _running(self) -> "subprocess.Popen[bytes]":
        """Return the program, started if it is not there and was not just now; raises OSError."""
        if self._child is None:
            now = self._clock()
            if now < self._again:
                raise self._why
            self._again = now + TRY_AGAIN_SECONDS
            after = f"--after-cursor={_cursor(self._last)}"
            what = [f"--lines={HISTORY_LINES}"] if self._past else ["--follow", "--no-tail", after]
            self._child = _started([*self._command, *what])
        return self._child

    def _end(self) -> None:
        """Take note that the program has ended, as it does with the past."""
        if self._child:
            self._why = _ended(self._child)
            self._child = None
        if self._past and self._last:
            self._past, self._again = False, -math.inf

    def _lines(self, piece: bytes) -> bytes:
        whole, newline, rest = (self._rest + piece).rpartition(b"\n")
        if newline and self._dropping:
            _, _, whole = whole.partition(b"\n")
            self._dropping = False
        self._rest = rest
        if len(rest) > LONGEST_ENTRY:
            self.skipped_bytes += len(rest)
            self._rest, self._dropping = b"", True
        entries = whole.splitlines()
        if not entries:
            return b""
        self._last = entries[-1]
        if found := _WRITTEN.search(self._last):
            self.modified = int(found[1]) / 1e6
        lines = b"".join(map(_message, entries))
        self.size += len(lines)
        return clean(lines)


def _started(command: list[str]) -> "subprocess.Popen[bytes]":
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for pipe in filter(None, (child.stdout, child.stderr)):
        os.set_blocking(pipe.fileno(), False)
    return child


def _read(child: "subprocess.Popen[bytes]", wait: float) -> bytes | None:
    """Return what the program has said, nothing at its end, and None where there is nothing to read for so long."""
    pipe = child.stdout
    if pipe is None or not select.select([pipe], [], [], max(0.0, wait))[0]:
        return None
    return os.read(pipe.fileno(), PIECE)


def _ended(child: "subprocess.Popen[bytes]") -> OSError:
    """Return why a program that closed its output did, for long enough to tell; no longer, since it may be stuck."""
    for signum in (0, signal.SIGTERM, signal.SIGKILL):
        child.send_signal(signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(END_SECONDS)
            break
    said = b""
    for pipe in filter(None, (child.stderr, child.stdout)):
        said = said or pipe.read(4096) or b""
        pipe.close()
    return _error(said, child.returncode) if child.returncode else FileNotFoundError("the journal shows us none of it")


def _cursor(entry: bytes) -> str:
    found = _CURSOR.search(entry)
    return found[1].decode() if found else ""
