"""Builders of what is known of a server's past, as tables of a few words."""

from dataclasses import replace

from readings import GIB, a_server
from stallwatch.collectors.health import Probe
from stallwatch.past import GpusPast, Past, RankPast, ReplicaPast
from stallwatch.placement import Holding
from stallwatch.snapshot import Moment

NOW = 100_000.0
UNIX = 1_800_000_000.0
HOUR = 3600.0
ALL_STARTING = ("log", "gpu_memory", "io", "faults", "compile")


def moment():
    """Return the moment at which is judged."""
    return Moment(UNIX, NOW, NOW + 5.0)


def ago(**seconds):
    """Return monotonic times by how long ago they are."""
    return {name: NOW - age for name, age in seconds.items()}


def gpus(low=0.0, high=None, *, power=None, memory=76, for_seconds=HOUR, count=8):
    """Return GPUs that have shown this for a while."""
    high = low if high is None else high
    since = NOW - for_seconds
    held = memory * GIB
    return GpusPast(
        Holding(low, high, held, held, held >= 3 * GIB),
        power,
        busy_at=NOW if high >= 0.05 else since,
        hot_since=since if low >= 0.9 else None,
        cold_since=since if high < 0.05 else None,
        split_since=since if high >= 0.9 and low < 0.1 else None,
    )


def ranks(*cores, **fields):
    """Return one rank for each number of cores."""
    each = [RankPast(f"scheduler_TP{n}", f"TP{n}", cpu=cpu) for n, cpu in enumerate(cores)]
    return tuple(replace(rank, **fields) for rank in each)


def replica(running=0.0, queued=0.0, *, dp_rank="0", tokens=None, pending=None, finished=None, heartbeat=None):
    """Return one replica; the last four are ages."""
    stamps = {"pending_since": pending, "tokens_at": tokens, "finished_at": finished, "heartbeat": heartbeat}
    times = {name: None if age is None else NOW - age for name, age in stamps.items()}
    return ReplicaPast(dp_rank, running, queued, **times)


def probe(result="ok", *, scope="scheduler", path="/health", latency=1.0, status=None, age=5.0):
    """Return one probe."""
    return Probe(path, result, scope, latency, status, {}, NOW - age, None, 0)


def a_past(*, age=2 * HOUR, **fields):
    """Return the past of a server that was started so long ago and first seen then."""
    defaults = {"server": a_server(), "first_seen": NOW - age, "started": NOW - age}
    return Past(**{**defaults, **fields})


def starting(**fields):
    """Return the past of a server that loads, whose log, GPUs and processes can all be read."""
    still = fields.pop("still", 0.0)
    moved = ago(**{**dict.fromkeys(ALL_STARTING, still), "compile": max(still, HOUR)})
    defaults = {
        "ready": False,
        "phase": "loading_weights",
        "phase_since": NOW - HOUR / 2,
        "moved": moved,
        "demand_since": ago(not_ready=2 * HOUR),
        "readable": frozenset(ALL_STARTING),
    }
    return a_past(**{**defaults, **fields})


def serving(**fields):
    """Return the past of a server that is ready and has requests, whose tokens and log stand still for so long."""
    still, owed = fields.pop("still", 0.0), fields.pop("owed", {"running": HOUR})
    defaults = {
        "ready": True,
        "phase": "ready",
        "phase_since": NOW - HOUR,
        "moved": ago(tokens=still, log=still),
        "demand_since": ago(**owed),
        "pending": 1.0 if owed.keys() & {"running", "queued"} else 0.0,
        "replicas": (replica(1.0 if "running" in owed else 0.0, tokens=still),),
    }
    return a_past(**{**defaults, **fields})
