"""When does the configuration change?

The directory of the file is watched, since editors rename a new file over the old one and Kubernetes swaps a link beside
it. An event only means "look": what counts is whether the bytes are other ones. inotify sees nothing on network mounts,
so a look comes now and then without any event. The file is read in a thread of its own, which may hang without harm.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from stallwatch.config import Config, ConfigError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Stop = Callable[[], None]
Watch = Callable[[Path, Callable[[], None]], Stop]

LARGEST_FILE = 1 << 20
JOIN_TIMEOUT = 0.5


class _Events(FileSystemEventHandler):
    def __init__(self, name: str, stir: Callable[[], None]) -> None:
        self._name = name
        self._stir = stir

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Pass on what can bring other content: our own reading opens and closes the file, and is no event."""
        written = event.event_type in {"modified", "closed"} and Path(os.fsdecode(event.src_path)).name == self._name
        if written or event.event_type in {"created", "deleted", "moved"}:
            self._stir()


def watch_directory(path: Path, stir: Callable[[], None]) -> Stop:
    """Call `stir` in a thread whenever the file may have changed, until the returned function is called."""
    observer = Observer()
    observer.daemon = True
    # Where the directory is a link itself, inotify would watch the link.
    observer.schedule(_Events(path.name, stir), os.path.realpath(path.parent), recursive=False)
    observer.start()

    def stop() -> None:
        observer.stop()
        observer.join(JOIN_TIMEOUT)

    return stop


def digest_of(path: Path) -> str:
    """Name the content of the file, or why there is none."""
    try:
        with path.open("rb") as file:
            return hashlib.sha256(file.read(LARGEST_FILE + 1)).hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"


class Reloader:
    """Loads and applies the configuration again when its file changes or somebody asks; a bad one changes nothing.

    Make it before the first load, so that a change in between is seen. `path` is None where there is no file: then only
    requests count. `load` and `apply` raise ConfigError for what is wrong with the configuration.
    """

    def __init__(
        self,
        path: Path | None,
        load: Callable[[], Config],
        apply: Callable[[Config], None],
        *,
        watch: Watch = watch_directory,
        now: Callable[[], float] = time.time,
        debounce: float = 0.5,
        recheck: float = 30.0,
        recheck_unwatched: float = 10.0,
        deadline: float = 10.0,
    ) -> None:
        self._path = path
        self._load = load
        self._apply = apply
        self._watch = watch
        self._now = now
        self._debounce = debounce
        self._recheck = recheck
        self._recheck_unwatched = recheck_unwatched
        self._deadline = deadline
        self._turn = asyncio.Lock()
        self._reading: asyncio.Future[None] | None = None
        self._digest = digest_of(path) if path else ""
        self.last_successful = True
        self.last_success = now()

    async def run(self) -> None:
        """Watch the file until cancelled."""
        if self._path is None:
            return
        stirred = asyncio.Event()
        stop, pause = self._start(self._path, stirred)
        try:
            while True:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(stirred.wait(), pause)
                await asyncio.sleep(self._debounce)
                stirred.clear()
                await self._look(self._path)
        finally:
            stop()

    async def request(self) -> str | None:
        """Reload now, whether or not the file changed; return what is wrong, or None."""
        async with self._turn:
            try:
                if self._path:
                    self._digest = await self._in_thread(lambda: digest_of(self._path)) 
                return await self._reload()
            except TimeoutError as error:
                return self._failed(str(error))

    def _start(self, path: Path, stirred: asyncio.Event) -> tuple[Stop, float]:
        loop = asyncio.get_running_loop()

        def stir() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the need
                loop.call_soon_threadsafe(stirred.set)

        try:
            return self._watch(path, stir), self._recheck
        except OSError as error:
            logger.warning("cannot watch the configuration, looking now and then", extra={"reason": error.strerror})
            return (lambda: None), self._recheck_unwatched
