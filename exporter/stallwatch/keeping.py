"""What does the exporter keep over its own restart? One small file, written now and then and read at the start.

A file that is torn, not ours or no plain file is no memory, and is said. Of one of another boot or another process
namespace only what lasts is left. It is renamed into its place, so that a kill at any moment leaves the one before; it
is never synced, since what a power cut may tear is of another boot afterwards.
"""

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from stallwatch import aside

logger = logging.getLogger(__name__)

KEEP_EVERY = 15.0
KEEP_FIRST = 5.0
"""So long after the start all has been read once: what is kept before would say less than what was kept last."""
LASTING = "notified"
"""What is kept under this key is of the node and not of one boot of it: no monotonic times, no pids."""
LARGEST_FILE = 16 * 1024 * 1024
USUAL_DIRECTORY = Path("/var/lib/stallwatch")

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would keep the start waiting
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def usual_file(environ: Mapping[str, str]) -> Path:
    """Return where the file lies unless configured: in the state directory that systemd gives, or the usual one."""
    directory = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return (Path(directory) if directory else USUAL_DIRECTORY) / "memory.json"


def origin() -> str:
    """Name the boot and the process namespace that monotonic times and pids are of."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 it leads to no path
    except OSError:
        return ""


class Keeper:
    """Reads and writes the file; without one it does nothing. A file that cannot be written is said once."""

    def __init__(self, path: Path | None, every: float = KEEP_EVERY, first: float = KEEP_FIRST) -> None:
        self._path = path
        self._every = every
        self._first = first
        self._due: float | None = None
        self._writing: asyncio.Future[None] | None = None
        self._refused = False

    def load(self) -> Any:
        """Return what was kept, None where nothing usable was."""
        if self._path is None:
            return None
        try:
            kept = msgspec.json.decode(_read(self._path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            logger.warning("what was kept cannot be used", extra={"file": str(self._path), "error": str(error)})
            return None
        if not isinstance(kept, dict):
            return None
        if kept.pop("origin", None) == origin():
            return kept
        return {LASTING: kept[LASTING]} if LASTING in kept else None

    async def loaded(self, within: float = 2.0) -> Any:
        """Return what was kept, None where nothing usable was, or where the disk takes longer than a moment."""
        reading = aside.begin(self.load, "memory")
        done, _ = await asyncio.wait({reading}, timeout=within)
        if not done:
            logger.warning("what was kept cannot be read", extra={"file": str(self._path), "after": f"{within:g} s"})
        return reading.result() if done else None

    def keep(self, now: float, remember: Callable[[float], Any]) -> None:
        """Write what is remembered when it is time and the write before is done; the disk is never waited for."""
        if self._path is None or (self._writing and not self._writing.done()):
            return
        if self._due is None:
            self._due = now + self._first
        if now < self._due:
            return
        self._due = now + self._every
        text = msgspec.json.encode({"origin": origin(), **remember(now)})
        path = self._path
        self._writing = aside.begin(lambda: self._write(path, text), "memory")

    async def close(self, now: float, remember: Callable[[float], Any], within: float = 0.3) -> None:
        """Write what is remembered at the end, unless the disk takes longer than a moment."""
        self._due = now
        self.keep(now, remember)
        if self._writing:
            await asyncio.wait({self._writing}, timeout=within)

    def _write(self, path: Path, text: bytes) -> None:
        try:
            _replace(path, text)
        except OSError as error:
            if not self._refused:
                extra = {"file": str(path), "error": error.strerror or str(error)}
                logger.warning("a restart will forget", extra=extra)
            self._refused = True
        else:
            if self._refused:
                logger.info("a restart will not forget any more", extra={"file": str(path)})
            self._refused = False


def _read(path: Path) -> bytes:
    descriptor = os.open(path, _READ)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no regular file")
        if status.st_uid not in {os.geteuid(), 0} or status.st_mode & stat.S_IWOTH:
            raise ValueError("others may have written it")
        if status.st_size > LARGEST_FILE:
            raise ValueError("it is too large")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(LARGEST_FILE)
    finally:
        os.close(descriptor)


def _replace(path: Path, text: bytes) -> None:
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)  # of one that was killed
    try:
        with open(os.open(part, _WRITE, 0o600), "wb") as file:  # noqa: PTH123 a descriptor is no path
            file.write(text)
        part.replace(path)
    except OSError:
        with suppress(OSError):  # it may be the disk that has gone
            part.unlink(missing_ok=True)
        raise
