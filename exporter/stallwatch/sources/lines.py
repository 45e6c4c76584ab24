"""Which lines did a server write last that tell of progress or of errors?

A log holds prompts and keys, so no line leaves this file as it is. A telling line is put together anew from what the
tables of `logs/markers.py` say it begins with, and from measures that are known by name and whose values are numbers:
whatever else it holds cannot be in it.

Reasons of failures: those of the log collector.
"""

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from stallwatch.collectors.log import each_of, target
from stallwatch.logs import journal, markers, rotation
from stallwatch.logs.markers import Marker
from stallwatch.logs.place import JOURNAL, Place
from stallwatch.logs.scan import Mark, Scanner, pattern_of
from stallwatch.logs.tail import HISTORY, PIECE, Lines
from stallwatch.redaction import clean
from stallwatch.snapshot import Failure, Reading

__all__ = ["NAME", "Line", "LinesReading", "LogLines", "reader", "target"]

NAME = "lines"
MOST_PROGRESS = 30
MOST_ERRORS = 20
LONGEST = 300
MOST_ALONE = 1500  # lines of a piece that are scanned one by one, which takes some 50 µs each
CLOSELY = 256 << 10  # at the end of a log, in which each batch is told; before that only some of them

_MEASURES = (
    "#running-req, #queue-req, #token, #tokens, #new-seq, #new-token, #cached-token, #prealloc-req, #transfer-req, "
    "#retracted-req, token usage, gen throughput (token/s), input throughput (token/s), accept len, accept rate, "
    "elapsed, avail mem, mem usage, K size, V size, max_total_num_tokens, chunked_prefill_size, max_prefill_tokens, "
    "max_running_requests, context_len, available_gpu_mem, watchdog_timeout, timeout, world_size, rank, tp_size, "
    "SeqNum, NumelIn, NumelOut, Timeout(ms), Avg prompt throughput, Avg generation throughput, Running, Waiting, "
    "GPU KV cache usage, Prefix cache hit rate"
)
_NAMES = "|".join(map(re.escape, _MEASURES.split(", ")))
_NUMBER = r"-?[0-9](?:[0-9.,]{0,18}[0-9])?(?: ?(?:GiB|GB|MiB|MB|ms|seconds|secs|s|tokens/s|tokens|reqs|%)(?![\w/]))?"
_MEASURE = re.compile(
    rf"(?<![\w#])(?:(?:{_NAMES})(?:=|: ?){_NUMBER}|cuda graph: (?:True|False)"
    r"|OpType=[A-Z_]{3,20}(?![\w]))"
)
_NEXT = re.compile(rf"[ :(]{{0,3}}{_NUMBER}")
_TIME = re.compile(r"(?:[0-9]{4}-)?[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}")
_FILLING = re.compile(
    r"[0-9.]+|(?:(?:target|draft|decode|extend|prefill|verify) )*(?:cuda|CUDA|cpu)|(?:Vllm)?Worker[-_]?[0-9]{1,5}"
)
_BATCHES = {"decode": "Decode batch", "prefill": "Prefill batch", "throughput": "", "no_throughput": ""}


@dataclass(frozen=True, slots=True)
class Line:
    """One telling line: its marker's word and kind, the rank that wrote it, when by the clock of the log, and its text.

    `text` is what the tables know of it and the measures in it; `ratio` how far a bar is.
    """

    word: str
    kind: str  # progress or error
    rank: str
    time: str
    text: str
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class LogLines:
    """The last telling lines of one server's log, oldest first, and how much of it was read."""

    server: str
    size_bytes: int
    read_bytes: int
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class LinesReading(Reading):
    """The logs of the servers that were asked about."""

    logs: tuple[LogLines, ...] = ()


@dataclass(slots=True)
class _Last:
    """The last lines of each kind, in their order."""

    progress: deque[tuple[int, Line]] = field(default_factory=lambda: deque(maxlen=MOST_PROGRESS))
    errors: deque[tuple[int, Line]] = field(default_factory=lambda: deque(maxlen=MOST_ERRORS))
    count: int = 0

    def take(self, line: Line) -> None:
        """Add a line; of a bar that rises, only how far it got."""
        lines = self.errors if line.kind == "error" else self.progress
        if line.ratio is not None and lines and _is_same_bar(lines[-1][1], line):
            lines.pop()
        lines.append((self.count, line))
        self.count += 1

    def in_order(self) -> tuple[Line, ...]:
        """Return all of them, oldest first."""
        return tuple(line for _, line in sorted((*self.progress, *self.errors), key=lambda pair: pair[0]))


