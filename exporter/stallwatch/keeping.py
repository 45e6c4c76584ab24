"""What does the exporter keep over its own restart? One small file, written now and then and read at the start."""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

KEEP_EVERY = 15.0
LARGEST_FILE = 16 * 1024 * 1024
USUAL_DIRECTORY = Path("/var/lib/stallwatch")


def usual_file(environ: Mapping[str, str]) -> Path:
    """Return where the file lies unless configured: in the state directory that systemd gives, or the usual one."""
    directory = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    return (Path(directory) if directory else USUAL_DIRECTORY) / "memory.json"


class Keeper:
    """Reads and writes the file; without one it does nothing. A file that cannot be written is said once."""

    def __init__(self, path: Path | None, every: float = KEEP_EVERY) -> None:
        self._path = path
        self._every = every
        self._due = 0.0
        self._writing: asyncio.Future[None] | None = None
        self._refused = False

    def load(self) -> Any:
        """Return what was kept, None where nothing usable was."""
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as file:
                return json.loads(file.read(LARGEST_FILE))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.warning("what was kept cannot be used", extra={"file": str(self._path), "error": str(error)})
            return None

    def keep(self, now: float, remember: Callable[[float], Any]) -> None:
        """Write what is remembered when it is time and the write before is done; the disk is never waited for."""
        if self._path is None or now < self._due or (self._writing and not self._writing.done()):
            return
        self._due = now + self._every
        text = json.dumps(remember(now))
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._write, self._path, text))

    async def close(self, now: float, remember: Callable[[float], Any], within: float = 0.3) -> None:
        """Write what is remembered at the end, unless the disk takes longer than a moment."""
        self._due = now
        self.keep(now, remember)
        if self._writing:
            await asyncio.wait({self._writing}, timeout=within)

    def _write(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.{os.getpid()}")
            part.write_text(text)
            part.replace(path)
        except OSError as error:
            if not self._refused:
                logger.warning(
                    "a restart will forget", extra={"file": str(path), "error": error.strerror or str(error)}
                )
            self._refused = True
        else:
            self._refused = False
