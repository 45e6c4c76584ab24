"""What would have been said of a scenario, and when? Played through the same history and judgement as a real node."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from stallwatch.past import Past
from stallwatch.recording import Recorded
from stallwatch.sections import Limits
from stallwatch.simulation.scenario import Expectation, Scenario
from stallwatch.simulation.virtual import VirtualNode
from stallwatch.snapshot import Moment, Snapshot
from stallwatch.verdict import Verdict
from stallwatch.watcher import Watcher

STEP = 5.0
NOTHING: Mapping[str, float] = MappingProxyType({})
NO_OWN: Mapping[str, Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Look:
    """What is known and judged at one time of a scenario, in seconds from its start."""

    t: float
    snapshot: Snapshot
    pasts: Mapping[str, Past]
    verdicts: Mapping[str, Verdict]
    not_ready_seconds: Mapping[str, float]

    @property
    def moment(self) -> Moment:
        """Return when it was, on the clocks of the played node."""
        return self.snapshot.moment


def play(scenario: Scenario, step: float = STEP, changed: Mapping[str, float] = NOTHING) -> Iterator[Look]:
    """Yield a look every so many seconds of the scenario; `changed` are limits that hold instead of its own."""
    node = VirtualNode(scenario)
    limits = {
        player.server.name: msgspec.structs.replace(Limits(), **{**player.played.limits, **changed})
        for player in node.players
    }

    def limits_of(name: str) -> Limits:
        return limits.get(name, Limits())

    lives_again = any(event.what in {"down", "restart"} for event in scenario.watcher)
    watcher = Watcher(limits_of)
    memory: dict[str, Any] = {}
    t, last = 0.0, 0.0
    while t <= scenario.seconds:
        seen = node.look(t, t - last)
        down, frozen = _holds(scenario, "down", t), _holds(scenario, "frozen", t)
        if down or any(e.what == "restart" and last < e.at <= t for e in scenario.watcher):
            watcher = Watcher(limits_of)
            watcher.recall(memory, seen.moment.monotonic)
        if not down and not frozen:
            judged = watcher.look(seen.moment, seen.servers, seen.readings, seen.failures)
            memory = watcher.remember(seen.moment.monotonic) if lives_again else {}
            yield Look(t, judged.snapshot, judged.pasts, judged.verdicts, judged.not_ready_seconds)
        t, last = t + step, t


def play_recording(
    recording: Iterable[Recorded],
    changed: Mapping[str, float] = NOTHING,
    own: Mapping[str, Mapping[str, float]] = NO_OWN,
) -> Iterator[Look]:
    """Yield what would have been said of a recording.

    `changed` are limits that hold instead of the defaults, and instead of the `own` ones that a server had, by name.
    """

    def limits_of(name: str) -> Limits:
        return msgspec.structs.replace(Limits(), **{**own.get(name, NOTHING), **changed})

    watcher, begin, known = Watcher(limits_of), None, False
    for one in recording:
        seen, now = one.snapshot, one.snapshot.moment.monotonic
        begin = now if begin is None else begin
        if not known and _is_of(one.memory, now):
            watcher.recall(one.memory, now)
        known = known or bool(seen.servers)
        judged = watcher.look(seen.moment, seen.servers, seen.readings, seen.failures)
        t = round(now - begin, 3)
        yield Look(t, judged.snapshot, judged.pasts, judged.verdicts, judged.not_ready_seconds)


def _is_of(memory: Any, now: float) -> bool:
    """Tell whether a memory is of this moment: an exporter that has seen no server yet holds the one before it."""
    return isinstance(memory, dict) and memory.get("at") == now


def _holds(scenario: Scenario, what: str, t: float) -> bool:
    return any(event.what == what and event.at <= t < event.at + event.seconds for event in scenario.watcher)


def broken(scenario: Scenario, looks: Iterable[Look]) -> tuple[list[Look], list[str]]:
    """Return the looks, and which expectations do not hold (alerts are judged elsewhere)."""
    kept = list(looks)
    return kept, [text for expectation in scenario.expect for text in _wrong(expectation, kept, scenario)]


def _wrong(expectation: Expectation, looks: list[Look], scenario: Scenario) -> Iterator[str]:
    verdicts = next((look.verdicts for look in reversed(looks) if look.t <= expectation.at), {})
    name = expectation.server or next(iter(verdicts), "")
    verdict = verdicts.get(name)
    where = f"{scenario.name}: at {expectation.at:g} s {name}"
    if verdict is None:
        if expectation.verdict or expectation.signature:
            yield f"{where}: expected {expectation.verdict or expectation.signature}, and no such server is there"
        return
    if expectation.verdict and verdict.state != expectation.verdict:
        yield f"{where}: expected {expectation.verdict}, got {verdict.state} ({verdict.reason})"
    elif expectation.signature is not None and verdict.signature != expectation.signature:
        got = verdict.signature or "none"
        yield f"{where}: expected signature {expectation.signature or 'none'}, got {got} ({verdict.reason})"