def _is_same_bar(before: Line, line: Line) -> bool:
    return before.ratio is not None and (before.word, before.rank) == (line.word, line.rank)


def told(mark: Mark, text: str) -> Line:
    """Return what may be shown of a telling line."""
    began, after = _beginning(mark.marker, text)
    nearest = None if began.endswith(("[", "(")) else _NEXT.match(text, after)
    first = began + nearest[0] if nearest else began.rstrip(" [(=:")
    measured = (found[0] for found in _MEASURE.finditer(text, after, after + 1000))
    # Nothing to redact is left in it, and `#token: 5` looks like a secret.
    said = clean(", ".join(part for part in (first, *measured) if part), LONGEST)
    time_of_it = _TIME.search(text[:100])
    ratio = None if mark.ratio is None else round(mark.ratio, 3)
    return Line(mark.marker.word, mark.marker.kind, mark.rank, time_of_it[0] if time_of_it else "", said, ratio)


def _beginning(marker: Marker, text: str) -> tuple[str, int]:
    """Return what the tables know that stands in this line, and where in it that ends."""
    if marker.word in _BATCHES and not marker.texts:
        begins = _BATCHES[marker.word]
        return begins, max(0, text.find(begins))
    if marker in markers.BARS:
        return next((known.strip() for known in marker.texts if known in text), ""), len(text)
    for known in marker.texts:
        pattern = pattern_of(known, "([^\n]{0,60}?)", "([^\n]{0,400}?)")
        if found := re.search(pattern, text):
            return _filled(known, found.groups()), found.end()
    return marker.texts[0] if marker.texts else "", len(text)


def _filled(known: str, groups: tuple[str, ...]) -> str:
    """Return a text of the tables with what was found for its wildcards, as far as that can be nothing but a number."""
    rest = iter(groups)
    return re.sub(r"\*\*?", lambda _: said if _FILLING.fullmatch(said := next(rest)) else "...", known)


def _pieces(descriptor: int, size: int) -> Iterator[bytes]:
    """Yield the whole lines of the end of a file: large pieces, and at the very end line by line."""
    lines, start = Lines(), max(0, size - HISTORY)
    if start:
        start -= 1  # one byte more tells whether a line begins there
        lines.skip_to_next()
    while start < size and (piece := os.pread(descriptor, min(PIECE // 8, size - start), start)):
        start += len(piece)
        whole = lines.cut(piece)
        yield from _each(whole) if size - start < CLOSELY else (whole,)
    if lines.unfinished:
        yield lines.finish()


def _each(whole: bytes) -> Iterator[bytes]:
    every = whole.splitlines(keepends=True)
    if early := b"".join(every[:-MOST_ALONE]):
        yield early
    yield from every[-MOST_ALONE:]


def _read(wanted: Mapping[str, Any]) -> LogLines:
    """Read the end of one log; raises OSError."""
    if wanted["path"].startswith(JOURNAL):
        text = journal.recent(wanted["path"])
        return LogLines(wanted["server"], len(text), len(text), _last_of(_each(text), wanted["engine"]))
    file = rotation.open_log(Place(wanted["path"], wanted["root"]))
    try:
        size = os.fstat(file.descriptor).st_size
        lines = _last_of(_pieces(file.descriptor, size), wanted["engine"])
        return LogLines(wanted["server"], size, min(size, HISTORY), lines)
    finally:
        os.close(file.descriptor)


def _last_of(pieces: Iterable[bytes], engine: str) -> tuple[Line, ...]:
    scanner, last = Scanner(engine), _Last()
    for piece in pieces:
        own = scanner.own_text(piece)
        for mark in scanner.scan(own).marks:
            if mark.marker.kind in {"progress", "error"}:
                last.take(told(mark, own[mark.start : mark.end].decode(errors="replace")))
    return last.in_order()


def reader(
    options: Mapping[str, str],  # noqa: ARG001 the same for every reader
    note: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[list[dict[str, Any]], frozenset[str]], tuple[LinesReading, tuple[Failure, ...]]]:
    """Return the function that reads the last telling lines of servers."""

    def read(targets: list[dict[str, Any]], skip: frozenset[str]) -> tuple[LinesReading, tuple[Failure, ...]]:
        logs, failures = each_of(NAME, targets, skip, note, _read)
        return LinesReading(clock(), logs), failures

    return read
