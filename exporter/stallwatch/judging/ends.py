"""Is something broken that no waiting mends: a GPU, the server, one of its processes? Or does it end on purpose?"""

from stallwatch import wording
from stallwatch.judging.ruling import Ruling, answered, grade, moved_within
from stallwatch.past import Past, RankPast
from stallwatch.wording import duration

OUTLIVED_AFTER = 60.0
"""What moves this long after an Xid is not what was still on its way when the GPU failed."""


def device(past: Past, now: float) -> Ruling | None:
    """Rule on a GPU that is lost, that the driver wants reset, or that the kernel reports broken."""
    gpus = past.gpus
    faults = [xid for xid in past.xids if xid.fault_at is not None and not _outlived(past, xid.fault_at)]
    begun = [at for at in (gpus.lost_since, *(xid.fault_at for xid in faults)) if at is not None]
    if not begun:
        return None
    lost = wording.joined(f"GPU {index}" for index in gpus.holding.lost)
    asked = wording.joined(fault.replace("_", " ") for fault in gpus.faults)
    driver = f"{lost} cannot be reached any more" if lost else f"the driver asks for: {asked or 'help'}"
    kernel = f"the kernel reports {wording.xids(faults)}" if faults else ""
    what = wording.joined((driver if gpus.lost_since is not None else "", kernel))
    since = min(begun)
    return Ruling("dead", since, f"A GPU fault for {duration(now - since)}: {what}.", "device_fault")


def _outlived(past: Past, at: float) -> bool:
    """Tell whether all replicas got on well after their GPU was reported broken: then it was not."""
    after = max(at + OUTLIVED_AFTER, past.first_seen)  # a stamp of the first sight is no movement
    if len(past.replicas) > 1:
        return all(replica.tokens_at is not None and replica.tokens_at > after for replica in past.replicas)
    return any(past.stamps.get(signal, after) > after for signal in ("tokens", "log"))


def gone(past: Past, now: float) -> Ruling | None:
    """Rule on a server whose processes have all gone."""
    since = past.ending.gone_since
    if since is None:
        return None
    ago = duration(now - since)
    if past.ending.orderly:
        return Ruling("stopping", since, f"All its processes went {ago} ago, after it was told to end.")
    if now - since < past.limit("lost_process"):
        return Ruling("stopping", since, f"All its processes went {ago} ago; how it ended is being looked at.")
    if past.ending.orderly is None:
        return Ruling("unknown", since, f"All its processes went {ago} ago; no log tells whether that was meant.")
    told = wording.kernel(past, now)
    text = f"All its processes went {ago} ago without an orderly end{f'; {told}' if told else ''}."
    return Ruling("dead", since, text, "crashed")


def absent(past: Past, now: float) -> Ruling | None:
    """Rule on a server that is only configured: with neither processes nor an answer nor a phase it is not there."""
    if past.server.processes or past.ranks or past.phase not in {None, "launch", "stopping"}:
        return None
    if any(probe.result != "refused" for probe in past.probes):
        return None
    port = wording.probes(past, now) or "nothing answers for it"
    return Ruling("unknown", past.first_seen, f"No process of it is seen, and {port}.")


def stopping(past: Past, now: float) -> Ruling | None:
    """Rule on a server that drains; one that never ends is late like any other phase, or hung."""
    if past.phase != "stopping" or past.phase_since is None:
        return None
    since, limit = past.phase_since, past.limit("stopping")
    told = f"It was told to end {duration(now - since)} ago"
    if now - since <= limit:
        return Ruling("stopping", since, f"{told} and drains.")
    moving = moved_within(past, now, past.limit("suspect"), past.stamps)
    if moving:
        text = f"{told}, longer than {duration(limit)}, though {wording.moving(moving)}."
        return Ruling("slow", since + limit, text)
    still = max([since, *past.stamps.values()])
    stalled = past.limit("stalled")
    stands = f"nothing has moved for {duration(now - still)}{wording.limit(stalled)}"
    text = f"{told} and is still there; {stands}: {wording.seen(past, now)}."
    return Ruling(grade(now - still, past, stalled) or "slow", still, text)


def processes(past: Past, now: float) -> Ruling | None:
    """Rule on what is dead or stopped: a launcher that left its ranks behind, a rank that has gone, state T."""
    return _orphaned(past, now) or _lost(past, now) or _fewer(past, now) or _stopped(past, now)


def _orphaned(past: Past, now: float) -> Ruling | None:
    since = past.ending.launcher_gone_since
    if since is None or now - since < past.limit("lost_process") or past.gpus.holding.loaded is False:
        return None
    if not _any_there(past) or any(probe.result == "ok" and probe.at > since for probe in past.probes):
        return None
    held = wording.weights(past) or "what they had"
    text = f"Its launcher went {duration(now - since)} ago; its ranks are still there and hold {held}."
    return Ruling("dead", since, text, "orphaned_memory")


def _any_there(past: Past) -> bool:
    return not past.ranks or any(rank.missing_since is None for rank in past.ranks)


def _lost(past: Past, now: float) -> Ruling | None:
    lost = _since(past.ranks, now, past.limit("lost_process"))
    if not lost:
        return None
    since = min(lost.values())
    zombies = all(rank.state in {"Z", "X"} for rank in past.ranks if rank.process in lost)
    has = "has" if len(lost) == 1 else "have"
    what = f"{has} been {'a zombie' if zombies else 'gone'} for"
    text = f"{_names(past, lost)} {what} {duration(now - since)} while the server lives on: {wording.seen(past, now)}."
    return Ruling("dead", since, text, "lost_process")


def _since(ranks: tuple[RankPast, ...], now: float, grace: float) -> dict[str, float]:
    missing = {rank.process: rank.missing_since for rank in ranks if rank.missing_since is not None}
    return {process: since for process, since in missing.items() if now - since >= grace}


def _names(past: Past, processes: dict[str, float]) -> str:
    return wording.names(rank for rank in past.ranks if rank.process in processes)


def _fewer(past: Past, now: float) -> Ruling | None:
    """Rule on ranks that had gone before the exporter came: a ready server has as many as its flags call for.

    Not where it is seen to work: then we have read the flags wrongly. As long as nothing is owed it is only a doubt.
    """
    expected, there = past.server.expected_schedulers, len(past.schedulers)
    if not past.ready or expected is None or not 0 < there < expected or past.phase == "stopping":
        return None
    works = answered(past) or any(at > past.first_seen for at in past.stamps.values())
    if works or now - past.first_seen < past.limit("stalled"):
        return None
    text = f"Only {there} of {expected} schedulers are there: {wording.seen(past, now)}."
    if past.demand_since and now - min(past.demand_since.values()) >= past.limit("stalled"):
        return Ruling("dead", past.first_seen, text, "lost_process")
    return Ruling("suspect", past.first_seen, text)


def _stopped(past: Past, now: float) -> Ruling | None:
    stopped = {rank.process: rank.stopped_since for rank in past.ranks if rank.stopped_since is not None}
    if not stopped:
        return None
    since = min(stopped.values())
    state = grade(now - since, past, past.limit("stalled"))
    lasts = f"{duration(now - since)}{wording.limit(past.limit('stalled'))}"
    text = f"{_names(past, stopped)} is stopped (state T) for {lasts}: {wording.seen(past, now)}."
    return Ruling(state, since, text, "stopped" if state == "stalled" else "") if state else None
