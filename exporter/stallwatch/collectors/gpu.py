"""How busy, full, hot and alive is each GPU?

Failure reasons. The whole collector: library_not_found, driver_not_loaded, version_mismatch, no_permission, no_gpu. One
GPU: gpu_lost, reset_required. Either: nvml_error, quarantined, and any of the above that NVML answers to a single call.
Harmless is processes_not_visible: whose memory it is follows from the flags of the servers then.
"""

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stallwatch.gpus.busy import Busy, Questions
from stallwatch.gpus.nvml import GPU_IS_LOST, LOST, RECOVERY_ACTIONS, THROTTLE_REASONS, UNKNOWN, CallError, Device, Nvml
from stallwatch.gpus.visibility import Visibility
from stallwatch.node.procfs import Procfs
from stallwatch.snapshot import Failure, Family, Moment, Reading

NAME = "gpu"

RESTART_SECONDS = 30.0  # how often the library is started anew while a GPU is lost; it can take seconds


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU; None where the driver cannot tell how much."""

    pid: int
    memory_bytes: int | None = None
    hidden: bool = False  # it is kept from us, so that it may be anybody's


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, known by its UUID: the index may change when the driver is loaded again. A lost one has no values."""

    index: int
    uuid: str
    name: str = ""
    pci_bus_id: str = ""
    utilization: float | None = None  # mean since the last reading, 0 to 1
    busy_seconds: float | None = None  # integral of the utilization since the worker started
    memory_used: int | None = None
    memory_total: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    sm_clock_hertz: float | None = None
    temperature_celsius: float | None = None
    throttle_reasons: tuple[str, ...] | None = None  # words of nvml.THROTTLE_REASONS, among them `idle`
    recovery_action: str | None = None
    lost: bool = False
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuReading(Reading):
    """All GPUs of the node."""

    driver_version: str = ""
    gpus: tuple[Gpu, ...] = ()


def reader(
    options: Mapping[str, str], note: Callable[[str], None]
) -> Callable[[list[dict[str, Any]], frozenset[str]], tuple[GpuReading, tuple[Failure, ...]]]:
    """Return the function that reads all GPUs through the module that `options` name."""
    nvml = Nvml(importlib.import_module(options.get("nvml", "pynvml")), note)
    return GpuReader(nvml, visibility=Visibility(Procfs(options.get("procfs", "/proc")))).read


