"""The webhook as its users have it: a real exporter, a server that really hangs, a receiver that is really asked."""

import asyncio
import os
import signal

import pytest

from exporter_process import ExporterProcess
from stallwatch.simulation.pager import free_port
from stallwatch.simulation.played import PlayedServer
from webhook_receiver import Receiver

RANKS = ("sglang::scheduler_TP0", "sglang::scheduler_TP1")
QUICK = {
    "INTERVAL": "200ms",
    "DISCOVERY__INTERVAL": "500ms",
    "COLLECTORS__GPU": "false",
    "LIMITS__SUSPECT": "1s",
    "LIMITS__EVIDENCE": "2s",
    "LIMITS__STALLED": "2s",
    "LIMITS__LOST_PROCESS": "1s",
    "LOG__LEVEL": "debug",
}
HANGS = """
import pathlib, socket, time

def getaddrinfo(host, *arguments, _real=socket.getaddrinfo, **options):
    if host != "hooks.canary.example":
        return _real(host, *arguments, **options)
    pathlib.Path({asked!r}).touch()
    time.sleep(3600)

socket.getaddrinfo = getaddrinfo
"""


@pytest.fixture
async def server(tmp_path):
    """Play a server of two ranks whose processes can be stopped and killed."""
    port = free_port()
    played = PlayedServer(tmp_path / "server", ["--model-path", "/m", "--tp-size", "2", "--port", str(port)])
    await played.start()
    played.name, played.pids = f"sglang:{port}", await played.spawn(*RANKS)
    yield played
    await played.stop()


def of(server, body):
    """Return what a message says of this server; others may run on this machine."""
    return [
        (one["labels"]["alertname"], one["status"]) for one in body["alerts"] if one["labels"]["server"] == server.name
    ]


async def told_of(server, receiver):
    """Return what the next message about this server says of it."""
    while True:
        if said := of(server, await receiver.told(within=30.0)):
            return said


def judged(server, *verdicts):
    """Return whether a scrape shows one of these verdicts."""
    return lambda scrape: bool(scrape.holding("server_verdict", "verdict", server=server.name) & {*verdicts})


async def test_a_hang_is_posted_and_no_secret_is_told(server, tmp_path):
    """A reload switches it on; a stall, its turn into a death, and nothing again after a restart of the exporter."""
    config, memory, url = (tmp_path / name for name in ("stallwatch.yml", "memory.json", "url"))
    config.write_text("{}\n")
    kept = {"STATE__ENABLED": "true", "STATE__FILE": memory}
    exporter = ExporterProcess(flags=[f"--config.file={config}"], **QUICK, **kept)
    receiver = Receiver()
    async with receiver.listening(), exporter:
        os.kill(server.pids[RANKS[0]], signal.SIGSTOP)
        scrape = await exporter.until(judged(server, "stalled"))
        assert scrape.all("notifications_total") == []
        url.write_text(f"{receiver.url}\n")
        config.write_text("notify: {webhook_url_file: url}\n")
        assert await told_of(server, receiver) == [("InferenceServerStalled", "firing")]
        os.kill(server.pids[RANKS[1]], signal.SIGKILL)
        turn = [("InferenceServerDead", "firing"), ("InferenceServerStalled", "resolved")]
        assert await told_of(server, receiver) == turn
        scrape = await exporter.until(lambda seen: (seen.value("notifications_total", result="delivered") or 0) >= 2)
        assert scrape.value("notifications_total", result="failed") == 0
        assert 0 <= scrape.age("notification_last_success_timestamp_seconds") < 30
        said = [scrape.text, await exporter.get("/"), await exporter.get("/api/v1/status"), exporter.log]
        assert await exporter.stop() < 2
        await exporter.start()
        scrape = await exporter.until(judged(server, "dead", "stalled"))  # it never saw the rank that is gone
        later = scrape.value("snapshot_timestamp_seconds") + 1
        await exporter.until(lambda seen: seen.value("snapshot_timestamp_seconds") > later)
        again = [receiver.posts.get_nowait()[2]["alerts"] for _ in range(receiver.posts.qsize())]
        assert [alerts for alerts in again if alerts[0]["labels"]["server"] == server.name] == []  # news come first
        assert "canary" not in "".join([*said, exporter.log, memory.read_text()])
        assert str(url) not in scrape.text


async def test_a_resolver_that_hangs_does_not_hold_up_the_end(server, tmp_path):
    """SIGTERM ends the exporter well within two seconds while the name of its receiver is being looked up."""
    url, asked = tmp_path / "url", tmp_path / "asked"
    url.write_text("https://hooks.canary.example/canary\n")
    (tmp_path / "sitecustomize.py").write_text(HANGS.format(asked=str(asked)))
    environ = {"PYTHONPATH": str(tmp_path)}
    async with ExporterProcess(environ, NOTIFY__WEBHOOK_URL_FILE=url, **QUICK) as exporter:
        os.kill(server.pids[RANKS[0]], signal.SIGSTOP)
        await exporter.until(judged(server, "stalled"))
        while not asked.exists():
            await asyncio.sleep(0.05)
        assert await exporter.stop() < 2
        assert exporter.process.returncode == 0
        assert exporter.log.endswith("msg=ended\n")
    assert "canary" not in exporter.log.replace(str(url), "")


async def test_a_missing_file_keeps_no_exporter_from_serving(tmp_path):
    """It is said once, at the start."""
    missing = tmp_path / "none"
    async with ExporterProcess(NOTIFY__WEBHOOK_URL_FILE=missing, **QUICK) as exporter:
        scrape = await exporter.scrape()
        assert scrape.value("notifications_total", result="delivered") == 0
        assert exporter.log.count('msg="nobody can be notified"') == 1
        assert f'file={missing} error="no such file or directory"' in exporter.log
