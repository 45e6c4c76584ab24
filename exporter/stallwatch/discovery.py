"""Which servers were found? They are looked for by `finder`, which only a worker loads.

Failure reasons: `procfs_unreadable` (no /proc), `processes_hidden` (no server is seen, and /proc hides the processes of
others), `config_unreadable` (what `--config` names), `quarantined` (a read that hung before is not tried).
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from stallwatch.node.procfs import Procfs
from stallwatch.snapshot import Failure, Reading, Server

NAME = "discovery"


@dataclass(frozen=True, slots=True)
class DiscoveryReading(Reading):
    """The servers that were found."""

    servers: tuple[Server, ...] = ()


def reader(
    options: Mapping[str, str], note: Callable[[str], None]
) -> Callable[[list[dict[str, Any]], frozenset[str]], tuple[DiscoveryReading | None, tuple[Failure, ...]]]:
    """Return a function that looks for servers."""
    from stallwatch.finder import Finder  # noqa: PLC0415 whoever only looks at readings does not load it

    below = options.get("below")
    return Finder(Procfs(options.get("procfs", "/proc"), note), below=int(below) if below else None).read


def target(server: Server) -> dict[str, Any]:
    """Say what is known of a server, so that a new worker sorts its processes as the old one did."""
    return {
        "engine": server.engine,
        "launch": asdict(server.launch),
        "expected": server.expected_schedulers,
        "processes": [[p.pid, p.start_ticks, p.role, p.name, p.rank] for p in server.processes],
    }
