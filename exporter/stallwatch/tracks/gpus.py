"""What do the GPUs of a server show, and since when?"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from stallwatch.collectors.gpu import Gpu, GpuReading
from stallwatch.past import COLD, HOT, GpusPast
from stallwatch.placement import holding
from stallwatch.snapshot import Server
from stallwatch.tracks.memory import GpusMemory
from stallwatch.tracks.movement import Ratchet, Since

SPLIT_BELOW = 0.10
MEMORY_RISE = 64 * 1024**2
# `drain_p2p` asks for a drain of a GPU whose links are bad, while it still computes.
FAULTS = frozenset({"gpu_reset", "node_reboot", "drain_and_reset"})


@dataclass
class Gpus:
    """The GPUs of one server."""

    busy_at: float | None = None
    worked: bool = False
    _worked_at: float | None = None
    _hot: Since = field(default_factory=Since)
    _cold: Since = field(default_factory=Since)
    _split: Since = field(default_factory=Since)
    _lost: Since = field(default_factory=Since)
    _memory: dict[str, Ratchet] = field(default_factory=dict)

    def look(self, now: float, server: Server, reading: GpuReading | None, first_seen: float) -> GpusPast:
        """Take in a reading and return what is known of the GPUs."""
        held, gpus = holding(server, reading), _of(server, reading)
        low, high = held.utilization_min, held.utilization_max
        if high is not None and (self.busy_at is None or high >= COLD):
            self.busy_at = now if high >= COLD else first_seen
        self._hot.hold(now, holds=None if low is None else low >= HOT)
        self._cold.hold(now, holds=None if high is None else high < COLD)
        split = None if low is None or high is None else high >= HOT and low < SPLIT_BELOW
        self._split.hold(now, holds=split)
        faults = tuple(sorted({gpu.recovery_action for gpu in gpus if gpu.recovery_action} & FAULTS))
        self._lost.hold(now, holds=bool(held.lost or faults) if gpus else None)
        busy_at, power = None if high is None else self.busy_at, _power(gpus)
        since = (self._hot.at, self._cold.at, self._split.at, self._lost.at)
        past = GpusPast(held, power, busy_at, *since, faults, self.worked)
        self.worked = past.may_compute
        self._worked_at = now if self.worked else self._worked_at
        return replace(past, worked_at=self._worked_at)

    def remember_unbroken(self) -> GpusMemory:
        """Return since when they have shown what they show."""
        held = {"hot": self._hot.at, "cold": self._cold.at, "split": self._split.at, "lost": self._lost.at}
        since = {name: at for name, at in held.items() if at is not None}
        return GpusMemory(busy_at=self.busy_at, worked=self.worked, worked_at=self._worked_at, since=since)

    def recall_unbroken(self, memory: GpusMemory, now: float) -> None:
        """Go on with what was remembered."""
        self.busy_at, self.worked, self._worked_at = memory.busy_at, memory.worked, memory.worked_at
        held = (Since(memory.since.get(name), now) for name in ("hot", "cold", "split", "lost"))
        self._hot, self._cold, self._split, self._lost = held

    def remember(self) -> dict[str, float]:
        """Return the memory of each GPU from which a rise is counted."""
        return {uuid: ratchet.base for uuid, ratchet in self._memory.items() if ratchet.base is not None}

    def recall(self, memory: Mapping[str, float]) -> None:
        """Count rises from what was remembered."""
        self._memory = {uuid: Ratchet(MEMORY_RISE, base) for uuid, base in memory.items()}

    def memory_rises(self, server: Server, reading: GpuReading | None) -> bool | None:
        """Tell whether the memory of any GPU has risen by the floor, None where none can be read."""
        pids = {pid for process in server.processes for pid in (process.pid, *process.tree)}
        known = {gpu.uuid: _memory_of(gpu, pids) for gpu in _of(server, reading)}
        used = {uuid: value for uuid, value in known.items() if value is not None}
        if not used:
            return None
        rises = [self._memory.setdefault(uuid, Ratchet(MEMORY_RISE)).rises(value) for uuid, value in used.items()]
        return any(rises)  # each has to be looked at


def _memory_of(gpu: Gpu, pids: set[int]) -> int | None:
    """Return what these processes hold of a GPU; where the driver does not tell, what is used of it in all."""
    own = [one.memory_bytes for one in gpu.processes if one.pid in pids and one.memory_bytes is not None]
    return sum(own) if own else gpu.memory_used


def _of(server: Server, reading: GpuReading | None) -> list[Gpu]:
    uuids = {place.uuid for place in server.gpus}
    return [gpu for gpu in (reading.gpus if reading else ()) if gpu.uuid in uuids]


def _power(gpus: list[Gpu]) -> float | None:
    ratios = [
        gpu.power_watts / gpu.power_limit_watts
        for gpu in gpus
        if gpu.power_watts is not None and gpu.power_limit_watts and gpu.power_limit_watts >= 1
    ]
    return max(ratios, default=None)
