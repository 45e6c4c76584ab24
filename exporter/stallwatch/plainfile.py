"""How is a file read in whose place anybody may have put a pipe? Never but a regular one, and only so much of it."""

import os
import stat
from pathlib import Path

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would keep whoever opens it waiting


def read_plain(path: str | Path, most: int) -> bytes:
    """Return the first `most` bytes of a file; raises OSError, and ValueError where it is no regular file."""
    with os.fdopen(os.open(path, _READ), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        return file.read(most)
