"""What does one snapshot show of one server?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stallwatch.collectors.engine import EngineReading
from stallwatch.collectors.gpu import GpuReading
from stallwatch.collectors.health import HealthReading, Probe
from stallwatch.collectors.kernel import NAME as KERNEL
from stallwatch.collectors.kernel import KernelReading
from stallwatch.collectors.log import Log, LogReading
from stallwatch.collectors.process import ProcessReading, ProcessSample, Tree
from stallwatch.collectors.socket import ServerSockets, SocketReading
from stallwatch.snapshot import Failure, Moment, Server, Snapshot


@dataclass(frozen=True, slots=True)
class Sight:
    """What one snapshot shows of one server; None is what cannot be read, and `missing` names it."""

    moment: Moment
    server: Server
    log: Log | None
    tree: Tree | None
    samples: Mapping[str, ProcessSample] | None  # by the name of the process
    partial: bool  # some processes of it cannot be read, which does not mean that they have gone
    probes: tuple[Probe, ...]
    engine: EngineReading | None
    sockets: ServerSockets | None
    gpus: GpuReading | None
    kernel: KernelReading | None
    missing: tuple[str, ...]


def sights(snapshot: Snapshot) -> Iterable[Sight]:
    """Yield what is seen of each server."""
    log, process, socket = snapshot.get(LogReading), snapshot.get(ProcessReading), snapshot.get(SocketReading)
    logs = {entry.server: entry for entry in log.logs} if log else {}
    trees = {tree.server: tree for tree in process.trees} if process else {}
    sockets = {entry.server: entry for entry in socket.sockets} if socket else {}
    probes = {reading.server: reading.probes for reading in snapshot.all(HealthReading)}
    engines = {reading.server: reading for reading in snapshot.all(EngineReading)}
    gpus, kernel = snapshot.get(GpuReading), snapshot.get(KernelReading)
    for server in snapshot.servers:
        name = server.name
        failures = [failure for failure in snapshot.failures if failure.server in {"", name}]
        shown = {
            "log": name in logs,
            "process": process is not None,
            "gpu": gpus is not None,
            "health": name in probes,
            "engine": name in engines,
        }
        yield Sight(
            snapshot.moment,
            server,
            logs.get(name),
            trees.get(name),
            None if process is None else {one.process: one for one in process.processes if one.server == name},
            any(failure.collector == "process" for failure in failures),
            probes.get(name, ()),
            engines.get(name),
            sockets.get(name),
            gpus,
            kernel,
            _missing(failures, shown),
        )


def _missing(failures: list[Failure], shown: Mapping[str, bool]) -> tuple[str, ...]:
    told = {failure.collector for failure in failures}
    # The kernel log only adds to what is seen: no judgement lacks it.
    named = [f"{failure.collector}: {failure.reason}" for failure in failures if failure.collector != KERNEL]
    absent = [signal for signal, is_shown in shown.items() if not is_shown and signal not in told]
    return tuple(dict.fromkeys([*named, *absent]))