class GpuReader:
    """Reads all GPUs again and again, remembers each by its UUID, and starts the library anew when that can help."""

    def __init__(
        self, nvml: Nvml, clock: Callable[[], float] = time.monotonic, visibility: Visibility | None = None
    ) -> None:
        self._nvml = nvml
        self._clock = clock
        self._visibility = visibility
        self._known: dict[str, Gpu] = {}
        self._busy: dict[str, Busy] = {}
        self._restart_at: float | None = None
        self._started_at = 0.0
        self._tried = False
        self._answered = False  # any GPU, when they were read last

    def read(self, _targets: list[dict[str, Any]], skip: frozenset[str]) -> tuple[GpuReading, tuple[Failure, ...]]:
        """Read every GPU; a GPU that cannot be read is in the failures, a lost one in the reading as well."""
        at = self._clock()
        self._nvml.skip = skip
        try:
            self._start(at)
        except CallError as error:
            return GpuReading(at), (Failure(NAME, error.reason, error.detail),)
        failures: list[Failure] = []
        outcomes: list[tuple[Gpu, CallError | None]] = [
            self._read(device, failures, at) for device in self._nvml.devices
        ]
        outcomes += self._unlisted()
        if not outcomes:
            failures.append(Failure(NAME, "no_gpu", "NVML lists no GPU"))
        self._plan_restart([error for _, error in outcomes])
        gpus = self._with_hidden(tuple(_judged(outcomes, failures)), failures)
        return GpuReading(at, self._nvml.driver_version, gpus), tuple(failures)

    def _with_hidden(self, gpus: tuple[Gpu, ...], failures: list[Failure]) -> tuple[Gpu, ...]:
        """Mark the processes that are kept from us."""
        if self._visibility is None:
            return gpus
        hidden = self._visibility.hidden({process.pid for gpu in gpus for process in gpu.processes})
        if not hidden:
            return gpus
        failures.append(Failure(NAME, "processes_not_visible", self._visibility.told(hidden)))
        return tuple(
            replace(gpu, processes=tuple(replace(one, hidden=one.pid in hidden) for one in gpu.processes))
            for gpu in gpus
        )

    def _start(self, at: float) -> None:
        if self._nvml.started and self._restart_at is not None and at >= self._restart_at:
            self._nvml.stop()
        if self._nvml.started:
            self._nvml.look_again()
            return
        # The first time the exporter is patient anyway; and a lost GPU must not make it patient with the others.
        slowly, self._tried = self._tried and not self._answered, True
        self._answered = False
        self._nvml.start(slowly=slowly)
        self._started_at = at

    def _plan_restart(self, errors: list[CallError | None]) -> None:
        wanted = not errors or any(error and error.reason != "quarantined" for error in errors)
        self._answered = None in errors
        pause = RESTART_SECONDS if self._answered else 0.0  # no pause where there is nothing to disturb
        self._restart_at = self._started_at + pause if wanted else None

    def _read(self, device: Device, failures: list[Failure], at: float) -> tuple[Gpu, CallError | None]:
        known = self._known.get(device.uuid, Gpu(device.index, device.uuid))
        ask = Questions()
        try:
            name = known.name or ask(device.name) or ""
            known = Gpu(device.index, device.uuid, name, known.pci_bus_id or ask(device.pci_bus_id) or "")
            self._known[device.uuid] = known
            gpu = self._values(known, device, ask, at)
        except CallError as error:
            return known, error
        if ask.refused and not ask.answered:
            return known, ask.refused[0]
        failures += [_failure(known, error) for error in ask.refused]
        return gpu, None

    def _values(self, known: Gpu, device: Device, ask: Questions, at: float) -> Gpu:
        utilization, busy_seconds = self._busy.setdefault(device.uuid, Busy()).look(device, ask, at)
        processes = ask(device.processes)
        used, total = ask(device.memory) or (None, None)
        if not device.counts_memory and processes is not None and None not in processes.values():
            used = sum(memory or 0 for memory in processes.values())
        return replace(
            known,
            utilization=utilization,
            busy_seconds=busy_seconds,
            memory_used=used,
            memory_total=total,
            power_watts=ask(device.power_watts),
            power_limit_watts=ask(device.power_limit_watts),
            energy_joules=ask(device.energy_joules),
            sm_clock_hertz=ask(device.sm_clock_hertz),
            temperature_celsius=ask(device.temperature_celsius),
            throttle_reasons=ask(device.throttle_reasons),
            recovery_action=ask(device.recovery_action),
            processes=tuple(GpuProcess(pid, memory) for pid, memory in sorted((processes or {}).items())),
        )

    def _unlisted(self) -> Iterator[tuple[Gpu, CallError]]:
        """Yield the GPUs that NVML gives no handle for: those seen before, and those never seen, which have no UUID."""
        errors = dict(self._nvml.errors)
        listed = {device.uuid for device in self._nvml.devices}
        for uuid, gpu in self._known.items():
            if uuid not in listed:
                gone = CallError("gpu_lost", f"gpu {gpu.index} is listed no longer", GPU_IS_LOST)
                yield gpu, errors.pop(gpu.index, gone)
        yield from ((Gpu(index, ""), error) for index, error in errors.items())


def _judged(outcomes: list[tuple[Gpu, CallError | None]], failures: list[Failure]) -> Iterator[Gpu]:
    """Yield what goes into the reading, by index, and add to the failures why a GPU could not be read."""
    # Several GPUs that all answer "unknown" at once are there, but this process may not open them any more.
    shut_out = len(outcomes) > 1 and all(error and error.code == UNKNOWN for _, error in outcomes)
    for gpu, error in sorted(outcomes, key=lambda outcome: (outcome[0].index, outcome[0].uuid)):
        lost = error is not None and (error.code in LOST or (error.code == UNKNOWN and not shut_out))
        if error:
            failures.append(_failure(gpu, error, "gpu_lost" if lost and error.code == UNKNOWN else error.reason))
        if lost or gpu.uuid:
            yield replace(gpu, lost=lost)


