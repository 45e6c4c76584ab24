"""What is said of the servers as data? The JSON of `/api/v1/status` and of `stallwatch check --json`."""

from typing import Any

from stallwatch.collectors.health import Probe
from stallwatch.monitor import View
from stallwatch.past import Past
from stallwatch.snapshot import Moment
from stallwatch.verdict import Verdict


def report(view: View) -> dict[str, Any]:
    """Return every server with its verdict, what that rests on and what cannot be read; times are Unix seconds."""
    moment = view.snapshot.moment
    servers = [server_report(past, view.verdicts[name], moment) for name, past in view.pasts.items()]
    released = _unix(moment, view.gpu_released_until)
    said = {"time": round(moment.unix, 3), "servers": servers, "failures": _failures(view)}
    return said if released is None else {**said, "gpu_released_until": released}


def server_report(past: Past, verdict: Verdict, moment: Moment) -> dict[str, Any]:
    """Return one server."""
    return {
        "server": past.server.name,
        "engine": past.server.engine,
        "verdict": verdict.state,
        "signature": verdict.signature,
        "since": verdict.since,
        "reason": verdict.reason,
        "missing": list(verdict.missing),
        "version": past.server.version,
        "model": past.server.launch.model,
        "port": past.server.launch.port,
        "phase": past.phase,
        "phase_since": _unix(moment, past.phase_since),
        "progress": past.progress,
        "expected_schedulers": past.server.expected_schedulers,
        "pending_requests": past.pending,
        "last_movement": {signal: _unix(moment, at) for signal, at in past.moved.items()},
        "owed_since": {reason: _unix(moment, at) for reason, at in past.demand_since.items()},
        "ranks": _ranks(past, moment),
        "replicas": _replicas(past, moment),
        "gpus": _gpus(past),
        "health": [_probe(probe, moment) for probe in past.probes],
        "limits": dict(past.limits),
    }


def _ranks(past: Past, moment: Moment) -> list[dict[str, Any]]:
    return [
        {
            "process": rank.process,
            "rank": rank.rank,
            "state": rank.state,
            "cpu_cores": None if rank.cpu is None else round(rank.cpu, 3),
            "phase": "ready" if past.phase == "ready" and rank.phase else rank.phase,  # no rank logs that it is ready
            "missing_since": _unix(moment, rank.missing_since),
            "stopped_since": _unix(moment, rank.stopped_since),
        }
        for rank in past.ranks
    ]


def _replicas(past: Past, moment: Moment) -> list[dict[str, Any]]:
    return [
        {
            "dp_rank": replica.dp_rank,
            "running": replica.running,
            "queued": replica.queued,
            "last_token": _unix(moment, replica.tokens_at),
            "heartbeat": _unix(moment, replica.heartbeat),
        }
        for replica in past.replicas
    ]


def _gpus(past: Past) -> dict[str, Any]:
    held = past.gpus.holding
    return {
        "count": len(past.server.gpus),
        "indices": [place.index for place in past.server.gpus],
        "utilization_min": held.utilization_min,
        "utilization_max": held.utilization_max,
        "memory_used_min": held.memory_min,
        "memory_used_max": held.memory_max,
        "power_ratio": past.gpus.power_ratio,
        "lost": list(held.lost),
    }


def _probe(probe: Probe, moment: Moment) -> dict[str, Any]:
    return {
        "path": probe.path,
        "result": probe.result,
        "status": probe.status,
        "scope": probe.scope,
        "latency": round(probe.latency, 4),
        "at": _unix(moment, probe.at),
        "last_success": _unix(moment, probe.last_success),
        "consecutive_failures": probe.consecutive_failures,
    }


def _failures(view: View) -> list[dict[str, Any]]:
    return [
        {"collector": failure.collector, "server": failure.server, "reason": failure.reason, "detail": failure.detail}
        for failure in view.snapshot.failures
    ]


def _unix(moment: Moment, at: float | None) -> float | None:
    return None if at is None else round(moment.unix_of(at), 3)
