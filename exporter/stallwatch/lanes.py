"""How do the rounds of the collectors go: when is one due, what is in flight, what did it give last?"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec

from stallwatch.redaction import told
from stallwatch.snapshot import Failure, Reading
from stallwatch.workers import WorkerError

Outcome = tuple[Reading | None, tuple[Failure, ...]]
Collect = Callable[[], Awaitable[Outcome]]
Life = tuple[str, str]  # a server's name and incarnation
Key = tuple[str, str, str]  # collector, and the life of the server where it is asked server by server
Rest = Callable[[Reading, float], float]  # how long to wait after a reading that took so many seconds

SLOW_SECONDS, REST_FACTOR, LONGEST_REST = 1.0, 10.0, 60.0


def no_rest(_reading: Reading, _took: float) -> float:
    """Wait for the usual interval only."""
    return 0.0


class CollectorError(Exception):
    """A collector gave no reading: `reason` is a word for a metric, the message a sentence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class LaneState:
    """How one collector's rounds go, for its metrics; times are monotonic."""

    collector: str
    server: str
    success: bool | None  # None: there is no reading, and nothing is broken
    duration: float | None
    last_success: float | None
    failures: tuple[tuple[str, int], ...]
    dropped: int = 0  # what was left out since there was too much, over all rounds
    dropping: int = 0  # in the last round


def decoder(collector: str, reading: type[Reading]) -> Callable[[bytes], Outcome]:
    """Return what takes in the replies of a worker to requests for this reading."""
    reply = msgspec.defstruct("Reply", [("reading", reading | None), ("failures", tuple[Failure, ...])])
    decode: Callable[[bytes], Any] = msgspec.json.Decoder(reply).decode

    def outcome(line: bytes) -> Outcome:
        try:
            answer = decode(line)
        except msgspec.MsgspecError as error:
            raise CollectorError("garbage", f"the worker sent no {collector} reading: {error}") from error
        return answer.reading, answer.failures

    return outcome


def rest_after(took: float, most: float) -> float:
    """Return how long to leave in peace who took so long to give a good answer, at most so long."""
    return min(REST_FACTOR * took, LONGEST_REST, most) if took > SLOW_SECONDS else 0.0


class Lane:
    """One collector, of the node or of one server; its rounds never overlap and are never waited for here."""

    def __init__(self, collector: str, collect: Collect, server: str = "") -> None:
        self.collector = collector
        self.server = server
        self._collect = collect
        self._interval = 1.0
        self._patience = 5.0
        self._rests: Rest = no_rest
        self._rest = 0.0
        self._took = 0.0
        self._task: asyncio.Task[Outcome] | None = None
        self._started = 0.0
        self._due = 0.0
        self._reading: Reading | None = None
        self._failures: tuple[Failure, ...] = ()
        self._duration: float | None = None
        self._last_success: float | None = None
        self._crashed = False
        self.counts: Counter[str] = Counter()
        self.dropped = 0
        self._asked_about: frozenset[Life] = frozenset()
        self._tells_of: frozenset[Life] = frozenset()

    def start(self, now: float, lives: frozenset[Life] = frozenset()) -> asyncio.Task[Outcome] | None:
        """Begin a round, about servers that live these lives, when one is due and none is in flight."""
        if self._task or now < self._due:
            return None
        self._started = now
        self._asked_about = lives
        self._due = max(self._due + self._interval, now + self._interval / 2)
        self._task = asyncio.ensure_future(self._timed())
        return self._task

    async def _timed(self) -> Outcome:
        begin = time.monotonic()
        try:
            return await self._collect()
        finally:
            self._took = time.monotonic() - begin

    def pace(self, interval: float, patience: float, rests: Rest = no_rest) -> None:
        """Set how often a round begins, and how long past that a reading still counts, in seconds.

        `rests` tells how long to wait at least after a reading, which counts for as much longer.
        """
        self._interval = interval
        self._patience = patience
        self._rests = rests

    def harvest(self, now: float) -> WorkerError | None:
        """Take in a round that has ended; returns the worker's error when that is how it ended."""
        if self._task is None or not self._task.done():
            return None
        task, self._task = self._task, None
        self._duration = now - self._started
        self._tells_of = self._asked_about
        error = None if task.cancelled() else task.exception()
        self._crashed = error is not None or task.cancelled()
        if not self._crashed:
            self._reading, self._failures = task.result()
        else:
            self._reading, self._failures = None, (self._failure(error),)
        if self._reading is not None:
            self._last_success = self._reading.at
            self.dropped += self._reading.dropped
        self.counts.update(failure.reason for failure in self._failures)
        good = self._reading if not self._failures else None
        self._rest = self._rests(good, self._took) if good else 0.0
        self._due = max(self._due, now + self._rest)
        return error if isinstance(error, WorkerError) else None

    def _failure(self, error: BaseException | None) -> Failure:
        if isinstance(error, (WorkerError, CollectorError)):
            return Failure(self.collector, error.reason, str(error), self.server)
        text = told(error) if error else "the round was cancelled"
        return Failure(self.collector, "error", text, self.server)

    def outcome(self, now: float) -> Outcome:
        """Return what counts now: the last reading while it is fresh, and why something is missing."""
        if self._reading and now - self._reading.at > max(self._interval, self._rest) + self._patience:
            age = now - self._reading.at
            return None, (*self._failures, Failure(self.collector, "stale", f"no reading for {age:.0f} s", self.server))
        if self._reading is None and not self._failures and self._task:
            waited = f"the first round takes {now - self._started:.0f} s so far"
            return None, (Failure(self.collector, "starting", waited, self.server),)
        return self._reading, self._failures

    def outcome_for(self, lives: frozenset[Life], now: float) -> Outcome:
        """Return what counts now, without what was told of servers that have gone or live another life since."""
        reading, failures = self.outcome(now)
        gone = {name for name, _ in self._tells_of - lives}
        kept = tuple(failure for failure in failures if failure.server not in gone)
        return (without(reading, gone) if reading and gone else reading), kept

    def state(self, now: float) -> LaneState:
        """Tell how the rounds go."""
        reading, failures = self.outcome(now)
        stale = self._reading is not None and reading is None
        whole = not self.server and any(not failure.server and not failure.harmless for failure in failures)
        # What one server does not offer (a port, a log) is no fault of the collector.
        success: bool | None = (
            not self._crashed and not stale and not whole and (reading is not None or bool(self.server))
        )
        if not success and failures and all(failure.harmless for failure in failures):
            success = None
        counts = tuple(sorted(self.counts.items()))
        dropping = reading.dropped if reading else 0
        last = self._last_success
        return LaneState(self.collector, self.server, success, self._duration, last, counts, self.dropped, dropping)

    def begin_anew(self) -> None:
        """Drop what is in flight and what was read, and have the next round begin at once."""
        self.cancel()
        self._task, self._reading, self._failures, self._due = None, None, (), 0.0

    def cancel(self) -> None:
        """Give up what is in flight."""
        if self._task:
            self._task.cancel()


