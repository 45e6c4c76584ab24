"""Builders of servers and readings, with what a quiet healthy server shows unless told otherwise."""

from dataclasses import replace

from stallwatch.collectors.gpu import Gpu, GpuProcess, GpuReading
from stallwatch.collectors.health import HealthReading, Probe
from stallwatch.collectors.log import Log, LogReading
from stallwatch.collectors.process import ProcessReading, ProcessSample, Tree
from stallwatch.snapshot import Launch, Moment, Place, Process, Server, Snapshot

GIB = 1024**3
NAME = "sglang:30000"
BOOT = 5000.0  # boottime is this far ahead of monotonic: the machine once slept


def moment(now):
    """Return a moment at a monotonic time."""
    return Moment(unix=1_800_000_000.0 + now, monotonic=now, boottime=now + BOOT)


def a_server(*, ranks=8, name=NAME, born=0.0, **fields):
    """Return a server whose launcher has pid 100 and whose ranks follow it."""
    launcher = Process(100, 1, born + BOOT, "launcher", "launcher")
    schedulers = [Process(101 + r, 2, born + BOOT, "scheduler", f"scheduler_TP{r}", f"TP{r}") for r in range(ranks)]
    places = tuple(Place(f"GPU-{r}", r, f"TP{r}") for r in range(ranks))
    defaults = {"launch": Launch(port=30000, tp_size=ranks), "expected_schedulers": ranks, "gpus": places}
    return Server(name=name, engine="sglang", processes=(launcher, *schedulers), **{**defaults, **fields})


def gpus(now, *, utilization=0.0, memory=76 * GIB, count=8, **fields):
    """Return a reading of GPUs that all show the same."""
    each = [
        Gpu(
            index=i,
            uuid=f"GPU-{i}",
            utilization=utilization,
            memory_used=memory,
            memory_total=96 * GIB,
            processes=(GpuProcess(101 + i, memory),),
        )
        for i in range(count)
    ]
    return GpuReading(now, "580.95", tuple(replace(gpu, **fields) for gpu in each))


def a_log(now, *, progress=0.0, phase="ready", server=NAME, **fields):
    """Return a reading of one log."""
    defaults = {
        "path": "/data/server.log",
        "size_bytes": 1000,
        "last_write": progress,
        "last_heartbeat": None,
        "phase_since": progress,
        "progress": None,
        "ranks": (),
        "last_marker": "",
        "last_marker_rank": "",
        "waiting": "",
        "stopping": phase == "stopping",
        "engine_version": "",
        "lines": {},
        "errors": {},
        "rotations": 0,
        "skipped_bytes": 0,
    }
    return LogReading(now, (Log(server=server, last_progress=progress, phase=phase, **{**defaults, **fields}),))


def processes(now, *, server=NAME, rchar=0, faults=0, file_bytes=0, compiler=0.0, **fields):
    """Return a reading of one server's processes: its tree, and one scheduler."""
    tree = Tree(server, rchar, 0, 0, faults, file_bytes, compiler, 0)
    return ProcessReading(now, (a_sample(server=server),), (replace(tree, **fields),))


def a_sample(*, server=NAME, process="scheduler_TP0", role="scheduler", pid=101, state="S"):
    """Return a sample of one process."""
    return ProcessSample(
        server=server,
        process=process,
        role=role,
        rank="TP0" if role == "scheduler" else "",
        pid=pid,
        started=BOOT,
        state=state,
        cpu_seconds=1.0,
        cpu_ratio=0.0,
        tree_cpu_seconds=1.0,
        threads=1,
        open_fds=3,
        resident_bytes=GIB,
        resident_file_bytes=0,
        rchar=0,
        read_bytes=0,
        write_bytes=0,
        minor_faults=0,
        major_faults=0,
        voluntary_switches=0,
        involuntary_switches=0,
        wchan=None,
    )


def health(now, result="ok", *, server=NAME, scope="scheduler", failures=0, latency=1.0, status=None):
    """Return a reading of one probe of /health."""
    success = now if result == "ok" else None
    probe = Probe("/health", result, scope, latency, status, {}, now, success, failures)
    return HealthReading(now, server, (probe,))


def a_snapshot(now, *readings, servers=None, failures=()):
    """Return a snapshot of one server, or of those given."""
    return Snapshot(moment(now), (a_server(),) if servers is None else servers, readings, failures)
