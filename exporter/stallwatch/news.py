"""What is missing, and is that news?"""

import logging
from collections.abc import Collection, Iterable

from stallwatch.collectors import log
from stallwatch.journal import Changes
from stallwatch.lanes import LaneState
from stallwatch.snapshot import Failure, Server


def no_log(server: Server) -> Failure:
    """Say why a server has no log that could be read, in the words of discovery."""
    reason, _, detail = server.log_absence.partition(":")
    return Failure(log.NAME, reason or "no_log", detail.strip(), server.name)


class News:
    """Logs what is missing when that begins and ends, unless it was to be expected."""

    def __init__(self) -> None:
        self._changes = Changes(logging.getLogger("stallwatch.monitor"))

    def tell(
        self, names: Collection[str], failures: Iterable[Failure], lanes: Iterable[LaneState], starting: Collection[str]
    ) -> None:
        """Say what is missing; no news is the first round, a port that opens last, and whoever is not among `names`."""
        known = {"", *names}  # what is of no server is always told
        self._changes.forget(lambda key: key[1] not in known)
        told = (
            one
            for one in failures
            if one.server in known
            and one.reason != "starting"
            and not (one.reason == "refused" and one.server in starting)
        )
        wrong: dict[tuple[str, ...], str] = {(f.collector, f.server, f.reason): f.detail for f in told}
        wrong |= {(one.collector, one.server, "too_many"): f"{one.dropping} left out" for one in lanes if one.dropping}
        self._changes.see(wrong)
