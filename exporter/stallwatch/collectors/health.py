"""Does the server answer its health endpoint, and how far into the server does that answer reach?

Results: `ok`; `refused`, `timeout`, `reset`, `unreachable`, `tls_error` where there was no answer; `empty` (closed
before the headers were complete), `invalid` (not HTTP, or a body cut short); `unauthorized` (401 and 403: alive),
`http_error` (any other status that is not 2xx; redirects are not followed). Scope: `scheduler` where a good answer
proves that the scheduler answered, `http` where it proves the web process only.

Reasons of failures: the word that discovery gave for a missing address, `no_address`, `address_not_literal`,
`api_key_unreadable` and `api_key_withheld` (probed without it), `ca_unreadable`, `no_socket` and
`other_network_namespace` (not probed, as with a key whose port went to another user just then).
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stallwatch import networks
from stallwatch.api_keys import ApiKeys
from stallwatch.config import ProbeSettings
from stallwatch.course import Course, TimedContext, tracing
from stallwatch.engines.answering import SCHEDULER_ANSWERS_AFTER, asks_scheduler, token_request
from stallwatch.exchange import NotMadeError, absence, result_of_status
from stallwatch.networks import Networks
from stallwatch.snapshot import Failure, Family, Moment, Reading, Server
from stallwatch.trust import Trust

if TYPE_CHECKING:  # whoever only looks at readings does not load it
    import aiohttp
    from yarl import URL

NAME = "health"
RESULTS = (
    "ok",
    "refused",
    "timeout",
    "reset",
    "empty",
    "unauthorized",
    "http_error",
    "invalid",
    "unreachable",
    "tls_error",
)
SCOPES = ("scheduler", "http")
BODY_LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Probe:
    """The outcome of one request; `phases` holds only those that were completed: connect, tls, first_byte, transfer."""

    path: str
    result: str
    scope: str
    latency: float
    status: int | None
    phases: dict[str, float]
    at: float  # monotonic, its end
    last_success: float | None
    consecutive_failures: int


@dataclass(frozen=True, slots=True)
class HealthReading(Reading):
    """The probes of one server, one per path."""

    server: str
    probes: tuple[Probe, ...]


@dataclass(slots=True)
class _Past:
    last_success: float | None = None
    consecutive_failures: int = 0
    web_only: bool = False  # a good answer once came too fast to be the scheduler's


@dataclass(slots=True)
class HealthCollector:
    """Probes servers and remembers when each last answered in this life; one call at a time for one server."""

    clock: Callable[[], float] = time.monotonic
    keys: ApiKeys = field(default_factory=ApiKeys)
    trust: Trust[TimedContext] = field(default_factory=lambda: Trust(TimedContext))
    networks: Networks = field(default_factory=Networks)
    _session: "aiohttp.ClientSession | None" = None
    _pasts: dict[str, tuple[str, dict[str, _Past]]] = field(default_factory=dict)
    _tokens: dict[str, Probe] = field(default_factory=dict)  # the last request for a token, by server

    def open(self) -> "aiohttp.ClientSession":
        """Return the HTTP session, made at the first call; it keeps no connection, cookie or name."""
        from stallwatch import http_probe  # noqa: PLC0415 with it comes aiohttp

        if self._session is None:
            self._session = http_probe.open_session([tracing()], self.keys.request_class(), networks.open_socket)
        return self._session

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def forget(self, names_alive: Collection[str]) -> None:
        """Drop what is remembered of servers that are gone."""
        for name in self._pasts.keys() - set(names_alive):
            del self._pasts[name]
            self._tokens.pop(name, None)

    async def collect(
        self, server: Server, settings: ProbeSettings
    ) -> tuple[HealthReading | None, tuple[Failure, ...]]:
        """Probe the paths one after another, since parallel requests can make a dead detokenizer look alive."""
        if missing := absence(NAME, server):
            return None, (missing,)
        headers, failures = await self.keys.authorization(NAME, server, settings.api_key_file, settings.uid)
        probes: list[Probe] = []
        try:
            for path in settings.paths:
                probes.append(await self._probe(server, path, settings, headers))  # noqa: PERF401 - keeps the first ones
        except NotMadeError as error:
            failures = (*failures, Failure(NAME, error.reason, error.detail, server.name))
        else:
            probes += await self._end_to_end(server, settings, headers)
        reading = HealthReading(self.clock(), server.name, tuple(probes)) if probes else None
        return reading, failures

    async def _end_to_end(self, server: Server, settings: ProbeSettings, headers: dict[str, str]) -> list[Probe]:
        """Ask for one token when it is time to, once the server is ready; until then the last outcome stands."""
        path, body = token_request(server)
        known = self._tokens.get(server.name)
        if not settings.end_to_end or not self._answered(server):
            return []
        if known is None or self.clock() - known.at >= settings.end_to_end:
            known = self._tokens[server.name] = await self._probe(server, path, settings, headers, body)
        return [known]

    def _answered(self, server: Server) -> bool:
        incarnation, pasts = self._pasts.get(server.name, ("", {}))
        return incarnation == server.incarnation and any(past.last_success is not None for past in pasts.values())

    async def _probe(
        self,
        server: Server,
        path: str,
        settings: ProbeSettings,
        headers: dict[str, str],
        body: Mapping[str, Any] | None = None,
    ) -> Probe:
        from stallwatch import http_probe  # noqa: PLC0415 with it comes aiohttp

        course = Course(self.clock)
        context = await self.trust.context(server, settings.ca_file)
        course.begin()
        started = self.clock()
        try:
            async with self.networks.within(server):
                exchange = self._exchange(http_probe.url(server, path), headers, context, course, body)
                await asyncio.wait_for(exchange, settings.timeout)
            result = result_of_status(course.status or 0)
        except http_probe.ERRORS as error:
            result = http_probe.result_of_error(error)
        ended = self.clock()
        phases = course.phases()
        past = self._remember(server, path, result, phases, ended)
        proves = body is not None or (asks_scheduler(server, path) and not past.web_only)
        scope = "scheduler" if proves else "http"
        latency = ended - started
        return Probe(
            path, result, scope, latency, course.status, phases, ended, past.last_success, past.consecutive_failures
        )

    async def _exchange(
        self,
        url: "URL",
        headers: dict[str, str],
        context: ssl.SSLContext | None,
        course: Course,
        body: Mapping[str, Any] | None,
    ) -> None:
        request = self.open().request(
            "GET" if body is None else "POST",
            url,
            json=body,
            headers=headers,
            ssl=context or True,
            allow_redirects=False,
            trace_request_ctx=course,
        )
        async with request as response:
            course.status, course.headers = response.status, self.clock()
            size = 0
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size >= BODY_LIMIT:
                    response.close()
                    break
            course.body = self.clock()

    def _remember(self, server: Server, path: str, result: str, phases: dict[str, float], ended: float) -> _Past:
        incarnation, pasts = self._pasts.get(server.name, ("", {}))
        if incarnation != server.incarnation:
            pasts = {}
        self._pasts[server.name] = (server.incarnation, pasts)
        past = pasts.setdefault(path, _Past())
        if result == "ok":
            past.last_success, past.consecutive_failures = ended, 0
            past.web_only = past.web_only or phases["first_byte"] < SCHEDULER_ANSWERS_AFTER
        else:
            past.consecutive_failures += 1
        return past


def answered(reading: HealthReading) -> bool:
    """Say whether every probe got a good answer."""
    return all(probe.result == "ok" for probe in reading.probes)


def families(readings: Sequence[HealthReading], moment: Moment) -> Iterable[Family]:
    """State what the last probe of each path told."""
    probes = [((reading.server, probe.path), probe) for reading in readings for probe in reading.probes]

    def family(name: str, text: str, values: Callable[[Probe], Mapping[str, float | None]], label: str = "") -> Family:
        samples = tuple(
            ((*keys, value) if label else keys, float(number))
            for keys, probe in probes
            for value, number in values(probe).items()
            if number is not None
        )
        labels = ("server", "path", label) if label else ("server", "path")
        return Family(f"stallwatch_health_{name}", text, "gauge", labels, samples)

    def last_success(probe: Probe) -> float | None:
        return None if probe.last_success is None else moment.unix_of(probe.last_success)

    text = "1 when the last probe got a good answer (2xx), 0 when not."
    yield family("success", text, lambda probe: {"": probe.result == "ok"})
    text = "Time to the outcome, whatever it was; SGLang takes a second for a good answer and 20 for a 503."
    yield family("latency_seconds", text, lambda probe: {"": probe.latency})
    yield family(
        "status_code", "HTTP status of the last probe; absent where none came.", lambda probe: {"": probe.status}
    )
    text = "Last good answer in this life of the server."
    yield family("last_success_timestamp_seconds", text, lambda probe: {"": last_success(probe)})
    text = "Probes in a row without a good answer."
    yield family("consecutive_failures", text, lambda probe: {"": probe.consecutive_failures})
    text = "What a good answer on this path proves: scheduler (it answered) or http (only the web process did)."
    yield family("scope", text, lambda probe: {scope: scope == probe.scope for scope in SCOPES}, "scope")
    text = f"Outcome of the last probe: {', '.join(RESULTS)}. Who asks for a key is alive."
    yield family("result", text, lambda probe: {result: result == probe.result for result in RESULTS}, "result")
    text = "Time that each completed phase of the last probe took: connect, tls, first_byte, transfer."
    yield family("phase_seconds", text, lambda probe: probe.phases, "phase")
