"""What has a process used up, by /proc/PID/stat, and what has a whole tree of processes?"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

Identity = tuple[int, int]  # pid and start in ticks: pids are used again


@dataclass(frozen=True, slots=True)
class Stat:
    """One process at one moment; CPU in ticks, what it reaped is of children that have ended."""

    at: float
    id: Identity
    parent: int
    state: str
    cpu: int  # ticks
    reaped_cpu: int
    minor_faults: int
    major_faults: int
    reaped_faults: int

    @classmethod
    def parse(cls, text: bytes, at: float) -> "Stat":
        """Read the text of /proc/PID/stat."""
        pid, _, rest = text.partition(b" ")
        part = rest.rpartition(b")")[2].split()  # a process may have spaces and brackets in its name
        state, parent = part[0].decode(), int(part[1])
        minor, minor_reaped, major, major_reaped, user, system, user_reaped, system_reaped = map(int, part[7:15])
        ours, reaped = user + system, user_reaped + system_reaped
        identity = (int(pid), int(part[19]))
        return cls(at, identity, parent, state, ours, reaped, minor, major, minor_reaped + major_reaped)


@dataclass(slots=True)
class Total:
    """A sum over the processes of a tree that does not fall when one ends, nor count twice what its parent inherits."""

    value: int = 0
    _last: dict[Identity, tuple[int, int]] = field(default_factory=dict)

    def add(self, stats: Iterable[Stat], value_of: Callable[[Stat], int | None]) -> int:
        """Take in who is there now and return the sum so far; a value of None stands still."""
        now: dict[Identity, tuple[int, int]] = {}
        for stat in stats:
            value, (_, before) = value_of(stat), self._last.get(stat.id, (0, 0))
            now[stat.id] = (stat.parent, before if value is None else value)
        alive = {pid for pid, _ in now}
        gained = sum(value - self._last.get(key, (0, 0))[1] for key, (_, value) in now.items())
        ended = (self._last[key] for key in self._last.keys() - now.keys())
        inherited = sum(value for parent, value in ended if parent in alive)
        self.value += max(0, gained - inherited)
        self._last = now
        return self.value


def cpu_of(stat: Stat) -> int:
    """Return the CPU time of a process and of its children that have ended, in ticks."""
    return stat.cpu + stat.reaped_cpu


def faults_of(stat: Stat) -> int:
    """Return the page faults of a process and of its children that have ended."""
    return stat.minor_faults + stat.major_faults + stat.reaped_faults
