"""Which limits hold for a server now? How long a start may rest depends on what can be seen of it."""

from stallwatch.sections import Limits
from stallwatch.snapshot import Server

STARTING_SIGNALS = ("log", "gpu_memory", "io", "faults", "compile")
SERVING_SIGNALS = ("tokens", "log", "compile")
SIGNALS = {False: STARTING_SIGNALS, True: SERVING_SIGNALS, None: (*STARTING_SIGNALS, "tokens")}
"""What counts as movement before a server is ready, after, and while that is not known."""
MULTINODE_WAITS = {"distributed_init": "rendezvous_multinode", "loaded": "start_without_movement_partial"}
"""Where the ranks of one node wait for those of the others, who may have slower disks: the limit that holds then."""


def limits_in_force(limits: Limits, server: Server, phase: str | None, readable: frozenset[str]) -> dict[str, float]:
    """Return the limits of a server as they hold now: how long a start may rest depends on what can be seen of it."""
    named = limits.named()
    start = limits.start_without_movement
    if not readable >= set(STARTING_SIGNALS):
        start = limits.start_without_movement_partial
    if server.launch.nnodes > 1 and phase in MULTINODE_WAITS:
        start = max(start, getattr(limits, MULTINODE_WAITS[phase]))
    return {**named, "start_without_movement": start}
