"""What was seen, to be looked at again? Snapshots as JSON lines: one line for each look at the node."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from stallwatch.collectors.engine import EngineReading
from stallwatch.collectors.gpu import GpuReading
from stallwatch.collectors.health import HealthReading
from stallwatch.collectors.kernel import KernelReading
from stallwatch.collectors.log import LogReading
from stallwatch.collectors.process import ProcessReading
from stallwatch.collectors.socket import SocketReading
from stallwatch.config import ConfigError
from stallwatch.engines import ENGINES
from stallwatch.snapshot import PHASES, Failure, Moment, Reading, Server, Snapshot

KNOWN_ENGINES = {engine.name for engine in ENGINES}
LONGEST_LINE = 64 << 20


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One snapshot as it is written."""

    moment: Moment
    servers: tuple[Server, ...]
    failures: tuple[Failure, ...] = ()
    gpu: tuple[GpuReading, ...] = ()
    process: tuple[ProcessReading, ...] = ()
    log: tuple[LogReading, ...] = ()
    socket: tuple[SocketReading, ...] = ()
    kernel: tuple[KernelReading, ...] = ()
    health: tuple[HealthReading, ...] = ()
    engine: tuple[EngineReading, ...] = ()

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Return all readings."""
        return (*self.gpu, *self.process, *self.log, *self.socket, *self.kernel, *self.health, *self.engine)


BEGIN = b'{"moment":'

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Line)


def line_of(snapshot: Snapshot) -> bytes:
    """Return a snapshot as one line, without what is worked out from it: who has gone, and who holds which GPU."""
    line = _Line(
        moment=snapshot.moment,
        servers=tuple(replace(server, gpus=()) for server in snapshot.servers if server.processes),
        failures=snapshot.failures,
        gpu=snapshot.all(GpuReading),
        process=snapshot.all(ProcessReading),
        log=snapshot.all(LogReading),
        socket=snapshot.all(SocketReading),
        kernel=snapshot.all(KernelReading),
        health=snapshot.all(HealthReading),
        engine=snapshot.all(EngineReading),
    )
    return _encoder.encode(line) + b"\n"


class Recorder:
    """Appends snapshots to a file in whole lines, also where a line of before was cut short.

    Raises ConfigError where the file cannot be made. A full disk costs what is seen meanwhile, and is said once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._missed = 0
        try:
            os.close(self._open())
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None

    def take(self, snapshot: Snapshot) -> None:
        """Write what was seen, if the disk takes it."""
        try:
            self._append(line_of(snapshot))
        except OSError as error:
            if not self._missed:
                self._say(f"cannot be written: {error.strerror}; what is seen meanwhile is not recorded")
            self._missed += 1
        else:
            if self._missed:
                self._say(f"can be written again; looks that are not recorded: {self._missed}")
            self._missed = 0

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def _append(self, line: bytes) -> None:
        handle = self._open()
        try:
            end = _end_of_lines(handle)
            if end < os.fstat(handle).st_size:
                os.truncate(handle, end)
            _write(handle, line, end)
        finally:
            os.close(handle)

    def _say(self, text: str) -> None:
        sys.stderr.write(f"stallwatch: {self._path}: {text}\n")


def _end_of_lines(handle: int) -> int:
    """Return where the whole lines end; only a line of ours that was cut short comes after."""
    end = os.fstat(handle).st_size
    if not end or os.pread(handle, 1, end - 1) == b"\n":
        return end
    last = os.pread(handle, LONGEST_LINE, max(0, end - LONGEST_LINE))
    rest = last[last.rfind(b"\n") + 1 :]
    return end - len(rest) if BEGIN.startswith(rest[: len(BEGIN)]) else end


def _write(handle: int, line: bytes, end: int) -> None:
    rest = memoryview(line)
    try:
        while rest:
            rest = rest[os.write(handle, rest) :]
    except OSError:
        with suppress(OSError):  # a pipe has no end to go back to
            os.truncate(handle, end)
        raise


def read_recording(path: Path) -> Iterator[Snapshot]:
    """Yield the snapshots of a file; raises ConfigError that names file and line. A last line cut short is left out."""
    try:
        with path.open("rb") as file:
            for number, text in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), 1):
                if len(text) == LONGEST_LINE:
                    raise ConfigError(f"{path}: line {number}: is no snapshot: longer than {LONGEST_LINE} bytes")
                if text.endswith(b"\n"):
                    yield _snapshot(text, f"{path}: line {number}")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None


def _snapshot(text: bytes, where: str) -> Snapshot:
    try:
        line = _decoder.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{where}: is no snapshot: {error}") from None
    if not _phases(line) <= {None, *PHASES} or not {server.engine for server in line.servers} <= KNOWN_ENGINES:
        raise ConfigError(f"{where}: is no snapshot: it names a phase or an engine that is not known")
    return Snapshot(line.moment, line.servers, line.readings, line.failures)


def _phases(line: _Line) -> set[str | None]:
    logs = [log for reading in line.log for log in reading.logs]
    return {log.phase for log in logs} | {rank.phase for log in logs for rank in log.ranks}
