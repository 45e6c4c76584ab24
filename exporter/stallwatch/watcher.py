"""What becomes of what is seen? It is remembered and judged: the part of the exporter that needs no node, no clock."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stallwatch.collectors.gpu import GpuReading
from stallwatch.collectors.log import LogReading
from stallwatch.history import History
from stallwatch.lives import Lives, Told
from stallwatch.node.usage import Identity
from stallwatch.past import Past
from stallwatch.placement import Placement
from stallwatch.sections import Limits
from stallwatch.slots import Slots
from stallwatch.snapshot import Failure, Moment, Reading, Server, Snapshot
from stallwatch.verdict import Verdict, judge


@dataclass(frozen=True, slots=True)
class Judged:
    """One snapshot, those that have crashed among its servers, and what is known and judged of each."""

    snapshot: Snapshot
    pasts: Mapping[str, Past]
    verdicts: Mapping[str, Verdict]
    not_ready_seconds: Mapping[str, float]


class Watcher:
    """Remembers the servers of a node from one snapshot to the next, and judges them."""

    def __init__(self, limits_of: Callable[[str], Limits]) -> None:
        self._lives = Lives()
        self._placement = Placement()
        self._slots = Slots()
        self._history = History(limits_of)
        self._ready: dict[str, bool | None] = {}

    def look(
        self,
        moment: Moment,
        servers: Iterable[Server],
        readings: tuple[Reading, ...],
        failures: tuple[Failure, ...] = (),
    ) -> Judged:
        """Take in what is seen at one moment and judge every server."""
        readings = self._slots.name(readings)
        seen = Snapshot(moment, (), readings, failures)
        placed = self._placement.place(tuple(servers), seen.get(GpuReading))
        known, endings = self._lives.look(placed, self._told(seen), moment.monotonic)
        snapshot = Snapshot(moment, known, readings, failures)
        pasts = self._history.look(snapshot, endings)
        self._ready = {name: past.ready for name, past in pasts.items()}
        verdicts = {name: judge(past, moment) for name, past in pasts.items()}
        return Judged(snapshot, pasts, verdicts, self._lives.not_ready_seconds())

    def remember(self, now: float) -> dict[str, Any]:
        """Return what an exporter that is started again can go on with, as plain values for a file."""
        known = {"servers": self._lives.remember(), "places": self._placement.remember()}
        return {**self._history.remember(now), **known}

    def recall(self, remembered: Any, now: float, among: frozenset[Identity] | None = None) -> tuple[Server, ...]:
        """Go on with what an exporter before this one remembered, and return the servers that it knew.

        What is no such thing, or old, changes nothing. To be called once it is seen which servers there are: those that
        are remembered and not seen are taken to have gone, unless only the processes `among` these can be seen.
        """
        usable = self._history.recall(remembered, now)
        if usable:
            self._placement.recall(remembered.get("places", []))
        return self._lives.recall(remembered.get("servers", []), among) if usable else ()

    def _told(self, seen: Snapshot) -> dict[str, Told]:
        reading = seen.get(LogReading)
        stopping = {log.server: log.stopping for log in (reading.logs if reading else ())}
        return {name: Told(self._ready.get(name), stopping.get(name)) for name in stopping.keys() | self._ready.keys()}
