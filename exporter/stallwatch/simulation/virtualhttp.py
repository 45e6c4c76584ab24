"""What does a played server answer on its port: health probes, its engine's metrics, what its sockets hold?"""

from collections.abc import Iterator
from typing import Any

from stallwatch.collectors.engine import EngineRank, EngineReading
from stallwatch.collectors.health import HealthReading, Probe
from stallwatch.collectors.socket import ServerSockets
from stallwatch.engines.answering import SCHEDULER_ANSWERS_AFTER, asks_scheduler, version_of
from stallwatch.simulation.player import UPTIME, Player

PROBE_EVERY = 15.0
GOOD_ANSWER, SLOW_503, TIMEOUT, AT_ONCE = 1.0, 20.0, 25.0, 0.001
LIVE_SINCE = (0, 5, 7)
"""Before this version of SGLang token counters tick as requests end."""
RESULTS = {200: "ok", 401: "unauthorized", 403: "unauthorized"}


def health(player: Player, t: float, now: float) -> Iterator[HealthReading]:
    """Yield the probes of a server, if any has ended."""
    answers = player.state.word("health")
    if answers is None:
        player.probes.clear()
        return
    for path, answer in answers.items():
        _play(player, path, answer, t)
    probes = tuple(probe for path, probe in player.probes.items() if answers.get(path) is not None)
    if probes:
        yield HealthReading(now, player.server.name, probes)


def _play(player: Player, path: str, answer: Any, t: float) -> None:
    """Play one endpoint: a probe every 15 s, whose outcome is known when its time has passed."""
    flight = player.in_flight.get(path)
    if flight and t >= flight[0]:
        del player.in_flight[path]
        _conclude(player, path, flight[1], flight[0])
        player.due[path] = max(player.due[path], flight[0])
    if path in player.in_flight or answer is None or t < player.due.get(path, 0.0):
        return
    takes = _takes(player, path, answer)
    player.due[path] = t + PROBE_EVERY
    if takes <= AT_ONCE:
        _conclude(player, path, answer, t)
    else:
        player.in_flight[path] = (t + takes, answer)


def _takes(player: Player, path: str, answer: Any) -> float:
    if answer in {"ok", 200}:
        return GOOD_ANSWER
    if answer == "timeout":
        return TIMEOUT
    known = player.probes.get(path)
    return SLOW_503 if answer == 503 and known is not None and known.last_success is not None else AT_ONCE


def _conclude(player: Player, path: str, answer: Any, end: float) -> None:
    result = RESULTS.get(answer, "http_error") if isinstance(answer, int) else str(answer)
    known, at = player.probes.get(path), UPTIME + end
    failures = known.consecutive_failures if known else 0
    player.probes[path] = Probe(
        path=path,
        result=result,
        scope="scheduler" if asks_scheduler(player.server, path) else "http",
        latency=_takes(player, path, answer),
        status=answer if isinstance(answer, int) else {"ok": 200, "http_error": 500, "unauthorized": 401}.get(result),
        phases={"first_byte": SCHEDULER_ANSWERS_AFTER} if result == "ok" else {},
        at=at,
        last_success=at if result == "ok" else known.last_success if known else None,
        consecutive_failures=0 if result == "ok" else failures + 1,
    )


def engine(player: Player, t: float, step: float, now: float) -> Iterator[EngineReading]:
    """Yield what the engine says of its replicas, if it says anything."""
    if not player.state.has("engine") or player.server.launch.worker:
        return
    replicas = range(player.server.launch.dp_size)
    yield EngineReading(now, player.server.name, tuple(_replica(player, index, t, step, now) for index in replicas))


def _replica(player: Player, index: int, t: float, step: float, now: float) -> EngineRank:
    state = player.state
    rate = state.level("engine.tokens_per_second", index, t)
    tokens = {} if rate is None else {"decode": player.add("tokens", index, rate, step)}
    beats = state.word("engine.heartbeat")
    if beats and beats[min(index, len(beats) - 1)]:
        player.totals["beat", index] = now
    heartbeat = player.totals.get(("beat", index)) if beats is not None else None
    running, queued = state.level("engine.running", index, t), state.level("engine.queued", index, t)
    return EngineRank(str(index), running, queued, tokens, _live(player), heartbeat)


def _live(player: Player) -> bool:
    version = version_of(player.server.version)
    return player.server.engine != "sglang" or version is None or version[0] >= LIVE_SINCE


def sockets(player: Player, t: float) -> ServerSockets | None:
    """Return what waits in the sockets of the port, None where that is not known."""
    if not player.state.has("socket"):
        return None
    unread, waiting = (player.state.level(f"socket.{key}", 0, t) for key in ("unread_bytes", "accept_queue"))
    return ServerSockets(player.server.name, True, int(waiting or 0), int(unread or 0))
