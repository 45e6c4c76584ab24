"""What work does the engine itself say it has, how far has it come, and does its scheduler's loop still turn?

Read from its own `/metrics` page and, for SGLang, from the load snapshots in shared memory (see loads.py). The page
comes from the web process, which goes on answering with frozen numbers while the scheduler hangs: that it answers
proves nothing, and a gauge is as old as the last turn of the loop. No other path is asked, as that could disturb a
health probe.

Reasons of failures, all of which leave the page unread: `not_enabled` (404 and 405), `no_engine_metrics` (a page with
none of the known names), `invalid` (not HTTP, cut short, or no line of the known names can be parsed), `too_large`;
`refused`, `timeout`, `reset`, `unreachable`, `tls_error`, `empty` (closed before the headers were complete),
`unauthorized` (401 and 403), `http_error` (any other status that is not 2xx); `worker_node` (another node answers for
this server), the word that discovery gave for a missing address, `no_address`, `address_not_literal`; `ca_unreadable`,
`no_socket` and `other_network_namespace` (not asked). Two more may leave it read: `api_key_unreadable`,
`api_key_withheld` (asked without).
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stallwatch import networks
from stallwatch.api_keys import ApiKeys
from stallwatch.config import EngineSettings
from stallwatch.engines.metrics import NAMES, RankMetrics, ranks_of
from stallwatch.exchange import NotMadeError, absence, result_of_status
from stallwatch.heartbeats import Heartbeats
from stallwatch.loads import Load, LoadFiles
from stallwatch.networks import Networks
from stallwatch.snapshot import Failure, Family, Moment, Reading, Server
from stallwatch.trust import Trust

if TYPE_CHECKING:  # whoever only looks at readings does not load it
    import aiohttp

NAME = "engine"
PATH = "/metrics"
BODY_LIMIT = 16 * 1024 * 1024
BODIES_LIMIT = 64 * 1024 * 1024
SMALL_BODY = 1024 * 1024
ACCEPT = "text/plain;version=0.0.4"


@dataclass(frozen=True, slots=True)
class EngineRank:
    """One data-parallel rank; a rank "" holds what an older SGLang counts for all of its ranks together.

    `tokens` are as the engine states them, by kind, and fall when it starts anew; a kind that has not occurred yet is
    absent. `live` says that they move while a request runs, not only when it ends. `paused` requests are not queued.
    """

    dp_rank: str
    running: float | None = None
    queued: float | None = None
    tokens: dict[str, float] = field(default_factory=dict)
    live: bool = False
    heartbeat: float | None = None  # monotonic, the last proof that its scheduler's loop turned
    paused: float | None = None


@dataclass(frozen=True, slots=True)
class EngineReading(Reading):
    """The ranks of one server; `heartbeat_source` is `metrics`, `shm`, or empty while no loop has been seen to turn."""

    server: str
    ranks: tuple[EngineRank, ...]
    heartbeat_source: str = ""


@dataclass(eq=False, slots=True)
class _UnreadError(Exception):
    """There is no page to read, for this reason."""

    reason: str
    detail: str = ""


@dataclass(slots=True)
class EngineCollector:
    """Reads engines and remembers when their loops last turned; one call at a time for one server."""

    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    load_files: LoadFiles = field(default_factory=LoadFiles)
    keys: ApiKeys = field(default_factory=ApiKeys)
    trust: Trust[ssl.SSLContext] = field(default_factory=lambda: Trust(ssl.SSLContext))
    networks: Networks = field(default_factory=Networks)
    _session: "aiohttp.ClientSession | None" = None
    _held: int = 0  # bytes of pages that are being received
    _pasts: dict[str, Heartbeats] = field(default_factory=dict)

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def forget(self, names_alive: Collection[str]) -> None:
        """Drop what is remembered of servers that are gone."""
        self.load_files.forget(names_alive)
        for name in self._pasts.keys() - set(names_alive):
            del self._pasts[name]

    async def collect(
        self, server: Server, settings: EngineSettings
    ) -> tuple[EngineReading | None, tuple[Failure, ...]]:
        """Read one server; where its page cannot be read, only what shared memory tells is in the reading."""
        if server.launch.worker:
            return None, (Failure(NAME, "worker_node", "the first node answers for this server", server.name),)
        failures: tuple[Failure, ...] = ()
        page: tuple[RankMetrics, ...] = ()
        dropped = 0
        if missing := absence(NAME, server):
            failures = (missing,)
        else:
            headers, failures = await self.keys.authorization(NAME, server, settings.api_key_file, settings.uid)
            try:
                page, dropped = await self._page(server, settings, {"Accept": ACCEPT, **headers})
            except (_UnreadError, NotMadeError) as error:
                failures = (*failures, Failure(NAME, error.reason, error.detail, server.name))
        return await self._reading(server, page, dropped), failures

    async def _reading(self, server: Server, page: Sequence[RankMetrics], dropped: int) -> EngineReading | None:
        loads = await self.load_files.read(server, self.clock()) if server.engine == "sglang" else ()
        now = self.clock()
        past = self._past(server)
        of_counters = past.of_counters(page, now)
        of_loads = past.of_loads(loads, now, self.wall())
        beats = {**of_loads, **of_counters}
        on_page = {rank.dp_rank for rank in page}
        ranks = (
            *(_rank_of_page(rank, beats.get(rank.dp_rank)) for rank in page),
            *(_rank_of_load(load, beats.get(load.dp_rank)) for load in loads if load.dp_rank not in on_page),
        )
        source = "metrics" if of_counters else "shm" if of_loads else ""
        return EngineReading(now, server.name, ranks, source, dropped=dropped) if ranks else None

    def _past(self, server: Server) -> Heartbeats:
        past = self._pasts.get(server.name)
        if past is None or past.incarnation != server.incarnation:
            past = self._pasts[server.name] = Heartbeats(server.incarnation)
        return past

    async def _page(
        self, server: Server, settings: EngineSettings, headers: Mapping[str, str]
    ) -> tuple[tuple[RankMetrics, ...], int]:
        from stallwatch import http_probe  # noqa: PLC0415 with it comes aiohttp

        names = NAMES.get(server.engine)
        if names is None:
            raise _UnreadError("no_engine_metrics", "nothing is known of this engine's metrics")
        context = await self.trust.context(server, settings.ca_file)
        try:
            async with self.networks.within(server):
                body = await asyncio.wait_for(self._fetch(server, context, headers), settings.timeout)
            ranks, dropped = ranks_of(body, names)
        except http_probe.ERRORS as error:
            raise _UnreadError(http_probe.result_of_error(error)) from error
        if not ranks:
            raise _UnreadError("no_engine_metrics", "none of the known names is on the page")
        return ranks, dropped

    async def _fetch(self, server: Server, context: ssl.SSLContext | None, headers: Mapping[str, str]) -> bytes:
        from stallwatch import http_probe  # noqa: PLC0415 the same

        if self._session is None:
            self._session = http_probe.open_session((), self.keys.request_class(), networks.open_socket)
        url = http_probe.url(server, PATH)
        async with self._session.get(url, headers=headers, ssl=context or True, allow_redirects=False) as response:
            _require_page(response.status)
            return await self._body(response)

    async def _body(self, response: "aiohttp.ClientResponse") -> bytes:
        """Return the body; the pages of all servers together may take only so much, of which small ones are no part."""
        body = bytearray()
        try:
            async for chunk in response.content.iter_any():
                body += chunk
                self._held += len(chunk)
                shared = len(body) > SMALL_BODY and self._held > BODIES_LIMIT
                if len(body) > BODY_LIMIT or shared:
                    response.close()
                    limit = f"{BODIES_LIMIT} bytes with other pages" if shared else f"{BODY_LIMIT} bytes"
                    raise _UnreadError("too_large", f"over {limit}")
        finally:
            self._held -= len(body)
        return bytes(body)


def _require_page(status: int) -> None:
    if status in (404, 405):
        raise _UnreadError("not_enabled", f"HTTP {status}")
    if (result := result_of_status(status)) != "ok":
        raise _UnreadError(result, f"HTTP {status}")


def _rank_of_page(rank: RankMetrics, heartbeat: float | None) -> EngineRank:
    return EngineRank(rank.dp_rank, rank.running, rank.queued, rank.tokens, rank.live, heartbeat, rank.paused)


def _rank_of_load(load: Load, heartbeat: float | None) -> EngineRank:
    return EngineRank(load.dp_rank, load.running, load.queued, heartbeat=heartbeat)


def families(readings: Sequence[EngineReading], moment: Moment) -> Iterable[Family]:
    """State what the engines said of themselves."""
    ranks = [((reading.server, rank.dp_rank), rank) for reading in readings for rank in reading.ranks]

    def gauge(name: str, text: str, value: Callable[[EngineRank], float | None]) -> Family:
        samples = tuple((key, number) for key, rank in ranks if (number := value(rank)) is not None)
        return Family(f"stallwatch_engine_{name}", text, "gauge", ("server", "dp_rank"), samples)

    def heartbeat(rank: EngineRank) -> float | None:
        return None if rank.heartbeat is None else moment.unix_of(rank.heartbeat)

    text = "Requests that run, as the engine says; frozen while its scheduler hangs."
    yield gauge("requests_running", text, lambda rank: rank.running)
    text = "Requests that wait, in any queue of the engine; frozen while its scheduler hangs."
    yield gauge("requests_queued", text, lambda rank: rank.queued)
    text = "Last proof that the loop of this rank's scheduler turned."
    yield gauge("heartbeat_timestamp_seconds", text, heartbeat)
    text = "Tokens as the engine counts them, since it began; a kind that has not occurred yet is absent."
    tokens = tuple(((*key, kind), count) for key, rank in ranks for kind, count in rank.tokens.items())
    yield Family("stallwatch_engine_tokens_total", text, "counter", ("server", "dp_rank", "kind"), tokens)
