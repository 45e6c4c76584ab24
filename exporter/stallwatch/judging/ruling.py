"""What does a rule say, and what do rules have in common?"""

from collections.abc import Iterable
from dataclasses import dataclass

from stallwatch import wording
from stallwatch.past import Past, RankPast
from stallwatch.wording import ASLEEP_CORES, SPINNING_CORES, duration

MOVING_FOR = 60.0


@dataclass(frozen=True, slots=True)
class Ruling:
    """What one rule decides; `since` is monotonic."""

    state: str
    since: float
    reason: str
    signature: str = ""


def grade(still: float, past: Past, limit: float) -> str:
    """Return stalled or suspect for how long nothing has moved, nothing while that is short."""
    if still >= limit:
        return "stalled"
    return "suspect" if still >= past.limit("suspect") else ""


def patient_grade(since: float, now: float, past: Past, limit: float) -> str:
    """Return the same where GPUs that may compute get more time.

    What they may have computed before they came to rest does not count against the shorter limit: a long prefill that
    ends is seen by its power some moments before it is seen by its tokens.
    """
    longest = max(limit, past.limit("stalled_high_power"))
    if past.gpus.may_compute or now - since >= longest:
        return grade(now - since, past, longest)
    rest = since if past.gpus.worked_at is None else max(since, past.gpus.worked_at)
    return grade(now - rest, past, limit) or grade(now - since, past, longest)


def held_to(since: float, now: float, past: Past, limit: float, why: str = "") -> str:
    """Say to which limit that grade holds a standstill, and what makes it another one than usual."""
    longest = max(limit, past.limit("stalled_high_power"))
    rest = since if past.gpus.worked_at is None else max(since, past.gpus.worked_at)
    if past.gpus.may_compute and longest > limit:
        return wording.limit(longest, "since its GPUs may compute")
    if rest == since or past.gpus.may_compute:
        return wording.limit(limit, why)
    if now - since >= longest:
        return wording.limit(longest)
    return wording.limit(limit, f"its GPUs at rest for {duration(now - rest)}")


def moved_within(past: Past, now: float, seconds: float, signals: Iterable[str]) -> dict[str, float]:
    """Return which of these signals have moved lately: what was never seen to move has the stamp of the first sight."""
    stamps = past.stamps
    return {
        signal: stamps[signal]
        for signal in signals
        if signal in stamps and now - stamps[signal] < seconds and stamps[signal] > past.first_seen
    }


def answered(past: Past) -> bool:
    """Tell whether the scheduler answered the last probe of some path."""
    return any(probe.result == "ok" and probe.scope == "scheduler" for probe in past.probes)


def cores(ranks: Iterable[RankPast]) -> list[float]:
    """Return how many cores each rank burns, where that is known."""
    return [rank.cpu for rank in ranks if rank.cpu is not None]


def spins(past: Past) -> bool:
    """Tell whether a scheduler burns CPU."""
    return any(known >= SPINNING_CORES for known in cores(past.schedulers))


def asleep(past: Past) -> bool:
    """Tell whether all schedulers are known to burn none."""
    known = cores(past.schedulers)
    return bool(known) and max(known) < ASLEEP_CORES
