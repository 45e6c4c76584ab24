"""How busy, full, hot and alive is each GPU?

Failure reasons. The whole collector: library_not_found, driver_not_loaded, version_mismatch, no_permission, no_gpu. One
GPU: gpu_lost, reset_required. Either: nvml_error, quarantined, and any of the above that NVML answers to a single call.
"""

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from stallwatch.nvml import GPU_IS_LOST, LOST, THROTTLE_REASONS, UNKNOWN, CallError, Device, Nvml
from stallwatch.snapshot import Failure, Family, Moment, Reading

NAME = "gpu"

RESTART_SECONDS = 30.0  # how often the library is started anew while a GPU is lost; it can take seconds
RING_SECONDS = 10.0  # what the driver's ring of samples holds
LONGEST_PERIOD = 1.0  # between two samples, on any product

T = TypeVar("T")
Attempt = Callable[[Callable[[], T | None]], T | None]


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory of a GPU; None where the driver cannot tell how much."""

    pid: int
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, told apart by its UUID: the index may change when the driver is loaded again. A lost one has no values."""

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
    return GpuReader(Nvml(importlib.import_module(options.get("nvml", "pynvml")), note)).read
