"""What does the text of an NCCL from 2.24 to 2.28.3 say, which knows no JSON?

It names only what stands out: communicators whose ranks differ, and of their ranks the few. A communicator counts as
the server's where one of the ranks that it names is.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from stallwatch.redaction import public
from stallwatch.sources.ras_answer import (
    MOST_COMMUNICATORS,
    MOST_OPERATIONS,
    MOST_RANKS,
    Answer,
    Communicator,
    Count,
    Lost,
    Operation,
    Who,
    by_size,
)

_VERSION = re.compile(r"NCCL version (\S{1,64}) compiled with CUDA")
_HEAD = re.compile(r"(?:#\d{1,9}-\d{1,9} \(([0-9a-f]{1,16})\) )?(MISMATCH|INCOMPLETE|ERROR|DEAD|TIMEOUT)")
_OPERATION = re.compile(r"  Communicator ranks have different (\w{1,64})(?: operation counts)?")
_MANY = re.compile(r"  (\d{1,9}) ranks have (?:launched up to operation (\d{1,18})|not launched any operations)")
_ONE = re.compile(r"  Rank (\d{1,9}) has (?:launched up to operation (\d{1,18})|not launched any operations) -- (.*)")
_RANK = re.compile(r"  Rank (\d{1,9}) (?:--|reported .* --|has status .* --) (.*)")
_PROCESS = re.compile(r"  Process (\d{1,10}) on node (\S{1,256}) managing ")
_MANAGED = re.compile(r"GPU .{1,64} managed by process (\d{1,10}) on node (\S{1,256})")


@dataclass(slots=True)
class _Group:
    """What the text says of one communicator."""

    ours: bool = False
    counts: dict[str, list[Count]] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def told(self, name: str) -> Communicator:
        operations = [
            Operation(operation, tuple(sorted(counts, key=by_size)))
            for operation, counts in self.counts.items()
            if len(counts) > 1
        ]
        size = max((sum(count.size for count in one.counts) for one in operations), default=0)
        return Communicator(name, size + len(self.lost), size, tuple(operations), tuple(self.lost), tuple(self.failed))


@dataclass(slots=True)
class _Reader:
    """Goes through the lines, and knows below which head one stands."""

    who: Who
    groups: dict[str, _Group] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)
    group: str = ""
    section: str = ""
    operation: str = ""

    def take(self, line: str) -> None:
        """Take in one line; one that says nothing of this is left."""
        if head := _HEAD.fullmatch(line):
            self.group, self.section, self.operation = head[1] or "", head[2], ""
        elif operation := _OPERATION.fullmatch(line):
            self.operation = operation[1] if line.endswith("counts") else ""
        elif process := _PROCESS.match(line):
            self._process(int(process[1]), process[2])
        elif self.group and (self.group in self.groups or len(self.groups) < MOST_COMMUNICATORS):
            self._in_group(self.groups.setdefault(self.group, _Group()), line)

    def _process(self, pid: int, host: str) -> None:
        rank = self.who.rank(pid, host)
        if rank and self.section in ("DEAD", "INCOMPLETE") and not self.group:
            self.lost.append(Lost(rank, "dead" if self.section == "DEAD" else "unresponsive"))

    def _in_group(self, group: _Group, line: str) -> None:
        counts = group.counts.setdefault(self.operation, []) if self.operation else []
        if len(counts) >= MOST_RANKS or len(group.lost) >= MOST_RANKS or len(group.counts) > MOST_OPERATIONS:
            return
        if (many := _MANY.fullmatch(line)) and self.operation:
            counts.append(Count(int(many[2] or 0), int(many[1]), ()))
        elif (one := _ONE.fullmatch(line)) and self.operation:
            counts.append(Count(int(one[2] or 0), 1, (self._name(group, int(one[1]), one[3]),)))
        elif rank := _RANK.fullmatch(line):
            self._named(group, counts, self._name(group, int(rank[1]), rank[2]))

    def _named(self, group: _Group, counts: list[Count], name: str) -> None:
        if self.section == "INCOMPLETE":
            group.lost.append(Lost(name, "unresponsive"))
        elif self.section == "ERROR":
            group.failed.append(name)
        elif counts and len(counts[-1].ranks) < counts[-1].size:
            last = counts[-1]
            counts[-1] = Count(last.launched, last.size, (*last.ranks, name))

    def _name(self, group: _Group, number: int, managed: str) -> str:
        found = _MANAGED.fullmatch(managed)
        pid, host = (int(found[1]), found[2]) if found else (-1, "unknown")
        group.ours |= self.who.rank(pid, host) is not None
        return self.who.name(number, pid, host)


def of_text(body: bytes, who: Who) -> Answer:
    """Take in an answer as text; raises ValueError for what is none."""
    text = body.decode(errors="replace")
    version = _VERSION.match(text)
    if version is None:
        raise ValueError("it is not the text of NCCL RAS")
    reader = _Reader(who)
    for line in _lines(text):
        reader.take(line)
    ours = tuple(group.told(name) for name, group in reader.groups.items() if group.ours)
    return Answer(public(version[1]), ours, tuple(reader.lost), len(reader.groups) - len(ours))


def _lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if len(line) < 1024:
            yield line.rstrip("\r")
