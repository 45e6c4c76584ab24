"""Which servers are watched: those that were found, with what the configuration says of them on top.

A server that is started again under its name lives another life. As long as one process of before is still there it is
the same life, so that a launcher that dies does not make its ranks a new server.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from stallwatch.sections import ServerConfig
from stallwatch.snapshot import Launch, Place, Server

LOOPBACK = "127.0.0.1"
EMBEDDED = ":embedded"


class Roster:
    """The servers to watch, each with the name of its present life."""

    def __init__(self) -> None:
        self._lives: dict[str, tuple[str, frozenset[tuple[int, int]]]] = {}
        self._names: dict[tuple[int, int], str] = {}

    def recall(self, servers: Iterable[Server]) -> None:
        """Know servers again by the names and lives that an exporter before this one gave them."""
        for server in servers:
            ids = frozenset((process.pid, process.start_ticks) for process in server.processes)
            self._lives[server.name] = (server.incarnation, ids)
            self._names.update(dict.fromkeys(ids, server.name))

    def of(self, found: Sequence[Server], configured: Iterable[ServerConfig]) -> tuple[Server, ...]:
        """Return the servers to watch now."""
        servers = roster(self._named(found), configured)
        lives = {server.name: self._life(server) for server in servers}
        self._lives = lives
        return tuple(replace(server, incarnation=lives[server.name][0]) for server in servers)

    def _named(self, found: Sequence[Server]) -> list[Server]:
        """Return the servers under the names they had when their first process was seen, whoever has come since.

        A second server on the same port makes discovery tell both apart; only the newcomer gets a new name. One that
        was without a port and now has one gets the name that tells it.
        """
        kept, names, taken = [], {}, set()
        for server in found:
            ids = [(process.pid, process.start_ticks) for process in server.processes]
            known = next((self._names[one] for one in ids if one in self._names), server.name)
            name = server.name if known in taken or known.endswith(EMBEDDED) else known
            taken.add(name)
            names.update(dict.fromkeys(ids, name))
            kept.append(server if name == server.name else replace(server, name=name))
        self._names = names
        return kept

    def _life(self, server: Server) -> tuple[str, frozenset[tuple[int, int]]]:
        now = frozenset((process.pid, process.start_ticks) for process in server.processes)
        known = self._lives.get(server.name)
        if known and (known[1] & now or known[1] == now):
            return known[0], now
        first = min(server.processes, key=lambda process: process.start_ticks, default=None)
        return f"{first.pid}.{first.start_ticks}" if first else "unseen", now


def roster(found: Sequence[Server], configured: Iterable[ServerConfig]) -> tuple[Server, ...]:
    """Return the servers to watch, no two of one name; what is configured wins over what was found."""
    rest = list(found)
    named = []
    for entry in configured:
        match = next((server for server in rest if _same(server, entry)), None)
        if match:
            rest.remove(match)
        named.append(_with(match or _unseen(entry), entry))
    taken = {server.name for server in named}
    return (*named, *(_renamed(server, taken) for server in rest))


def _same(server: Server, entry: ServerConfig) -> bool:
    if entry.port is not None:
        return server.engine == entry.engine and server.launch.port == entry.port
    return server.name == entry.name


def _unseen(entry: ServerConfig) -> Server:
    """Stand for a configured server whose processes are not (yet) seen: its log and port can be read all the same."""
    return Server(
        name=entry.name,
        engine=entry.engine,
        launch=Launch(port=entry.port),
        log_absence="no_process: no process of this server is seen, and no log is configured",
        address=LOOPBACK if entry.port is not None else None,
        address_absence="" if entry.port is not None else "no_port: no port is configured",
    )


def _with(server: Server, entry: ServerConfig) -> Server:
    launch = server.launch
    if entry.port is not None:
        launch = replace(launch, port=entry.port)
    if entry.group is not None:
        launch = replace(launch, dist_init_addr=entry.group)
    if entry.tls is not None:
        launch = replace(launch, tls=True)
    if entry.host is not None:
        address = LOOPBACK if entry.host == "localhost" else entry.host
        server = replace(server, address=address, address_absence="", network="")
    if entry.log is not None:
        server = replace(server, log_path=entry.log, log_root="", log_absence="")
    if entry.expected_schedulers is not None:
        server = replace(server, expected_schedulers=entry.expected_schedulers)
    if entry.gpus is not None:
        server = replace(server, gpus=tuple(Place("", index) for index in entry.gpus))
    return replace(server, name=entry.name, launch=launch)


def _renamed(server: Server, taken: set[str]) -> Server:
    if server.name not in taken:
        return server
    pid = next((process.pid for process in server.processes), 0)
    return replace(server, name=f"{server.name}#{pid}")
