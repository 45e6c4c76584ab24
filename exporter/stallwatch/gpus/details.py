"""What does NVML say about a GPU beyond what is watched all the time: errors, memory repair, PCIe, NVLink?

For one look at a GPU when its server stands still. The rules are those of `Device`, which is asked here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from stallwatch.gpus.nvml import CallError, Device, value_of, within

INVALID_ARGUMENT = 2
MOST_LINKS = 36
NOT_A_STATE = 32  # of performance
COMPUTE_MODES = ("default", "exclusive_thread", "prohibited", "exclusive_process")
LINK_ERRORS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3}  # by nvmlNvLinkErrorCounter_t

_CLOCK_MEMORY = 2
_CORRECTED, _UNCORRECTED, _VOLATILE, _AGGREGATE = 0, 1, 0, 1
_SENT, _RECEIVED, _ALL_LINKS = 138, 139, 2**32 - 1  # KiB since the driver was loaded


@dataclass(frozen=True, slots=True)
class Link:
    """One NVLink: whether it is up, and the errors that it has counted; what it does not count is absent."""

    number: int
    active: bool
    errors: dict[str, int]


class Details:
    """One GPU while the library is up: each method returns None where the GPU cannot tell or tells nonsense."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def memory_clock_hertz(self) -> float | None:
        """Return the clock of the memory."""
        megahertz = within(self._device.ask("nvmlDeviceGetClockInfo", _CLOCK_MEMORY, feature="memory clock"), 0, 20_000)
        return None if megahertz is None else megahertz * 1e6

    def performance_state(self) -> int | None:
        """Return the performance state: 0 is the highest, 15 the lowest."""
        return self._count("nvmlDeviceGetPerformanceState", most=NOT_A_STATE - 1)

    def persistence_mode(self) -> bool | None:
        """Say whether the driver stays loaded when nobody uses it."""
        return _flag(self._count("nvmlDeviceGetPersistenceMode", most=1))

    def compute_mode(self) -> str | None:
        """Return who may compute on it."""
        number = self._count("nvmlDeviceGetComputeMode", most=len(COMPUTE_MODES) - 1)
        return None if number is None else COMPUTE_MODES[number]

    def ecc_volatile_corrected(self) -> int | None:
        """Count memory errors that were corrected since the driver was loaded."""
        return self._ecc(_CORRECTED, _VOLATILE)

    def ecc_volatile_uncorrected(self) -> int | None:
        """Count memory errors that were not, since the driver was loaded."""
        return self._ecc(_UNCORRECTED, _VOLATILE)

    def ecc_aggregate_corrected(self) -> int | None:
        """Count memory errors that were corrected in the life of the GPU."""
        return self._ecc(_CORRECTED, _AGGREGATE)

    def ecc_aggregate_uncorrected(self) -> int | None:
        """Count memory errors that were not, in the life of the GPU."""
        return self._ecc(_UNCORRECTED, _AGGREGATE)

    def retired_pages_pending(self) -> bool | None:
        """Say whether bad pages wait for a restart to be retired, on GPUs that cannot remap rows."""
        return _flag(self._count("nvmlDeviceGetRetiredPagesPendingStatus", most=1))

    def remapped_rows(self) -> tuple[int, int, bool, bool] | None:
        """Return how many rows were remapped for corrected and uncorrected errors, if one waits, and if one failed."""
        rows = self._device.ask("nvmlDeviceGetRemappedRows")
        if rows is None or any(within(row, 0, 2**31) is None for row in rows):
            return None
        corrected, uncorrected, pending, failed = rows
        return int(corrected), int(uncorrected), bool(pending), bool(failed)

    def pcie_generation(self) -> int | None:
        """Return the generation that the PCIe link runs at now; it falls while the GPU idles."""
        return self._count("nvmlDeviceGetCurrPcieLinkGeneration", most=32)

    def pcie_generation_max(self) -> int | None:
        """Return the highest generation that GPU and slot both have."""
        return self._count("nvmlDeviceGetMaxPcieLinkGeneration", most=32)

    def pcie_width(self) -> int | None:
        """Return how many lanes the PCIe link has now."""
        return self._count("nvmlDeviceGetCurrPcieLinkWidth", most=64)

    def pcie_width_max(self) -> int | None:
        """Return how many lanes GPU and slot both have."""
        return self._count("nvmlDeviceGetMaxPcieLinkWidth", most=64)

    def pcie_replays(self) -> int | None:
        """Count what had to be sent again over PCIe."""
        return self._count("nvmlDeviceGetPcieReplayCounter", most=2**32)

    def links(self, ask: Callable[[Callable[[], int | None]], int | None], *, errors: bool = True) -> tuple[Link, ...]:
        """Return its NVLinks; a counter is asked for through `ask`, and only of those that are up."""
        found: list[Link] = []
        for number in range(MOST_LINKS):
            active = self._is_active(number)
            if active is None:
                break
            counters = LINK_ERRORS.items() if active and errors else ()
            asked = {word: ask(self._counter(number, word, counter)) for word, counter in counters}
            found.append(Link(number, active, {word: count for word, count in asked.items() if count is not None}))
        return tuple(found)

    def nvlink_bytes(self) -> tuple[int, int] | None:
        """Return the bytes sent and received over all NVLinks since the driver was loaded."""
        asked = [(_SENT, _ALL_LINKS), (_RECEIVED, _ALL_LINKS)]
        fields = self._device.ask("nvmlDeviceGetFieldValues", asked, feature="nvlink bytes")
        if fields is None or any(field.nvmlReturn for field in fields):
            return None
        sent, received = (within(value_of(field.value, field.valueType), 0, 2**50) for field in fields)
        return None if sent is None or received is None else (int(sent) * 1024, int(received) * 1024)

    def _counter(self, link: int, word: str, counter: int) -> Callable[[], int | None]:
        return lambda: self._count(
            "nvmlDeviceGetNvLinkErrorCounter", link, counter, most=2**63, feature=f"nvlink {word}"
        )

    def _is_active(self, link: int) -> bool | None:
        try:
            return _flag(self._count("nvmlDeviceGetNvLinkState", link, most=1))
        except CallError as error:
            if error.code == INVALID_ARGUMENT:  # it has no more links
                return None
            raise

    def _ecc(self, kind: int, counter: int) -> int | None:
        return self._count("nvmlDeviceGetTotalEccErrors", kind, counter, most=2**63)

    def _count(self, name: str, *arguments: object, most: int, feature: str = "") -> int | None:
        value = within(self._device.ask(name, *arguments, feature=feature), 0, most)
        return None if value is None else int(value)


def _flag(number: int | None) -> bool | None:
    return None if number is None else bool(number)
