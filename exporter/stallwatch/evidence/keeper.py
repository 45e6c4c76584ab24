"""Who sees to it that evidence is gathered and kept, while the exporter goes on?

Called with each view. What takes long happens in tasks (the sources) and in daemon threads (the files), so that neither
a tick nor the end of the process waits for it.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stallwatch import aside
from stallwatch.evidence import store
from stallwatch.evidence.incidents import Incident, Incidents
from stallwatch.redaction import told
from stallwatch.sections import EvidenceConfig
from stallwatch.snapshot import Server
from stallwatch.sources import pyspy
from stallwatch.view import Bundle, Kept, View

if TYPE_CHECKING:  # most exporters never see an incident, and do without 1.4 MiB of code for it
    from stallwatch.evidence.gathering import Found

logger = logging.getLogger("stallwatch.evidence")

AT_ONCE = 2
"""So many servers are gathered of at the same time; where a node hangs as a whole, the others follow."""
LOAD_SECONDS = 2.0
WRITE_SECONDS = 60.0
"""So long a disk may take for a bundle before it is taken for dead; nothing more is written until it answers."""

Gather = Callable[[Server], Awaitable[Sequence["Found"]]]


class EvidenceKeeper:
    """Gathers evidence when it is due, writes it, and knows what is kept.

    `settings` is asked anew at each incident, since a reload may change them; `recording` returns the last half hour
    as the bytes of a recording.
    """

    def __init__(
        self,
        settings: Callable[[], EvidenceConfig],
        gather: Gather,
        recording: Callable[[], bytes],
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        self._settings = settings
        self._gather = gather
        self._recording = recording
        self._write_seconds = write_seconds
        self._incidents = Incidents()
        self._kept: tuple[Bundle, ...] = ()
        self._listed: Path | None = None
        self._failures: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._disk = asyncio.Lock()  # what one throws away must not be what another writes
        self._writing: asyncio.Future[str] | None = None

    @property
    def directory(self) -> Path:
        """Return where bundles are kept now."""
        return store.directory_of(self._settings(), os.environ)

    def kept(self) -> Kept | None:
        """Return what is kept, None where nothing is to be."""
        if not self._settings().enabled:
            return None
        return Kept(len(self._kept), self._latest(), dict(self._failures))

    def _latest(self) -> dict[str, Bundle]:
        return {bundle.server: bundle for bundle in self._kept}

    async def load(self, within: float = LOAD_SECONDS) -> None:
        """Find what was kept before; a disk that takes longer than a moment is not waited for."""
        if not self._settings().enabled:
            return
        if self._settings().stacks and pyspy.installed() is None:
            logger.warning("no Python stacks will be read", extra={"why": pyspy.MISSING})
        done, _ = await asyncio.wait({self._list()}, timeout=within)
        if not done:
            self._unlisted(f"no answer in {within:g} s")

    def _list(self) -> "asyncio.Future[list[Bundle]]":
        """Begin to find what is kept in the directory of now."""
        self._listed = directory = self.directory
        listing = aside.begin(lambda: _left_in(directory), "evidence")
        listing.add_done_callback(lambda ended: self._found(directory, ended))
        return listing

    def _found(self, directory: Path, listing: "asyncio.Future[list[Bundle]]") -> None:
        if error := listing.exception():
            self._unlisted(str(error))
        elif directory == self._listed:
            newer = {one.name: one for one in self._kept}  # written meanwhile
            self._kept = tuple(({one.name: one for one in listing.result()} | newer).values())

    def _unlisted(self, why: str) -> None:
        extra = {"directory": str(self._listed), "error": why}
        logger.warning("evidence cannot be kept or listed", extra=extra)

    def take(self, view: View) -> None:
        """Begin to gather for each incident of which evidence is due."""
        if not self._settings().enabled:
            return
        if self._listed is not None and self._listed != self.directory:  # it was configured anew
            self._kept = ()
            self._list()
        for incident in self._incidents.due(view, self._latest()):
            task = asyncio.ensure_future(self._keep(incident, view))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Give up what is being gathered: the next start finds the incident where it is."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=0.2)

    async def _keep(self, incident: Incident, view: View) -> None:
        name = incident.past.server.name
        async with self._turns:
            try:
                found = await self._gather(incident.past.server)
                self._failures.update(one.source for one in found if one.broken)
                if not self._settings().enabled:  # switched off meanwhile
                    return
                bundle = await self._write(incident, view, found)
            except Exception as error:  # noqa: BLE001 what cannot be kept must not end the watch
                self._incidents.failed(incident, view.snapshot.moment)
                self._failures["write"] += 1
                why = str(error) if isinstance(error, OSError) else told(error)
                extra = {"server": name, "directory": str(self.directory), "error": why}
                logger.error("evidence cannot be kept", extra=extra)  # noqa: TRY400 a full disk needs no traceback
                return
        extra = {"server": name, "bundle": str(self.directory / bundle), "why": incident.why}
        logger.warning("evidence kept", extra=extra)

    async def _write(self, incident: Incident, view: View, found: "Sequence[Found]") -> str:
        """Write a bundle and return its name; raises TimeoutError where the disk does not answer, OSError."""
        async with self._disk:
            if self._writing and not self._writing.done():
                raise TimeoutError("the disk has not answered since the bundle before")
            recording = self._recording()
            self._writing = aside.begin(lambda: self._written(incident, view, found, recording), "evidence")
            done, _ = await asyncio.wait({self._writing}, timeout=self._write_seconds)
            if not done:
                self._writing.add_done_callback(lambda ended: ended.exception())  # nobody waits for it any more
                raise TimeoutError(f"the disk has not answered in {self._write_seconds:g} s")
            return self._writing.result()

    def _written(self, incident: Incident, view: View, found: "Sequence[Found]", recording: bytes) -> str:
        """Write a bundle, throw away what is too old, and return its name; in a thread of its own."""
        from stallwatch.evidence.content import Content  # noqa: PLC0415 loaded with the first incident

        content = Content(incident, view, tuple(found), recording)
        settings, directory = self._settings(), self.directory
        name = store.write(directory, content.name, content.files())
        self._kept = tuple(store.prune(directory, settings.keep, settings.max_bytes, name))
        return name


def _left_in(directory: Path) -> list[Bundle]:
    """Return the bundles of before; what an exporter that was killed left unfinished goes.

    Makes the directory, so that one which cannot be made is told at the start and not when an incident comes.
    """
    store.make(directory)
    store.clear(directory)
    return store.bundles(directory)
