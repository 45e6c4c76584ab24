"""What was seen in the last half hour? A bounded recording in memory, to be written out when a server hangs.

It is a ring of chunks of a minute, each packed by itself and beginning with a whole line and with what was remembered
then, so that the oldest can be dropped and what is left still says what it said live.
"""

import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stallwatch.recording import Lines
from stallwatch.snapshot import Snapshot

KEPT_SECONDS = 1800.0
MOST_BYTES = 5_000_000
CHUNK_SECONDS = 60.0
CHUNKS = 16
"""A chunk takes at most one of so many parts of the bytes, and no more of the past is dropped at once."""
PACKER_BYTES = 320 * 1024
"""What the compressor takes for itself at its usual settings, with what it holds back."""
LEAST_BYTES = 1 << 20
_GZIP = 16 + zlib.MAX_WBITS


@dataclass(slots=True)
class _Chunk:
    """The chunk that is being written."""

    began: float
    alive: bool = False
    lines: Lines = field(default_factory=Lines)
    data: bytearray = field(default_factory=bytearray)
    packer: "zlib._Compress" = field(default_factory=lambda: zlib.compressobj(wbits=_GZIP))

    def add(self, snapshot: Snapshot, memory: Any) -> None:
        """Write one line."""
        self.data += self.packer.compress(self.lines.line(snapshot, memory))

    def packed(self) -> bytes:
        """Return all of it so far, as it would be if it ended here."""
        return bytes(self.data) + self.packer.copy().flush()


class FlightRecorder:
    """Keeps what was seen in the last seconds, in no more than so many bytes of memory; to be used from one thread."""

    def __init__(self, seconds: float = KEPT_SECONDS, most_bytes: int = MOST_BYTES) -> None:
        if most_bytes < LEAST_BYTES:
            raise ValueError(f"most_bytes: expected at least {LEAST_BYTES}, got {most_bytes}")
        self._seconds = seconds
        self._most = most_bytes
        self._closed: deque[tuple[float, bytes]] = deque()  # when the one after it began, and what it is
        self._closed_bytes = 0
        self._chunk: _Chunk | None = None

    @property
    def held_bytes(self) -> int:
        """Return how much memory this takes, at most."""
        return self._closed_bytes + (len(self._chunk.data) + PACKER_BYTES if self._chunk else 0)

    def take(self, snapshot: Snapshot, remember: Callable[[float], Any] | None = None) -> None:
        """Take in what was seen; `remember` returns what is known at a monotonic time, this snapshot included."""
        now = snapshot.moment.monotonic
        alive = any(server.processes for server in snapshot.servers)
        chunk, memory = self._chunk, None
        if chunk is None or self._is_full(chunk, now) or (alive and not chunk.alive):
            self._close(now)
            self._chunk = chunk = _Chunk(now)
            memory = remember(now) if remember else None
        chunk.alive = chunk.alive or alive
        chunk.add(snapshot, memory)
        self._drop(now)

    def dump(self) -> bytes:
        """Return what is held as the bytes of a recording (`.jsonl.gz`)."""
        last = self._chunk.packed() if self._chunk else zlib.compressobj(wbits=_GZIP).flush()
        return b"".join([*(data for _, data in self._closed), last])

    def _is_full(self, chunk: _Chunk, now: float) -> bool:
        return now - chunk.began >= CHUNK_SECONDS or len(chunk.data) >= self._most // CHUNKS

    def _close(self, now: float) -> None:
        if self._chunk:
            data = self._chunk.packed()
            self._closed.append((now, data))
            self._closed_bytes += len(data)
            self._chunk = None

    def _drop(self, now: float) -> None:
        """Drop what is too old, and of what is too much the oldest."""
        while self._closed and (now - self._closed[0][0] >= self._seconds or self.held_bytes > self._most):
            self._closed_bytes -= len(self._closed.popleft()[1])
        if self.held_bytes > self._most:
            self._chunk = None
