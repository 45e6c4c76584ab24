"""When does the configuration change?

The directory of the file is watched, since editors rename a new file over the old one and Kubernetes swaps a link
beside it. An event only means "look": what counts is whether the bytes are other ones. inotify sees nothing on network
mounts, so a look comes now and then without any event. Files are read, and their watches begun, in threads, which may
hang.
"""

import asyncio
import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from stallwatch import aside
from stallwatch.config import ConfigError
from stallwatch.plainfile import read_plain

logger = logging.getLogger(__name__)

C = TypeVar("C")
T = TypeVar("T")
Stop = Callable[[], None]
Watch = Callable[[Path, Callable[[], None]], Stop]

LARGEST_FILE = 1 << 20


def watch_directory(path: Path, stir: Callable[[], None]) -> Stop:
    """Call `stir` in a thread whenever the file may have changed, until the returned function is called."""
    from stallwatch.settings.watching import watched  # noqa: PLC0415 most have no file to watch, and watchdog is 1 MiB

    return watched(path, stir)


def digest_of(path: Path) -> str:
    """Name the content of the file, or why there is none."""
    try:
        return hashlib.sha256(read_plain(path, LARGEST_FILE + 1)).hexdigest()
    except OSError as error:
        return f"unreadable: {error.strerror}"
    except ValueError as error:
        return f"unreadable: {error}"


class Reloader(Generic[C]):
    """Loads and applies the configuration again when its file changes or somebody asks; a bad one changes nothing.

    Make it before the first load, so that a change in between is seen. `path` is None where there is no file: then only
    requests count. `load` and `apply` raise ConfigError for what is wrong with the configuration. `named` returns the
    files that the last load read because the configuration names them, each with its digest: they are watched too.
    """

    def __init__(  # noqa: PLR0913 - the outside world and its pace, each with its default
        self,
        path: Path | None,
        load: Callable[[], C],
        apply: Callable[[C], None],
        *,
        named: Callable[[], Mapping[Path, str]] = dict,
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
        self._named = named
        self._watch = watch
        self._now = now
        self._debounce = debounce
        self._recheck = recheck
        self._recheck_unwatched = recheck_unwatched
        self._deadline = deadline
        self._turn = asyncio.Lock()
        self._stirred = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watches: dict[Path, Stop] = {}
        self._thread_free = threading.Event()
        self._thread_free.set()
        self._digest = digest_of(path) if path else ""
        self._error: str | None = None
        self.last_success = now()

    @property
    def last_successful(self) -> bool:
        """Say whether the configuration that is there is also the one in use."""
        return self._error is None

    def start(self) -> None:
        """Begin to watch the file; needs a running event loop."""
        if self._path is not None and self._task is None:
            self._watch_all(self._path)
            self._task = asyncio.get_running_loop().create_task(self._run(self._path))

    async def stop(self) -> None:
        """End the watch; a read that hangs is left behind."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=1)
            for stop in self._watches.values():
                stop()
            self._watches = {}

    async def request(self) -> str | None:
        """Reload now, whether or not the file changed; return what is wrong, or None."""
        async with self._turn:
            return await self._reload()

    def _watch_all(self, path: Path) -> None:
        """Watch the file and those that it names, and no others."""
        files = {path, *self._named()}
        for file in self._watches.keys() - files:
            self._watches.pop(file)()
        for file in files - self._watches.keys():
            self._watches[file] = lambda: None
            self._begin_watch(file)

    def _begin_watch(self, file: Path) -> None:
        """Have the file watched, from a thread: its mount may be dead."""
        loop = asyncio.get_running_loop()

        def stir() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the need
                loop.call_soon_threadsafe(self._stirred.set)

        watching = aside.begin(lambda: self._watch(file, stir), "watch")
        watching.add_done_callback(lambda begun: self._watched(file, begun))

    def _watched(self, file: Path, begun: "asyncio.Future[Stop]") -> None:
        try:
            stop = begun.result()
        except OSError as error:
            extra = {"file": str(file), "reason": error.strerror, "seconds": self._recheck_unwatched}
            logger.warning("cannot watch the configuration, looking now and then", extra=extra)
            self._recheck = self._recheck_unwatched
        else:
            if file in self._watches:
                self._watches[file] = stop
            else:  # it is not wanted any more
                stop()
        self._stirred.set()  # what changed before the watch stood brings no event

    async def _run(self, path: Path) -> None:
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stirred.wait(), self._recheck)
            await asyncio.sleep(self._debounce)  # a file is often written in several steps
            self._stirred.clear()
            async with self._turn:
                await self._look(path)
                self._watch_all(path)

    async def _look(self, path: Path) -> None:
        try:
            digest, others = await self._in_thread(lambda: (digest_of(path), self._digests()))
        except ConfigError as error:
            self._digest = "late"  # so that the next answer is news
            self._failed(str(error))
            return
        if digest != self._digest or others != self._named():
            self._digest = digest
            await self._reload()

    def _digests(self) -> dict[Path, str]:
        return {file: digest_of(file) for file in self._named()}

    async def _reload(self) -> str | None:
        try:
            self._apply(await self._in_thread(self._load))
        except ConfigError as error:
            return self._failed(str(error))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a reload, the exporter goes on as it was
            return self._failed(f"{type(error).__name__}: {error}")
        self._error = None
        self.last_success = self._now()
        logger.info("configuration loaded", extra={"file": str(self._path or "")})
        return None

    def _failed(self, text: str) -> str:
        if text != self._error:
            logger.error("configuration not loaded, the one before stays in force", extra={"error": text})
        self._error = text
        return text

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if not self._thread_free.is_set():
            raise ConfigError(f"{self._path}: still being read since the last try")

        def read() -> T:
            try:
                return work()
            finally:
                self._thread_free.set()

        self._thread_free.clear()
        answer = aside.begin(read, "configuration")
        try:
            return await asyncio.wait_for(answer, self._deadline)
        except asyncio.TimeoutError:
            raise ConfigError(f"{self._path}: not read within {self._deadline:g} s") from None
