"""How is something read that may block for ever? By a spawned child, called under a deadline, replaced when stuck.

Never by a thread (one that is stuck in the kernel keeps this process and its port alive through SIGKILL) and never by
a fork (which inherits the listening socket). A child that is late is not waited for: its input is closed, it gets
SIGTERM, a long grace, then SIGKILL, since killing a monitor inside a driver call has been reported to wedge GPUs.
"""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stallwatch.child import NOTE_BYTES, Note
from stallwatch.expense import Expense, expense_of

ABANDONED_LIMIT = 2
REPLY_BYTES = 16 * 1024 * 1024


class WorkerError(Exception):
    """A worker gave no reading: `reason` is a word for a metric, `stuck_in` the note of a call that never returned."""

    def __init__(self, reason: str, detail: str, stuck_in: str = "") -> None:
        super().__init__(detail)
        self.reason = reason
        self.stuck_in = stuck_in


@dataclass(frozen=True, slots=True)
class WorkerState:
    """How one worker fares, for its metrics."""

    name: str
    up: bool
    restarts: int
    abandoned: int
    expense: Expense | None = None  # None while none runs


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a worker may take, in seconds."""

    call: float = 5.0
    start: float = 60.0
    first_call: float = 5.0
    to_sigterm: float = 1.0
    to_sigkill: float = 60.0
    slowly: str = ""  # a call whose note ends so may take as long as a first one


class Worker:
    """One child process at a time that reads for us; a new one takes over when it dies or gets stuck."""

    def __init__(
        self,
        name: str,
        modules: Sequence[str],
        options: Mapping[str, str],
        deadlines: Deadlines,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._arguments = [sys.executable, "-m", "stallwatch.leanchild", name, json.dumps(dict(options))]
        self._modules = list(modules)
        self._deadlines = deadlines
        self._environ = environ
        self._lock = asyncio.Lock()
        self._child: _Child | None = None
        self._leaving: set[_Child] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._restarts = 0
        self._lost = False  # the one before ended or got stuck, so that the next one counts as a restart

    @property
    def abandoned(self) -> int:
        """Count those late ones that have not ended yet."""
        return sum(child.late and child.alive for child in self._leaving)

    def state(self) -> WorkerState:
        """Tell how this worker fares."""
        up = self._child is not None and self._child.alive
        expense = expense_of(self._child.process.pid) if self._child and up else None
        return WorkerState(self.name, up, self._restarts, self.abandoned, expense)

    @property
    def pid(self) -> int | None:
        """Return the pid of the child that serves now."""
        return self._child.process.pid if self._child else None

    async def call(self, read: str, targets: list[dict[str, Any]], skip: Sequence[str] = ()) -> bytes:
        """Return the reply to one request, as JSON; raises WorkerError when there is none in time."""
        async with self._lock:
            child = await self._a_child()
            try:
                return await child.ask(read, targets, skip)
            except WorkerError as error:
                self._lose(child, late=error.reason == "timeout")
                raise
            except asyncio.CancelledError:
                self._leave(child)  # a reply that nobody reads would be taken for the next one
                raise

    async def _a_child(self) -> "_Child":
        if self._child and not self._child.alive:
            self._lose(self._child, late=False)
        if self._child is None:
            if self.abandoned >= ABANDONED_LIMIT:
                raise WorkerError("backed_off", f"{ABANDONED_LIMIT} workers are stuck; the next starts when one ends")
            self._restarts += self._lost
            try:
                self._child = await _Child.spawn(self._arguments, self._modules, self._deadlines, self._environ)
            except OSError as error:
                self._lost = True
                raise WorkerError("not_started", f"no worker could be started: {error}") from error
            self._lost = False
        return self._child

    def _lose(self, child: "_Child", *, late: bool) -> None:
        if child not in self._leaving:
            self._lost, child.late = True, late
            self._leave(child)

    def _leave(self, child: "_Child") -> None:
        if child in self._leaving:
            return
        self._child = None
        self._leaving.add(child)
        ending = asyncio.get_running_loop().create_task(self._end(child))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _end(self, child: "_Child") -> None:
        child.close_input()
        if not await child.ended(self._deadlines.to_sigterm):
            child.late = True
            child.terminate()
            if not await child.ended(self._deadlines.to_sigkill):
                child.kill()
                await child.ended(None)
        self._leaving.discard(child)

    def retire(self) -> bool:
        """Have the next request served by a new process, unless a request is in flight; tells which it was."""
        if self._lock.locked():
            return False
        if self._child:
            self._leave(self._child)
        return True

    async def give_up(self, within: float) -> tuple[str, ...]:
        """End the child, with whatever it reads, and name each one that has not ended within this time."""
        if self._child:
            self._leave(self._child)
        await self._settle(within)
        return tuple(sorted(child.told() for child in self._leaving))

    async def close(self, grace: float = 0.3) -> None:
        """End the child gently, and leave one that does not go: it ends by itself when its call returns."""
        if self._child:
            self._leave(self._child)
        await self._settle(grace)
        for child in self._leaving:
            child.terminate()
        await self._settle(grace)
        for ending in self._endings:
            ending.cancel()

    async def _settle(self, within: float) -> None:
        if self._endings:
            await asyncio.wait(self._endings, timeout=within)


class _Child:
    """One spawned process and the pipes to it."""

    def __init__(self, process: Process, note: Note, deadlines: Deadlines) -> None:
        self.process = process
        self.late = False
        self._note = note
        self._deadlines = deadlines
        self._requests = 0

    @classmethod
    async def spawn(
        cls,
        arguments: Sequence[str],
        modules: Sequence[str],
        deadlines: Deadlines,
        environ: Mapping[str, str] | None,
    ) -> "_Child":
        note_fd = os.memfd_create("stallwatch-note")
        try:
            os.ftruncate(note_fd, NOTE_BYTES)
            process = await asyncio.create_subprocess_exec(
                *arguments,
                str(note_fd),
                *modules,
                stdin=PIPE,
                stdout=PIPE,
                stderr=None if sys.stderr else DEVNULL,
                limit=REPLY_BYTES,
                pass_fds=(note_fd,),
                env=environ,
            )
            return cls(process, Note(note_fd), deadlines)
        finally:
            os.close(note_fd)

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    async def ask(self, read: str, targets: list[dict[str, Any]], skip: Sequence[str]) -> bytes:
        if self._requests == 0:
            await self._line(self._deadlines.start, "its start")  # it says hello once all is loaded
        self._requests += 1
        deadline = self._deadlines.first_call if self._requests == 1 else self._deadlines.call
        request = {"id": self._requests, "read": read, "targets": targets, "skip": list(skip)}
        assert self.process.stdin is not None  # noqa: S101 it was started with a pipe
        try:
            self.process.stdin.write(json.dumps(request, separators=(",", ":")).encode() + b"\n")
        except (ConnectionError, RuntimeError) as error:
            raise WorkerError("worker_died", f"could not be asked: {error}") from error
        line = await self._line(deadline)
        if not line.startswith(b'{"id":%d,' % self._requests):
            raise WorkerError("garbage", f"worker sent {len(line)} bytes that are no reply to request {self._requests}")
        return line

    async def _line(self, deadline: float, otherwise: str = "no read") -> bytes:
        assert self.process.stdout is not None  # noqa: S101 it was started with a pipe
        waited, slow = 0.0, False
        try:
            while (line := await self._in_time(self.process.stdout, deadline)) is None:
                waited += deadline
                was_slow, slow = slow, self._is_slow()  # what comes after a slow call has a deadline of its own
                if not (slow or was_slow) or waited >= self._deadlines.first_call:
                    break
        except ValueError as error:  # readline() found no end within REPLY_BYTES
            raise WorkerError("garbage", f"a reply of more than {REPLY_BYTES} bytes") from error
        if line is None:
            stuck_in = self._note.text().removesuffix(self._deadlines.slowly)
            raise WorkerError("timeout", f"no answer in {waited:g} s, at: {stuck_in or otherwise}", stuck_in)
        if not line.endswith(b"\n"):
            raise WorkerError("worker_died", f"the worker ended after {len(line)} bytes of a reply")
        return line

    async def _in_time(self, stream: asyncio.StreamReader, deadline: float) -> bytes | None:
        try:
            return await asyncio.wait_for(stream.readline(), deadline)
        except (asyncio.TimeoutError, TimeoutError):
            return None

    def _is_slow(self) -> bool:
        return bool(self._deadlines.slowly) and self._note.text().endswith(self._deadlines.slowly)

    def told(self) -> str:
        doing = self._note.text()
        return f"pid {self.process.pid}" + (f", which is stuck in {doing}" if doing else "")

    def close_input(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()

    def terminate(self) -> None:
        with suppress(ProcessLookupError):
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)  # one that somebody has stopped cannot end

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()

    async def ended(self, within: float | None) -> bool:
        try:
            await asyncio.wait_for(self.process.wait(), within)
        except (asyncio.TimeoutError, TimeoutError):
            return False
        self._note.close()
        return True
