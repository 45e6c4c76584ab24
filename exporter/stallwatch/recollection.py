"""What did an exporter before this one remember, and when can that be gone on with?

Only once it is seen which servers are still there: who is remembered and not seen is taken to have gone.
"""

from collections.abc import Collection, Sequence
from typing import Any

from stallwatch.snapshot import Server
from stallwatch.tracks.memory import YOUNG_SECONDS
from stallwatch.watcher import Watcher


class Recollection:
    """What was remembered, until it is taken up; `since` (monotonic) is when this exporter was told of it."""

    def __init__(self, remembered: Any = None, since: float = 0.0) -> None:
        self._remembered = remembered
        self.since = since

    def waiting(self, now: float) -> Any:
        """Return what still waits to be taken up, None where nothing does or nobody could use it any more."""
        return self._remembered if now <= self.since + YOUNG_SECONDS else None

    def take(
        self, found: Sequence[Server], unseen: Collection[str], now: float, watcher: Watcher
    ) -> tuple[Server, ...]:
        """Have the watcher go on with it, and return the servers that were known.

        `unseen` are the reasons why some of the node was not seen; a process that hangs hides nobody but itself.
        """
        if not self._remembered or not set(unseen) <= {"quarantined"}:
            return ()
        ids = frozenset((one.pid, one.start_ticks) for server in found for one in server.processes)
        remembered, self._remembered = self._remembered, None
        return watcher.recall(remembered, now, ids if unseen else None)
