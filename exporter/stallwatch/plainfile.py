"""How is a file read in whose place anybody may have put something else? Never but a regular one, and so much of it."""

import errno
import os
import stat
from pathlib import Path

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would keep whoever opens it waiting


def read_plain(path: str | Path, most: int, *, links: bool = True) -> bytes:
    """Return the first `most` bytes of a file; raises OSError, and ValueError where it is no regular file.

    Without `links` a link is an error too.
    """
    descriptor = os.open(path, _READ if links else _READ | os.O_NOFOLLOW)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):  # asked here, since a file made of it would fail and leave the descriptor open
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise ValueError("not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)
