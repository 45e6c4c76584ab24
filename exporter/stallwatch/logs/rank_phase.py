"""How far has a rank come? What of a log everybody has to know who looks at readings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankPhase:
    """The furthest phase that one rank has told of, and since when (monotonic)."""

    rank: str
    phase: str
    since: float
