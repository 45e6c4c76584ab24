"""What did a server write to the journal of its node since the last look?

`journalctl` is asked, which knows the journal's files, their forms and their rotation: first for the end of what is
there, then every few seconds for what came after the last entry. It is never waited for, and what it says is taken for
the whole only once it has ended well: a program that follows the journal may have gone deaf (no inotify watch was left)
and would look like a server that is silent. So a log is silent only where the journal was just asked and had no more.

A message with colours, or with bytes that are no text, comes as a list of numbers.
"""

import contextlib
import json
import math
import os
import re
import select
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from stallwatch.logs.place import JOURNAL
from stallwatch.logs.tail import HISTORY, LONGEST_LINE, LOOK_BYTES, LOOK_SECONDS, PIECE, clean

PROGRAM = "journalctl"
HISTORY_LINES = 20_000
LONGEST_ENTRY = 1 << 20
ASK_SECONDS = 5.0
"""How often it is asked for what is new; each time takes it some ten milliseconds of CPU."""
ANSWER_SECONDS = 15.0
"""Who has not answered by then is given up; a log that was not heard of for so long is absent, and not yet silent."""
FIRST_SECONDS = 0.2
"""How long the first look waits, so that most logs are known after it."""
RECENT_SECONDS = 3.0
_END_SECONDS = 0.3

_MATCH = re.compile(
    r"(?:_SYSTEMD_UNIT|_SYSTEMD_USER_UNIT)=[\w.@:\\-]{1,255}|CONTAINER_ID_FULL=[0-9a-f]{64}|_TRANSPORT=stdout|_UID=0"
)
_WRITTEN = re.compile(rb'"__REALTIME_TIMESTAMP":"(\d{1,18})"')
_CURSOR = re.compile(rb'"__CURSOR":"([\w=;]{1,400})"')
_UNITS = re.compile(
    r"^\d+:(?:name=systemd)?:(?:/[^/\n]+\.slice)*/([^/\n]+\.service)"
    r"(?:(?:/[^/\n]+\.slice)*/([^/\n]+\.service))?((?:/[^/\n]+)*)$",
    re.MULTILINE,
)


def path_of_unit(cgroup: str) -> str | None:
    """Name what the journal holds of the service whose control groups these are, as `/proc/PID/cgroup` lists them.

    A service of a user is one within that of the user's manager. One within any other service logs to a journal of its
    own, as those of a container that runs systemd do, and is not found.
    """
    for unit, inner, rest in _UNITS.findall(cgroup):
        if (inner and not unit.startswith("user@")) or re.search(r"\.(?:service|scope|slice)(?:/|$)", rest):
            continue
        matches = [f"_SYSTEMD_UNIT={unit}", *([f"_SYSTEMD_USER_UNIT={inner}"] if inner else []), "_TRANSPORT=stdout"]
        if all(map(_MATCH.fullmatch, matches)):
            return JOURNAL + ",".join(matches)
    return None


def path_of_container(container_id: str) -> str:
    """Name what the journal holds of a container, as Docker and Podman mark it where root runs them.

    Anybody may write such a mark; that root has written it the journal vouches for.
    """
    return f"{JOURNAL}CONTAINER_ID_FULL={container_id},_UID=0"


def is_here(program: str = PROGRAM) -> bool:
    """Say whether a journal can be asked at all."""
    return shutil.which(program) is not None


def holds(path: str, program: str = PROGRAM, within: float = RECENT_SECONDS) -> bool:
    """Say whether the journal shows us anything of this."""
    with contextlib.suppress(OSError):
        return bool(recent(path, program, within, lines=1))
    return False


def recent(path: str, program: str = PROGRAM, within: float = RECENT_SECONDS, lines: int = HISTORY_LINES) -> bytes:
    """Return the end of a log as the server wrote it, at most some 8 MiB; raises OSError."""
    journal, end = Journal(path, program=program, lines=lines), time.monotonic() + within
    kept: deque[bytes] = deque()
    try:
        while not _is_heard(journal, kept):
            if time.monotonic() > end:
                raise NotYetError(f"{program} has not answered in {within:g} s")
        return b"".join(kept)
    finally:
        journal.close()


def _is_heard(journal: "Journal", kept: deque[bytes]) -> bool:
    """Keep the end of what the journal says, and tell whether that was all."""
    try:
        for piece in journal.look(_END_SECONDS):
            kept.append(piece)
            while sum(map(len, kept)) - len(kept[0]) > HISTORY:
                kept.popleft()
    except NotYetError:
        return False
    return True


class NotYetError(TimeoutError):
    """The journal has not answered yet."""


