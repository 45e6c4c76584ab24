"""What does an answer of NCCL RAS say of one server, in JSON or as the text of an NCCL before 2.28.7?

Any program may have written it: it is checked, bounded and cleaned. Collectives are counted as the host launched them,
without those in CUDA graphs and without point-to-point ones.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from stallwatch.redaction import public

MOST_COMMUNICATORS = 256
MOST_RANKS = 2048
MOST_OPERATIONS = 16
_MOST_GROUPS = 16
_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class Count:
    """Ranks that have launched an operation as often; `ranks` may name fewer than there are."""

    launched: int
    size: int
    ranks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """How often the ranks of a communicator have launched one collective: the largest group first."""

    name: str
    counts: tuple[Count, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """A rank without data; `state` is `dead`, `unresponsive`, or `absent` where it answers but has left."""

    rank: str
    state: str


@dataclass(frozen=True, slots=True)
class Communicator:
    """One group of ranks; text tells only operations and ranks that stand out. `failed` ranks report an error."""

    id: str
    size: int
    heard: int
    operations: tuple[Operation, ...]
    lost: tuple[Lost, ...]
    failed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """All that concerns the server: `lost` are processes, which only text tells; `others` counts communicators.

    Text tells no communicator of which all ranks agree, so that `others` holds only those it complains of.
    """

    version: str
    communicators: tuple[Communicator, ...]
    lost: tuple[Lost, ...]
    others: int


@dataclass(frozen=True, slots=True)
class Who:
    """Tells which rank of the server a process is, as NCCL knows it."""

    pids: Mapping[int, str]
    is_here: Callable[[str], bool]

    def rank(self, pid: int, host: str) -> str | None:
        """Return the server's name of a rank, None where it is none of its."""
        return self.pids.get(pid) if self.is_here(host) else None

    def name(self, number: int, pid: int, host: str) -> str:
        """Return the name of a rank, that of NCCL where it is none of the server's on this node."""
        return self.rank(pid, host) or f"rank {number} on {public(host, _LONGEST_NAME)}"


_Number = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=1 << 62)]


class _Status(msgspec.Struct):
    init_state: _Number = 0
    async_error: _Number = 0
    abort_flag: bool = False
    unresponsive: bool = False
    considered_dead: bool = False

    @property
    def failed(self) -> bool:
        return bool({self.init_state, self.async_error} - _NO_ERROR) or self.abort_flag

    @property
    def lost(self) -> str:
        return "dead" if self.considered_dead else "unresponsive" if self.unresponsive else "absent"


class _Rank(msgspec.Struct):
    rank: _Number
    host: str = "unknown"
    pid: _Number = -1
    status: _Status = msgspec.field(default_factory=_Status)
    collective_counts: dict[str, _Number] = {}


class _Group(msgspec.Struct):
    hash: str
    size: _Number
    ranks: list[_Rank] = []
    missing_ranks: list[_Rank] = []


class _Json(msgspec.Struct):
    communicators: list[_Group]
    nccl_version: str = ""


_NO_ERROR = {0, 7}  # ncclSuccess, ncclInProgress
_decode = msgspec.json.Decoder(_Json).decode


def of_json(body: bytes, who: Who) -> Answer:
    """Take in an answer as JSON; raises ValueError for what is none."""
    try:
        found = _decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError("it is not the JSON of NCCL RAS") from error
    ours = [group for group in found.communicators if _concerns(group, who)]
    shown = tuple(_communicator(group, who) for group in ours[:MOST_COMMUNICATORS])
    return Answer(public(found.nccl_version, _LONGEST_NAME), shown, (), len(found.communicators) - len(ours))


def _concerns(group: _Group, who: Who) -> bool:
    return any(who.rank(one.pid, one.host) for one in (*group.ranks, *group.missing_ranks))


def _communicator(group: _Group, who: Who) -> Communicator:
    ranks, missing = group.ranks[:MOST_RANKS], group.missing_ranks[:MOST_RANKS]
    names = {one.rank: who.name(one.rank, one.pid, one.host) for one in (*ranks, *missing)}
    operations = dict.fromkeys(name for one in ranks for name in one.collective_counts)
    return Communicator(
        public(group.hash, _LONGEST_NAME),
        group.size,
        len(group.ranks),
        tuple(filter(None, (_operation(name, ranks, names) for name in list(operations)[:MOST_OPERATIONS]))),
        tuple(Lost(names[one.rank], one.status.lost) for one in missing),
        tuple(names[one.rank] for one in ranks if one.status.failed),
    )


def _operation(name: str, ranks: Iterable[_Rank], names: Mapping[int, str]) -> Operation | None:
    groups: dict[int, list[str]] = {}
    for one in ranks:
        groups.setdefault(one.collective_counts.get(name, 0), []).append(names[one.rank])
    if not any(groups):
        return None
    counts = sorted((Count(launched, len(who), tuple(who)) for launched, who in groups.items()), key=by_size)
    return Operation(public(name, _LONGEST_NAME), tuple(counts[:_MOST_GROUPS]))


def by_size(count: Count) -> tuple[int, int]:
    """Order counts: the largest group first."""
    return -count.size, -count.launched
