"""What is to be said of each GPU of the node: what it did, what is wrong with it, what its NVLinks moved?"""

from collections.abc import Iterator

from stallwatch.sources.gpus import GpuState, GpuStateReading
from stallwatch.wording import joined

GIB = 1024**3
HARMLESS_REASONS = frozenset({"idle", "applications_clocks", "sw_power_cap", "sync_boost", "display_clocks"})
"""Those that say nothing of a fault: a GPU that works at its power limit is slowed by it all the time."""


def lines(reading: GpuStateReading) -> Iterator[str]:
    """Yield a line for each GPU."""
    for gpu in reading.gpus:
        known = [_load(gpu), _clocks(gpu), _bus(gpu), _links(gpu, reading.seconds), joined(faults(gpu))]
        yield f"GPU {gpu.index} {gpu.uuid}: {joined(known) or 'nothing of it can be read'}"


def odd(reading: GpuStateReading) -> str:
    """Name the GPUs of which something is wrong, and what."""
    found = [f"GPU {gpu.index} ({joined(wrong)})" for gpu in reading.gpus if (wrong := list(faults(gpu)))]
    return f"by the state of the GPUs: {joined(found)}" if found else ""


def faults(gpu: GpuState) -> Iterator[str]:
    """Yield what is wrong with a GPU."""
    if gpu.lost:
        yield "lost"
    if gpu.recovery_action not in {None, "", "none"}:
        yield f"needs {str(gpu.recovery_action).replace('_', ' ')}"
    if gpu.ecc_volatile_uncorrected:
        yield f"{gpu.ecc_volatile_uncorrected} uncorrected memory errors"
    if gpu.remapped_rows_failed:
        yield "a bad row could not be remapped"
    if gpu.remapped_rows_pending or gpu.retired_pages_pending:
        yield "a bad row waits for a reset"
    reasons = [reason for reason in gpu.throttle_reasons or () if reason not in HARMLESS_REASONS]
    if reasons:
        yield f"throttled: {joined(reason.replace('_', ' ') for reason in reasons)}"
    down = [str(link.number) for link in gpu.links if not link.active]
    if down and len(down) < len(gpu.links):
        yield f"NVLinks down: {joined(down)}"
    if errors := sum(count for link in gpu.links for count in link.errors.values()):
        yield f"{errors} NVLink errors"


def _load(gpu: GpuState) -> str:
    busy = "" if gpu.utilization is None else f"{100 * gpu.utilization:.0f} %"
    memory = "" if gpu.memory_used is None else f"{gpu.memory_used / GIB:.0f} GiB"
    limit = "" if gpu.power_limit_watts is None else f" of {gpu.power_limit_watts:.0f}"
    power = "" if gpu.power_watts is None else f"{gpu.power_watts:.0f}{limit} W"
    return joined([busy, memory, power])


def _clocks(gpu: GpuState) -> str:
    clock = "" if gpu.sm_clock_hertz is None else f"SM {gpu.sm_clock_hertz / 1e6:.0f} MHz"
    heat = "" if gpu.temperature_celsius is None else f"{gpu.temperature_celsius:.0f} degrees"
    return joined([clock, "" if gpu.performance_state is None else f"P{gpu.performance_state}", heat])


def _bus(gpu: GpuState) -> str:
    if gpu.pcie_generation is None or gpu.pcie_width is None:
        return ""
    return f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}"


def _links(gpu: GpuState, seconds: float) -> str:
    if gpu.nvlink_sent_bytes is None and gpu.nvlink_received_bytes is None:
        return ""
    moved = (gpu.nvlink_sent_bytes or 0) + (gpu.nvlink_received_bytes or 0)
    return f"NVLinks moved {moved} bytes in {seconds:.1f} s"
