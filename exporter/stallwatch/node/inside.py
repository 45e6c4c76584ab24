"""How is a file opened as a process in another file system tree would see it, without a way out of that tree?

The kernel finds what a path below the process's own root leads to (openat2); one that cannot has it walked step by step
here. What was found is held without opening it, so that nobody can put another file there between the look at what it
is and its opening. Only regular files are opened: opening anything else can block, or take data that is meant for
another, or start a device.
"""

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import islice
from typing import Any

LONGEST_PATH = 4096  # as of the kernel
_MOST_LINKS = 40
_MOST_STEPS = 1000
_MOST_NAMES = 10_000
_HOLD = os.O_PATH | os.O_CLOEXEC

# linux/openat2.h; the number of the system call is the same on every architecture that Python runs on here
_OPENAT2 = 437
_NO_MAGIC_LINKS, _NO_LINKS, _IN_ROOT = 0x02, 0x04, 0x10
_CANNOT = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG)  # an older kernel, or a sandbox that knows no openat2
_MOST_TRIES = 16  # the kernel gives up on `..` while anything is renamed anywhere

Resolve = Callable[[int, str, bool], int]


class NotRegularFileError(OSError):
    """The path leads to a pipe, a socket or a device: to read one takes its data from others, or blocks."""


def read_text(
    root: str,
    path: str,
    limit: int,
    allowed: Callable[[os.stat_result], bool] = lambda _status: True,
    resolve: Resolve | None = None,
) -> str:
    """Read a regular file of at most `limit` bytes below `root`; raises OSError or ValueError for any other.

    `allowed` is asked before anything is opened. A file without a size is empty: those that the kernel makes up have
    none, and some of them take what was read from whoever it was meant for.
    """
    with held(root, path, resolve=resolve) as handle:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        if status.st_size > limit:
            raise ValueError("too large")
        if not allowed(status):
            raise ValueError("not readable for its process")
        if status.st_size == 0:
            return ""
        with open(open_regular(handle), "rb") as file:
            data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError("too large")
    return data.decode()


def list_names(root: str, path: str) -> list[str]:
    """List a directory below `root`, the first thousands of it; empty where there is none."""
    try:
        with held(root, path) as handle, os.scandir(_again(handle)) as entries:
            return [entry.name for entry in islice(entries, _MOST_NAMES)]
    except (OSError, ValueError):
        return []


@contextmanager
def held(root: str, path: str, *, links: bool = True, resolve: Resolve | None = None) -> Iterator[int]:
    """Hold what a path below `root` leads to, for as long as the context lasts, without opening it.

    Without a root the path is one of ours, and leads wherever it does for us. Without a path it is the root itself that
    is held. With `links` false, a path with a link in it is refused. Raises OSError.
    """
    if not root or not path:
        handle = os.open(root or path, _HOLD)
    else:
        within = os.open(root, _HOLD | os.O_DIRECTORY)
        try:
            handle = (resolve or _resolved)(within, path, links)
        finally:
            os.close(within)
    try:
        yield handle
    finally:
        os.close(handle)


@contextmanager
def held_itself(name: str, folder: int | None = None) -> Iterator[int]:
    """Hold what has this name, be it a link, in an open folder where one is given, without opening it."""
    handle = os.open(name, _HOLD | os.O_NOFOLLOW, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


def open_folder(handle: int) -> int:
    """Open a folder that is held, to list it."""
    return os.open(_again(handle), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def open_regular(handle: int) -> int:
    """Open what is held for reading; raises NotRegularFileError, or IsADirectoryError, where it is no regular file."""
    mode = os.fstat(handle).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise NotRegularFileError(errno.EINVAL, "not a regular file")
    return os.open(_again(handle), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def _again(handle: int) -> str:
    return f"/proc/self/fd/{handle}"


def _resolved(root: int, path: str, links: bool) -> int:  # noqa: FBT001  (an inner step of held)
    try:
        return resolve_by_kernel(root, path, links)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    return resolve_by_hand(root, path, links)


def resolve_by_kernel(root: int, path: str, links: bool) -> int:  # noqa: FBT001  (as it is called in one place)
    """Have the kernel hold what a path below this folder leads to."""
    import ctypes  # noqa: PLC0415  (0.7 MiB, which a node without servers need not spend)

    call = _system_call()
    how = (ctypes.c_uint64 * 3)(_HOLD, 0, _IN_ROOT | _NO_MAGIC_LINKS | (0 if links else _NO_LINKS))
    name = ctypes.c_char_p(os.fsencode(path))
    for _ in range(_MOST_TRIES):
        handle: int = call(ctypes.c_long(_OPENAT2), ctypes.c_int(root), name, how, ctypes.c_size_t(24))
        if handle >= 0:
            return handle
        if (number := ctypes.get_errno()) not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(number, os.strerror(number))


@cache
def _system_call() -> Any:
    import ctypes  # noqa: PLC0415  (as above)

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return call


def resolve_by_hand(root: int, path: str, links: bool) -> int:  # noqa: FBT001  (as the one above)
    """Walk to what a path below this folder leads to: an absolute link begins again there, as for the process."""
    with ExitStack() as stack:

        def hold(name: str, folder: int) -> int:
            handle = os.open(name, _HOLD | os.O_NOFOLLOW, dir_fd=folder)
            stack.callback(os.close, handle)
            return handle

        way = [hold(".", root)]
        parts, followed = deque(_parts(path)), 0
        for _ in range(_MOST_STEPS):
            if not parts:
                return os.dup(way[-1])
            part = parts.popleft()
            if part == "..":
                way = way[:-1] if len(way) > 1 else way
                continue
            handle = hold(part, way[-1])
            if not stat.S_ISLNK(os.fstat(handle).st_mode):
                way.append(handle)
                continue
            followed += 1
            if followed > _MOST_LINKS or not links:
                break
            target = os.readlink("", dir_fd=handle)
            way = way[:1] if target.startswith("/") else way
            parts.extendleft(reversed(_parts(target)))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _parts(path: str) -> list[str]:
    if len(path) > LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return [part for part in path.split("/") if part not in ("", ".")]
