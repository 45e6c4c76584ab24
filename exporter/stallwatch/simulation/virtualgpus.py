"""What do the GPUs of a scenario show? Each what the servers on it give, added up where two share it.

A list with one value for each GPU of the node tells of all of them, also of those that no server holds.
"""

from collections.abc import Iterable, Sequence

from stallwatch.collectors.gpu import Gpu, GpuProcess, GpuReading
from stallwatch.gpus.xids import CRITICAL
from stallwatch.simulation.player import Player
from stallwatch.simulation.plot import Node
from stallwatch.simulation.virtualkernel import pci_address

GIB = 1024**3
EMPTY_GIB = 0.6


class VirtualGpus:
    """The GPUs of a played node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._busy = [0.0] * node.gpus

    def reading(self, players: Sequence[Player], t: float, step: float, now: float) -> GpuReading | None:
        """Return the reading of all GPUs, None where no server gives any."""
        if not any(player.state.has("gpu") for player in players):
            return None
        gpus = tuple(self._gpu(index, players, t, step) for index in range(self._node.gpus))
        return GpuReading(now, "580.95.05", gpus)

    def _gpu(self, index: int, players: Sequence[Player], t: float, step: float) -> Gpu:
        uuid = f"GPU-{index}"
        if any(index in (player.state.word("gpu.lost") or ()) for player in players):
            return Gpu(index, uuid, pci_bus_id=pci_address(index), lost=True)
        held = [(player, place) for player in players if (place := _place(player, index)) is not None]
        utilization = max(self._levels("utilization", index, players, held, t), default=None if held else 0.0)
        power = max(self._levels("power_watts", index, players, held, t), default=None)
        clock = max(self._levels("sm_clock_mhz", index, players, held, t), default=None)
        memory = self._levels("memory_gib", index, players, held, t)
        used = sum(memory) if memory else None if held else EMPTY_GIB
        self._busy[index] += (utilization or 0.0) / 100 * step
        xids = {
            code for player in players for gpu, code in (player.state.word("gpu.xid") or {}).items() if gpu == index
        }
        return Gpu(
            index=index,
            uuid=uuid,
            pci_bus_id=pci_address(index),
            utilization=None if utilization is None else utilization / 100,
            busy_seconds=self._busy[index],
            memory_used=None if used is None else int(used * GIB),
            memory_total=int(self._node.gpu_memory_gib * GIB),
            power_watts=power,
            power_limit_watts=self._node.power_limit_watts,
            sm_clock_hertz=None if clock is None else clock * 1e6,
            recovery_action="gpu_reset" if xids & CRITICAL.keys() else None,
            processes=tuple(_holder(player, place, memory) for player, place in held),
        )

    def _levels(
        self, key: str, index: int, players: Iterable[Player], held: Sequence[tuple[Player, int]], t: float
    ) -> list[float]:
        """Return what is given of one GPU: by the servers that hold it, or by one that tells of the whole node."""
        path = f"gpu.{key}"
        places = held or [(player, index) for player in players if player.state.count(path) == self._node.gpus]
        values = (
            player.state.level(path, index if player.state.count(path) == self._node.gpus else place, t)
            for player, place in places
            if player.state.has("gpu")
        )
        return [value for value in values if value is not None]


def _place(player: Player, index: int) -> int | None:
    return next((number for number, place in enumerate(player.server.gpus) if place.index == index), None)


def _holder(player: Player, place: int, memory: Sequence[float]) -> GpuProcess:
    rank = player.server.gpus[place].rank
    pid = next((one.pid for one in player.alive.processes if one.rank == rank), player.alive.processes[0].pid)
    return GpuProcess(pid, int(memory[0] * GIB) if memory else None)