def without(reading: Reading, names: Collection[str]) -> Reading:
    """Return the reading without what it says of these servers."""
    kept = {name: tuple(item for item in items if item.server not in names) for name, items in _by_server(reading)}
    changed: dict[str, Any] = {name: items for name, items in kept.items() if len(items) < len(getattr(reading, name))}
    return replace(reading, **changed) if changed else reading


def _by_server(reading: Reading) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for field in fields(reading):
        items = getattr(reading, field.name)
        if isinstance(items, tuple) and items and hasattr(items[0], "server"):
            yield field.name, items


@dataclass(frozen=True, slots=True)
class Plan:
    """A lane that should be there: whose, how often, how patient, and how it reads."""

    key: Key
    interval: float
    patience: float
    make: Callable[[], Collect]
    rests: Rest = no_rest


class Lanes:
    """The lanes that are wanted now."""

    def __init__(self) -> None:
        self._lanes: dict[Key, Lane] = {}
        self._counts_of_gone: dict[str, Counter[str]] = {}
        self._dropped_of_gone: Counter[str] = Counter()

    def have(self, plans: Iterable[Plan]) -> None:
        """Have these lanes and no others; one that goes on keeps what it knows."""
        wanted = {plan.key: plan for plan in plans}
        for key in self._lanes.keys() - wanted.keys():
            lane = self._lanes.pop(key)
            lane.cancel()
            if lane.server:
                self._counts_of_gone.setdefault(lane.collector, Counter()).update(lane.counts)
                self._dropped_of_gone[lane.collector] += lane.dropped
        for key, plan in wanted.items():
            if key not in self._lanes:
                self._lanes[key] = Lane(key[0], plan.make(), key[1])
            self._lanes[key].pace(plan.interval, plan.patience, plan.rests)

    def __iter__(self) -> Iterator[Lane]:
        """Go through the lanes."""
        return iter(self._lanes.values())

    def of_node(self, collector: str) -> Lane | None:
        """Return the lane of a collector that is asked for the whole node."""
        return self._lanes.get((collector, "", ""))

    def states(self, now: float) -> tuple[LaneState, ...]:
        """Tell how the rounds go; what went wrong with servers that have gone stays counted."""
        gone = (
            LaneState(name, "", True, None, None, tuple(sorted(counts.items())), self._dropped_of_gone[name])
            for name, counts in self._counts_of_gone.items()
        )
        return (*(lane.state(now) for lane in self), *gone)
