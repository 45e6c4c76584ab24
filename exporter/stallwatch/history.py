"""What moved last, and when? The bounded past that a judgement of the present needs.

Movement is what happens only while a server gets on, with floors: a deadlocked rank still burns 1 % of a core, so CPU
time is no movement, nor is GPU utilization. Ages are monotonic: neither a clock step nor a suspended machine makes a
stall. A signal that cannot be read has no age; one that can has one from the first sight of the server on.
"""

from collections.abc import Callable, Mapping
from typing import Any

from stallwatch.past import Ending, Past
from stallwatch.sections import Limits
from stallwatch.snapshot import Snapshot
from stallwatch.tracks.limits import limits_in_force
from stallwatch.tracks.memory import YOUNG_SECONDS, Memories, memories_of
from stallwatch.tracks.sight import sights
from stallwatch.tracks.track import Track

__all__ = ["History", "limits_in_force"]


class History:
    """The past of every server, updated once per snapshot; what is gone is forgotten."""

    def __init__(self, limits_of: Callable[[str], Limits]) -> None:
        self._limits_of = limits_of
        self._tracks: dict[tuple[str, str], Track] = {}
        self._memories: Memories | None = None

    def look(self, snapshot: Snapshot, endings: Mapping[str, Ending] | None = None) -> dict[str, Past]:
        """Take in one snapshot and return the past of each of its servers."""
        now = snapshot.moment.monotonic
        known, self._tracks = self._tracks, {}
        pasts = {}
        for sight in sights(snapshot):
            server = sight.server
            life = (server.name, server.incarnation)
            track = self._tracks[life] = known.get(life) or self._new(life, now)
            ending = endings.get(server.name, Ending()) if endings else Ending()
            pasts[server.name] = track.look(sight, self._limits_of(server.name), ending)
        return pasts

    def remember(self, now: float) -> dict[str, Any]:
        """Return what an exporter that is started again can go on with, as plain values for a file."""
        lives = tuple(track.remember(*life) for life, track in self._tracks.items())
        return Memories(at=now, lives=lives).to_plain()

    def recall(self, remembered: Any, now: float) -> bool:
        """Go on with what was remembered, as far as these servers are found again; tell whether it can be used."""
        self._memories = memories_of(remembered, now)
        return self._memories is not None

    def _new(self, life: tuple[str, str], now: float) -> Track:
        memories = self._memories
        for memory in memories.lives if memories and now - memories.at <= YOUNG_SECONDS else ():
            if (memory.server, memory.incarnation) == life and memories:
                return Track.recall(memory, memories.at, now)
        return Track(now)