def _failure(gpu: Gpu, error: CallError, reason: str = "") -> Failure:
    return Failure(NAME, reason or error.reason, f"{error.detail} ({gpu.uuid or 'never seen before'})")


VALUES = (
    (
        "utilization_ratio",
        "gauge",
        "utilization",
        "Share of the time since the last reading in which a kernel ran; a rank that only spins shows 1.",
    ),
    ("busy_seconds_total", "counter", "busy_seconds", "Seconds in which a kernel ran, since the exporter looks."),
    ("memory_used_bytes", "gauge", "memory_used", "Memory in use, with what the driver reserves."),
    ("memory_total_bytes", "gauge", "memory_total", "Memory there is."),
    ("power_watts", "gauge", "power_watts", "Power drawn."),
    ("power_limit_watts", "gauge", "power_limit_watts", "Power limit in force."),
    ("energy_joules_total", "counter", "energy_joules", "Energy used since the driver was loaded."),
    ("sm_clock_hertz", "gauge", "sm_clock_hertz", "Clock of the streaming multiprocessors."),
    ("temperature_celsius", "gauge", "temperature_celsius", "Temperature of the chip."),
)


def families(readings: Sequence[GpuReading], moment: Moment) -> Iterable[Family]:  # noqa: ARG001, no times in here
    """State what /metrics says about the GPUs."""
    gpus = [gpu for reading in readings for gpu in reading.gpus]
    labels: tuple[str, ...] = ("gpu", "uuid", "name", "pci_bus_id", "driver_version")
    yield Family("stallwatch_gpu_info", "1 for every GPU of the node.", "gauge", labels, tuple(_info(readings)))
    for name, kind, attribute, text in VALUES:
        values = ((_labels(gpu), getattr(gpu, attribute)) for gpu in gpus)
        samples = tuple((labels, float(value)) for labels, value in values if value is not None)
        yield Family(f"stallwatch_gpu_{name}", text, kind, ("gpu", "uuid"), samples)
    labels = ("gpu", "uuid", "reason")
    throttled = tuple(_throttled(gpus))
    text = f"Why the clocks are low: {', '.join(THROTTLE_REASONS)}; idle is no throttle."
    yield Family("stallwatch_gpu_throttled", text, "gauge", labels, throttled)
    labels = ("gpu", "uuid", "action")
    actions = tuple(((*_labels(gpu), gpu.recovery_action), 1.0) for gpu in gpus if gpu.recovery_action is not None)
    text = f"1 for what the driver wants done about the GPU: {', '.join(RECOVERY_ACTIONS)}, other."
    yield Family("stallwatch_gpu_recovery_action", text, "gauge", labels, actions)
    lost = tuple((_labels(gpu), float(gpu.lost)) for gpu in gpus)
    text = "1 when the GPU was there and is not any more; its other values are absent then."
    yield Family("stallwatch_gpu_lost", text, "gauge", ("gpu", "uuid"), lost)


def _labels(gpu: Gpu) -> tuple[str, str]:
    return str(gpu.index), gpu.uuid


def _info(readings: Sequence[GpuReading]) -> Iterator[tuple[tuple[str, ...], float]]:
    for reading in readings:
        for gpu in reading.gpus:
            yield (*_labels(gpu), gpu.name, gpu.pci_bus_id, reading.driver_version), 1.0


def _throttled(gpus: list[Gpu]) -> Iterator[tuple[tuple[str, ...], float]]:
    for gpu in gpus:
        for reason in THROTTLE_REASONS if gpu.throttle_reasons is not None else ():
            yield (*_labels(gpu), reason), float(reason in (gpu.throttle_reasons or ()))
