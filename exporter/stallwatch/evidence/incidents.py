"""Of which servers is evidence to be gathered now? Once per incident, before anybody restarts what could tell.

An incident begins with the last movement and lasts until the server is well again or started anew. Evidence is due when
nothing has moved for `limits.evidence`, since SGLang's own watchdog kills at 300 s, or at once when the verdict is
`stalled` or `dead`. What a bundle is kept of already is due no more, also after a restart of the exporter.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stallwatch.past import Past
from stallwatch.snapshot import Moment
from stallwatch.verdict import Verdict
from stallwatch.view import IN_TROUBLE, Bundle, View
from stallwatch.wording import duration

HUNG = frozenset({"stalled", "dead"})
APART = 600.0
APART_CRASHING = 3600.0
"""So long after a bundle the next one of the same server may be gathered at the soonest."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A server of which evidence is due: since when it stands still (Unix seconds), and what made it due."""

    past: Past
    verdict: Verdict
    begun: float
    why: str


class Incidents:
    """Remembers of which incidents evidence has been asked for."""

    def __init__(self) -> None:
        self._open: set[tuple[str, str]] = set()  # the lives of servers
        self._tried: dict[str, float] = {}  # when it could not be kept

    def due(self, view: View, latest: Mapping[str, Bundle]) -> Iterator[Incident]:
        """Yield each incident once; `latest` is the newest bundle of each server."""
        now = view.snapshot.moment
        self._open &= {_life(past) for name, past in view.pasts.items() if view.verdicts[name].state in IN_TROUBLE}
        for name, past in view.pasts.items():
            incident = _incident(past, view.verdicts[name], now)
            if incident is None or _life(past) in self._open or not self._is_apart(past, latest.get(name), now):
                continue
            self._open.add(_life(past))
            if not _is_kept(incident, latest.get(name), now):
                yield incident

    def failed(self, incident: Incident, now: Moment) -> None:
        """Have evidence of this server be due again, after a while, since what was gathered could not be kept."""
        self._open.discard(_life(incident.past))
        self._tried[incident.past.server.name] = now.unix

    def _is_apart(self, past: Past, bundle: Bundle | None, now: Moment) -> bool:
        apart = APART_CRASHING if past.ending.crash_looping else APART
        times = [self._tried.get(past.server.name), bundle.at if bundle else None]
        return not any(0 <= now.unix - at < apart for at in times if at is not None)


def _life(past: Past) -> tuple[str, str]:
    return past.server.name, past.server.incarnation


def _incident(past: Past, verdict: Verdict, now: Moment) -> Incident | None:
    if verdict.state in HUNG:
        return Incident(past, verdict, verdict.since, f"its verdict is {verdict.state}")
    if verdict.state != "suspect":
        return None
    begun = verdict.since - past.limit("suspect")
    still = now.unix - begun
    if still < past.limit("evidence"):
        return None
    return Incident(past, verdict, begun, f"nothing has moved for {duration(still)}")


def _is_kept(incident: Incident, bundle: Bundle | None, now: Moment) -> bool:
    """Tell whether a bundle is of this incident: of the same life, gathered since it stands still.

    One that is of a later time than now was gathered before the clock was set back, of whatever incident.
    """
    if bundle is None or bundle.incarnation != incident.past.server.incarnation:
        return False
    return incident.begun <= bundle.at <= now.unix
