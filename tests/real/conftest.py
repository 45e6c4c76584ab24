"""A real SGLang server on this machine's CPUs, the exporter beside it, and a record of all that is said of it."""

import asyncio
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from exporter_process import ExporterProcess
from stallwatch.simulation.pager import free_port

HERE = Path(__file__).parent
REAL_SGLANG = "REAL_SGLANG"
SHORT = {
    "DISCOVERY__INTERVAL": "1s",
    "ENGINE__INTERVAL": "2s",
    "SOCKET__INTERVAL": "2s",
    "HEALTH__INTERVAL": "3s",
    "LIMITS__SUSPECT": "5s",
    "LIMITS__EVIDENCE": "8s",
    "LIMITS__STALLED": "10s",
    "LIMITS__SILENT": "20s",
    "LIMITS__START_WITHOUT_MOVEMENT": "15s",
    "LIMITS__START_WITHOUT_MOVEMENT_PARTIAL": "20s",
    "LIMITS__LOST_PROCESS": "3s",
}
ALARMS = frozenset({"stalled", "dead"})
PATIENCE = 240.0


class RealServer:
    """One server: the processes that come of `launch_sglang.sh`, in a session of their own."""

    def __init__(self, home, directory):
        self.port = free_port()
        self.name = f"sglang:{self.port}"
        self.process = None
        self._home = home
        self._log = directory / "server.log"
        self._requests = set()

    async def start(self, **environ):
        """Start it; its output goes to a file."""
        command = (HERE / "launch_sglang.sh", self._home, str(self.port))
        with self._log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env={**os.environ, **environ}, start_new_session=True
            )

    def generate(self, tokens=1500):
        """Ask it for so many tokens, and return the task that waits for them."""
        task = asyncio.create_task(self._generate(tokens))
        self._requests.add(task)
        return task

    async def _generate(self, tokens):
        wanted = {"max_new_tokens": tokens, "ignore_eos": True}
        patience = aiohttp.ClientTimeout(total=PATIENCE)
        async with aiohttp.ClientSession(timeout=patience) as session:
            url = f"http://127.0.0.1:{self.port}/generate"
            async with session.post(url, json={"text": "hello", "sampling_params": wanted}) as answer:
                return (await answer.json())["meta_info"]["completion_tokens"]

    def pids(self):
        """Return the pids of its processes by title; those without one have their command line."""
        found = {int(entry): words for entry in os.listdir("/proc") if entry.isdigit() and (words := self._own(entry))}
        return {words: pid for pid, words in found.items()}

    def _own(self, pid):
        """Return the title of a process that this server started, nothing for all others."""
        try:
            if os.getsid(int(pid)) != self.process.pid:
                return ""
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        except OSError:
            return ""

    def send(self, how, title):
        """Send a signal to the one process with this title."""
        os.kill(self.pids()[title], how)

    def log(self):
        """Return what it wrote last."""
        return self._log.read_text(errors="replace")[-4000:]

    async def stop(self):
        """End all of it, whatever state it is in."""
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        if self.process and (self.process.returncode is None or self.pids()):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.process:
            await self.process.wait()


@dataclass(frozen=True)
class Said:
    """What was said at one moment; without an entry the server was not spoken of."""

    time: float
    entry: dict | None

    @property
    def verdict(self):
        """Return the verdict, "" without one."""
        return self.entry["verdict"] if self.entry else ""

    @property
    def signature(self):
        """Return the signature, "" without one."""
        return self.entry["signature"] if self.entry else ""

    @property
    def reason(self):
        """Return the reason, "" without one."""
        return self.entry["reason"] if self.entry else ""

    @property
    def probes(self):
        """Return how the last probe of each path went."""
        return [probe["result"] for probe in self.entry["health"]] if self.entry else []

    def __str__(self):
        return f"{time.strftime('%X', time.localtime(self.time))} {self.verdict} {self.signature}: {self.reason}"


class Watch:
    """Asks the exporter each second what it says of one server, and keeps all of it.

    Stalled or dead is a false alarm unless a test has put it into `right`.
    """

    def __init__(self, exporter, server):
        self.said = []
        self.right = set()
        self.false_alarms = []
        self._exporter = exporter
        self._server = server
        self._news = asyncio.Condition()
        self._task = asyncio.create_task(self._record())

    async def _record(self):
        while True:
            status = json.loads(await self._exporter.get("/api/v1/status"))
            entry = next((one for one in status["servers"] if one["server"] == self._server.name), None)
            async with self._news:
                said = Said(status["time"], entry)
                self.said.append(said)
                if said.verdict in ALARMS - self.right:
                    self.false_alarms.append(said)
                self._news.notify_all()
            await asyncio.sleep(1.0)

    async def until(self, *verdicts, within=60.0, **wanted):
        """Return the first that is said from now on with one of these verdicts and all that is wanted."""
        seen = len(self.said)

        def found():
            return next((said for said in self.said[seen:] if fits(said, verdicts, wanted)), None)

        try:
            async with self._news:
                await asyncio.wait_for(self._news.wait_for(found), within)
        except asyncio.TimeoutError:  # not TimeoutError, before Python 3.11
            raise AssertionError(f"not {verdicts} {wanted} within {within} s:\n{self.story()}") from None
        return found()

    async def hear(self, seconds):
        """Listen on until what is said is so many seconds newer, and return all that was said meanwhile."""
        seen = len(self.said)
        end = self.said[-1].time + seconds
        async with self._news:
            await asyncio.wait_for(self._news.wait_for(lambda: self.said[-1].time >= end), seconds + PATIENCE)
        return self.said[seen:]

    def story(self):
        """Return each thing that was said once, all that is known now, and the end of the server's log."""
        changes, before = [], None
        for said in self.said:
            if (said.verdict, said.signature) != before:
                changes.append(str(said))
            before = (said.verdict, said.signature)
        now = json.dumps(self.said[-1].entry if self.said else None, indent=1)
        return "\n".join([*changes, str(self.said[-1] if self.said else ""), now, self._server.log()])

    async def close(self):
        """Ask no more; an exporter that stopped to answer is a failure here."""
        failed = self._task.exception() if self._task.done() else None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if failed:
            raise failed


def fits(said, verdicts, wanted):
    """Tell whether this is one of the verdicts, and the rest of it as wanted."""
    return said.verdict in verdicts and all(getattr(said, name) == value for name, value in wanted.items())


@pytest.fixture(scope="session")
def home():
    """Return where the real server is installed."""
    place = Path(os.environ.get(REAL_SGLANG, ".cache/real-sglang")).absolute()
    assert (place / "model/model.safetensors").is_file(), f"run `make test-real`; no SGLang is installed in {place}"
    return place


@pytest.fixture
async def server(home, tmp_path):
    """Have a server, not started yet, and end all its processes."""
    made = RealServer(home, tmp_path)
    yield made
    await made.stop()


@pytest.fixture
async def watch(server):
    """Watch the server from before its start on; in the end nothing may have been said that was a false alarm."""
    async with ExporterProcess(**SHORT) as exporter:
        record = Watch(exporter, server)
        yield record
        print(record.story())
        await record.close()
    assert not record.false_alarms, "\n".join([str(record.false_alarms[0]), record.story()])
