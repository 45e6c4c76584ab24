"""Each data-parallel rank by itself, from the page of a real web server to the verdict and the metrics."""

from dataclasses import dataclass, field

import pytest

from engine_pages import beating, page, sample
from health_servers import request, serving
from readings import BOOT, a_server
from stallwatch.collectors.engine import EngineCollector
from stallwatch.collectors.engine import families as engine_families
from stallwatch.collectors.health import HealthCollector
from stallwatch.config import EngineSettings, ProbeSettings
from stallwatch.sections import Limits
from stallwatch.snapshot import Launch, Moment
from stallwatch.watcher import Watcher

RANKS, HUNG, EVERY = 4, 2, 5.0


@dataclass
class Engine:
    """An engine of four ranks, whose web process answers whatever its schedulers do."""

    at: float = 1000.0  # on the clock of the collectors
    turns: list[int] = field(default_factory=lambda: [0] * RANKS)
    tokens: list[int] = field(default_factory=lambda: [0] * RANKS)
    running: list[int] = field(default_factory=lambda: [0] * RANKS)

    def clock(self):
        """Return the time."""
        return self.at

    def go_on(self, *hung, works=True):
        """Let five seconds pass, in which all ranks but these get on."""
        self.at += EVERY
        for rank in set(range(RANKS)) - set(hung):
            self.turns[rank] += 50
            self.tokens[rank] += 700 if works else 0
            self.running[rank] = 3 if works else 0

    async def answer(self, reader, writer):
        """Answer /health with 200 and /metrics with what the ranks said last."""
        path, _ = await request(reader)
        body = self._page() if path == "/metrics" else b"ok"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()

    def _page(self):
        lines = []
        for rank in range(RANKS):
            labels = {"dp_rank": str(rank), "tp_rank": "0"}
            lines += [
                sample("sglang:num_running_reqs", self.running[rank], **labels),
                sample("sglang:realtime_tokens_total", self.tokens[rank], mode="decode", **labels),
                beating(self.turns[rank], **labels),
            ]
        return page(*lines)


class Watch:
    """Collects and judges as the exporter does, on the clock of the engine."""

    def __init__(self, engine, port):
        self.engine, self.watcher = engine, Watcher(lambda _name: Limits())
        self.collectors = EngineCollector(engine.clock), HealthCollector(engine.clock)
        launch = Launch(port=port, tp_size=1, dp_size=RANKS)
        self.server = a_server(
            ranks=RANKS, launch=launch, address="127.0.0.1", version="0.5.14", incarnation="1", gpus=()
        )
        self.reading = None

    async def look(self):
        """Look once and return the verdict."""
        ask_engine, ask_health = self.collectors
        self.reading, failures = await ask_engine.collect(self.server, EngineSettings())
        health, more = await ask_health.collect(self.server, ProbeSettings(timeout=5))
        assert (failures, more, health.probes[0].result) == ((), (), "ok")
        moment = Moment(self.engine.at + 1e9, self.engine.at, self.engine.at + BOOT)
        judged = self.watcher.look(moment, (self.server,), (self.reading, health))
        return judged.verdicts[self.server.name]

    async def until(self, *hung, seconds, works=True):
        """Look for so long, and return the verdicts in order, each once."""
        seen = []
        for _ in range(int(seconds / EVERY)):
            self.engine.go_on(*hung, works=works)
            verdict = await self.look()
            if (verdict.state, verdict.signature) not in seen:
                seen.append((verdict.state, verdict.signature))
        return seen, verdict

    def metric(self, name, at):
        """Return one metric by rank."""
        families = {family.name: family for family in engine_families([self.reading], Moment(at + 1e9, at, at))}
        return {labels[1]: value for labels, value in families[f"stallwatch_engine_{name}"].samples}

    async def close(self):
        """Close what is open."""
        for collector in self.collectors:
            await collector.close()


@pytest.mark.parametrize("works", [True, False], ids=["others serve", "others rest"])
@pytest.mark.parametrize("had_work", [True, False], ids=["it had work", "it had none"])
async def test_one_rank_that_hangs_is_told_while_health_is_good(works, had_work):
    """Whatever its numbers were when they froze, and whatever the other ranks do."""
    engine = Engine()
    async with serving(engine.answer) as port:
        watch = Watch(engine, port)
        try:
            seen, _ = await watch.until(seconds=60, works=True)
            assert seen == [("busy", "")]
            engine.running[HUNG] = 3 if had_work else 0
            began = engine.at
            seen, verdict = await watch.until(HUNG, seconds=330, works=works)
        finally:
            await watch.close()
    assert [state for state, _ in seen][-2:] == ["suspect", "stalled"]
    assert not {state for state, _ in seen} - {"busy", "idle", "suspect", "stalled"}
    assert seen[-1][1] in ({"cold_deadlock", "frontend_stall"} if had_work else {"loop_stopped"})
    assert "eplica 2" in verdict.reason
    beats = watch.metric("heartbeat_timestamp_seconds", engine.at)
    assert {rank for rank, at in beats.items() if at > began + 1e9} == {"0", "1", "3"}
    assert set(watch.metric("tokens_total", engine.at)) == {"0", "1", "2", "3"}
