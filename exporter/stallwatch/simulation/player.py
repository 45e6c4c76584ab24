"""What is kept of a played server from one look to the next? Its state, and all that adds up over time."""

from dataclasses import dataclass, field, replace
from typing import Any

from stallwatch.collectors.health import Probe
from stallwatch.logs.life import Life
from stallwatch.logs.scan import Scanner
from stallwatch.simulation import cast
from stallwatch.simulation.plot import Node, PlayedServer
from stallwatch.simulation.state import State
from stallwatch.snapshot import Server

UPTIME = 100_000.0
"""How long the node has been up when a scenario begins, on the monotonic clock and since boot."""


@dataclass
class Player:
    """One played server."""

    number: int
    played: PlayedServer
    server: Server
    state: State
    scanner: Scanner
    ranks: tuple[str, ...]
    alive: Server  # with all processes of its present life
    totals: dict[tuple[str, int], float] = field(default_factory=dict)
    rates: dict[tuple[str, int], float] = field(default_factory=dict)
    life: Life = field(default_factory=Life)
    logged: bool = False  # its log was readable in this life
    progressing: bool = False  # it made progress until the present segment
    probes: dict[str, Probe] = field(default_factory=dict)
    due: dict[str, float] = field(default_factory=dict)
    in_flight: dict[str, tuple[float, Any]] = field(default_factory=dict)  # when it ends, and how

    @classmethod
    def of(cls, played: PlayedServer, number: int, node: Node) -> "Player":
        """Return the player of a server of a scenario."""
        server = cast.server_of(played, number, node)
        ranks = tuple(role.rank for role in cast.roles(server) if role.role == "scheduler")
        return cls(number, played, server, State(played), Scanner(played.engine), ranks, server)

    def advance(self, t: float) -> None:
        """Go to this time; a life that begins knows nothing of the one before."""
        before = self.state.life
        self.state.advance(t)
        if self.state.life != before:
            self.alive = cast.alive(self.server, self.number, self.state.life, UPTIME + self.state.began)
            self.totals, self.rates, self.life, self.logged = {}, {}, Life(), False
            self.probes, self.due, self.in_flight, self.progressing = {}, {}, {}, False
            self.scanner.forget_bars()

    def add(self, key: str, index: int, rate: float, step: float) -> float:
        """Let a total grow at the rate of the last look until now, and return it; the rate now holds from here on."""
        before, total = self.rates.get((key, index), 0.0), self.totals.get((key, index), 0.0)
        self.rates[key, index] = rate
        self.totals[key, index] = total = total + before * step
        return total

    def processes(self) -> dict[str, str]:
        """Return what the scenario says of single processes, by their names."""
        words = self.state.word("processes") or {}
        return {cast.role_named(self.server, name) or name: word for name, word in words.items()}

    def seen(self) -> Server:
        """Return the server as discovery finds it: without the processes that have gone."""
        gone = {name for name, word in self.processes().items() if word == "gone"}
        if not gone:
            return self.alive
        kept = tuple(process for process in self.alive.processes if process.name not in gone)
        return replace(self.alive, processes=kept)
