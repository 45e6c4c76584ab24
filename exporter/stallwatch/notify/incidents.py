"""Which incidents begin, and which end? Decided from what is judged at each look and from what was told already.

An alert has the name that the shipped rules give it. It holds until its verdict has not been seen for `KEEP_FIRING`, as
the rules' `keep_firing_for` has it, and of one server only the worst that holds counts, as Alertmanager's inhibitions
have it: a stall that becomes a death is one incident under another name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from stallwatch.snapshot import Moment
from stallwatch.verdict import Verdict

STALLED, DEAD, GPU_FAULT = "InferenceServerStalled", "InferenceServerDead", "InferenceGPUFault"
NAMES = (STALLED, DEAD, GPU_FAULT)
"""What explains more stands later."""
KEEP_FIRING = 300.0
MOST_BEGUN = 6
"""So many alerts of one server may begin within an hour; the next one waits."""
HOUR = 3600.0

NO_BUNDLES: Mapping[str, str] = MappingProxyType({})

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert of one server; times are Unix seconds, `held_at` when its verdict was last seen to hold."""

    name: str
    server: str
    instance: str
    starts_at: float
    held_at: float
    reason: str = ""
    signature: str = ""
    evidence: str = ""  # the bundle that is kept of it

    @property
    def key(self) -> Key:
        """Say which alert this is, over all times at which it fires."""
        return self.server, self.name, self.instance


@dataclass(frozen=True, slots=True)
class News:
    """What there is to tell: the alerts that begin and that end, and those that were told of and go on."""

    begun: tuple[Alert, ...] = ()
    ended: tuple[Alert, ...] = ()
    lasting: tuple[Alert, ...] = ()

    def __bool__(self) -> bool:
        """Tell whether there is anything new in it."""
        return bool(self.begun or self.ended)


@dataclass(slots=True)
class _Told:
    """What the receiver knows to fire, what it refused, and when within the last hour each server's alerts began."""

    alerts: dict[Key, Alert] = field(default_factory=dict)
    refused: dict[Key, Alert] = field(default_factory=dict)
    begun: dict[str, list[float]] = field(default_factory=dict)  # monotonic

    def of(self, server: str) -> list[Alert]:
        return [alert for alert in self.alerts.values() if alert.server == server]

    def lately(self, server: str, now: float) -> list[float]:
        return [at for at in self.begun.get(server, ()) if now - at < HOUR]


class Incidents:
    """The alerts of a node that hold, and what was told of them."""

    def __init__(self, keep_firing: float = KEEP_FIRING) -> None:
        self._keep_firing = keep_firing
        self._held: dict[Key, tuple[Alert, float]] = {}  # with the monotonic time of the last look at which it held
        self._told = _Told()

    def look(
        self, verdicts: Mapping[str, Verdict], moment: Moment, instance: str, kept: Mapping[str, str] = NO_BUNDLES
    ) -> None:
        """Take in what is judged at one moment of the servers of this instance; `kept` names the bundle of each."""
        now = moment.monotonic
        for server, verdict in verdicts.items():
            if name := name_of(verdict):
                known = self._held.get((server, name, instance))
                since = known[0].starts_at if known else verdict.since
                said = (verdict.reason, verdict.signature, kept.get(server, ""))
                alert = Alert(name, server, instance, since, moment.unix, *said)
                self._held[alert.key] = alert, now
        self._held = {key: held for key, held in self._held.items() if now - held[1] < self._keep_firing}
        for key in self._told.alerts.keys() & self._held.keys():
            self._told.alerts[key] = self._held[key][0]
        self._told.refused = {key: alert for key, alert in self._told.refused.items() if key in self._held}

    def news(self, now: float) -> News:
        """Return what is to be told at this monotonic time."""
        worst = self._worst()
        begun: list[Alert] = []
        ended: list[Alert] = []
        lasting: list[Alert] = []
        for server in dict.fromkeys((*(alert.server for alert in self._told.alerts.values()), *worst)):
            before, alert = self._told.of(server), worst.get(server)
            if alert is None or alert.key in self._told.alerts:
                ended += [one for one in before if one != alert]
                lasting += [alert] if alert else []
            elif self._may_begin(alert, now):
                begun.append(alert)
                ended += before
            else:
                lasting += before
        return News(tuple(begun), tuple(ended), tuple(lasting))

    def held_back(self, now: float) -> frozenset[str]:
        """Name the servers of which no further alert is told for now, since too many were."""
        waiting = [alert for alert in self._worst().values() if alert.key not in self._told.alerts]
        return frozenset(one.server for one in waiting if len(self._told.lately(one.server, now)) >= MOST_BEGUN)

    def settle(self, news: News, now: float, *, delivered: bool) -> None:
        """Take note that the news were delivered, or were refused and are not to be told again."""
        refused = set() if delivered else {alert.server for alert in news.begun}
        for alert in news.ended:
            if alert.server not in refused:  # else it goes on for the receiver, until the server's incident ends
                self._told.alerts.pop(alert.key, None)
        for alert in news.begun:
            if delivered:
                self._told.alerts[alert.key] = alert
                self._told.begun[alert.server] = [*self._told.lately(alert.server, now), now]
            else:
                self._told.refused[alert.key] = alert
        self._told.begun = {server: times for server, times in self._told.begun.items() if now - times[-1] < HOUR}

    def try_refused(self) -> None:
        """Have what was refused told again: it may go elsewhere now."""
        self._told.refused = {}

    def remember(self) -> Any:
        """Return what was told and has not ended yet, as plain values for a file."""
        return msgspec.to_builtins(list(self._told.alerts.values()))

    def recall(self, remembered: Any, now: float) -> None:
        """Go on with what an exporter before this one told; what does not hold any more ends after `KEEP_FIRING`."""
        try:
            alerts = msgspec.convert(remembered, list[Alert])
        except msgspec.ValidationError:
            return
        self._told.alerts = {alert.key: alert for alert in alerts if alert.name in NAMES}
        self._held = {key: (alert, now) for key, alert in self._told.alerts.items()}

    def _worst(self) -> dict[str, Alert]:
        return _worst_of(alert for alert, _ in self._held.values())

    def _may_begin(self, alert: Alert, now: float) -> bool:
        return alert.key not in self._told.refused and len(self._told.lately(alert.server, now)) < MOST_BEGUN


def name_of(verdict: Verdict) -> str:
    """Name the critical alert that the shipped rules fire for a verdict, nothing where they fire none."""
    if verdict.signature == "device_fault":
        return GPU_FAULT
    return {"stalled": STALLED, "dead": DEAD}.get(verdict.state, "")


def _worst_of(alerts: Iterable[Alert]) -> dict[str, Alert]:
    """Return the worst alert of each server; of two instances of one, which a new name of the node makes, the later."""
    found: dict[str, Alert] = {}
    for alert in alerts:
        known = found.get(alert.server)
        if known is None or NAMES.index(alert.name) >= NAMES.index(known.name):
            found[alert.server] = alert
    return found
