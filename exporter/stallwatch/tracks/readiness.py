"""How far is a server, and what is owed by it?"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stallwatch.collectors.health import Probe
from stallwatch.collectors.log import Log
from stallwatch.tracks.movement import MEMORY, Since

FAILING_PROBES = 2
NO_ANSWER = frozenset({"refused", "timeout", "reset", "empty"})


@dataclass(frozen=True, slots=True)
class _Failing:
    """Probes of one path that failed one after another: when the first began, when the last ended, how many."""

    first: float
    last: float
    count: int


@dataclass
class Readiness:
    """Whether a server is ready: what its log or a good answer says, and it lasts until this life ends."""

    ready: bool | None = None
    phase: str | None = None
    phase_since: float | None = None
    said: str | None = None
    said_since: float | None = None

    def look(  # noqa: PLR0913 one argument per source
        self,
        now: float,
        log: Log | None,
        probes: tuple[Probe, ...],
        *,
        serves: bool,
        loaded: bool | None,
        probed: bool = True,
        headless: bool = False,
        gone: bool = False,
    ) -> None:
        """Take in what the log, the probes and the token counters say.

        `probed` is whether it can be probed at all, `headless` whether another node answers for it and it has no port
        of its own: it is ready when its log is as far as it ever gets. `gone` is whether its processes have gone, after
        which it has no phase that nothing tells of.
        """
        if log:  # what it said last still holds while it cannot be read
            self.said, self.said_since = log.phase, log.phase_since
        said = self.said
        if not self.ready:
            done = headless and _may_be_ready(log)
            if said in {"ready", "stopping"} or serves or done or any(_alive(probe, said) for probe in probes):
                self.ready = True
            elif not probed and _may_be_ready(log):
                self.ready = None
            elif said or any(probe.result == "refused" for probe in probes):
                self.ready = False
        self._name_phase(now, said, self.said_since, loaded=loaded, gone=gone)

    def _name_phase(
        self, now: float, phase: str | None, since: float | None, *, loaded: bool | None, gone: bool
    ) -> None:
        if self.ready and phase != "stopping":
            phase = "ready"
        if phase is None and self.ready is False:
            phase = self.phase if gone else "loaded" if loaded else "launch"
        if phase != self.phase:
            self.phase = phase
            self.phase_since = now if phase is not None and since is None else since


def _alive(probe: Probe, said: str | None) -> bool:
    """Tell whether a probe shows a server that is up: a good answer; without a log, also one that refuses us alone."""
    refuses_us = probe.result in {"unauthorized", "tls_error"} or (
        probe.result == "http_error" and not unanswered(probe)
    )
    return probe.result == "ok" or (said is None and refuses_us)


def _may_be_ready(log: Log | None) -> bool:
    """Tell whether a start is as far as a log ever says: an engine without a port writes no line when it is ready."""
    if log is None or log.phase is None:
        return False
    return log.phase == "warming_up" or (
        log.phase == "capturing_graphs" and (log.progress is None or log.progress >= 1)
    )


@dataclass
class Demand:
    """What is owed, by reason, since when; one that is not seen for up to a minute keeps its since."""

    since: dict[str, float] = field(default_factory=dict)
    _seen: dict[str, float] = field(default_factory=dict)
    _failed: dict[str, _Failing] = field(default_factory=dict)

    def look(self, now: float, owed: Mapping[str, float], unseen: frozenset[str]) -> None:
        """Take in what is owed now; `unseen` are the reasons that cannot be told at the moment."""
        for reason, since in owed.items():
            self.since.setdefault(reason, since)
            self._seen[reason] = now
        for reason in set(self.since) - set(owed):
            if reason not in unseen or now - self._seen[reason] > MEMORY:
                del self.since[reason]

    def recall(self, since: Mapping[str, float], now: float) -> None:
        """Go on with what was owed before a restart; what cannot be seen at once is taken to be so for a minute."""
        self.since = dict(since)
        self._seen = dict.fromkeys(since, now)

    def remember(self) -> dict[str, tuple[float, float, int]]:
        """Return the paths of which the last probes failed."""
        return {path: (row.first, row.last, row.count) for path, row in self._failed.items()}

    def recall_failing(self, failing: Mapping[str, tuple[float, float, int]]) -> None:
        """Go on counting from what was remembered."""
        self._failed = {path: _Failing(*row) for path, row in failing.items()}

    def failing(self, probes: tuple[Probe, ...]) -> dict[str, float]:
        """Return the paths that have failed again and again since the server was ready, and since when."""
        for probe in probes:
            row = self._failed.get(probe.path)
            if not unanswered(probe):
                self._failed.pop(probe.path, None)
            elif row is None:
                self._failed[probe.path] = _Failing(probe.at - probe.latency, probe.at, 1)
            elif row.last != probe.at:
                self._failed[probe.path] = _Failing(row.first, probe.at, row.count + 1)
        rows = {probe.path: self._failed[probe.path] for probe in probes if probe.path in self._failed}
        return {path: row.first for path, row in rows.items() if row.count >= FAILING_PROBES}


def unanswered(probe: Probe) -> bool:
    """Tell whether a probe failed in a way that means unanswered work: a 401 is alive, a 404 is not offered."""
    return probe.result in NO_ANSWER or (probe.result == "http_error" and (probe.status or 0) >= 500)


@dataclass
class Waiting:
    """Since when work has waited in the queues of the kernel or the engine, by reason."""

    reasons: dict[str, Since] = field(default_factory=dict)

    def remember(self) -> dict[str, float]:
        """Return since when each reason that holds has held."""
        return {reason: since.at for reason, since in self.reasons.items() if since.at is not None}

    def recall(self, reasons: Mapping[str, float], now: float) -> None:
        """Go on with what was remembered."""
        self.reasons = {reason: Since(at, now) for reason, at in reasons.items()}

    def look(self, now: float, seen: Mapping[str, bool]) -> dict[str, float]:
        """Take in which reasons hold and return since when each has."""
        held = {
            reason: self.reasons.setdefault(reason, Since()).hold(now, holds=holds) for reason, holds in seen.items()
        }
        return {reason: at for reason, at in held.items() if at is not None}
