"""What was appended to this file since the last look?

One path is followed over rotation, truncation, deletion and symlinks. Memory stays flat whatever is written: pieces of
1 MiB, lines cut at 64 KiB, and a reader that is too far behind jumps to the end and says how much it left out.
"""

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from stallwatch.logs.place import Place
from stallwatch.node.inside import open_regular

PIECE = 1 << 20
LONGEST_LINE = 64 << 10
LOOK_BYTES = 192 << 20
LOOK_SECONDS = 0.8
FURTHEST_BEHIND = 256 << 20
HISTORY = 8 << 20  # what is read of a file that was there before us

MOST_BETWEEN = 64  # files that had the name between two looks and are read

_ENDS = re.compile(rb"[\r\n]")
_ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
_TEXT_AFTER_BAR = re.compile(rb"((?:it/s|s/it)\])(?=[^\n])")


@dataclass(slots=True)
class _File:
    """An open file and how far it was read."""

    descriptor: int
    identity: tuple[int, int]
    offset: int = 0


class Lines:
    """Cuts pieces of a file into whole lines, and keeps what is unfinished.

    A progress bar ends at its closing bracket: it is drawn without a newline and may be the last thing ever written.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._dropping = False

    @property
    def unfinished(self) -> bytes:
        """Return the last line, which has no end yet."""
        return clean(self._rest)

    def skip_to_next(self) -> None:
        """Forget what is unfinished, and what will still come of that line."""
        self._rest, self._dropping = b"", True

    def finish(self) -> bytes:
        """Return the last line as if it had ended."""
        rest, self._rest, self._dropping = self._rest, b"", False
        return clean(rest + b"\n")

    def cut(self, piece: bytes) -> bytes:
        """Return the cleaned lines that end in this piece."""
        if b"\0" in piece:  # what a writer that does not append leaves before it in a truncated file
            piece = piece.replace(b"\0", b"")
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        whole, rest = piece[:end], piece[end:]
        if whole and self._dropping and (first := _ENDS.search(whole)):
            whole, self._dropping = whole[first.start() :], False
        if whole:
            whole, self._rest = self._rest + whole, b""
        self._keep(rest)
        return clean(whole + self._finished_bar())

    def _keep(self, rest: bytes) -> None:
        if not self._dropping:
            room = LONGEST_LINE - len(self._rest)
            self._rest += rest[:room]
            self._dropping = len(rest) > room

    def _finished_bar(self) -> bytes:
        end = max(self._rest.rfind(b"it/s]"), self._rest.rfind(b"s/it]")) + len(b"it/s]")
        if self._dropping or end < len(b"it/s]"):
            return b""
        bar, self._rest = self._rest[:end], self._rest[end:]
        return bar + b"\n"


def clean(lines: bytes) -> bytes:
    """Return the lines without colours and blank lines, each ended by one newline, bars on lines of their own."""
    if b"\x1b" in lines:
        lines = _ANSI.sub(b"", lines)
    if b"\r" in lines:
        lines = lines.replace(b"\r", b"\n")
    if b"%" in lines and (b"it/s]" in lines or b"s/it]" in lines):  # the first test is the fast one
        lines = _TEXT_AFTER_BAR.sub(rb"\1\n", lines)
    while b"\n\n" in lines:
        lines = lines.replace(b"\n\n", b"\n")
    return lines[1:] if lines.startswith(b"\n") else lines


class Tail:
    """Follows one path; `look` yields what is new, and the attributes then tell about the file."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic, *, root: str = "") -> None:
        self._place, self._clock = Place(path, root), clock
        self._files: list[_File] = []
        self._siblings: frozenset[tuple[int, int]] = frozenset()
        self._lines = Lines()
        self.size = 0
        self.modified = 0.0  # Unix time
        self.rotations = 0
        self.skipped_bytes = 0
        self.grew = False  # in the last look
        self.behind = False  # more is there than one look may read

    @property
    def unfinished(self) -> bytes:
        """Return the last line, which has no end yet."""
        return self._lines.unfinished

    def look(self) -> Iterator[bytes]:
        """Yield the whole lines that are new, in pieces; raise OSError where there is no file to read."""
        self.grew = self.behind = False
        self._find()
        until, left = self._clock() + LOOK_SECONDS, LOOK_BYTES
        while True:
            file = self._files[0]
            end = self._end_of(file)
            while file.offset < end and left > 0 and self._clock() < until:
                piece = os.pread(file.descriptor, min(PIECE, end - file.offset), file.offset)
                if not piece:
                    break
                file.offset += len(piece)
                left -= len(piece)
                self.grew = True
                if lines := self._lines.cut(piece):
                    yield lines
            if file.offset < end or len(self._files) == 1:
                break
            os.close(self._files.pop(0).descriptor)
            if lines := self._lines.finish():
                yield lines
        self.behind = file.offset < end

    def close(self) -> None:
        """Close what is open."""
        while self._files:
            os.close(self._files.pop().descriptor)

    def _find(self) -> None:
        """Queue the file that the path leads to now, and those that had the name since the last look."""
        try:
            with self._place.held() as handle:
                status = os.fstat(handle)
                if self._files and self._files[-1].identity == _identity(status):
                    return
                file = _File(open_regular(handle), _identity(status))
        except OSError as error:
            # Deleted, but whoever has it open may still write; a link in its place is not followed.
            if self._files and error.errno in (errno.ENOENT, errno.ELOOP):
                return
            raise
        if not self._files:
            self._start_near_end(file, status.st_size)
        else:
            between = self._between(self._files[-1], file)
            self.rotations += 1 + len(between)
            self._files += between
        self._files.append(file)
        self._siblings = frozenset(_identity(status) for status in self._place.siblings().values())

    def _between(self, old: _File, new: _File) -> list[_File]:
        """Open, oldest first, what had our name only between two looks and has been renamed since."""
        known = self._siblings | {old.identity, new.identity}
        since = os.fstat(old.descriptor).st_mtime_ns
        missed = [
            (status.st_mtime_ns, name)
            for name, status in self._place.siblings().items()
            if _identity(status) not in known and stat.S_ISREG(status.st_mode) and status.st_mtime_ns >= since
        ]
        found = []
        for _, name in sorted(missed)[-MOST_BETWEEN:]:
            with suppress(OSError):  # renamed once more, or compressed, in this moment
                descriptor = self._place.open_sibling(name)
                found.append(_File(descriptor, _identity(os.fstat(descriptor))))
        return found

    def _start_near_end(self, file: _File, size: int) -> None:
        if size > HISTORY:
            file.offset = size - HISTORY - 1  # one byte more tells whether a line begins there
            self._lines.skip_to_next()

    def _end_of(self, file: _File) -> int:
        status = os.fstat(file.descriptor)
        self.size, self.modified = status.st_size, status.st_mtime
        if status.st_size < file.offset:
            self._lines.finish()
            file.offset = 0
            self.rotations += 1
            self.grew = True
        if status.st_size - file.offset > FURTHEST_BEHIND:
            before = file.offset
            self._start_near_end(file, status.st_size)
            self.skipped_bytes += file.offset - before
        return status.st_size


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
