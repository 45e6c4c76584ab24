"""What is done about a read that never came back, and about a worker that cannot recover by itself?

What a worker was stuck in is left alone for a minute. A pid or path is then tried in a child of its own; a GPU is read
again once the worker that was stuck with it has ended, since two stuck ones would cost all GPUs.
"""

import asyncio
import logging
from collections.abc import Callable

from stallwatch.workers import Worker, WorkerError

logger = logging.getLogger(__name__)

RETRY_AFTER = 60.0
RENEW_AFTER = 60.0

Clock = Callable[[], float]


class Quarantine:
    """Which pids and paths never came back from a read, and when each may be tried again."""

    def __init__(self, clock: Clock, retry_after: float = RETRY_AFTER) -> None:
        self._clock = clock
        self._retry_after = retry_after
        self._until: dict[str, float] = {}

    def add(self, note: str) -> None:
        """Take what a stuck call was reading out of the daily round."""
        if note:
            self._until[note] = self._clock() + self._retry_after

    def release(self, note: str) -> None:
        """Let it be read again."""
        self._until.pop(note, None)

    def notes(self) -> tuple[str, ...]:
        """List what is not to be read."""
        return tuple(self._until)

    def due(self) -> tuple[str, ...]:
        """List what may be tried again now."""
        now = self._clock()
        return tuple(note for note, until in self._until.items() if until <= now)


class Mending:
    """Keeps the quarantine, and renews the worker of the GPUs."""

    def __init__(self, gpu: Worker, trial: Worker, clock: Clock) -> None:
        self._gpu = gpu
        self._trial = trial
        self._clock = clock
        self._quarantine = Quarantine(clock)
        self._trying: asyncio.Task[None] | None = None
        self._renewed = clock()

    def stuck(self, note: str) -> None:
        """Leave alone what a call that never returned was reading."""
        self._quarantine.add(note)

    def left_alone(self) -> tuple[str, ...]:
        """List what is not to be read, by the notes of the workers."""
        return self._quarantine.notes()

    def try_again(self) -> None:
        """Begin to try what has been left alone for long enough, one at a time."""
        for note in self._quarantine.due():
            if note.startswith("gpu "):
                self._retry_gpu(note)
            elif self._trying is None or self._trying.done():
                self._trying = asyncio.ensure_future(self._try(note))

    def _retry_gpu(self, note: str) -> None:
        if self._gpu.state().abandoned:
            self._quarantine.add(note)
        else:
            self._quarantine.release(note)

    async def _try(self, note: str) -> None:
        try:
            await self._trial.call("trial", [{"note": note}])
        except WorkerError as error:
            logger.info("still does not come back", extra={"reading": note, "reason": error.reason})
            self._quarantine.add(note)
        else:
            self._quarantine.release(note)
            self._trial.retire()

    def renew(self) -> None:
        """Replace the worker of the GPUs, now and then: only a new process loads the library of a new driver."""
        if self._clock() - self._renewed >= RENEW_AFTER and self._gpu.retire():
            self._renewed = self._clock()

    def cancel(self) -> None:
        """Give up what is being tried."""
        if self._trying:
            self._trying.cancel()
