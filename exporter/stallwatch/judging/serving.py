"""Does a server that serves do what is asked of it? And when nothing is asked, is it idle or does it only look so?"""

from stallwatch import wording
from stallwatch.judging import replicas
from stallwatch.judging.ruling import (
    MOVING_FOR,
    Ruling,
    answered,
    asleep,
    grade,
    held_to,
    moved_within,
    patient_grade,
    spins,
)
from stallwatch.past import COLD, Past, ReplicaPast
from stallwatch.wording import duration

TOKENS_FRESH = 15.0
CARRIERS = frozenset({"tokens", "log"})
OWED = {
    "running": "Requests run",
    "queued": "Requests wait",
    "step": "Its engine core waits for its workers",
    "probe_failing": "Health probes fail",
    "socket": "Clients wait on its port",
    "not_ready": "It is not ready",
}


def owed(past: Past, now: float) -> Ruling | None:
    """Rule on a server of which something is owed: does it move?

    Where it is not known whether it is ready, a start may be what is owed, and that may rest for longer.
    """
    if past.ready is False or not past.demand_since or past.waiting:
        return None
    if (replica := _behind(past)) and (ruling := _replica(past, now, replica)):
        return ruling
    if ruling := replicas.silent(past, now):
        return ruling
    since = _rest(past)
    if since is None:
        return _computes(past, now)
    what = f"{_owes(past, now)}, but nothing has moved"
    return _unmoved(past, now, since, what) or _unscheduled(past, now) or _moves(past, now)


def _behind(past: Past) -> ReplicaPast | None:
    """Return the replica with work that has stood still for longest, where there are several to tell apart."""
    pending = [one for one in past.replicas if one.pending_since is not None and one.tokens_at is not None]
    return min(pending, key=lambda one: _standstill(past, one), default=None) if len(past.replicas) > 1 else None


def _standstill(past: Past, replica: ReplicaPast) -> float:
    stamps = (replica.pending_since, replica.tokens_at, past.stamps.get("compile"))
    return max(stamp for stamp in stamps if stamp is not None)


def _replica(past: Past, now: float, replica: ReplicaPast) -> Ruling | None:
    what = f"Replica {replica.dp_rank} of {len(past.replicas)} has work and has made no token"
    return _unmoved(replicas.narrowed(past, replica), now, _standstill(past, replica), what)


def _rest(past: Past) -> float | None:
    """Return since when nothing moves though something is owed, None where no movement can be seen at all."""
    stamps = past.stamps
    cleared = [] if past.cleared_at is None else [past.cleared_at]
    floor = max([min(past.demand_since.values()), *cleared, *_ticks(past), *stamps.values()])
    worker = past.server.launch.worker  # its log tells of no batch
    if not worker and (past.moved.keys() & CARRIERS or (past.ready is None and past.moved)):
        return floor
    # Where tokens and log can both not be read (any more), the GPUs tell when work ended.
    if past.gpus.cold_since is not None and past.gpus.busy_at is not None:
        return max(floor, past.gpus.busy_at)
    known_low = past.gpus.hot_since is not None and past.gpus.power_ratio is not None
    return floor if known_low and not past.gpus.may_compute else None


def _ticks(past: Past) -> list[float]:
    """Return when counters last ticked that only tick as requests end."""
    return [replica.finished_at for replica in past.replicas if replica.finished_at is not None]


def _unmoved(past: Past, now: float, since: float, what: str) -> Ruling | None:
    limit, why = past.limit("stalled"), ""
    if past.ready is None and past.limit("start_without_movement") > limit:
        limit, why = past.limit("start_without_movement"), "since it may still be starting"
    state = patient_grade(since, now, past, limit)
    if not state:
        return None
    held = held_to(since, now, past, limit, why)
    text = f"{what} for {duration(now - since)}{held}: {wording.seen(past, now)}."
    return Ruling(state, since, text, _hang(past, now) if state == "stalled" else "")


def _unscheduled(past: Past, now: float) -> Ruling | None:
    """Doubt a queue from which nothing is taken though the scheduler answers probes: that alone is no page."""
    if "queued" not in past.demand_since or not _none_runs(past):
        return None
    since = max([past.demand_since["queued"], *past.stamps.values()])
    if now - since < past.limit("stalled") or not past.stamps.keys() & {"tokens"}:
        return None
    text = f"{_owes(past, now)} and none runs, though its scheduler answers probes: {wording.seen(past, now)}."
    return Ruling("suspect", since, text)


def _moves(past: Past, now: float) -> Ruling:
    since = min(past.demand_since.values())
    moving = moved_within(past, now, MOVING_FOR, past.stamps)
    if any(now - at < MOVING_FOR for at in _ticks(past)):
        moving["tokens"] = now
    if past.failing and moving:
        text = f"{wording.moving(moving)}, but {wording.joined(past.failing)} fails again and again: "
        since = past.demand_since.get("probe_failing", since)
        return Ruling("slow", since, f"{text}{wording.probes(past, now)}.")
    doubt = "its scheduler answers" if answered(past) else "not for long enough to be suspect"
    return Ruling("busy", since, f"{_owes(past, now)}; {wording.moving(moving) or doubt}.")


