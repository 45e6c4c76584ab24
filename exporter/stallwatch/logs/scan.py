"""What does a piece of log hold?

Speed is the point: a busy server writes batches and access lines by the thousand, so these are counted by operations
over the whole piece, and only telling lines cost Python code. That is why each search begins with a short fixed text.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from stallwatch.logs import markers
from stallwatch.logs.markers import Marker

# Only the ranks that engines have: what else stands in brackets may be of a prompt. No number has thousands of digits.
_RANK = rb"(?:ATTN_|MOE_|[DP]?)(?:[TPDEC]P|SP)\d{1,5}"
_RANKS = (
    re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?((?: %b){1,8})\]" % _RANK),
    re.compile(rb"\((?:(?:Vllm)?Worker(?:Proc)?[_ ]|EngineCore_)(%b(?:_%b){0,7}) pid=" % (_RANK, _RANK)),
)
_STAMP = re.compile(rb"(?:(\d{4})-|[A-Z] )(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)")
# Some wrappers cut the times off; then only the end of the line tells that the numbers are whole.
_BAR = re.compile(rb"\| *(\d{1,15})/(\d{1,15})(?: \[(?:(\d{1,6}):)?(\d{1,6}):(\d\d)<[^\n\]]{0,80}(?:it/s|s/it)\]| *\n)")
_ACCESS = re.compile(rb' - "[A-Z]+ [^"\n]* HTTP/\d')
_DECODE = re.compile(rb"Decode batch(?:[.,]| \[\d+\],) #")
_PREFILL = re.compile(rb"Prefill batch(?:[.,]| \[\d+\],) #")
# A health probe asks for one token behind a prompt of one; several that wait make one batch.
_PROBE = re.compile(rb"Prefill batch(?:[.,]| \[\d+\],) #new-seq: (\d{1,9}), #new-token: \1, #cached-token: 0,")
_RATE = rb"(\d{1,15}(?:\.\d{0,15})?)"
_THROUGHPUT = re.compile(b"Avg prompt throughput: %b tokens/s, Avg generation throughput: %b tokens/s" % (_RATE, _RATE))
_VERSIONS = tuple(
    re.compile(before + rb"(\d[\w.+-]{0,40})")
    for before in (rb"LLM engine \(v", rb"Launching vLLM \(v", rb"vLLM API server version ", b"\xe2\x96\x88 +version ")
)
_BAR_TEXTS = tuple((text.encode(), marker) for marker in markers.BARS for text in marker.texts)
PREFIX = 400  # how far before its text the rank of a line is looked for
_WEAKER = ("other", "heartbeat", "progress", "error")


@dataclass(frozen=True, slots=True)
class Mark:
    """One telling line: what it means, where in the piece it begins, which rank wrote it."""

    marker: Marker
    start: int
    end: int
    rank: str = ""
    ratio: float | None = None  # how far a bar is
    elapsed: float = 0.0  # seconds since the bar began
    written: float | None = None  # what the clock of the log said, where that was asked for


@dataclass(frozen=True, slots=True)
class Found:
    """What a piece of log holds: lines by kind, errors by kind, and its telling lines in their order.

    Of the lines that come by the thousand (batches, probes) only the last one is among the marks.
    """

    lines: Counter[str]
    errors: Counter[str]
    marks: tuple[Mark, ...]
    version: str = ""
    last_written: float | None = None  # when its last line was written, by the clock of the log


class Scanner:
    """Reads one server's log piece by piece, whole lines each; remembers how far the bars were."""

    def __init__(self, engine: str) -> None:
        self._tables = _tables(engine)
        foreign = markers.FOREIGN.get(engine, sum(markers.FOREIGN.values(), ()))
        self._foreign = [re.compile(text.encode() + rb"[^\n]*") for text in foreign]
        self._may_be_vllm = engine != "sglang"
        self._bars: dict[str, int] = {}

    def forget_bars(self) -> None:
        """Let the bars start from zero, for a server that starts anew."""
        self._bars.clear()

    def own_text(self, data: bytes) -> bytes:
        """Return these lines without what stands in them of users."""
        for foreign in self._foreign:
            data = foreign.sub(b"", data)
        return data

    def scan(self, data: bytes, *, dated: bool = False) -> Found:
        """Tell what these lines hold, each ended by a newline and none empty; `dated` asks for the times they state."""
        data = self.own_text(data)
        rare = [*self._telling(data), *self._rising(data)]
        if self._may_be_vllm:
            rare += _throughput(data)
        lines = _lines(data, rare)
        errors = Counter(mark.marker.error for mark in rare if mark.marker.error)
        marks = sorted([*rare, *_last_batches(data, lines)], key=lambda mark: mark.start)
        version = _version(data) if self._may_be_vllm else ""
        found = Found(lines, errors, tuple(marks), version)
        return _dated(data, found) if dated else found

    def _telling(self, data: bytes) -> Iterator[Mark]:
        for table in self._tables:
            for at, marker in table.find(data):
                yield _mark(data, at, marker)

    def _rising(self, data: bytes) -> Iterator[Mark]:
        """Find the bars that are further than they were when last drawn."""
        if b"%" not in data:
            return
        for bar in _BAR.finditer(data):
            words = data[data.rfind(b"\n", 0, bar.start()) + 1 : bar.start()]
            marker = next((marker for text, marker in _BAR_TEXTS if text in words), None)
            if marker is None:
                continue
            count, total, hours, minutes, seconds = (int(part or 0) for part in bar.groups())
            rose = count > self._bars.get(marker.word, 0)
            self._bars[marker.word] = count
            if rose:
                elapsed = hours * 3600.0 + minutes * 60 + seconds
                mark = _mark(data, bar.start(), marker)
                yield replace(mark, ratio=min(1.0, count / max(total, 1)), elapsed=elapsed)


