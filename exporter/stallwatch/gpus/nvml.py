"""What does NVML say about each GPU, and where does it lie?

The module that plays `pynvml` is passed in. A feature that a GPU or driver lacks is asked for once and is then absent
until the library starts anew; a refusal becomes a `CallError`; a value that cannot be true (out of its range, or the
all-ones of "not available") is dropped. NVML's exceptions can be neither hashed nor compared: only `.value` is read.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stallwatch.redaction import clean

NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, UNKNOWN = 3, 13, 15, 16, 999
LOST = {GPU_IS_LOST: "gpu_lost", RESET_REQUIRED: "reset_required"}
REASONS = {4: "no_permission", 9: "driver_not_loaded", 12: "library_not_found", 17: "no_permission"}
REASONS |= {18: "version_mismatch", **LOST}

# After these (1: uninitialized) nothing more can be learnt from the GPU until the library has been started again.
FINAL = frozenset({1, 9, 12, 18, *LOST})

# Not found, no data; pynvml raises "Success" where there is nothing to size; the ring may grow after its sizing (7).
NO_SAMPLES = frozenset({0, 6, 7, 21})

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

SLOWLY = " (the driver starts)"
"""Ends the note of a call that may take long: without persistence mode a driver initializes each GPU when asked."""

RECOVERY_ACTIONS = ("none", "gpu_reset", "node_reboot", "drain_p2p", "drain_and_reset")

UTILIZATION_SAMPLES, CLOCK_SM, TEMPERATURE_GPU, RECOVERY_ACTION = 1, 1, 0, 230
VALUE_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t
NOT_AVAILABLE = frozenset({2**32 - 1, 2**63 - 1, 2**64 - 1})


class CallError(Exception):
    """NVML refused a call: why in one word, what and where in a sentence, and the code that NVML gave."""

    def __init__(self, reason: str, detail: str, code: int = -1, *, final: bool = False) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.code = code
        self.final = final or code in FINAL


class Nvml:
    """The library: started and ended here, with a `Device` or a `CallError` for each index."""

    def __init__(self, module: Any, note: Callable[[str], None]) -> None:
        self._module = module
        self._note = note
        self.skip: frozenset[str] = frozenset()
        self.started = False
        self.driver_version = ""
        self.devices: list[Device] = []
        self.errors: dict[int, CallError] = {}
        self._manner = ""

    def start(self, *, slowly: bool = False) -> None:
        """Start the library and look up every GPU; raise `CallError` where the library itself refuses.

        `slowly` is for a driver that may have to wake up first.
        """
        self._manner = SLOWLY if slowly else ""
        try:
            self._start()
        finally:
            self._manner = ""

    def _start(self) -> None:
        self.call("nvmlInit")
        self.started = True
        try:
            self.driver_version = _text(self.call("nvmlSystemGetDriverVersion"))
            count = self.call("nvmlDeviceGetCount")
        except CallError:
            self.stop()
            raise
        for index in range(count):
            self._look_up(index)

    def look_again(self) -> None:
        """Look up the GPUs that were left alone when the library started, as far as they are to be tried again."""
        for index in [index for index, error in self.errors.items() if error.reason == "quarantined"]:
            del self.errors[index]
            self._look_up(index)
        self.devices.sort(key=lambda device: device.index)

    def stop(self) -> None:
        """Give up all handles and shut the library down, whatever it says to that."""
        self.devices, self.errors, self.started = [], {}, False
        with suppress(CallError):
            self.call("nvmlShutdown")

    def call(self, name: str, *arguments: object, where: str = "") -> Any:
        """Call one function of the library, announced by a note and not at all where that note is to be skipped."""
        note = where + name
        if note in self.skip:
            raise CallError("quarantined", f"{note} did not return before")
        self._note(note + self._manner)
        function = getattr(self._module, name, None)
        if function is None:
            raise CallError("nvml_error", f"{note}: not in this version of pynvml", FUNCTION_NOT_FOUND)
        try:
            return function(*arguments)
        except self._module.NVMLError as error:
            code = error.value
            raise CallError(REASONS.get(code, "nvml_error"), clean(f"{note}: {error} (NVML {code})"), code) from error

    def call_gpu(self, index: int, name: str, *arguments: object) -> Any:
        """Call one function for one GPU; where one of its functions has hung, the whole GPU is left alone."""
        where = f"gpu {index} "
        hung = next((note for note in self.skip if note.startswith(where)), None)
        if hung:
            raise CallError("quarantined", f"{hung} did not return before", final=True)
        return self.call(name, *arguments, where=where)

    def _look_up(self, index: int) -> None:
        try:
            handle = self.call_gpu(index, "nvmlDeviceGetHandleByIndex", index)
            uuid = _text(self.call_gpu(index, "nvmlDeviceGetUUID", handle))
        except CallError as error:
            self.errors[index] = error
        else:
            self.devices.append(Device(self, index, handle, uuid))


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
        return _text(self.ask("nvmlDeviceGetName"))

    def pci_bus_id(self) -> str:
        """Return the address on the PCI bus, as nvidia-smi prints it."""
        return _text(getattr(self.ask("nvmlDeviceGetPciInfo"), "busId", None))

    def utilization(self) -> float | None:
        """Return the plain rate, 0 to 1: the driver's last sample of at most a second."""
        rates = self.ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None else _share(rates.gpu)

    def samples(self, since: int) -> list[tuple[int, float | None]] | None:
        """Return the ring's samples after `since` (µs of the driver's own clock), oldest first; [] if none."""
        try:
            answer = self.ask("nvmlDeviceGetSamples", UTILIZATION_SAMPLES, since)
        except CallError as error:
            if error.code in NO_SAMPLES:
                return []
            raise
        if answer is None:
            return None
        kind, samples = answer
        found = ((int(sample.timeStamp), _share(value_of(sample.sampleValue, kind))) for sample in samples)
        return sorted(filter(lambda sample: sample[0] > since, found), key=lambda sample: sample[0])

    @property
    def counts_memory(self) -> bool:
        """Be false once it has said that it has no memory of its own, as GPUs that share the host's and MIG do."""
        return "nvmlDeviceGetMemoryInfo" not in self._absent

    def memory(self) -> tuple[int, int] | None:
        """Return used and total bytes as version 1 of the call counts them: `used` includes what is reserved."""
        info = self.ask("nvmlDeviceGetMemoryInfo")
        credible = info is not None and 0 <= info.used <= info.total and 0 < info.total < 2**50
        return (int(info.used), int(info.total)) if credible and info.used not in NOT_AVAILABLE else None

    def power_watts(self) -> float | None:
        """Return the power drawn now."""
        return within(self.ask("nvmlDeviceGetPowerUsage"), 0, 10_000_000, per=1000)

    def power_limit_watts(self) -> float | None:
        """Return the limit in force, whoever set it."""
        return within(self.ask("nvmlDeviceGetEnforcedPowerLimit"), 1, 10_000_000, per=1000)

    def energy_joules(self) -> float | None:
        """Return the energy used since the driver was loaded."""
        return within(self.ask("nvmlDeviceGetTotalEnergyConsumption"), 0, 2**62, per=1000)

    def sm_clock_hertz(self) -> float | None:
        """Return the clock of the streaming multiprocessors."""
        megahertz = within(self.ask("nvmlDeviceGetClockInfo", CLOCK_SM), 0, 10_000)
        return None if megahertz is None else megahertz * 1e6

    def temperature_celsius(self) -> float | None:
        """Return the temperature of the chip."""
        value = self.ask("nvmlDeviceGetTemperatureV", TEMPERATURE_GPU)
        if value is None:  # drivers before 570
            value = self.ask("nvmlDeviceGetTemperature", TEMPERATURE_GPU)
        return within(value, 0, 200)

    def throttle_reasons(self) -> tuple[str, ...] | None:
        """Return why the clocks are lower than they could be."""
        bits = self.ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # drivers before 535
            bits = self.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        if within(bits, 0, 2**32) is None:
            return None
        return tuple(reason for reason, bit in THROTTLE_REASONS.items() if bits & bit)

    def recovery_action(self) -> str | None:
        """Return what the driver wants done about this GPU; `other` where it has a word that we lack."""
        fields = self.ask("nvmlDeviceGetFieldValues", [RECOVERY_ACTION])
        if fields is None:
            return None
        field = fields[0]
        if field.nvmlReturn != 0:
            if field.nvmlReturn in {GPU_IS_LOST, RESET_REQUIRED, UNKNOWN}:
                detail = f"gpu {self.index} nvmlDeviceGetFieldValues: field 230 (NVML {field.nvmlReturn})"
                raise CallError(REASONS.get(field.nvmlReturn, "nvml_error"), detail, field.nvmlReturn)
            self._absent.add("nvmlDeviceGetFieldValues")  # not supported, or invalid argument
            return None
        number = value_of(field.value, field.valueType)
        return RECOVERY_ACTIONS[number] if number in range(len(RECOVERY_ACTIONS)) else "other"

    def processes(self) -> dict[int, int | None] | None:
        """Return the GPU memory in bytes of each process by pid, None as its value where the driver cannot tell."""
        compute = self.ask("nvmlDeviceGetComputeRunningProcesses_v3")
        graphics = self.ask("nvmlDeviceGetGraphicsRunningProcesses_v3")
        if compute is None and graphics is None:
            return None
        merged: dict[int, int | None] = {}
        for entry in (*(compute or ()), *(graphics or ())):  # who computes and draws is in both, with the same memory
            memory = within(entry.usedGpuMemory, 0, 2**50)
            known = merged.get(entry.pid)
            merged[entry.pid] = known if memory is None else max(int(memory), known or 0)
        return merged

    def ask(self, name: str, *arguments: object, feature: str = "") -> Any:
        """Call a function for this GPU; None once it has said that it lacks it, or what this function is asked for."""
        feature = feature or name
        if feature in self._absent:
            return None
        try:
            return self._nvml.call_gpu(self.index, name, self._handle, *arguments)
        except CallError as error:
            if error.code not in {NOT_SUPPORTED, FUNCTION_NOT_FOUND}:
                raise
            self._absent.add(feature)
            return None


def within(value: float | None, low: float, high: float, *, per: float = 1) -> float | None:
    """Return a value, divided by `per`, or None where it cannot be true."""
    return None if value is None or not low <= value <= high or value in NOT_AVAILABLE else value / per


def _share(percent: float) -> float | None:
    return within(percent, 0, 100, per=100)


def value_of(union: Any, kind: int) -> Any:
    """Return what a union of NVML holds."""
    return getattr(union, VALUE_FIELDS[kind] if 0 <= kind < len(VALUE_FIELDS) else "uiVal")


def _text(value: Any) -> str:
    return clean(value.decode(errors="replace") if isinstance(value, bytes) else str(value or ""))
