"""What does the exporter know about the node at one moment?

The nouns that travel from discovery to the pages, all frozen. Nothing of ours and nothing heavy is imported, since the
workers load this file too. Times are seconds: `monotonic` ones are of CLOCK_MONOTONIC, which all processes of a node
share and which a clock step does not move; they become Unix time only where they leave the exporter.
"""

import time
from dataclasses import dataclass, field
from typing import TypeVar

PHASES = (
    "launch",
    "distributed_init",
    "loading_weights",
    "loaded",
    "allocating_memory",
    "compiling",
    "capturing_graphs",
    "warming_up",
    "ready",
    "stopping",
)


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant on the three clocks that matter, in seconds."""

    unix: float
    monotonic: float
    boottime: float

    @classmethod
    def now(cls) -> "Moment":
        """Read the three clocks."""
        return cls(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))

    def unix_of(self, monotonic: float) -> float:
        """Return the Unix time of a monotonic one: differences between published times stay true over clock steps."""
        return self.unix - (self.monotonic - monotonic)

    def unix_of_boottime(self, boottime: float) -> float:
        """Return the Unix time of seconds since boot, which is how the kernel tells a process start."""
        return self.unix - (self.boottime - boottime)


@dataclass(frozen=True, slots=True)
class Launch:
    """What a server was started with, as its command line tells; what it does not say has the engine's default.

    `worker` says that another node answers for this one: what is asked of it, and what it achieves, is known there.
    """

    model: str = ""
    host: str = "127.0.0.1"
    port: int | None = None
    tls: bool = False
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    attention_dp: bool = False
    nnodes: int = 1
    node_rank: int = 0
    worker: bool = False
    dist_init_addr: str = ""
    base_gpu_id: int = 0
    gpu_id_step: int = 1


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a server; (pid, start_ticks) is who it is, since pids are used again.

    `name` is the value of the `process` label: `launcher`, `scheduler_TP0`, `detokenizer`.
    `rank` is the part of the title after `scheduler_` (`TP0`, `DP1_TP0`), empty for what is no scheduler.
    `tree` holds the pids of all its descendants, `compilers` those of them that are compilers or their drivers.
    """

    pid: int
    start_ticks: int
    started: float  # seconds since boot
    role: str
    name: str
    rank: str = ""
    tree: tuple[int, ...] = ()
    compilers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """One GPU that a server holds, and the rank that computes on it where that is known."""

    uuid: str
    index: int
    rank: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """One inference server on this node: who it is and where its signals are to be read.

    `log_path` and `address` are None where there is nothing to read, and `log_absence` and `address_absence` then say
    why in one word (for a metric) and, after a colon, in a sentence (for a person).
    """

    name: str
    engine: str
    launch: Launch
    processes: tuple[Process, ...] = ()
    version: str = ""
    expected_schedulers: int | None = None
    log_path: str | None = None
    log_root: str = ""  # what the path of a log that was found begins with and must not lead out of
    log_absence: str = ""
    address: str | None = None  # literal IP address to probe, with `launch.port`
    address_absence: str = ""
    network: str = ""  # the network namespace of the address, as the kernel names it; empty: our own
    listening: bool = False  # a process of this server listens on its port
    incarnation: str = ""  # names this life of it; another one once all its processes are other ones
    cuda_visible_devices: str | None = None
    container_devices: str | None = None  # the GPUs of the node that its container was given, None: all, or not known
    gpus: tuple[Place, ...] = ()
    container_id: str = ""
    pod_uid: str = ""
    started: float | None = None  # of one whose processes have gone: when the first began, in seconds since boot

    @property
    def ranks(self) -> tuple[str, ...]:
        """List the ranks whose schedulers run here."""
        return tuple(process.rank for process in self.processes if process.role == "scheduler")


@dataclass(frozen=True, slots=True)
class Reading:
    """What one collector read; each collector defines its own subclass in its own file.

    `dropped` counts what is not in it since there was too much: servers, processes, ranks or samples.
    """

    at: float  # monotonic
    dropped: int = field(default=0, kw_only=True)


R = TypeVar("R", bound=Reading)

_KERNEL_LOG = ("no_permission", "not_found", "overwritten", "too_many")
HARMLESS = frozenset(
    {
        ("gpu", "released"),
        ("gpu", "processes_not_visible"),
        *((name, reason) for name in ("kernel", "kernel_lines") for reason in _KERNEL_LOG),
    }
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a signal is missing: `reason` is one word of a closed set (for a metric), `detail` says what and where."""

    collector: str
    reason: str
    detail: str = ""
    server: str = ""  # empty: the whole collector

    @property
    def harmless(self) -> bool:
        """Tell whether nothing is broken: it was asked for, or can be done without."""
        return (self.collector, self.reason) in HARMLESS


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family as a collector states it: samples are label values, in the order of `labels`, and a value."""

    name: str
    help: str
    kind: str  # gauge or counter; the name of a counter ends in _total
    labels: tuple[str, ...]
    samples: tuple[tuple[tuple[str, ...], float], ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is known of the node at one moment; a missing reading is explained by a failure."""

    moment: Moment
    servers: tuple[Server, ...] = ()
    readings: tuple[Reading, ...] = ()
    failures: tuple[Failure, ...] = ()

    def all(self, kind: type[R]) -> tuple[R, ...]:
        """Return every reading of this kind: one for a collector of the node, one per server for others."""
        return tuple(reading for reading in self.readings if isinstance(reading, kind))

    def get(self, kind: type[R]) -> R | None:
        """Return the first reading of this kind, or None where it is missing."""
        return next(iter(self.all(kind)), None)
