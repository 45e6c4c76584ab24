"""Does a server that is not ready yet get on, is it late, or is it stuck?"""

from stallwatch import wording
from stallwatch.judging.ruling import MOVING_FOR, Ruling, held_to, moved_within, patient_grade, spins
from stallwatch.past import Past
from stallwatch.tracks.limits import MULTINODE_WAITS, STARTING_SIGNALS
from stallwatch.wording import duration

BUDGETS = {
    "launch": "weights",
    "distributed_init": "rendezvous",
    "loading_weights": "weights",
    "loaded": "weights",
    "allocating_memory": "compile",
    "compiling": "compile",
    "capturing_graphs": "compile",
    "warming_up": "warm_up",
}
LOADS = frozenset({"launch", "loading_weights", "loaded", None})
COMPILES = frozenset({"compiling", "capturing_graphs"})


def starting(past: Past, now: float) -> Ruling | None:
    """Rule on a server that is known not to be ready; it owes its start."""
    if past.ready is not False:
        return None
    if past.waiting:
        return Ruling("starting", past.started, f"It waits on purpose ({past.waiting}) until somebody lets it go on.")
    if not past.moved:
        return None
    since = max([past.started, *past.stamps.values()])
    limit = past.limit("start_without_movement")
    if past.vanished:
        limit = max(limit, past.limit("start_without_movement_partial"))
    state = patient_grade(since, now, past, limit)
    if not state:
        return _moving(past, now)
    held = held_to(since, now, past, limit, _why(past, limit))
    text = f"{_stands(past)} but nothing has moved for {duration(now - since)}{held}: {wording.seen(past, now)}."
    return Ruling(state, since, text, _hang(past) if state == "stalled" else "")


def _why(past: Past, limit: float) -> str:
    """Say why a start may rest for so long, where it is longer than usual."""
    other_nodes = MULTINODE_WAITS.get(past.phase or "") if past.server.launch.nnodes > 1 else None
    if other_nodes and limit == past.limit(other_nodes):
        return "since other nodes may take longer"
    partial = limit == past.limit("start_without_movement_partial")
    unread = [signal for signal in STARTING_SIGNALS if signal not in past.readable]
    return wording.unread(unread) if partial and unread else ""


def unclear(past: Past, now: float) -> Ruling | None:
    """Rule on a server of which it is not known whether it is ready: a young one that moves is starting."""
    if past.ready is not None or now - past.started >= past.limit("weights"):
        return None
    moving = moved_within(past, now, past.limit("suspect"), past.moved)
    if not moving:
        return None
    text = f"Started {duration(now - past.started)} ago; {wording.moving(moving)}."
    return Ruling("starting", past.started, text)


def _stands(past: Past) -> str:
    weights = wording.weights(past)
    if not past.gpus.holding.loaded or not weights:
        return f"It stands in {_words(past)}"
    if past.phase == "loading_weights" and (past.progress or 0.0) < 1.0:
        return f"It stands in {_words(past)} ({weights})"
    return f"Weights are loaded ({weights})"


def _words(past: Past) -> str:
    phase = (past.phase or "its start").replace("_", " ")
    return phase if past.progress is None else f"{phase} at {past.progress:.0%}"


def _moving(past: Past, now: float) -> Ruling:
    since = past.started if past.phase_since is None else past.phase_since
    budget, signature = past.limit(_budget(past)), _busy_with(past, now)
    signal, at = max(past.stamps.items(), key=lambda item: item[1])
    text = f"In {_words(past)} for {duration(now - since)}; {signal} moved {duration(now - at)} ago"
    if now - since > budget:
        return Ruling("slow", since + budget, f"{text}, but this takes longer than {duration(budget)}.", signature)
    return Ruling("starting", past.started, f"{text}.", signature)


def _budget(past: Past) -> str:
    name = BUDGETS.get(past.phase or "", "weights")
    return "rendezvous_multinode" if name == "rendezvous" and past.server.launch.nnodes > 1 else name


def _busy_with(past: Past, now: float) -> str:
    """Name what a start that moves is busy with, when it looks like a hang since its log is silent, or it compiles."""
    if past.phase in COMPILES or moved_within(past, now, MOVING_FOR, ("compile",)):
        return "compiling"
    silent = "log" not in past.moved or now - past.moved["log"] >= past.limit("suspect")
    return "slow_load" if silent and past.phase in LOADS else ""


def _hang(past: Past) -> str:
    if past.phase == "distributed_init" and not past.gpus.holding.loaded:
        return "rendezvous"
    if past.gpus.split_since is not None:
        return "split_ranks"
    if past.gpus.hot_since is not None:
        return "spin_deadlock"
    return "cpu_spin" if spins(past) else "cold_deadlock"
