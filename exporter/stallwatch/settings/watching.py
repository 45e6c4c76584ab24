"""When may a file have changed? watchdog tells, by the directory that the file is in."""

import os
from collections.abc import Callable
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

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


def watched(path: Path, stir: Callable[[], None]) -> Callable[[], None]:
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
