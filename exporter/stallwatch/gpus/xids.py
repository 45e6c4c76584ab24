"""What does the kernel log say of the GPUs? An Xid is the driver's number for an error, in a line of its own.

`Xid (PCI:0000:3b:00): 79, …`. Which of them mean that the GPU itself is broken is decided here, after NVIDIA's
catalogue: those for which it wants the GPU reset, the node restarted or the card replaced. What a program can bring
about on a sound GPU is evidence for a person and no more. Neither list has 63 (a row was remapped, as it should be) or
144 to 150, whose lines may as well tell of a link that has come back.
"""

import re
from dataclasses import dataclass

CRITICAL = {
    48: "uncorrectable memory error",  # what ran on it has been ended
    62: "its microcontroller halted",
    64: "a bad row of its memory cannot be replaced",
    74: "NVLink error",
    79: "fell off the bus",
    95: "uncontained memory error",  # the only one of the memory errors that spreads to all that runs on the GPU
    109: "a context switch timed out",
    119: "its firmware does not answer",
    120: "its firmware failed",
    136: "its NVLinks cannot be trained",
    140: "unrecovered memory error",
    143: "it cannot be initialized",
    154: "the driver asks for its recovery",
    158: "fatal timeout",
}
APPLICATION = {
    13: "exception of a kernel",
    31: "access to memory that is not mapped",
    43: "a program was stopped",
    45: "a program was ended early",
    94: "contained memory error",
}
ASKS_RECOVERY = 154
# `GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)`; 3: drain its links, while it computes on.
MILD_RECOVERY = frozenset({0, 3})

_ADDRESS = r"(?:(?P<domain>[0-9A-Fa-f]{1,8}):)?(?P<bus>[0-9A-Fa-f]{1,2}):(?P<device>[0-9A-Fa-f]{1,2})(?:\.[0-7])?"
_ADDRESS_ONLY = re.compile(_ADDRESS)
KERNEL_RECORD = r"[0-7],[0-9]+,(?P<microseconds>[0-9]{1,18}),[^;]*;"
"""Begins a record of /dev/kmsg: priority, number, microseconds, flags. A priority of 8 and more is that of a program,
whatever it wrote: the kernel sees to that."""
# With MIG more follows the address.
_XID = re.compile(
    KERNEL_RECORD + r"NVRM: Xid \((?:PCI:)?" + _ADDRESS + r"(?: [^)]*)?\): ?(?P<code>[0-9]{1,4})\b(?P<rest>.*)"
)
_TARGET = re.compile(r" to 0x([0-9A-Fa-f]{1,4})")


@dataclass(frozen=True, slots=True)
class XidLine:
    """One Xid as the kernel logged it; `at` in seconds since boot, by the clock of the kernel log."""

    at: float
    address: str
    code: int
    fault: bool  # the GPU is broken, not what runs on it


def xid_of(record: str) -> XidLine | None:
    """Return the Xid that a record of /dev/kmsg tells of, None where it tells of something else."""
    found = _XID.match(record)
    if found is None:
        return None
    code = int(found["code"])
    target = _TARGET.search(found["rest"]) if code == ASKS_RECOVERY else None
    fault = code in CRITICAL and not (target and int(target[1], 16) in MILD_RECOVERY)
    return XidLine(int(found["microseconds"]) / 1e6, _normal(found), code, fault)


def address_of(bus_id: str) -> str:
    """Return a PCI address as the kernel log has it, without function; what is none is returned as it is."""
    found = _ADDRESS_ONLY.fullmatch(bus_id)
    return _normal(found) if found else bus_id


def words_of(code: int) -> str:
    """Return what an Xid means in a few words, nothing where that is not known."""
    return CRITICAL.get(code) or APPLICATION.get(code, "")


def _normal(found: re.Match[str]) -> str:
    domain, bus, device = (int(found[part] or "0", 16) for part in ("domain", "bus", "device"))
    return f"{domain:04x}:{bus:02x}:{device:02x}"
