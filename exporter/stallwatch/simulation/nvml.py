"""What would NVML say on a node that has GPUs?

A module with the names of `pynvml` that the exporter uses. The file named by `STALLWATCH_FAKE_NVML` in the environment
is read at each call (no such file: driver not loaded). One statement per line; `#` starts a comment, later lines win;
`gpu *` is every GPU, and `gpu 3` is always the same GPU (same UUID) wherever `order` puts it.

    driver 580.95.05                    gpus 8                       order 1 0 2    who is left out is gone
    driver_clock 5000                   seconds that the driver's clock is ahead of CLOCK_MONOTONIC
    error nvmlInit 9                    gpu 2 error nvmlDeviceGetPowerUsage 15      gpu * error * 3       0: no error
    delay nvmlDeviceGetCount 60         gpu 3 delay nvmlDeviceGetMemoryInfo 60      seconds, before the answer
    gpu * name NVIDIA H20               gpu * memory_mib 77824       gpu * memory_total_mib 98304
    gpu * utilization 3                 gpu * power_watts 90         gpu * power_limit_watts 600
    gpu * temperature 40                gpu * sm_clock_mhz 1980      gpu * energy_joules 5000 (else power, integrated)
    gpu 0 throttle 5                    gpu 0 recovery_action 1      gpu 0 lost     (`gpu 0 lost 0`: it is back)
    gpu 0 performance_state 2           gpu 0 persistence 0          gpu 0 compute_mode 3
    gpu 0 ecc_errors 4                  gpu 0 remapped_rows 1 2 1 0  corrected, uncorrected, pending, failed
    gpu 0 pcie_generation 4             gpu 0 pcie_width 8           gpu 0 pcie_replays 9    (`_max` of the first two)
    gpu * nvlinks 18                    gpu 0 nvlinks_down 3         gpu 0 nvlink_errors 7   the last ones are down
    gpu * nvlink_kib_per_second 1000    in each direction; a GPU without `nvlinks` has none
    gpu 0 burst START SECONDS PERCENT   CLOCK_MONOTONIC; repeatable; shows in those samples of the ring that it covers
    gpu 0 process PID MIB               repeatable; MIB `unknown`: the driver cannot tell; `graphics` for the other list

The names of calls stand without `_v3` and the like; `*` is every call. The ring holds 72 samples of 139 ms. What a line
sets holds for the whole ring, also for older samples; only bursts have a time. Replace the file, do not write into it.
"""

# ruff: noqa: N802
# (The names are NVML's.)

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

NVML_GPU_UTILIZATION_SAMPLES, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 1, 230
PERIOD_US, RING, MIB = 139_000, 72, 2**20

NUMBERS = {  # call: key of its line, default, NVML's unit in that of the line
    "nvmlDeviceGetPowerUsage": ("power_watts", 70, 1000),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit_watts", 600, 1000),
    "nvmlDeviceGetClockInfo": ("sm_clock_mhz", 1980, 1),
    "nvmlDeviceGetTemperatureV": ("temperature", 40, 1),
    "nvmlDeviceGetTemperature": ("temperature", 40, 1),
    "nvmlDeviceGetCurrentClocksEventReasons": ("throttle", 0, 1),
    "nvmlDeviceGetCurrentClocksThrottleReasons": ("throttle", 0, 1),
    "nvmlDeviceGetPerformanceState": ("performance_state", 0, 1),
    "nvmlDeviceGetPersistenceMode": ("persistence", 1, 1),
    "nvmlDeviceGetComputeMode": ("compute_mode", 0, 1),
    "nvmlDeviceGetTotalEccErrors": ("ecc_errors", 0, 1),
    "nvmlDeviceGetCurrPcieLinkGeneration": ("pcie_generation", 5, 1),
    "nvmlDeviceGetMaxPcieLinkGeneration": ("pcie_generation_max", 5, 1),
    "nvmlDeviceGetCurrPcieLinkWidth": ("pcie_width", 16, 1),
    "nvmlDeviceGetMaxPcieLinkWidth": ("pcie_width_max", 16, 1),
    "nvmlDeviceGetPcieReplayCounter": ("pcie_replays", 0, 1),
    "nvmlDeviceGetNvLinkErrorCounter": ("nvlink_errors", 0, 1),
}
NVLINK_BYTES = (138, 139)  # fields: KiB sent and received


class NVMLError(Exception):
    """The refusal of a call, with NVML's number in `value`."""

    def __init__(self, value: int) -> None:
        super().__init__(f"simulated NVML error {value}")
        self.value = value


class Handle(NamedTuple):
    """A GPU as known since one start of the library; a later start makes it invalid."""

    start: int
    gpu: int


