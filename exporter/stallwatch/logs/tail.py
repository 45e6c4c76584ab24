"""What was appended to this file since the last look?

One path is followed over rotation, truncation, deletion and symlinks (`rotation.py`), and what a container runtime has
put around the lines is taken off (`wrapped.py`). Memory stays flat whatever is written: pieces of 1 MiB, lines cut at
64 KiB, and a reader that is too far behind jumps to the end and says how much it left out.
"""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator

from stallwatch.logs import rotation, wrapped
from stallwatch.logs.place import Place
from stallwatch.logs.rotation import File

PIECE = 1 << 20
LONGEST_LINE = 64 << 10
LOOK_BYTES = 192 << 20
LOOK_SECONDS = 0.8
FURTHEST_BEHIND = 256 << 20
HISTORY = 8 << 20  # what is read of a file that was there before us

_ENDS = re.compile(rb"[\r\n]")
_BLANK = re.compile(rb"\n\n")
_NEWLINE = re.compile(rb"\n")
_ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]")
_TEXT_AFTER_BAR = re.compile(rb"((?:it/s|s/it)\])(?=[^\n])")


class Lines:
    """Cuts pieces of a file into whole lines, and keeps what is unfinished.

    A progress bar ends at its closing bracket: it is drawn without a newline and may be the last thing ever written.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._dropping = False
        self._form: wrapped.Form | None = None
        self._joiner = wrapped.Joiner()

    @property
    def unfinished(self) -> bytes:
        """Return the last line, which has no end yet; nothing where a runtime writes them, which it does whole."""
        return b"" if self._form else clean(self._rest)

    def skip_to_next(self) -> None:
        """Forget what is unfinished, and what will still come of that line."""
        self._rest, self._dropping = b"", True
        self._joiner.forget()

    def finish(self) -> bytes:
        """Return the last line as if it had ended."""
        rest, self._rest, self._dropping = self._rest, b"", False
        return clean(self._unwrapped(rest + b"\n") if rest else b"")

    def cut(self, piece: bytes) -> bytes:
        """Return the cleaned lines that end in this piece."""
        if b"\0" in piece:  # what a writer that does not append leaves before it in a truncated file
            piece = piece.replace(b"\0", b"")
        self._look_at_form(piece)
        end = piece.rfind(b"\n") + 1 if self._form else max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        whole, rest = piece[:end], piece[end:]
        if whole and self._dropping and (first := (_NEWLINE if self._form else _ENDS).search(whole)):
            whole, self._dropping = whole[first.start() :], False
        if whole:
            whole, self._rest = self._rest + whole, b""
        self._keep(rest)
        return clean(self._unwrapped(whole) if self._form else whole + self._finished_bar())

    def _look_at_form(self, piece: bytes) -> None:
        """Tell the form of the lines by how the first one begins that begins in this piece or did before it."""
        if not self._dropping:
            self._form = wrapped.form_of(self._rest[: wrapped.START] + piece[: wrapped.START])
        elif end := piece.find(b"\n") + 1:
            self._form = wrapped.form_of(piece[end : end + wrapped.START])

    def _unwrapped(self, whole: bytes) -> bytes:
        return self._joiner.join(whole, self._form) if self._form and whole else whole

    def _keep(self, rest: bytes) -> None:
        if not self._dropping:
            room = (wrapped.LONGEST_WRAPPED if self._form else LONGEST_LINE) - len(self._rest)
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
    while _BLANK.search(lines):  # twice as fast as `in`
        lines = lines.replace(b"\n\n", b"\n")
    return lines[1:] if lines.startswith(b"\n") else lines


class Tail:
    """Follows one path; `look` yields what is new, and the attributes then tell about the file."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic, *, root: str = "") -> None:
        self._place, self._clock = Place(path, root), clock
        self._files: list[File] = []
        self._siblings: rotation.Siblings = {}
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
                piece = file.read(min(PIECE, end - file.offset))
                if not piece:
                    self._give_up_what_is_gone(file, end)
                    break
                left -= len(piece)
                self.grew = True
                if lines := self._lines.cut(piece):
                    yield lines
            if file.offset < end or len(self._files) == 1:
                break
            os.close(self._files.pop(0).descriptor)
            if lines := self._lines.finish():
                yield lines
        self._files[-1].sample()
        self.behind = file.offset < end

    def close(self) -> None:
        """Close what is open."""
        while self._files:
            os.close(self._files.pop().descriptor)

    def goes_on_at(self, path: str, root: str = "") -> bool:
        """Follow another path from now on if it is another name of the same log; tell whether it is."""
        if not self._files:
            return False
        place, file = Place(path, root), self._files[-1]
        siblings = rotation.siblings_of(place)
        if not rotation.leads_to(place, file) and file.identity not in siblings:
            return False
        self._place, self._siblings = place, siblings
        return True

    def _find(self) -> None:
        """Queue what holds lines that were not read: the file of this name now, and those that had it since."""
        current = self._files[-1] if self._files else None
        if current is None:
            file, self._siblings = rotation.open_settled(self._place)
            self._start_near_end(file, os.fstat(file.descriptor).st_size)
            self._files.append(file)
        elif (found := self._other_than(current)) is not None:
            file, siblings = found
            self._queue(rotation.between(self._place, siblings, self._siblings, current, file), file)
            self._siblings = siblings
        elif current.was_truncated():
            siblings = rotation.siblings_of(self._place)
            self._begin_anew(current, *rotation.copies(self._place, siblings, self._siblings, current))
            self._siblings = siblings

    def _other_than(self, file: File) -> tuple[File, rotation.Siblings] | None:
        try:
            return None if rotation.leads_to(self._place, file) else rotation.open_settled(self._place)
        except OSError as error:
            # Deleted, or about to be created anew: whoever has it open may still write. A link is not followed.
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return None
            raise

    def _begin_anew(self, file: File, rest: File | None, later: list[File]) -> None:
        """Read on in the copies that were made before the file was truncated, then the file from its beginning."""
        self._files.pop()
        if rest:
            self._files.append(rest)
        else:
            self._lines.finish()  # the rest of that line is lost
        self._queue(later, file)
        file.begin_anew()
        self.grew = True

    def _queue(self, missed: list[File], file: File) -> None:
        self._files += [*missed, file]
        self.rotations += 1 + len(missed)

    def _give_up_what_is_gone(self, file: File, end: int) -> None:
        """Leave the rest of a rotated file that was overwritten before we got to it; the present one is looked into."""
        if file is not self._files[-1]:
            self.skipped_bytes += end - file.offset
            file.start_at(end)

    def _start_near_end(self, file: File, size: int) -> None:
        if size > HISTORY:
            file.start_at(size - HISTORY - 1)  # one byte more tells whether a line begins there
            self._lines.skip_to_next()

    def _end_of(self, file: File) -> int:
        status = os.fstat(file.descriptor)
        self.size, self.modified = status.st_size, status.st_mtime
        if status.st_size - file.offset > FURTHEST_BEHIND:
            before = file.offset
            self._start_near_end(file, status.st_size)
            self.skipped_bytes += file.offset - before
        return status.st_size
