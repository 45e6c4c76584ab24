"""How is a file opened as a process in another file system tree would see it, without a way out of that tree?

Links are followed by hand, and an absolute one begins again at the process's own root, as it does for that process.
Only regular files are read: opening anything else can block, or take data that is meant for another.
"""

import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_MOST_LINKS = 40


def read_text(root: str, path: str, limit: int) -> str:
    """Read a regular file of at most `limit` bytes below `root`; raises OSError or ValueError for any other."""
    with _opened(root, path) as handle:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if status.st_size > limit:
            raise ValueError("too large")
        with open(_reopened(handle), "rb") as file:  # noqa: PTH123  (a path of a descriptor, for which pathlib is no help)
            data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError("too large")
    return data.decode()


def list_names(root: str, path: str) -> list[str]:
    """List a directory below `root`; empty where there is none."""
    try:
        with _opened(root, path) as handle:
            return os.listdir(_reopened(handle))  # noqa: PTH208  (a path of a descriptor, for which pathlib is no help)
    except (OSError, ValueError):
        return []


def _reopened(handle: int) -> str:
    return f"/proc/self/fd/{handle}"


@contextmanager
def _opened(root: str, path: str) -> Iterator[int]:
    """Walk to a file and hold it without opening it for reading."""
    with ExitStack() as stack:

        def hold(name: str, flags: int, folder: int | None = None) -> int:
            handle = os.open(name, os.O_PATH | os.O_CLOEXEC | flags, dir_fd=folder)
            stack.callback(os.close, handle)
            return handle

        way = [hold(root, os.O_DIRECTORY)]
        parts, links = deque(path.split("/")), 0
        while parts:
            part = parts.popleft()
            if part in ("", "."):
                continue
            if part == "..":
                way = way[:-1] if len(way) > 1 else way
                continue
            handle = hold(part, os.O_NOFOLLOW, way[-1])
            if not stat.S_ISLNK(os.fstat(handle).st_mode):
                way.append(handle)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise ValueError("too many links")
            target = os.readlink("", dir_fd=handle)
            way = way[:1] if target.startswith("/") else way
            parts.extendleft(reversed(target.split("/")))
        yield way[-1]
