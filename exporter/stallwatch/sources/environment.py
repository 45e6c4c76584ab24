"""How were the ranks of a server set up, and what is there to look deeper with?

Of each environment only the variables of an allow-list leave this file, none whose name looks like a secret, and each
value without what looks like one. It is what a process was started with: what it set later shows nowhere. A process
that titled itself has overwritten it; then the launcher's stands in, and `taken_from` says so.

Reasons of failures: `permission_denied` (once per server) and `quarantined`.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stallwatch.engines.engine import LAUNCHER, SCHEDULER
from stallwatch.node.procfs import Procfs, read_file
from stallwatch.redaction import HIDDEN, SECRET_KEY, public, redact
from stallwatch.snapshot import Failure, Reading
from stallwatch.sources.asked import Asking, Member, members_of, processes_of

NAME = "environment"
MISSING_RIGHT = "the environment of another user's processes needs root and CAP_SYS_PTRACE"
ENVIRON_BYTES = 256 * 1024
MOST_VARIABLES = 128  # of one process
LONGEST_VALUE = 200
ALLOWED = (  # `*` is the rest of a name
    "CUDA_COREDUMP_*",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_ORDER",
    "CUDA_ENABLE_*COREDUMP*",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "NCCL_*",
    "NVIDIA_VISIBLE_DEVICES",
    "NVSHMEM_*",
    "OMP_NUM_THREADS",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_FR_*",
    "TORCH_NCCL_*",
    "TP_SOCKET_IFNAME",
    "UCX_NET_DEVICES",
    "UCX_TLS",
)

_ALLOWED = re.compile("|".join(re.escape(name).replace(r"\*", "[A-Z0-9_]{0,64}") for name in ALLOWED))
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_DEVICES = re.compile(r"(?:(?:[0-9]+|all|none|void|(?:GPU|MIG)-[0-9A-Fa-f/-]+),?)*")
_OFF = frozenset({"", "0", "false", "off", "no"})

target = processes_of


@dataclass(frozen=True, slots=True)
class Debugging:
    """What the process was started with for those who look deeper; nothing of it is ever set off here.

    `flight_recorder` is whether PyTorch keeps its last collectives, None where that is left to its version;
    `flight_recorder_pipe` and `core_dump_trigger` whether writing to a pipe has it write them, or a GPU core dump;
    `ras` whether NCCL listens for questions, as it does unless told not to.
    """

    flight_recorder: bool | None
    flight_recorder_pipe: bool
    core_dump_trigger: bool
    core_dump_on_exception: bool
    ras: bool


@dataclass(frozen=True, slots=True)
class ProcessEnvironment:
    """What one scheduler was started with; `taken_from` names the process whose environment stands in for its own."""

    server: str
    process: str
    rank: str
    pid: int
    taken_from: str
    variables: dict[str, str]
    debugging: Debugging
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class EnvironmentReading(Reading):
    """The environments of the schedulers that were asked about; one that cannot be known is absent."""

    processes: tuple[ProcessEnvironment, ...] = ()


def allowed(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the variables that may be shown, as they may be shown."""
    return {
        name: _shown(name, value)
        for name, value in sorted(pairs)
        if _ALLOWED.fullmatch(name) and not _SECRET.search(name) and not SECRET_KEY.search(name)
    }


def _shown(name: str, value: str) -> str:
    if name.endswith("VISIBLE_DEVICES") and not _DEVICES.fullmatch(value):
        return HIDDEN
    return redact(public(value, LONGEST_VALUE))


def debugging_of(variables: Mapping[str, str]) -> Debugging:
    """Say what these variables make possible."""

    def is_on(name: str, otherwise: str = "") -> bool:
        return variables.get(name, otherwise).strip().lower() not in _OFF

    recorders = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    sizes = [is_on(name) for name in recorders if name in variables]
    return Debugging(
        flight_recorder=any(sizes) if sizes else None,
        flight_recorder_pipe=is_on("TORCH_NCCL_DEBUG_INFO_PIPE_FILE"),
        core_dump_trigger=is_on("CUDA_ENABLE_USER_TRIGGERED_COREDUMP"),
        core_dump_on_exception=is_on("CUDA_ENABLE_COREDUMP_ON_EXCEPTION"),
        ras=is_on("NCCL_RAS_ENABLE", "1"),
    )


def _pairs(data: bytes) -> list[tuple[str, str]]:
    """Split an environment; nothing where a title has overwritten it, which leaves no variables but maybe some ends."""
    words = (word.decode(errors="replace").partition("=") for word in data.split(b"\0") if word)
    return [(name, value) for name, equals, value in words if equals and name.isidentifier()]


class _Look:
    """Reads the environments of one server's processes, each once."""

    def __init__(self, procfs: Procfs, server: str) -> None:
        self._procfs = procfs
        self._server = server
        self._known: dict[int, list[tuple[str, str]]] = {}
        self.denied = False

    def of(self, member: Member, launcher: Member | None) -> ProcessEnvironment | None:
        """Return what one process was started with, by its own environment or its launcher's."""
        for source in (member, launcher):
            pairs = self._read(source.pid) if source else []
            if source and pairs:
                found = allowed(pairs)
                shown = dict(list(found.items())[:MOST_VARIABLES])
                taken_from = "" if source is member else source.process
                who = (self._server, member.process, member.rank, member.pid, taken_from)
                return ProcessEnvironment(*who, shown, debugging_of(dict(pairs)), len(found) - len(shown))
        return None

    def _read(self, pid: int) -> list[tuple[str, str]]:
        if pid not in self._known:
            self._procfs.note(f"pid {pid}")
            try:
                self._known[pid] = _pairs(self._procfs.read(self._procfs.path(pid, "environ"), ENVIRON_BYTES))
            except PermissionError:
                self.denied = True
                self._known[pid] = []
            except OSError:
                self._known[pid] = []  # it has gone
        return self._known[pid]


def reader(
    options: Mapping[str, str], note: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[list[dict[str, Any]], frozenset[str]], tuple[EnvironmentReading, tuple[Failure, ...]]]:
    """Return the function that reads the environments of servers."""

    def read(targets: list[dict[str, Any]], skip: frozenset[str]) -> tuple[EnvironmentReading, tuple[Failure, ...]]:
        procfs = Procfs(options.get("procfs", "/proc"), note, skip, read_file)
        asking = Asking(NAME, "pid ")
        processes: list[ProcessEnvironment] = []
        dropped = 0
        for one in targets:
            members, left_out = members_of(asking, procfs, one)
            roles = {entry["pid"]: entry["role"] for entry in one["processes"]}
            launcher = next((member for member in members if roles[member.pid] == LAUNCHER), None)
            schedulers = [member for member in members if roles[member.pid] == SCHEDULER]
            look = _Look(procfs, one["server"])
            found = [look.of(member, launcher) for member in schedulers or members[:1]]
            processes += filter(None, found)
            dropped += left_out
            if look.denied:
                asking.failures.append(Failure(NAME, "permission_denied", MISSING_RIGHT, one["server"]))
        dropped += sum(process.dropped for process in processes)
        return EnvironmentReading(clock(), tuple(processes), dropped=dropped), tuple(asking.failures)

    return read
