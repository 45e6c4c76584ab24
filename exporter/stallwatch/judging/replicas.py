"""Does one data-parallel replica hang behind others that serve?

One good health probe is the answer of one replica, and sums hide the one that makes nothing. A replica that hangs
before it takes up its work shows none: its numbers are frozen at 0 and only its loop, which does not turn, tells.
"""

from dataclasses import replace

from stallwatch import wording
from stallwatch.engines.engine import rank_parts
from stallwatch.judging.ruling import MOVING_FOR, Ruling, patient_grade
from stallwatch.past import Past, RankPast, ReplicaPast
from stallwatch.wording import duration


def silent(past: Past, now: float) -> Ruling | None:
    """Rule on a replica without work whose loop has stopped while that of another turns."""
    beats = {one.dp_rank: beat for one in past.replicas if (beat := _beat(past, one)) is not None}
    idle = [one for one in past.replicas if one.dp_rank in beats and one.pending_since is None]
    if len(past.replicas) < 2 or not idle or now - max(beats.values()) >= MOVING_FOR:
        return None
    replica = min(idle, key=lambda one: beats[one.dp_rank])
    own = narrowed(past, replica)
    since = max(beats[replica.dp_rank], past.stamps.get("compile", past.first_seen))
    state = patient_grade(since, now, own, past.limit("stalled"))
    if not state:
        return None
    text = f"Replica {replica.dp_rank} of {len(past.replicas)} shows no work, but its loop has not turned"
    text = f"{text} for {duration(now - since)} while others turn: {wording.seen(own, now)}."
    return Ruling(state, since, text, "loop_stopped" if state == "stalled" else "")


def narrowed(past: Past, replica: ReplicaPast) -> Past:
    """Return what concerns one replica, whose GPUs may be its own, and not what the others write into the log."""
    alone = replace(past, replicas=(replica,), moved={}, vanished={})
    gpus = past.parts.get(replica.dp_rank)
    return replace(alone, gpus=gpus, ranks=_ranks(past, replica)) if gpus is not None else alone


def _ranks(past: Past, replica: ReplicaPast) -> tuple[RankPast, ...]:
    return tuple(rank for rank in past.ranks if str(rank_parts(rank.rank).get("DP")) == replica.dp_rank)


def _beat(past: Past, replica: ReplicaPast) -> float | None:
    """Return when its loop last turned, by what its engine says or, where that says nothing, by its processes."""
    if replica.heartbeat is not None:
        return replica.heartbeat
    beats = [rank.beat for rank in _ranks(past, replica) if rank.role == "scheduler" and rank.beat is not None]
    return min(beats, default=None)
