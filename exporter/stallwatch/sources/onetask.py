"""What do the files of /proc say of one thread, and what has it done from one look to the next?"""

import re
from dataclasses import dataclass
from itertools import islice

from stallwatch.node.procfs import TICKS_PER_SECOND
from stallwatch.redaction import clean

MOST_FRAMES = 32
MOST_WAITS = 3  # of a thread that spins, in a look: another one may take a lock of the interpreter from it
LEAST_SPIN = 0.1  # cores, since a busy node leaves it no more

_FRAME = re.compile(r"\] ([\w.$]{1,100})(?:\+0x[0-9a-f]+/0x[0-9a-f]+)?( \[[\w-]{1,60}\])?")
_SWITCHES = re.compile(rb"^(non)?voluntary_ctxt_switches:\s*(\d+)$", re.MULTILINE)
_ENDS = (("Z", "zombie"), ("X", "ended"), ("T", "stopped"), ("t", "stopped"))


@dataclass(frozen=True, slots=True)
class Count:
    """What only grows in the life of a thread; the switches are voluntary ones and others, None where not told."""

    at: float
    state: str
    ticks: int
    switches: tuple[int, int] | None

    def since(self, before: "Count") -> tuple[float, tuple[int, int] | None]:
        """Return the cores used since, and the switches."""
        ratio = max(0, self.ticks - before.ticks) / TICKS_PER_SECOND / max(self.at - before.at, 0.001)
        if not self.switches or not before.switches:
            return ratio, None
        return ratio, (self.switches[0] - before.switches[0], self.switches[1] - before.switches[1])


def count_of(at: float, stat: bytes, status: bytes) -> Count:
    """Parse the files `stat` and `status` of a thread; its name may itself hold spaces and parentheses."""
    fields = stat.rpartition(b")")[2].split()
    found = dict(_SWITCHES.findall(status))
    switches = (int(found[b""]), int(found[b"non"])) if len(found) == 2 else None
    return Count(at, fields[0].decode(), int(fields[11]) + int(fields[12]), switches)


def manner_of(states: set[str], ratio: float, switched: tuple[int, int] | None) -> str:
    """Say in one word what a thread did between two looks that found it in these states."""
    ended = next((word for state, word in _ENDS if state in states), "")
    if ended or states == {"D"}:
        return ended or "uninterruptible"
    waited = switched[0] if switched else 0
    if ratio >= LEAST_SPIN and waited <= MOST_WAITS:
        return "spins"
    if ratio >= 0.5:
        return "works"
    return "wakes" if ratio > 0 or (switched and any(switched)) or "R" in states else "sleeps"


def wchan_of(data: bytes | None) -> str | None:
    """Return where in the kernel a thread waits, None where it does not or that is not told."""
    return None if data in (None, b"", b"0") else clean((data or b"").decode(errors="replace"), 100)


def frames_of(data: bytes | None) -> tuple[str, ...] | None:
    """Return the functions of a kernel stack, innermost first, without addresses."""
    if data is None:
        return None
    lines = islice(data.decode(errors="replace").splitlines(), MOST_FRAMES)
    found = (_FRAME.search(line) for line in lines)
    return tuple(clean(frame[1] + (frame[2] or "")) for frame in found if frame and not frame[1].startswith("0x"))