def _computes(past: Past, now: float) -> Ruling | None:
    """Rule on a server that owes something where neither its tokens nor its log can be read."""
    since = min(past.demand_since.values())
    if (past.gpus.holding.utilization_max or 0.0) >= COLD:
        text = f"{_owes(past, now)} and its GPUs are at work, though no signal tells what they achieve: "
        return Ruling("busy", since, f"{text}{wording.gpus(past)}.")
    if answered(past):
        return Ruling("busy", since, f"{_owes(past, now)} and its scheduler answers.")
    return None


def _owes(past: Past, now: float) -> str:
    reason, since = min(past.demand_since.items(), key=lambda item: item[1])
    return f"{OWED.get(reason, reason)} for {duration(now - since)}"


def _none_runs(past: Past) -> bool:
    running = [replica.running for replica in past.replicas if replica.running is not None]
    queued = [replica.queued for replica in past.replicas if replica.queued is not None]
    return bool(running) and sum(running) == 0 and sum(queued) > 0


def _hang(past: Past, now: float) -> str:
    gpus = past.gpus
    if gpus.split_since is not None and now - gpus.split_since >= past.limit("split"):
        return "split_ranks"
    if gpus.hot_since is not None:
        return "spin_deadlock"
    if _none_runs(past):
        return "unscheduled"
    only_front = not past.demand_since.keys() - {"probe_failing", "socket"}
    if only_front and (_beats_lately(past, now) or (past.pending == 0 and not asleep(past))):
        return "frontend_stall"
    return "cpu_spin" if spins(past) else "cold_deadlock"


def _beats(past: Past) -> dict[str, float]:
    """Return when each loop was last seen to turn, of those that ever were."""
    engine = {f"replica {one.dp_rank}": one.heartbeat for one in past.replicas if one.heartbeat is not None}
    return {**engine, **{rank.rank or rank.process: rank.beat for rank in past.schedulers if rank.beat is not None}}


def _beats_lately(past: Past, now: float) -> bool:
    beats = _beats(past).values()
    return bool(beats) and now - min(beats) < MOVING_FOR


def unowed(past: Past, now: float) -> Ruling | None:
    """Rule on a ready server of which nothing is owed: does its loop turn, is it busy all the same, is it idle?"""
    if not past.ready:
        return None
    quiet = max([past.first_seen, *past.stamps.values()])
    if past.waiting:
        return Ruling("idle", quiet, f"It waits on purpose ({past.waiting}).")
    return _silent_loop(past, now) or _at_work(past, now) or _idle(past, now, quiet)


def _silent_loop(past: Past, now: float) -> Ruling | None:
    """Rule on a loop that once turned and has stopped; one that never showed a beat is not expected to."""
    beats = _beats(past)
    if not beats:
        return None
    name, beat = min(beats.items(), key=lambda item: item[1])
    beat = max(at for at in (beat, past.cleared_at, past.stamps.get("compile")) if at is not None)
    state = grade(now - beat, past, past.limit("stalled"))
    if not state:
        return None
    lasts = f"{duration(now - beat)}{wording.limit(past.limit('stalled'))}"
    text = f"Nothing is owed, but the loop of {name} has not turned for {lasts}: {wording.seen(past, now)}."
    return Ruling(state, beat, text, "loop_stopped" if state == "stalled" else "")


def _at_work(past: Past, now: float) -> Ruling | None:
    fresh = TOKENS_FRESH if past.pending == 0 else MOVING_FOR
    began = past.phase_since if past.phase_since is not None else past.first_seen
    moving = {signal: at for signal, at in moved_within(past, now, fresh, CARRIERS).items() if at > began}
    if moving:
        return Ruling("busy", min(moving.values()), f"{wording.moving(moving)}: it does what it is asked.")
    worker = past.server.launch.worker
    if worker and (past.gpus.holding.utilization_max or 0.0) >= COLD and past.gpus.may_compute:
        return Ruling("busy", now, f"It works for the first node: {wording.gpus(past)}.")
    return None


def _idle(past: Past, now: float, quiet: float) -> Ruling | None:
    if past.pending == 0:
        return Ruling("idle", quiet, "It is ready, and no request runs or waits.")
    if answered(past):
        return Ruling("idle", quiet, "It is ready and its scheduler answers health probes.")
    if past.server.launch.worker:
        return Ruling("idle", quiet, "It is ready; what is asked of it is known on the first node only.")
    if past.moved.keys() & CARRIERS and moved_within(past, now, MOVING_FOR, CARRIERS):
        return Ruling("idle", quiet, "It has just become ready.")
    return None
