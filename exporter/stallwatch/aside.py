"""How is work done that may block, so that neither the event loop nor the end of the process waits for it?

In a daemon thread of its own, since the threads of an executor are waited for at the end.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def begin(work: Callable[[], T], name: str) -> "asyncio.Future[T]":
    """Begin the work in a thread of this name and return the future of what it returns or raises."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(outcome: T | None, error: Exception | None) -> None:
        if not answer.done():
            answer.set_exception(error) if error else answer.set_result(outcome)  # type: ignore[arg-type]

    def run() -> None:
        outcome, error = None, None
        try:
            outcome = work()
        except Exception as raised:  # noqa: BLE001 - raised again where the answer is awaited
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, outcome, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer


class Reads(Generic[T]):
    """Reads of files that may lie on a dead mount: one at a time of each file, so that it costs one thread at most."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._under_way: dict[str, asyncio.Future[T]] = {}

    async def read(self, file: str, work: Callable[[], T], within: float) -> T:
        """Return what the work returns or raises; raises TimeoutError where it, or one begun before, takes longer."""
        reading = self._under_way.get(file)
        if reading is None:
            reading = self._under_way[file] = begin(work, self._name)
            reading.add_done_callback(lambda ended: ended.exception())  # nobody may wait for it any more
        done, _ = await asyncio.wait({reading}, timeout=within)
        if not done:
            raise asyncio.TimeoutError
        if self._under_way.get(file) is reading:
            del self._under_way[file]
        return reading.result()
