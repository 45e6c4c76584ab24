"""What does NVML say about each GPU, and where does it lie?

The module that plays `pynvml` is passed in. A feature that a GPU or driver lacks is asked for once and then absent until
the library is started again; a refusal becomes a `Fault`; a value that cannot be true (out of its range, or the all-ones
that stands for "not available") is dropped. NVML's exceptions can be neither hashed nor compared: only `.value` is read.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

UNINITIALIZED, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 1, 3, 6, 7
FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, NO_DATA, UNKNOWN = 13, 15, 16, 21, 999

REASONS = {
    4: "no_permission",
    9: "driver_not_loaded",
    12: "library_not_found",
    GPU_IS_LOST: "gpu_lost",
    RESET_REQUIRED: "reset_required",
    17: "no_permission",
    18: "version_mismatch",
}

# After these nothing more can be learnt from the GPU until the library has been started again.
FINAL = frozenset({UNINITIALIZED, 9, 12, GPU_IS_LOST, RESET_REQUIRED, 18})

# pynvml raises "Success" where the driver has nothing to size, and the ring can grow between sizing and reading.
NO_SAMPLES = frozenset({0, NOT_FOUND, INSUFFICIENT_SIZE, NO_DATA})

THROTTLE_REASONS = {
    "idle": 0x1,
    "applications_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks": 0x100,
}

RECOVERY_ACTIONS = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset")

GPU_UTILIZATION_SAMPLES, CLOCK_SM, TEMPERATURE_GPU, FIELD_RECOVERY_ACTION = 1, 1, 0, 230
VALUE_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t
NOT_AVAILABLE = frozenset({2**32 - 1, 2**63 - 1, 2**64 - 1})


class Fault(Exception):
    """NVML refused a call: why in one word, what and where in a sentence, and the code that NVML gave."""

    def __init__(self, reason: str, detail: str, code: int | None = None, *, final: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.code = code
        self.final = final or code in FINAL


class Nvml:
    """The library: started and ended here, with a `Device` or a `Fault` for each index after a start."""

    def __init__(self, module: Any, note: Callable[[str], None]) -> None:
        self._module = module
        self._note = note
        self.skip: frozenset[str] = frozenset()
        self.started = False
        self.driver_version = ""
        self.devices: list[Device] = []
        self.faults: dict[int, Fault] = {}

    def start(self) -> None:
        """Start the library and look up every GPU; raise `Fault` where the library itself refuses."""
        self.call("nvmlInit")
        self.started = True
        try:
            self.driver_version = _text(self.call("nvmlSystemGetDriverVersion"))
            count = self.call("nvmlDeviceGetCount")
        except Fault:
            self.stop()
            raise
        for index in range(count):
            try:
                self.devices.append(self._device(index))
            except Fault as fault:
                self.faults[index] = fault

    def stop(self) -> None:
        """Give up all handles and shut the library down, whatever it says to that."""
        self.devices, self.faults, self.started = [], {}, False
        with suppress(Fault):
            self.call("nvmlShutdown")

    def call(self, name: str, *arguments: object, where: str = "") -> Any:
        """Call one function of the library, announced by a note and not at all where that note is to be skipped."""
        note = where + name
        if note in self.skip:
            raise Fault("quarantined", f"{note} did not return before")
        self._note(note)
        function = getattr(self._module, name, None)
        if function is None:
            raise Fault("nvml_error", f"{note}: unknown to this version of pynvml", FUNCTION_NOT_FOUND)
        try:
            return function(*arguments)
        except self._module.NVMLError as error:
            code = error.value
            raise Fault(REASONS.get(code, "nvml_error"), f"{note}: {error} (NVML {code})", code) from error

    def call_gpu(self, index: int, name: str, *arguments: object) -> Any:
        """Call one function for one GPU; where two of its functions have hung, the whole GPU is left alone."""
        where = f"gpu {index} "
        if sum(note.startswith(where) for note in self.skip) > 1:
            raise Fault("quarantined", f"{where}did not return from several calls before", final=True)
        return self.call(name, *arguments, where=where)

    def _device(self, index: int) -> "Device":
        handle = self.call_gpu(index, "nvmlDeviceGetHandleByIndex", index)
        return Device(self, index, handle, _text(self.call_gpu(index, "nvmlDeviceGetUUID", handle)))


class Device:
    """One GPU while the library is up: each method returns None where the GPU cannot tell or tells nonsense."""

    def __init__(self, nvml: Nvml, index: int, handle: object, uuid: str) -> None:
        self.index = index
        self.uuid = uuid
        self._nvml = nvml
        self._handle = handle
        self._absent: set[str] = set()

    def name(self) -> str:
        """Return the product name."""
        return _text(self._ask("nvmlDeviceGetName"))

    def pci_bus_id(self) -> str:
        """Return the address on the PCI bus, as nvidia-smi prints it."""
        return _text(getattr(self._ask("nvmlDeviceGetPciInfo"), "busId", None))

    def utilization(self) -> float | None:
        """Return the plain rate, 0 to 1: the driver's last sample of at most a second."""
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None else _share(rates.gpu)

    def samples(self, since: int) -> list[tuple[int, float | None]] | None:
        """Return the ring's samples after `since` (µs of the driver's own clock), oldest first; [] where it has none."""
        try:
            answer = self._ask("nvmlDeviceGetSamples", GPU_UTILIZATION_SAMPLES, since)
        except Fault as fault:
            if fault.code in NO_SAMPLES:
                return []
            raise
        if answer is None:
            return None
        kind, samples = answer
        found = ((int(sample.timeStamp), _share(_value(sample.sampleValue, kind))) for sample in samples)
        return sorted((sample for sample in found if sample[0] > since), key=lambda sample: sample[0])

    @property
    def counts_memory(self) -> bool:
        """False once it has said that it has no memory of its own, as GPUs that share the host's and MIG do."""
        return "nvmlDeviceGetMemoryInfo" not in self._absent

    def memory(self) -> tuple[int, int] | None:
        """Return used and total bytes as version 1 of the call counts them: `used` includes what is reserved."""
        info = self._ask("nvmlDeviceGetMemoryInfo")
        if info is None or not 0 <= info.used <= info.total < 2**50 or not info.total or info.used in NOT_AVAILABLE:
            return None
        return int(info.used), int(info.total)

    def power_watts(self) -> float | None:
        """Return the power drawn now."""
        return _within(self._ask("nvmlDeviceGetPowerUsage"), 0, 10_000_000, per=1000)

    def power_limit_watts(self) -> float | None:
        """Return the limit in force, whoever set it."""
        return _within(self._ask("nvmlDeviceGetEnforcedPowerLimit"), 1, 10_000_000, per=1000)

    def energy_joules(self) -> float | None:
        """Return the energy used since the driver was loaded."""
        return _within(self._ask("nvmlDeviceGetTotalEnergyConsumption"), 0, 2**62, per=1000)

    def sm_clock_hertz(self) -> float | None:
        """Return the clock of the streaming multiprocessors."""
        megahertz = _within(self._ask("nvmlDeviceGetClockInfo", CLOCK_SM), 0, 10_000)
        return None if megahertz is None else megahertz * 1e6

    def temperature_celsius(self) -> float | None:
        """Return the temperature of the chip."""
        value = self._ask("nvmlDeviceGetTemperatureV", TEMPERATURE_GPU)
        if value is None:  # drivers before 570
            value = self._ask("nvmlDeviceGetTemperature", TEMPERATURE_GPU)
        return _within(value, 0, 200)

    def throttle_reasons(self) -> tuple[str, ...] | None:
        """Return why the clocks are lower than they could be."""
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # drivers before 535
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        if bits is None or bits in NOT_AVAILABLE:
            return None
        return tuple(reason for reason, bit in THROTTLE_REASONS.items() if bits & bit)

    def recovery_action(self) -> str | None:
        """Return what the driver wants done about this GPU; `other` where it has a word that we lack."""
        fields = self._ask("nvmlDeviceGetFieldValues", [FIELD_RECOVERY_ACTION])
        if fields is None:
            return None
        field = fields[0]
        if field.nvmlReturn != 0:
            if field.nvmlReturn in {GPU_IS_LOST, RESET_REQUIRED, UNKNOWN}:
                note = f"gpu {self.index} nvmlDeviceGetFieldValues"
                raise Fault(REASONS.get(field.nvmlReturn, "nvml_error"), f"{note}: field 230", field.nvmlReturn)
            self._absent.add("nvmlDeviceGetFieldValues")  # older drivers say "not supported" or "invalid argument"
            return None
        number = int(_value(field.value, field.valueType))
        return RECOVERY_ACTIONS[number] if 0 <= number < len(RECOVERY_ACTIONS) else "other"

    def processes(self) -> dict[int, int | None] | None:
        """Return the GPU memory in bytes of each process by pid, None as its value where the driver cannot tell."""
        compute = self._ask("nvmlDeviceGetComputeRunningProcesses_v3")
        graphics = self._ask("nvmlDeviceGetGraphicsRunningProcesses_v3")
        if compute is None and graphics is None:
            return None
        merged: dict[int, int | None] = {}
        for entries in (compute or (), graphics or ()):
            for pid, memory in _by_pid(entries).items():
                known = merged.get(pid)
                merged[pid] = known if memory is None or (known is not None and known > memory) else memory
        return merged

    def _ask(self, name: str, *arguments: object) -> Any:
        if name in self._absent:
            return None
        try:
            return self._nvml.call_gpu(self.index, name, self._handle, *arguments)
        except Fault as fault:
            if fault.code not in {NOT_SUPPORTED, FUNCTION_NOT_FOUND}:
                raise
            self._absent.add(name)
            return None


def _by_pid(entries: Any) -> dict[int, int | None]:
    memory: dict[int, int | None] = {}
    for entry in entries:  # a process has one entry per MIG instance
        used = entry.usedGpuMemory
        if used is None or not 0 <= used < 2**50:
            memory.setdefault(entry.pid, None)
        else:
            memory[entry.pid] = (memory.get(entry.pid) or 0) + used
    return memory


def _within(value: float | None, low: float, high: float, *, per: float = 1) -> float | None:
    return None if value is None or not low <= value <= high or value in NOT_AVAILABLE else value / per


def _share(percent: float) -> float | None:
    return _within(percent, 0, 100, per=100)


def _value(union: Any, kind: int) -> Any:
    return getattr(union, VALUE_FIELDS[kind] if 0 <= kind < len(VALUE_FIELDS) else "uiVal")


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
