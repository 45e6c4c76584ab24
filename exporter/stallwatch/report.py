"""What is said of the servers as data? The JSON of `/api/v1/status` and of `stallwatch check --json`."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from stallwatch.collectors.gpu import Gpu, GpuReading
from stallwatch.collectors.health import Probe
from stallwatch.collectors.process import ProcessReading, ProcessSample
from stallwatch.pages.ranks import RankRow, rank_rows
from stallwatch.past import Past, RankPast
from stallwatch.snapshot import Moment, Place, Snapshot
from stallwatch.verdict import foreseen
from stallwatch.view import Bundle, View, stands_still


def report(view: View) -> dict[str, Any]:
    """Return every server with its verdict, what that rests on and what cannot be read; times are Unix seconds."""
    moment = view.snapshot.moment
    servers = [server_report(past, view) for past in view.pasts.values()]
    released = _unix(moment, view.gpu_released_until)
    said = {"time": round(moment.unix, 3), "servers": servers, "failures": _failures(view)}
    return said if released is None else {**said, "gpu_released_until": released}


def server_report(past: Past, view: View) -> dict[str, Any]:
    """Return one server."""
    verdict, snapshot = view.verdicts[past.server.name], view.snapshot
    moment, reading = snapshot.moment, snapshot.get(GpuReading)
    rows = rank_rows(
        past, {gpu.uuid: gpu for gpu in reading.gpus} if reading else {}, still=stands_still(verdict.state)
    )
    return {
        "server": past.server.name,
        "engine": past.server.engine,
        "verdict": verdict.state,
        "signature": verdict.signature,
        "since": verdict.since,
        "reason": verdict.reason,
        "missing": list(verdict.missing),
        "looks_like": foreseen(past, verdict, moment) if verdict.state == "suspect" else "",
        "version": past.server.version,
        "model": past.server.launch.model,
        "port": past.server.launch.port,
        "first_seen": _unix(moment, past.first_seen),
        "phase": past.phase,
        "phase_since": _unix(moment, past.phase_since),
        "progress": past.progress,
        "marker": past.marker,
        "marker_rank": past.marker_rank,
        "processes": _processes(past),
        "expected_schedulers": past.server.expected_schedulers,
        "pending_requests": past.pending,
        "last_movement": {signal: _unix(moment, at) for signal, at in past.moved.items()},
        "owed_since": {reason: _unix(moment, at) for reason, at in past.demand_since.items()},
        "ranks": _ranks(past, rows, snapshot),
        "replicas": _replicas(past, moment),
        "gpus": _gpus(past, rows),
        "health": [_probe(probe, moment) for probe in past.probes],
        "limits": dict(past.limits),
        "evidence": _evidence(view.evidence_of(past.server.name)),
    }


def _evidence(bundle: Bundle | None) -> dict[str, Any] | None:
    return None if bundle is None else {"bundle": bundle.name, "gathered": bundle.at}


def _processes(past: Past) -> dict[str, int]:
    """Return how many processes of each role are there; a zombie is not."""
    missing = {rank.process for rank in past.ranks if rank.missing_since is not None}
    return dict(Counter(process.role for process in past.server.processes if process.name not in missing))


def _ranks(past: Past, rows: Iterable[RankRow], snapshot: Snapshot) -> list[dict[str, Any]]:
    reading = snapshot.get(ProcessReading)
    samples = {one.process: one for one in (reading.processes if reading else ()) if one.server == past.server.name}
    return [
        _rank(past, row.rank, samples.get(row.rank.process), snapshot.moment)
        | {"gpus": _each(row.gpus), "odd": list(dict.fromkeys(row.odd))}
        for row in rows
        if row.rank
    ]


def _rank(past: Past, rank: RankPast, sample: ProcessSample | None, moment: Moment) -> dict[str, Any]:
    return {
        "process": rank.process,
        "rank": rank.rank,
        "role": rank.role,
        "pid": sample.pid if sample else None,
        "state": rank.state,
        "cpu_cores": None if rank.cpu is None else round(rank.cpu, 3),
        "wchan": sample.wchan if sample else None,
        "threads": sample.threads if sample else None,
        "open_fds": sample.open_fds if sample else None,
        "phase": "ready" if past.phase == "ready" and rank.phase else rank.phase,  # no rank logs that it is ready
        "missing_since": _unix(moment, rank.missing_since),
        "stopped_since": _unix(moment, rank.stopped_since),
        "loop_turned": _unix(moment, rank.beat),
    }


def _each(gpus: Sequence[tuple[Place, Gpu | None]]) -> list[dict[str, Any]]:
    return [
        {
            "index": place.index,
            "uuid": place.uuid,
            "utilization": gpu.utilization if gpu else None,
            "memory_used": gpu.memory_used if gpu else None,
            "memory_total": gpu.memory_total if gpu else None,
            "power_watts": gpu.power_watts if gpu else None,
            "power_limit_watts": gpu.power_limit_watts if gpu else None,
            "lost": bool(gpu and gpu.lost),
        }
        for place, gpu in gpus
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


def _gpus(past: Past, rows: Iterable[RankRow]) -> dict[str, Any]:
    held = past.gpus.holding
    unplaced = [{**gpu, "odd": list(row.odd)} for row in rows if not row.rank for gpu in _each(row.gpus)]
    return {
        "count": len(past.server.gpus),
        "indices": [place.index for place in past.server.gpus],
        "utilization_min": held.utilization_min,
        "utilization_max": held.utilization_max,
        "memory_used_min": held.memory_min,
        "memory_used_max": held.memory_max,
        "power_ratio": past.gpus.power_ratio,
        "lost": list(held.lost),
        "unplaced": unplaced,
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
