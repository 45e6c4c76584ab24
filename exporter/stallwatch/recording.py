"""What was seen, to be looked at again? Snapshots as JSON lines: one line for each look at the node."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from stallwatch.collectors.engine import EngineReading
from stallwatch.collectors.gpu import GpuReading
from stallwatch.collectors.health import HealthReading
from stallwatch.collectors.kernel import KernelReading
from stallwatch.collectors.log import LogReading
from stallwatch.collectors.process import ProcessReading
from stallwatch.collectors.socket import SocketReading
from stallwatch.config import ConfigError
from stallwatch.deltas import SAME, changed, changes
from stallwatch.engines import ENGINES
from stallwatch.recordingfile import LONGEST_LINE, lines_of, recording_file
from stallwatch.snapshot import PHASES, Failure, Moment, Server, Snapshot

ENGINE_NAMES = frozenset(engine.name for engine in ENGINES)


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One snapshot as it is written: all of it, or what has changed since the line before, by the name of the field.

    A whole line may hold what was remembered then, for a recording that begins in the middle of a life.
    """

    moment: Moment
    servers: tuple[Server, ...] | msgspec.UnsetType = msgspec.UNSET
    failures: tuple[Failure, ...] = ()
    gpu: tuple[GpuReading, ...] = ()
    process: tuple[ProcessReading, ...] = ()
    log: tuple[LogReading, ...] = ()
    socket: tuple[SocketReading, ...] = ()
    kernel: tuple[KernelReading, ...] = ()
    health: tuple[HealthReading, ...] = ()
    engine: tuple[EngineReading, ...] = ()
    memory: Any | msgspec.UnsetType = msgspec.UNSET
    changed: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


READINGS = {
    "gpu": GpuReading,
    "process": ProcessReading,
    "log": LogReading,
    "socket": SocketReading,
    "kernel": KernelReading,
    "health": HealthReading,
    "engine": EngineReading,
}
FIELDS = {"servers": Server, "failures": Failure, **READINGS}
BEGIN = b'{"moment":'

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One snapshot of a recording, and what the exporter remembered by then where the recording tells."""

    snapshot: Snapshot
    memory: Any = None


def line_of(snapshot: Snapshot) -> bytes:
    """Return a snapshot as one line, without what is worked out from it: who has gone, and who holds which GPU."""
    return _text(snapshot.moment, _seen(snapshot))


class Lines:
    """Makes lines that leave out what is as it was in the line before; the first is whole."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Any, ...]] = {}

    def line(self, snapshot: Snapshot, memory: Any = None) -> bytes:
        """Return the next line; `memory` (plain values) goes into the first."""
        seen, last = _seen(snapshot), self._last
        if last:
            found = {name: changes(last[name], seen[name]) for name in seen}
            rest = {"changed": {name: change for name, change in found.items() if change is not SAME}}
        else:
            rest = seen if memory is None else {**seen, "memory": memory}
        text = _text(snapshot.moment, rest)
        self._last = seen
        return text


def _seen(snapshot: Snapshot) -> dict[str, Any]:
    readings: dict[str, Any] = {name: snapshot.all(kind) for name, kind in READINGS.items()}
    servers = tuple(replace(server, gpus=()) for server in snapshot.servers if server.processes)
    return {"servers": servers, "failures": snapshot.failures, **readings}


def _text(moment: Moment, rest: Mapping[str, Any]) -> bytes:
    return _encoder.encode({"moment": moment, **rest}) + b"\n"


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
    """Yield the snapshots of a recording; see `recorded`."""
    return (one.snapshot for one in recorded(path))


def recorded(path: Path) -> Iterator[Recorded]:
    """Yield what is in a file (`.jsonl`, `.jsonl.gz`) or in the bundle of an incident, but for a last line cut short.

    Raises ConfigError that names file and line.
    """
    file, reader = recording_file(path), _Reader()
    for number, text in enumerate(lines_of(file), 1):
        yield _read(reader, text, f"{file}: line {number}")


def _read(reader: "_Reader", text: bytes, where: str) -> Recorded:
    try:
        return reader.read(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: is no snapshot: {error}") from None


class _Reader:
    """Reads lines one after another, and remembers what the next may leave out."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[Any, ...]] = {}
        self._plain: dict[str, Any] = {}  # the same as read from JSON, of what was ever left out in part

    def read(self, text: bytes) -> Recorded:
        """Return what a line says; raises what its decoder does, or ValueError."""
        line = _decoder.decode(text)
        if line.changed is not msgspec.UNSET:
            self._change(line.changed)
        elif line.servers is not msgspec.UNSET:
            self._values, self._plain = {name: getattr(line, name) for name in FIELDS}, {}
        else:
            raise ValueError("it says neither which servers there are nor what has changed")
        values = self._values
        if (
            not _phases(values["log"]) <= {None, *PHASES}
            or not {one.engine for one in values["servers"]} <= ENGINE_NAMES
        ):
            raise ValueError("it names a phase or an engine that is not known")
        readings = tuple(reading for name in READINGS for reading in values[name])
        snapshot = Snapshot(line.moment, values["servers"], readings, values["failures"])
        return Recorded(snapshot, None if line.memory is msgspec.UNSET else line.memory)

    def _change(self, told: Mapping[str, Any]) -> None:
        if not self._values:
            raise ValueError("it says what has changed, and no whole line comes before it")
        for name, change in told.items():
            kind: Any = FIELDS.get(name)
            if kind is None:
                raise ValueError(f"it changes {name[:40]!r}, which no snapshot has")
            if name not in self._plain:
                self._plain[name] = msgspec.json.decode(_encoder.encode(self._values[name]))
            self._plain[name] = changed(self._plain[name], change)
            self._values[name] = msgspec.convert(self._plain[name], tuple[kind, ...])


def _phases(readings: Iterable[LogReading]) -> set[str | None]:
    logs = [log for reading in readings for log in reading.logs]
    return {log.phase for log in logs} | {rank.phase for log in logs for rank in log.ranks}
