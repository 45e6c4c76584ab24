"""Which files hold what a log of this name has held since the last look?

A log is renamed and created anew, or copied and truncated. A file that shrank was truncated; one that has grown past
where we were again tells by its bytes: those at its beginning and those before our place are no longer the ones that
we read. The same bytes tell which copy goes on where we were.
"""

import errno
import os
import resource
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from stallwatch.logs.place import Place
from stallwatch.node.inside import open_regular

MOST_BETWEEN = 64  # files that had the name between two looks and are read
SPARE_DESCRIPTORS = 16
"""So many descriptors are left to the other readers of this process, however many logs there are."""

_SAMPLE = 256  # bytes
_TRIES = 5

Identity = tuple[int, int]
Siblings = Mapping[Identity, tuple[str, os.stat_result]]


@dataclass(slots=True)
class File:
    """An open file, how far it was read, and samples of its beginning and of what was read last."""

    descriptor: int
    identity: Identity
    offset: int = 0
    _head: bytes = b""
    _tail: bytes = b""

    def read(self, most: int) -> bytes:
        """Return what comes next, nothing where the file ends or was truncated meanwhile."""
        piece = os.pread(self.descriptor, most, self.offset)
        if not self._begins(self.descriptor):  # looked at after the piece was read: before, it could still change
            return b""
        if self.offset <= len(self._head) < _SAMPLE:
            self._head = self._head[: self.offset] + piece[: _SAMPLE - self.offset]
        self.offset += len(piece)
        self._tail = (self._tail + piece[-_SAMPLE:])[-_SAMPLE:]
        return piece

    def start_at(self, offset: int, before: bytes = b"") -> None:
        """Read on from there, where `before` is what was read last."""
        self.sample()
        self.offset, self._tail = offset, before

    def sample(self) -> None:
        """Learn how a file begins that was not read yet, as far as that is written by now."""
        if self.offset == 0 and len(self._head) < _SAMPLE and self._begins(self.descriptor):
            self._head = os.pread(self.descriptor, _SAMPLE, 0)

    def was_truncated(self) -> bool:
        """Tell whether it holds other bytes by now than those that were read."""
        return os.fstat(self.descriptor).st_size < self.offset or not self._goes_on_in(self.descriptor)

    def begin_anew(self) -> None:
        """Read it from its first byte; a writer that does not append leaves a hole before that."""
        self.offset, self._head, self._tail = 0, b"", b""
        with suppress(OSError):  # all of it is a hole, or there is no telling
            self.start_at(os.lseek(self.descriptor, 0, os.SEEK_DATA))

    def take_over(self, copy: "File") -> bool | None:
        """Have a copy go on where this file was read; False where it is none, None where nothing is left in it."""
        if self._head and os.fstat(copy.descriptor).st_size < self.offset and self._begins(copy.descriptor):
            return None
        if not self._head or not self._goes_on_in(copy.descriptor):
            return False
        copy.start_at(self.offset, self._tail)
        return True

    def _begins(self, descriptor: int) -> bool:
        return os.pread(descriptor, len(self._head), 0) == self._head

    def _goes_on_in(self, descriptor: int) -> bool:
        place = self.offset - len(self._tail)
        return self._begins(descriptor) and os.pread(descriptor, len(self._tail), place) == self._tail


def open_settled(place: Place) -> tuple[File, Siblings]:
    """Open the log and list its siblings, such that no rotation falls in between; raises OSError."""
    for _ in range(_TRIES):
        file = open_log(place)
        siblings = siblings_of(place)
        if leads_to(place, file):
            return file, siblings
        os.close(file.descriptor)
    return open_log(place), siblings


def open_log(place: Place) -> File:
    """Open what is there now; raises OSError, also where it is no regular file."""
    with place.held() as handle:
        return _file(open_regular(handle))


def leads_to(place: Place, file: File) -> bool:
    """Tell whether this file is there; False also where nothing can be seen."""
    with suppress(OSError), place.held() as handle:
        return _identity(os.fstat(handle)) == file.identity
    return False


def siblings_of(place: Place) -> Siblings:
    """Return what lies beside a log under a name that begins like its own and is not compressed."""
    return {_identity(status): (name, status) for name, status in place.siblings().items()}


def between(place: Place, now: Siblings, before: Siblings, old: File, new: File) -> list[File]:
    """Open, oldest first, what had the name only between two looks and has been renamed since."""
    known = before.keys() | {old.identity, new.identity}
    since = os.fstat(old.descriptor).st_mtime_ns
    missed = {one: kept for one, kept in now.items() if one not in known and kept[1].st_mtime_ns >= since}
    return _opened(place, missed)


def copies(place: Place, now: Siblings, before: Siblings, file: File) -> tuple[File | None, list[File]]:
    """Open the copies of a file that was truncated: the one that goes on where we were, and what came after it."""
    changed = {
        one: kept for one, kept in now.items() if one not in before or before[one][1].st_mtime_ns < kept[1].st_mtime_ns
    }
    rest: File | None = None
    later: list[File] = []
    for copy in _opened(place, changed):
        ours = file.take_over(copy)
        if ours is False and copy.identity not in before:
            later.append(copy)
            continue
        if ours is not False:
            _close(later)  # older than what was read
            later = []
        if ours and rest is None:
            rest = copy
        else:
            os.close(copy.descriptor)  # nothing is left in it, or it was there before and is something else
    return rest, later


def _close(files: list[File]) -> None:
    for file in files:
        os.close(file.descriptor)


def _opened(place: Place, siblings: Siblings) -> list[File]:
    files = []
    regular = [kept for kept in siblings.values() if stat.S_ISREG(kept[1].st_mode)]
    for name, _ in sorted(regular, key=lambda kept: kept[1].st_mtime_ns)[-MOST_BETWEEN:]:
        with suppress(OSError):  # renamed once more, or compressed, in this moment
            files.append(_file(place.open_sibling(name)))
    return files


def _file(descriptor: int) -> File:
    try:
        _require_spare(descriptor)
        file = File(descriptor, _identity(os.fstat(descriptor)))
        file.sample()
    except OSError:
        os.close(descriptor)
        raise
    return file


def _require_spare(descriptor: int) -> None:
    """Raise where this descriptor is one of the last, since the kernel gives the lowest that is free."""
    if descriptor >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_DESCRIPTORS:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino
