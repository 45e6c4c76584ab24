"""How does one collector's round go: when is it due, what is in flight, what did it give last?"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from stallwatch.snapshot import Failure, Reading
from stallwatch.workers import WorkerError

Outcome = tuple[Reading | None, tuple[Failure, ...]]


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
    success: bool
    duration: float | None
    last_success: float | None
    failures: tuple[tuple[str, int], ...]


class Lane:
    """One collector, of the node or of one server; its rounds never overlap and are never waited for here."""

    def __init__(self, collector: str, collect: Callable[[], Awaitable[Outcome]], server: str = "") -> None:
        self.collector = collector
        self.server = server
        self._collect = collect
        self._interval = 1.0
        self._patience = 5.0
        self._task: asyncio.Task[Outcome] | None = None
        self._started = 0.0
        self._due = 0.0
        self._reading: Reading | None = None
        self._failures: tuple[Failure, ...] = ()
        self._duration: float | None = None
        self._last_success: float | None = None
        self._crashed = False
        self._counts: Counter[str] = Counter()

    def start(self, now: float) -> asyncio.Task[Outcome] | None:
        """Begin a round when one is due and none is in flight."""
        if self._task or now < self._due:
            return None
        self._started = now
        self._due = max(self._due + self._interval, now + self._interval / 2)
        self._task = asyncio.ensure_future(self._collect())
        return self._task

    def pace(self, interval: float, patience: float) -> None:
        """Set how often a round begins, and how long past that a reading still counts, in seconds."""
        self._interval = interval
        self._patience = patience

    def harvest(self, now: float) -> WorkerError | None:
        """Take in a round that has ended; returns the worker's error when that is how it ended."""
        if self._task is None or not self._task.done():
            return None
        task, self._task = self._task, None
        self._duration = now - self._started
        error = None if task.cancelled() else task.exception()
        self._crashed = error is not None or task.cancelled()
        if not self._crashed:
            self._reading, self._failures = task.result()
        else:
            self._reading, self._failures = None, (self._failure(error),)
        if self._reading is not None:
            self._last_success = self._reading.at
        self._counts.update(failure.reason for failure in self._failures)
        return error if isinstance(error, WorkerError) else None

    def _failure(self, error: BaseException | None) -> Failure:
        if isinstance(error, (WorkerError, CollectorError)):
            return Failure(self.collector, error.reason, str(error), self.server)
        text = f"{type(error).__name__}: {error}" if error else "the round was cancelled"
        return Failure(self.collector, "error", text[:300], self.server)

    def outcome(self, now: float) -> Outcome:
        """Return what counts now: the last reading while it is fresh, and why something is missing."""
        if self._reading and now - self._reading.at > self._interval + self._patience:
            age = now - self._reading.at
            return None, (*self._failures, Failure(self.collector, "stale", f"no reading for {age:.0f} s", self.server))
        if self._reading is None and not self._failures and self._task:
            waited = now - self._started
            return None, (Failure(self.collector, "starting", f"first reading is {waited:.0f} s old", self.server),)
        return self._reading, self._failures

    def state(self, now: float) -> LaneState:
        """Tell how the rounds go."""
        reading, failures = self.outcome(now)
        stale = self._reading is not None and reading is None
        whole = not self.server and any(not failure.server for failure in failures)
        # What one server does not offer (a port, a log) is no fault of the collector.
        success = not self._crashed and not stale and not whole and (reading is not None or bool(self.server))
        counts = tuple(sorted(self._counts.items()))
        return LaneState(self.collector, self.server, success, self._duration, self._last_success, counts)

    def cancel(self) -> None:
        """Give up what is in flight."""
        if self._task:
            self._task.cancel()