class Journal:
    """Follows what the journal holds of one service or container, as `Tail` does a file."""

    unfinished = b""  # the journal holds whole lines only
    rotations = 0
    behind = False  # no reading is given before all that is there was read

    def __init__(
        self,
        path: str,
        clock: Callable[[], float] = time.monotonic,
        program: str = PROGRAM,
        lines: int = HISTORY_LINES,
    ) -> None:
        self._command = _command(path, program)
        self._clock = clock
        self._lines = lines
        self._child: subprocess.Popen[bytes] | None = None
        self._asked = -math.inf
        self._why: OSError | None = NotYetError("journalctl has not answered yet")
        self._last = b""  # the last whole entry
        self._rest, self._dropping = b"", False
        self.size = 0
        self.modified = 0.0  # Unix time
        self.skipped_bytes = 0
        self.grew = False  # in the last look

    def look(self, wait: float = 0.0) -> Iterator[bytes]:
        """Yield the whole lines that are new, in pieces; raise OSError where the journal tells us nothing for now."""
        self.grew = False
        now = self._clock()
        if self._child is None and now - self._asked >= ASK_SECONDS:
            wait = wait or (FIRST_SECONDS if self._asked == -math.inf else 0.0)
            self._asked = now
            self._child = _started(self._question())
        left = LOOK_BYTES
        while self._child and left > 0 and self._clock() < now + LOOK_SECONDS:
            piece = _read(self._child, wait)
            if piece is None:
                break
            if not piece:
                self._finish(self._child)
                break
            left -= len(piece)
            if lines := self._taken(piece):
                self.grew = True
                yield lines
        self._give_up(now)
        if self._why:
            raise self._why

    def close(self) -> None:
        """End the program."""
        if self._child:
            self._child.kill()
            self._let_go(self._child)

    def goes_on_at(self, path: str, root: str = "") -> bool:  # noqa: ARG002 as that of a file has them
        """Say that another path is another log."""
        return False

    def _question(self) -> list[str]:
        """Ask for what came after the last entry, or for the end of all."""
        found = _CURSOR.search(self._last)
        return [*self._command, f"--after-cursor={found[1].decode()}" if found else f"--lines={self._lines}"]

    def _finish(self, child: "subprocess.Popen[bytes]") -> None:
        """Take note of how the program ended."""
        self._why = self._let_go(child)
        if not self._why and not self._last:  # which is no silence: maybe we may not see it
            self._why = FileNotFoundError("the journal shows us none of it")

    def _give_up(self, now: float) -> None:
        """End a program that has not answered for too long; one that does not end is not joined by another."""
        if self._child and now - self._asked > ANSWER_SECONDS:
            self._why = TimeoutError(f"journalctl has not answered in {ANSWER_SECONDS:g} s")
            self._child.kill()
            if self._child.poll() is not None:
                self._let_go(self._child)

    def _let_go(self, child: "subprocess.Popen[bytes]") -> OSError | None:
        """Forget a program that has ended, and half an entry of it; return what was wrong with it."""
        self._child, self._rest, self._dropping = None, b"", False
        return _ended(child)

    def _taken(self, piece: bytes) -> bytes:
        """Return the lines that this piece of entries completes."""
        whole, newline, self._rest = (self._rest + piece).rpartition(b"\n")
        if newline and self._dropping:
            whole, self._dropping = whole.partition(b"\n")[2], False
        if len(self._rest) > LONGEST_ENTRY or self._dropping:
            self.skipped_bytes += len(self._rest)
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


def _command(path: str, program: str) -> list[str]:
    matches = path.removeprefix(JOURNAL).split(",")
    if not all(map(_MATCH.fullmatch, matches)):
        raise FileNotFoundError(f"{path}: not a place in the journal")
    shape = ("--quiet", "--no-pager", "--all", "--output=json", "--output-fields=MESSAGE")
    return [program, *shape, *matches]


def _started(command: list[str]) -> "subprocess.Popen[bytes]":
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SYSTEMD_")} | {"LC_ALL": "C"}
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
    )
    for pipe in filter(None, (child.stdout, child.stderr)):
        os.set_blocking(pipe.fileno(), False)
    return child


def _read(child: "subprocess.Popen[bytes]", wait: float) -> bytes | None:
    """Return what the program has said, nothing at its end, and None where there is nothing to read for so long."""
    pipe = child.stdout
    if pipe is None or not select.select([pipe], [], [], wait)[0]:
        return None
    return os.read(pipe.fileno(), PIECE)


def _ended(child: "subprocess.Popen[bytes]") -> OSError | None:
    """Return what was wrong with a program that has said all it had to; one that does not end now is killed."""
    try:
        child.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_END_SECONDS)
    said = (child.stderr.read(4096) if child.stderr else b"") or b""
    for pipe in filter(None, (child.stdout, child.stderr)):
        pipe.close()
    if child.returncode == 0:
        return None
    if b"permission" in said.lower():
        return PermissionError("the journal may not be read")
    return OSError(f"journalctl ended with {child.returncode}")


def _message(entry: bytes) -> bytes:
    """Return what one entry says, as a line; nothing where it is none."""
    try:
        said = _bytes_of(json.loads(entry)["MESSAGE"])
    except (ValueError, TypeError, KeyError):
        return b""
    return said[:LONGEST_LINE] + b"\n"


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode(errors="replace")
    if isinstance(value, list):
        return bytes(value) if all(isinstance(one, int) for one in value) else b"\n".join(map(_bytes_of, value))
    return b""
