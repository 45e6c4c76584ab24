"""Which GPU sits at which PCI address? The kernel knows a GPU by its address, the driver by its UUID.

What was seen once stays known: a GPU that fell off the bus is still the one that the kernel tells of, and the driver
may be out of reach just then.
"""

from dataclasses import replace

from stallwatch.collectors.gpu import GpuReading
from stallwatch.collectors.kernel import KernelReading, Xid
from stallwatch.gpus.xids import address_of
from stallwatch.snapshot import Reading


class Slots:
    """The GPUs of the node by their PCI addresses, remembered."""

    def __init__(self) -> None:
        self._gpus: dict[str, tuple[str, str]] = {}
        self._named: tuple[KernelReading, dict[str, tuple[str, str]], KernelReading] | None = None

    def name(self, readings: tuple[Reading, ...]) -> tuple[Reading, ...]:
        """Return the readings with the GPUs named that the kernel tells of."""
        for reading in readings:
            if isinstance(reading, GpuReading):
                self._learn(reading)
        return tuple(self._of(reading) if isinstance(reading, KernelReading) else reading for reading in readings)

    def _learn(self, reading: GpuReading) -> None:
        seen = {address_of(gpu.pci_bus_id): (str(gpu.index), gpu.uuid) for gpu in reading.gpus if gpu.pci_bus_id}
        if not seen.items() <= self._gpus.items():
            self._gpus = self._gpus | seen

    def _of(self, reading: KernelReading) -> KernelReading:
        """Return the same object for the same reading, which is then not rendered again."""
        if self._named is None or self._named[0] is not reading or self._named[1] is not self._gpus:
            named = replace(reading, xids=tuple(map(self._placed, reading.xids)))
            self._named = reading, self._gpus, named
        return self._named[2]

    def _placed(self, xid: Xid) -> Xid:
        gpu, uuid = self._gpus.get(xid.address, (xid.gpu or xid.address, xid.uuid))
        return replace(xid, gpu=gpu, uuid=uuid)
