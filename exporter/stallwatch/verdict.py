"""Is a server hung, idle, slow or starting, and why? `judge` is a pure function of what is known of its past.

The rules stand in the order of decision: the first that has something to say decides. A signal that is missing is never
a gate: what is left decides, and only when nothing left does is the verdict `unknown`.
"""

from dataclasses import dataclass, replace

from stallwatch import wording
from stallwatch.judging import ends, serving, starting
from stallwatch.past import Past
from stallwatch.snapshot import Moment

VERDICTS = ("starting", "idle", "busy", "slow", "stopping", "suspect", "stalled", "dead", "unknown")
WORST_FIRST = ("dead", "stalled", "suspect", "slow", "unknown", "starting", "stopping", "busy", "idle")
SIGNATURES = (
    "cold_deadlock",
    "spin_deadlock",
    "split_ranks",
    "cpu_spin",
    "unscheduled",
    "frontend_stall",
    "loop_stopped",
    "rendezvous",
    "stopped",
    "slow_load",
    "compiling",
    "lost_process",
    "crashed",
    "orphaned_memory",
    "device_fault",
)
PATIENCE = ("stalled", "stalled_high_power", "start_without_movement", "start_without_movement_partial", "split")
"""The limits that a server which stands still is waited for."""
RULES = (
    ends.device,
    ends.gone,
    ends.absent,
    ends.stopping,
    ends.processes,
    starting.starting,
    serving.owed,
    serving.unowed,
    starting.unclear,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is judged of one server; `since` is the Unix time at which that began, of a stall the last movement."""

    state: str
    signature: str
    since: float
    reason: str
    missing: tuple[str, ...] = ()


def judge(past: Past, now: Moment) -> Verdict:
    """Judge one server at one moment."""
    for rule in RULES:
        ruling = rule(past, now.monotonic)
        if ruling:
            # A stall is told from the last movement on, a suspicion from when it became one.
            begun = past.limit("suspect") if ruling.state == "suspect" else 0.0
            since = _unix(now, ruling.since + begun)
            return Verdict(ruling.state, ruling.signature, since, ruling.reason, past.missing)
    missing = wording.joined(past.missing) or "none of them says whether work is owed and whether it gets on"
    reason = f"The signals that would decide are missing ({missing})."
    return Verdict("unknown", "", _unix(now, past.first_seen), reason, past.missing)


def foreseen(past: Past, verdict: Verdict, now: Moment) -> str:
    """Return the signature, of a server that is only suspect the one it will have once it stood still for long enough.

    The same facts decide it: only the limits are waited for.
    """
    if verdict.state != "suspect":
        return verdict.signature
    short = {name: min(past.limit(name), past.limit("suspect")) for name in PATIENCE}
    return judge(replace(past, limits={**past.limits, **short}), now).signature


def _unix(now: Moment, monotonic: float) -> float:
    return min(now.unix, round(now.unix_of(monotonic), 3))