class _Table:
    """Finds the texts of one table that follow a short fixed text, unless something common follows it."""

    def __init__(self, before: bytes, common: bytes, table: tuple[Marker, ...]) -> None:
        self._each = [(re.compile(_pattern(text)), marker) for marker in table for text in marker.texts]
        every = b"|".join(pattern.pattern for pattern, _ in self._each)
        self._any = re.compile(b"%b(?!%b)(?=%b)" % (before, common, every))

    def find(self, data: bytes) -> Iterator[tuple[int, Marker]]:
        for match in self._any.finditer(data):
            at, end = match.span()
            matching = (marker for text, marker in self._each if text.match(data, end))
            yield at, next(marker for marker in matching if not marker.writer or _wrote(marker.writer, data, at))


def _wrote(writer: str, data: bytes, at: int) -> bool:
    start = max(data.rfind(b"\n", 0, at) + 1, at - PREFIX)
    return data.find(writer.encode(), start, at) >= 0


def _pattern(text: str) -> bytes:
    return pattern_of(text).encode()


def pattern_of(text: str, few: str = r"[^\n]{0,60}?", more: str = r"[^\n]{0,400}?") -> str:
    """Return a text of a table as a regular expression, with these for `*` and `**`."""
    return re.escape(text).replace(r"\*\*", more).replace(r"\*", few)


def _tables(engine: str) -> tuple[_Table, ...]:
    own = {"sglang": markers.SGLANG, "vllm": markers.VLLM}.get(engine, markers.SGLANG + markers.VLLM)
    started = markers.STARTED.get(engine, markers.STARTED["sglang"])
    return (
        _Table(rb"\] ", rb"Decode b|Prefill b|INFO: ", (*own, *markers.TORCH)),
        _Table(rb":     ?", rb"\d", (*markers.UVICORN, started)),
        _Table(rb"Error: ", rb"\d", markers.EXCEPTIONS),
    )


def _mark(data: bytes, at: int, marker: Marker) -> Mark:
    start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
    before = data[max(start, at - PREFIX) : at + 1]
    ranks = [rank for pattern in _RANKS for rank in pattern.findall(before)]
    rank = ranks[-1].decode().strip().replace(" ", "_") if ranks else ""
    return Mark(marker, start, end if end >= 0 else len(data), rank)


def _throughput(data: bytes) -> Iterator[Mark]:
    for match in _THROUGHPUT.finditer(data):
        moved = any(float(rate) > 0 for rate in match.groups())
        yield _mark(data, match.start(), markers.THROUGHPUT if moved else markers.NO_THROUGHPUT)


def _version(data: bytes) -> str:
    stated = next((match for pattern in _VERSIONS if (match := pattern.search(data))), None)
    return stated[1].decode() if stated else ""


def _lines(data: bytes, rare: list[Mark]) -> Counter[str]:
    """Count the lines of each kind; a line that says several things counts once, for the gravest."""
    kinds: dict[int, str] = {}
    for mark in rare:
        kinds[mark.start] = max(mark.marker.kind, kinds.get(mark.start, "other"), key=_WEAKER.index)
    prefills = len(_PREFILL.findall(data))
    probes = len(_PROBE.findall(data)) if prefills else 0
    lines = Counter(kinds.values())
    lines["progress"] += len(_DECODE.findall(data)) + prefills - probes
    lines["heartbeat"] += probes
    lines["access"] += len(_ACCESS.findall(data))
    told = lines.total() - lines["other"]
    lines["other"] = max(0, data.count(b"\n") - told)
    return lines


def _last_batches(data: bytes, lines: Counter[str]) -> Iterator[Mark]:
    if (at := _last(data, b"Decode batch", _DECODE)) >= 0:
        yield _mark(data, at, markers.DECODE)
    if (at := _last(data, b"Prefill batch", _PREFILL, unlike=_PROBE)) >= 0:
        yield _mark(data, at, markers.PREFILL)
    if lines["heartbeat"] and (at := _last(data, b"Prefill batch", _PROBE)) >= 0:
        yield _mark(data, at, markers.PROBE)


def _last(data: bytes, text: bytes, like: re.Pattern[bytes], unlike: re.Pattern[bytes] | None = None) -> int:
    at = len(data)
    while (at := data.rfind(text, 0, at)) >= 0:
        if like.match(data, at) and not (unlike and unlike.match(data, at)):
            break
    return at


def _dated(data: bytes, found: Found) -> Found:
    marks = tuple(replace(mark, written=_time(data, mark.end, mark.elapsed)) for mark in found.marks)
    return replace(found, marks=marks, last_written=_time(data, len(data)))


def _time(data: bytes, end: int, elapsed: float = 0.0) -> float | None:
    """Return the time that the last line before `end` which states one states; a bar adds how long it has run since."""
    while end > 0:
        start = data.rfind(b"\n", 0, end - 1) + 1
        stamp = _STAMP.search(data, start, min(end, start + 200))
        if stamp and (seconds := _seconds(stamp)) is not None:
            return seconds + elapsed
        end = start
    return None


def _seconds(stamp: re.Match[bytes]) -> float | None:
    year, month, day, hour, minute, second = (int(part or 2000) for part in stamp.groups())  # vLLM states no year
    try:  # as if it were UTC: only differences are ever used
        return datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
