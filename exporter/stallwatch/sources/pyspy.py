"""How is py-spy run, so that nothing waits for it, and what does it say of one process?"""

import asyncio
import os
import re
import sys
import sysconfig
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

import msgspec

from stallwatch.node.procfs import Procfs
from stallwatch.redaction import public
from stallwatch.snapshot import Process

MISSING = "py-spy is not installed beside this interpreter; the extra `stacks` has it (pip install '.[stacks]')"
MOST_BYTES = 4 << 20
MOST_STUCK = 2
_MOST_SAID = 64 << 10  # what it says on standard error
_WHY = (
    ("no_permission", re.compile(r"permission denied|operation not permitted|os error (?:13|1)\b", re.IGNORECASE)),
    ("not_python", re.compile(r"python version|python interpreter|find python|not a python", re.IGNORECASE)),
    ("vanished", re.compile(r"no such process|process is running|os error 3\b", re.IGNORECASE)),
)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long it may take, in seconds: for one process, its end once it is killed, and all of a server."""

    process: float = 10.0
    end: float = 1.0
    server: float = 60.0


_Number = Annotated[int, msgspec.Meta(ge=-1, le=1 << 53)]


class SpiedFrame(msgspec.Struct):
    """One call as py-spy tells it; what else it tells is left."""

    name: str
    filename: str
    line: _Number


class SpiedThread(msgspec.Struct):
    """One thread as py-spy tells it."""

    thread_name: str | None
    os_thread_id: _Number | None
    active: bool
    owns_gil: bool
    frames: list[SpiedFrame]


class NoStackError(Exception):
    """There is no stack, for this reason."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


decode = msgspec.json.Decoder(list[SpiedThread]).decode


def installed() -> str | None:
    """Return the path of the py-spy that stands beside this interpreter, None where there is none."""
    folders = (sysconfig.get_path("scripts"), os.path.dirname(sys.executable))  # noqa: PTH120 as in all of sources
    found = (os.path.join(folder, "py-spy") for folder in folders if folder)  # noqa: PTH118 the same
    return next((path for path in found if os.access(path, os.X_OK)), None)


@dataclass(slots=True)
class Spy:
    """Runs py-spy, and counts those runs that nothing ended."""

    path: str
    deadlines: Deadlines
    procfs: Procfs
    stuck: int = 0

    async def ask(self, process: Process) -> list[SpiedThread]:
        """Return the threads of a process; raises NoStackError."""
        if self.stuck >= MOST_STUCK:
            raise NoStackError("backed_off", f"{self.stuck} of our py-spy processes are stuck")
        code, out, said = await self._run("dump", "--nonblocking", "--json", "--pid", str(process.pid))
        if code != 0:
            raise self._why(process, said.decode(errors="replace"))
        try:
            return decode(out)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise NoStackError("garbage", "what py-spy printed is no list of threads") from error

    async def _run(self, *arguments: str) -> tuple[int, bytes, bytes]:
        try:
            child = await asyncio.create_subprocess_exec(
                self.path, *arguments, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env={}, cwd="/", start_new_session=True
            )
        except OSError as error:
            raise NoStackError("failed", f"py-spy could not be started: {error.strerror}") from error
        try:
            return await asyncio.wait_for(_outcome(child), self.deadlines.process)
        except (asyncio.TimeoutError, TimeoutError) as error:
            waited = f"py-spy did not come to an end in {self.deadlines.process:g} s"
            raise NoStackError("timeout", waited) from error
        finally:
            await self._end(child)

    async def _end(self, child: asyncio.subprocess.Process) -> None:
        if child.returncode is not None:
            return
        with suppress(ProcessLookupError):
            child.kill()
        try:
            await asyncio.wait_for(_drained(child), self.deadlines.end)
        except (asyncio.TimeoutError, TimeoutError):
            self.stuck += 1

    def _why(self, process: Process, said: str) -> NoStackError:
        stat = self.procfs.stat(process.pid)
        if stat is None or stat.start_ticks != process.start_ticks or stat.state in ("Z", "X"):
            return NoStackError("vanished", "it ended meanwhile")
        reason = next((word for word, pattern in _WHY if pattern.search(said)), "failed")
        lines = [line for line in said.splitlines() if line.strip()] or ["nothing"]
        right = "it takes CAP_SYS_PTRACE to read the memory of a process; " if reason == "no_permission" else ""
        return NoStackError(reason, f"{right}py-spy says: {public(lines[0])}")


async def _outcome(child: asyncio.subprocess.Process) -> tuple[int, bytes, bytes]:
    assert child.stdout is not None  # noqa: S101 it was started with a pipe
    assert child.stderr is not None  # noqa: S101 the same
    sizes = ((child.stdout, MOST_BYTES), (child.stderr, _MOST_SAID))
    out, said = await asyncio.gather(*(_bounded(child, stream, most) for stream, most in sizes))
    code = await child.wait()
    if len(out) > MOST_BYTES or len(said) > _MOST_SAID:
        raise NoStackError("too_much", f"py-spy printed more than {MOST_BYTES} bytes")
    return code, out, said


async def _drained(child: asyncio.subprocess.Process) -> None:
    """Wait for the end of a child; a pipe of which something is left unread would never be closed."""
    for stream in filter(None, (child.stdout, child.stderr)):
        while await stream.read(1 << 16):
            pass
    await child.wait()


async def _bounded(child: asyncio.subprocess.Process, stream: asyncio.StreamReader, most: int) -> bytes:
    """Read all that a child says, and kill it once that is more than `most` bytes."""
    kept = bytearray()
    while part := await stream.read(1 << 16):
        if len(kept) <= most:
            kept += part
        else:
            with suppress(ProcessLookupError):
                child.kill()
    return bytes(kept)
