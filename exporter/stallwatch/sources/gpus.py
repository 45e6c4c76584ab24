"""In which state is each GPU of the node: clocks, errors, memory repair, PCIe, and does anything move over NVLink?

Read in the worker that reads the GPUs anyway. NVML counts how often it was started, so this starts it once more and
ends it after, which leaves the collector's library as it is. A value that a GPU does not have is None.

Reasons of failures: those of the GPU collector.
"""

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from stallwatch.gpus.busy import Questions
from stallwatch.gpus.details import Details, Link
from stallwatch.gpus.nvml import LOST, CallError, Device, Nvml
from stallwatch.snapshot import Failure, Reading, Server

NAME = "gpu_state"
BETWEEN_SECONDS = 1.0
ERRORS_SECONDS = 1.5  # after which the error counters of further GPUs' links are left out

_OF_DEVICE = (
    "name",
    "pci_bus_id",
    "utilization",
    "power_watts",
    "power_limit_watts",
    "sm_clock_hertz",
    "temperature_celsius",
    "throttle_reasons",
    "recovery_action",
)
_OF_DETAILS = (
    "memory_clock_hertz",
    "performance_state",
    "persistence_mode",
    "compute_mode",
    "ecc_volatile_corrected",
    "ecc_volatile_uncorrected",
    "ecc_aggregate_corrected",
    "ecc_aggregate_uncorrected",
    "retired_pages_pending",
    "pcie_generation",
    "pcie_generation_max",
    "pcie_width",
    "pcie_width_max",
    "pcie_replays",
)


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU; the bytes are what went over its NVLinks in `GpuStateReading.seconds`. A lost one has no values."""

    index: int
    uuid: str
    name: str | None = None
    pci_bus_id: str | None = None
    utilization: float | None = None  # 0 to 1, of at most the last second
    memory_used: int | None = None
    memory_total: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    sm_clock_hertz: float | None = None
    memory_clock_hertz: float | None = None
    temperature_celsius: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    performance_state: int | None = None  # 0 is the highest
    recovery_action: str | None = None
    persistence_mode: bool | None = None
    compute_mode: str | None = None
    ecc_volatile_corrected: int | None = None
    ecc_volatile_uncorrected: int | None = None
    ecc_aggregate_corrected: int | None = None
    ecc_aggregate_uncorrected: int | None = None
    retired_pages_pending: bool | None = None
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    remapped_rows_pending: bool | None = None
    remapped_rows_failed: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    links: tuple[Link, ...] = ()
    nvlink_sent_bytes: int | None = None
    nvlink_received_bytes: int | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class GpuStateReading(Reading):
    """All GPUs of the node; `dropped` counts those whose links' error counters were left out."""

    driver_version: str = ""
    seconds: float = 0.0  # over which the bytes were counted
    gpus: tuple[GpuState, ...] = ()


Outcome = tuple[GpuStateReading | None, tuple[Failure, ...]]


def target(server: Server) -> dict[str, Any]:
    """Say for whom the GPUs are read: all of the node, since those of others show whether it is the node's fault."""
    return {"server": server.name}


def reader(options: Mapping[str, str], note: Callable[[str], None]) -> Callable[..., Outcome]:
    """Return the function that reads the state of all GPUs through the module that `options` name."""
    return StateReader(Nvml(importlib.import_module(options.get("nvml", "pynvml")), note)).read


class StateReader:
    """Reads all GPUs twice within a second; the library is up for as long as that takes."""

    def __init__(
        self,
        nvml: Nvml,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._nvml = nvml
        self._clock = clock
        self._pause = pause

    def read(self, _targets: list[dict[str, Any]], skip: frozenset[str]) -> Outcome:
        """Read every GPU; one that cannot be read is in the failures."""
        self._nvml.skip = skip
        try:
            self._nvml.start()
        except CallError as error:
            return None, (Failure(NAME, error.reason, error.detail),)
        try:
            return self._read()
        finally:
            self._nvml.stop()

    def _read(self) -> Outcome:
        devices = self._nvml.devices
        failures = [_failure(error) for error in self._nvml.errors.values()]
        if not devices and not failures:
            failures = [Failure(NAME, "no_gpu", "NVML lists no GPU")]
        begun = self._clock()
        before = {device.index: _moved(device, []) for device in devices}
        states, dropped = [], 0
        for device in devices:
            errors = self._clock() - begun < ERRORS_SECONDS
            states.append(_state(device, failures, errors=errors))
            dropped += not errors
        if any(before.values()):
            self._pause(max(0.0, BETWEEN_SECONDS - (self._clock() - begun)))
        seconds = self._clock() - begun
        gpus = tuple(
            _with_bytes(state, before[device.index], None if state.lost else _moved(device, failures))
            for device, state in zip(devices, states, strict=True)
        )
        found = GpuStateReading(self._clock(), self._nvml.driver_version, round(seconds, 3), gpus, dropped=dropped)
        return found, tuple(dict.fromkeys(failures))


def _state(device: Device, failures: list[Failure], *, errors: bool) -> GpuState:
    ask, details = Questions(), Details(device)
    state = GpuState(device.index, device.uuid)
    try:
        for part in _parts(device, details, ask, errors=errors):
            state = replace(state, **part)
    except CallError as error:
        ask.refused.append(error)
        state = replace(GpuState(device.index, device.uuid) if error.code in LOST else state, lost=error.code in LOST)
    failures += map(_failure, ask.refused)
    return state


def _parts(device: Device, details: Details, ask: Questions, *, errors: bool) -> Iterator[dict[str, Any]]:
    yield {name: ask(getattr(device, name)) for name in _OF_DEVICE}
    used, total = ask(device.memory) or (None, None)
    yield {"memory_used": used, "memory_total": total}
    yield {name: ask(getattr(details, name)) for name in _OF_DETAILS}
    if rows := ask(details.remapped_rows):
        names = ("corrected", "uncorrected", "pending", "failed")
        yield {f"remapped_rows_{name}": value for name, value in zip(names, rows, strict=True)}
    yield {"links": ask(lambda: details.links(ask, errors=errors)) or ()}


def _moved(device: Device, failures: list[Failure]) -> tuple[int, int] | None:
    try:
        return Details(device).nvlink_bytes()
    except CallError as error:
        failures.append(_failure(error))
        return None


def _with_bytes(state: GpuState, before: tuple[int, int] | None, after: tuple[int, int] | None) -> GpuState:
    if not before or not after:
        return state
    sent, received = after[0] - before[0], after[1] - before[1]
    return replace(state, nvlink_sent_bytes=sent, nvlink_received_bytes=received) if min(sent, received) >= 0 else state


def _failure(error: CallError) -> Failure:
    return Failure(NAME, error.reason, error.detail)
