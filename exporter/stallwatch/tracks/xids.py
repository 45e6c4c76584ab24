"""What has the kernel told of the GPUs and processes of a server, in this life of it?"""

from dataclasses import dataclass, field

from stallwatch.collectors.kernel import KernelReading
from stallwatch.past import XidPast
from stallwatch.snapshot import Moment, Server

SLACK = 1.0  # a life begins with the start of its first process, which is known to a hundredth of a second


@dataclass
class Xids:
    """The Xids since the server began; kept where the kernel log cannot be read any more, or has lost the lines."""

    _known: dict[tuple[str, int], XidPast] = field(default_factory=dict)

    def look(
        self, moment: Moment, server: Server, reading: KernelReading | None, started: float
    ) -> tuple[XidPast, ...]:
        """Take in a reading and return what was told of the GPUs of this server since it was started (monotonic)."""
        places = {place.uuid: place.index for place in server.gpus if place.uuid}
        since_boot = moment.boottime - moment.monotonic
        for xid in reading.xids if reading else ():
            at = xid.last_at - since_boot
            if xid.uuid in places and at >= started - SLACK:
                fault_at = None if xid.fault_at is None else xid.fault_at - since_boot
                self._known[xid.uuid, xid.code] = XidPast(places[xid.uuid], xid.code, at, fault_at)
        return tuple(sorted(self._known.values(), key=lambda xid: xid.at))
