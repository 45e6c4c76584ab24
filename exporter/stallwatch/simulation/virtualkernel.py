"""What does the kernel log of a scenario tell? An Xid line for each one that a segment gives, at its begin."""

from collections.abc import Iterable

from stallwatch.collectors.kernel import KernelReading, Xid
from stallwatch.gpus.xids import CRITICAL
from stallwatch.simulation.player import UPTIME, Player


def pci_address(index: int) -> str:
    """Return where a played GPU sits."""
    return f"0000:{index + 16:02x}:00"


class VirtualKernel:
    """The kernel log of a played node, which outlives its servers."""

    def __init__(self) -> None:
        self._told: set[tuple[int, float]] = set()
        self._xids: dict[tuple[str, int], Xid] = {}

    def reading(self, players: Iterable[Player], now: float) -> KernelReading | None:
        """Return the reading of the kernel log, None as long as no segment has given a line of it."""
        for player in players:
            given = player.state.values.get("gpu.xid")
            if given and (player.number, given.begin) not in self._told:
                self._told.add((player.number, given.begin))
                for index, code in given.value.items():
                    self._log(pci_address(index), code, UPTIME + given.begin)
        return KernelReading(now, tuple(self._xids.values())) if self._xids else None

    def _log(self, address: str, code: int, at: float) -> None:
        known = self._xids.get((address, code))
        count = known.count + 1 if known else 1
        self._xids[address, code] = Xid(address, code, count, at, at if code in CRITICAL else None)
