"""What has come of the notifications so far?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Result = Literal["delivered", "failed", "given_up"]
RESULTS: tuple[Result, ...] = ("delivered", "failed", "given_up")
"""Taken by the receiver; to be tried again; refused by the receiver for good."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many notifications came to each result, and when one was last delivered (monotonic)."""

    counts: Mapping[Result, int] = field(default_factory=lambda: dict.fromkeys(RESULTS, 0))
    last_success: float | None = None

    def with_one(self, result: Result, now: float) -> "Tally":
        """Return it with one more, that ended now."""
        last = now if result == "delivered" else self.last_success
        return Tally({**self.counts, result: self.counts[result] + 1}, last)
