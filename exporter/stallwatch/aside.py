"""How is work done that may block, so that neither the event loop nor the end of the process waits for it?

In a daemon thread of its own, since the threads of an executor are waited for at the end.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

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