class Driver:
    """One simulated library; its methods are the functions of the module."""

    NVMLError = NVMLError

    def __init__(
        self,
        path: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = path
        self._clock = clock
        self._sleep = sleep
        self._lines: list[list[str]] = []
        self._starts = 0
        self._running = 0  # how often it was started
        self._energy: dict[int, tuple[float, float]] = {}

    def nvmlInit(self) -> None:
        """Start the library, or count one more who uses it."""
        self._enter("nvmlInit")
        self._starts += not self._running
        self._running += 1

    def nvmlShutdown(self) -> None:
        """End the library for one of those who use it."""
        self._enter("nvmlShutdown")
        self._running -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        """Return the `driver` line."""
        self._enter("nvmlSystemGetDriverVersion")
        return " ".join(self._last("driver") or ["580.95.05"])

    def nvmlDeviceGetCount(self) -> int:
        """Return how many GPUs are listed."""
        self._enter("nvmlDeviceGetCount")
        return len(self._order())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        """Return the handle of the GPU that `order` puts at this index."""
        if not self._read():
            raise NVMLError(9)
        order = self._order()
        if not 0 <= index < len(order):
            raise NVMLError(2)
        self._enter("nvmlDeviceGetHandleByIndex", Handle(self._starts, order[index]))
        return Handle(self._starts, order[index])

    def nvmlDeviceGetUUID(self, handle: Handle) -> str:
        """Return a UUID that names the GPU's number."""
        self._enter("nvmlDeviceGetUUID", handle)
        return f"GPU-00000000-0000-0000-0000-{handle.gpu:012x}"

    def nvmlDeviceGetName(self, handle: Handle) -> str:
        """Return the `name` line."""
        self._enter("nvmlDeviceGetName", handle)
        return " ".join(self._last("name", handle.gpu) or ["NVIDIA", "Simulated"])

    def nvmlDeviceGetPciInfo(self, handle: Handle) -> SimpleNamespace:
        """Return a bus address that names the GPU's number."""
        self._enter("nvmlDeviceGetPciInfo", handle)
        return SimpleNamespace(busId=f"00000000:{handle.gpu + 16:02X}:00.0")

    def nvmlDeviceGetUtilizationRates(self, handle: Handle) -> SimpleNamespace:
        """Return the value of the ring's newest sample."""
        self._enter("nvmlDeviceGetUtilizationRates", handle)
        return SimpleNamespace(gpu=self._sample(handle.gpu, self._driver_us() // PERIOD_US), memory=0)

    def nvmlDeviceGetSamples(self, handle: Handle, kind: int, since: int) -> tuple[int, list[SimpleNamespace]]:
        """Return the samples of the ring after `since`."""
        self._enter("nvmlDeviceGetSamples", handle)
        newest = self._driver_us() // PERIOD_US
        numbers = [n for n in range(max(1, newest - RING + 1), newest + 1) if n * PERIOD_US > since]
        if kind != NVML_GPU_UTILIZATION_SAMPLES or not numbers:
            raise NVMLError(6)
        values = ((n * PERIOD_US, SimpleNamespace(uiVal=self._sample(handle.gpu, n))) for n in numbers)
        return 1, [SimpleNamespace(timeStamp=stamp, sampleValue=value) for stamp, value in values]

    def nvmlDeviceGetMemoryInfo(self, handle: Handle) -> SimpleNamespace:
        """Return version 1 of the memory, in bytes."""
        self._enter("nvmlDeviceGetMemoryInfo", handle)
        used, total = self._number("memory_mib", 0, handle.gpu), self._number("memory_total_mib", 98304, handle.gpu)
        return SimpleNamespace(used=int(used * MIB), total=int(total * MIB), free=int((total - used) * MIB))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Handle) -> int:
        """Return millijoules: as given, or the power summed up from call to call."""
        self._enter("nvmlDeviceGetTotalEnergyConsumption", handle)
        now = self._clock()
        joules, at = self._energy.get(handle.gpu, (0.0, now))
        joules += self._number("power_watts", 70, handle.gpu) * (now - at)
        self._energy[handle.gpu] = joules, now
        return int(self._number("energy_joules", joules, handle.gpu) * 1000)

    def __getattr__(self, call: str) -> Callable[..., int]:
        """Return a function that answers with one number, whatever it is asked besides the GPU."""
        if call not in NUMBERS:
            raise AttributeError(call)

        def answer(handle: Handle, *_: object) -> int:
            self._enter(call, handle)
            key, default, scale = NUMBERS[call]
            return int(self._number(key, default, handle.gpu) * scale)

        return answer

    def nvmlDeviceGetFieldValues(self, handle: Handle, fields: list[Any]) -> list[SimpleNamespace]:
        """Return the recovery action and the bytes of the NVLinks; other fields are not supported."""
        self._enter("nvmlDeviceGetFieldValues", handle)
        return [self._field(handle.gpu, field[0] if isinstance(field, tuple) else field) for field in fields]

    def _field(self, gpu: int, field: int) -> SimpleNamespace:
        if field in NVLINK_BYTES and self._number("nvlinks", 0, gpu):
            kib = int(self._number("nvlink_kib_per_second", 0, gpu) * self._clock())
            return SimpleNamespace(nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=kib))
        value = SimpleNamespace(uiVal=int(self._number("recovery_action", 0, gpu)))
        code = 0 if field == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION else 3
        return SimpleNamespace(nvmlReturn=code, valueType=1, value=value)

    def nvmlDeviceGetNvLinkState(self, handle: Handle, link: int) -> int:
        """Say whether a link is up; invalid where there is none of this number, not supported where there are none."""
        self._enter("nvmlDeviceGetNvLinkState", handle)
        links = int(self._number("nvlinks", 0, handle.gpu))
        if link >= links:
            raise NVMLError(2 if links else 3)
        return int(link < links - self._number("nvlinks_down", 0, handle.gpu))

    def nvmlDeviceGetRemappedRows(self, handle: Handle) -> tuple[int, ...]:
        """Return the `remapped_rows` line."""
        self._enter("nvmlDeviceGetRemappedRows", handle)
        return tuple(map(int, self._last("remapped_rows", handle.gpu) or (0, 0, 0, 0)))

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Handle) -> list[SimpleNamespace]:
        """Return the `process` lines."""
        self._enter("nvmlDeviceGetComputeRunningProcesses", handle)
        return [_process(*words) for words in self._all("process", handle.gpu)]

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Handle) -> list[SimpleNamespace]:
        """Return the `graphics` lines."""
        self._enter("nvmlDeviceGetGraphicsRunningProcesses", handle)
        return [_process(*words) for words in self._all("graphics", handle.gpu)]

    def _enter(self, call: str, handle: Handle | None = None) -> None:
        if not self._read():
            raise NVMLError(9)
        gpu = handle.gpu if handle else None
        self._sleep(self._for_call("delay", call, gpu))
        if code := int(self._for_call("error", call, gpu)):
            raise NVMLError(code)
        if not self._running and call != "nvmlInit":
            raise NVMLError(1)
        if handle and handle.start != self._starts:
            raise NVMLError(2)
        if gpu is not None and (gpu not in self._order() or self._last("lost", gpu) in ([], ["1"])):
            raise NVMLError(15)

    def _read(self) -> bool:
        try:
            text = Path(self._path or os.environ.get("STALLWATCH_FAKE_NVML", "")).read_text(encoding="utf-8")
        except OSError:
            return False
        self._lines = [line.split("#")[0].split() for line in text.splitlines()]
        return True

    def _all(self, key: str, gpu: int | None = None) -> Iterator[list[str]]:
        for line in self._lines:
            words = line[2:] if gpu is not None and line[:1] == ["gpu"] and line[1] in {"*", str(gpu)} else line
            if words[:1] == [key] and (gpu is None) == (words is line):
                yield words[1:]

    def _last(self, key: str, gpu: int | None = None) -> list[str] | None:
        return [None, *self._all(key, gpu)][-1]

    def _number(self, key: str, default: float, gpu: int | None = None) -> float:
        words = self._last(key, gpu)
        return float(words[0]) if words else default

    def _for_call(self, key: str, call: str, gpu: int | None) -> float:
        lines = [line for place in dict.fromkeys((None, gpu)) for line in self._all(key, place)]
        return float(next((value for name, value in reversed(lines) if name in {"*", call}), 0))

    def _order(self) -> list[int]:
        return [int(word) for word in self._last("order") or range(int(self._number("gpus", 1)))]

    def _driver_us(self) -> int:
        return round((self._clock() + self._number("driver_clock", 5000)) * 1e6)

    def _sample(self, gpu: int, number: int) -> int:
        """Return the percentage of sample `number`: what each burst covers of it, over the level."""
        level = self._number("utilization", 0, gpu)
        end = number * PERIOD_US / 1e6 - self._number("driver_clock", 5000)
        value = level
        for start, seconds, percent in (map(float, words) for words in self._all("burst", gpu)):
            covered = min(end, start + seconds) - max(end - PERIOD_US / 1e6, start)
            value += max(0.0, covered) / (PERIOD_US / 1e6) * (percent - level)
        return int(value + 0.5)


def _process(pid: str, mib: str) -> SimpleNamespace:
    return SimpleNamespace(pid=int(pid), usedGpuMemory=None if mib == "unknown" else int(mib) * MIB)


_DRIVER = Driver()


def __getattr__(name: str) -> Any:
    """Return a function of the library, so that this module is called as `pynvml` is."""
    return getattr(_DRIVER, name)
