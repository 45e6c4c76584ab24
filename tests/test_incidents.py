"""The three incidents, played by real processes beside the real exporter, Prometheus and Alertmanager."""

import asyncio
import gzip
import json
import re
import subprocess
import sys
import time

import pytest

from exporter_process import ExporterProcess
from nvml_library import environment
from stallwatch.simulation.pager import Pager, free_port, programs
from stallwatch.simulation.played import PlayedGpus, PlayedServer

RANKS = tuple(f"sglang::scheduler_TP{rank}" for rank in range(8))
GIB = 1024**3
STALLED = "InferenceServerStalled"
FAST = {
    "GPU__INTERVAL": "1s",
    "DISCOVERY__INTERVAL": "1s",
    "HEALTH__INTERVAL": "2s",
    "LIMITS__SUSPECT": "2s",
    "LIMITS__EVIDENCE": "4s",
    "LIMITS__STALLED": "4s",
    "LIMITS__SILENT": "6s",
    "LIMITS__START_WITHOUT_MOVEMENT": "6s",
    "LIMITS__START_WITHOUT_MOVEMENT_PARTIAL": "6s",
}


class Node:
    """A played node: eight GPUs, one server of eight ranks, the exporter that watches it."""

    def __init__(self, directory, library):
        self.port = free_port()
        self.name = f"sglang:{self.port}"
        self.gpus = PlayedGpus(directory / "gpus", 8)
        self.server = None
        self.evidence = directory / "evidence"
        kept = {"EVIDENCE__ENABLED": "true", "EVIDENCE__DIRECTORY": self.evidence, "EVIDENCE__STACKS": "true"}
        self.exporter = ExporterProcess(environment(library, self.gpus.path), **FAST, **kept)
        self._directory = directory

    async def start(self, *flags, environ=None):
        """Start the launcher, its ranks and the detokenizer; each rank holds its GPU."""
        arguments = ["--model-path", "/models/kimi", "--tp-size", "8", "--port", str(self.port), *flags]
        self.server = PlayedServer(self._directory / "server", arguments, environ)
        await self.server.start()
        pids = await self.server.spawn(*RANKS, "sglang::detokenizer")
        self.gpus.hold(pids[title] for title in RANKS)
        await self.server.log(f"{stamp()}] server_args=ServerArgs(model_path='/models/kimi', api_key='sk-verysecret')")
        await self.server.log(*(f"{stamp()} TP{rank}] Load weight begin. avail mem=94.40 GB" for rank in range(8)))

    async def load(self, shards=5):
        """Load the weights, shard by shard, up to the last one, and then rest."""
        for shard in range(1, shards + 1):
            self.gpus.show(memory_mib=76 * 1024 * shard // shards, utilization=3, power_watts=90)
            await self.server.log(
                f"Loading safetensors checkpoint shards: {100 * shard // shards}% Completed | {shard}/{shards}"
            )
        self.gpus.show(utilization=2)

    async def hang(self, odd="sglang::scheduler_TP5", **before):
        """Have all ranks wait for each other, and one for a lock instead."""
        await self.server.tell(to={title: {**before, "hang": "lock" if title == odd else "peer"} for title in RANKS})

    async def become_ready(self):
        """Go on where the incident stopped: the port opens and health probes are answered."""
        await self.server.log(f"{stamp()}] The server is fired up and ready to roll!")
        await self.server.tell(listen=self.port)

    async def everything_seen(self):
        """Return a scrape in which every signal of the server is there."""
        signals = ("gpu", "process", "log", "health")

        def seen(scrape):
            return all(scrape.value("signal_success", server=self.name, signal=signal) == 1 for signal in signals)

        return await self.exporter.until(seen)

    async def bundle(self):
        """Wait for the bundle of the incident and return its directory."""
        seen = await self.exporter.until(lambda scrape: scrape.all("evidence_info", server=self.name))
        ((labels, _),) = seen.all("evidence_info", server=self.name)
        return self.evidence / labels["bundle"]

    async def check(self, *words):
        """Return what the command says of this node."""
        command = [sys.executable, "-m", "stallwatch", "check", *words]
        child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, env=self.exporter._environ)
        out, _ = await child.communicate()
        return out.decode()

    async def told(self):
        """Return what the bundle of the incident tells, as text, and all of its files, unpacked."""
        bundle = await self.bundle()
        files = {path.name: path.read_bytes() for path in bundle.iterdir()}
        files["recording.jsonl.gz"] = gzip.decompress(files["recording.jsonl.gz"])
        return files["summary.md"].decode(), b"".join(files.values())


def stamp():
    """Return how SGLang begins a line, up to the ranks."""
    return time.strftime("[%Y-%m-%d %H:%M:%S")


@pytest.fixture
async def node(tmp_path, library):
    """Have a node and end all its processes."""
    made = Node(tmp_path, library)
    yield made
    if made.server:
        await made.server.stop()


@pytest.fixture
async def pager(tmp_path, node):
    """Have a real Prometheus and Alertmanager behind the exporter."""
    found = programs()
    assert found, "Prometheus and Alertmanager are not installed"
    chain = Pager(tmp_path / "pager", node.exporter.port)
    await chain.start(found)
    yield chain
    await chain.close()


async def page_of(pager, server, status="firing", within=40.0):
    """Return the first alert that says this server has stalled which Alertmanager sends with this status.

    The raw rule for starts has the same limit, and may be evaluated a moment before: its page is passed over.
    """

    async def found():
        while True:
            page = await pager.pages.get()
            for told in page["alerts"]:
                labels = told["labels"]
                if (labels.get("server"), labels["alertname"], told["status"]) == (server, STALLED, status):
                    return told

    return await asyncio.wait_for(found(), within)


def names_cause_and_rank(node, summary, kept):
    """Assert that the text alone tells what class of hang it is and which rank stands elsewhere, and no secret."""
    title, *lines = summary.splitlines()
    assert title.startswith(f"# {node.name}: ")
    assert title.endswith("(cold_deadlock)"), title
    assert any(line.startswith("- **Class of cause**: Nothing computes and nobody burns CPU") for line in lines)
    (odd,) = [line for line in lines if line.startswith("- **Odd one out**")]
    assert re.search(r"by their Python stacks: TP5\b", odd), odd
    assert re.search(r"TP5 \(sleeps in futex", odd), odd
    assert b"verysecret" not in kept


def shows(scrape, node, title):
    """Return what one process of the node shows."""
    of = {"server": node.name, "process": title}
    names = ("cpu_ratio", "cpu_seconds_total", "threads", "open_fds", "resident_memory_bytes")
    return {name: scrape.value(f"process_{name}", **of) for name in names} | {
        "state": scrape.holding("process_state", "state", **of)
    }


async def test_weights_are_loaded_and_nothing_says_more(node, pager):
    """76 GB on each GPU at 2-3 %, the log at the last shard, a port that refuses: it pages, then resolves."""
    async with node.exporter:
        await node.start()
        await node.load()
        scrape = await node.everything_seen()
        curl = subprocess.run(["curl", "-s", f"http://127.0.0.1:{node.port}/health"], capture_output=True, check=False)
        assert (curl.stdout, curl.returncode) == (b"", 7)
        assert [value for _, value in scrape.all("gpu_memory_used_bytes")] == [76 * GIB] * 8
        assert {value for _, value in scrape.all("gpu_utilization_ratio")} <= {0.02, 0.03}
        assert scrape.value("server_memory_loaded", server=node.name) == 1
        assert scrape.holding("health_result", "result", server=node.name) == {"refused"}
        assert scrape.holding("server_phase", "phase", server=node.name) == {"loading_weights"}
        assert scrape.value("server_phase_progress_ratio", server=node.name) == 1
        await node.hang()
        page = await page_of(pager, node.name)
        assert page["labels"] | {"instance": "", "job": ""} == {
            "alertname": "InferenceServerStalled",
            "server": node.name,
            "severity": "critical",
            "instance": "",
            "job": "",
        }
        assert node.name in page["annotations"]["description"]
        assert "cold" in page["annotations"]["description"]
        assert page["annotations"]["runbook_url"].endswith("InferenceServerStalled.md")
        scrape = await node.exporter.scrape()
        assert scrape.holding("server_verdict", "verdict", server=node.name) == {"stalled"}
        assert scrape.holding("server_signature", "signature", server=node.name) == {"cold_deadlock"}
        promtool = subprocess.run(
            ["promtool", "check", "metrics"], input=scrape.text.encode(), capture_output=True, check=False
        )
        assert (promtool.returncode, promtool.stdout, promtool.stderr) == (0, b"", b"")
        said = json.loads(await node.exporter.get("/api/v1/status"))["servers"]
        (reason,) = [entry["reason"] for entry in said if entry["server"] == node.name]
        assert "76 GiB on each of 8 GPUs" in reason
        assert f"port {node.port} refuses connections" in reason
        assert "TP5 sleeps in futex" in reason
        names_cause_and_rank(node, *await node.told())
        await node.become_ready()
        await page_of(pager, node.name, "resolved")
        scrape = await node.exporter.until(lambda seen: seen.value("health_success", server=node.name) == 1)
        assert scrape.holding("server_phase", "phase", server=node.name) == {"ready"}
        assert scrape.holding("health_scope", "scope", server=node.name) == {"scheduler"}
        assert "verysecret" not in scrape.text + node.exporter.log


async def test_all_ranks_are_asleep(node, pager, tmp_path):
    """Eight ranks asleep at 0.0 % CPU, though resident memory counts what they share many times over."""
    shared = tmp_path / "shared"
    with shared.open("wb") as file:
        file.truncate(32 * 1024**2)
    async with node.exporter:
        await node.start()
        await node.load()
        node.gpus.show(utilization=0, power_watts=62)
        await node.hang(share={"path": str(shared), "times": 40}, cpu=0)
        await node.everything_seen()

        def asleep(scrape):
            seen = [shows(scrape, node, f"scheduler_TP{rank}") for rank in range(8)]
            shared_by_all = all((one["resident_memory_bytes"] or 0) > 1.25 * GIB for one in seen)
            return shared_by_all and all(one["cpu_ratio"] == 0 and one["state"] == {"S"} for one in seen)

        scrape = await node.exporter.until(asleep)
        assert scrape.value("server_processes", server=node.name, role="scheduler") == 8
        assert scrape.value("server_expected_processes", server=node.name, role="scheduler") == 8
        assert scrape.value("server_gpu_utilization_max_ratio", server=node.name) == 0
        ranks = {labels["rank"] for labels, _ in scrape.all("server_gpu_info", server=node.name)}
        assert ranks == {f"TP{rank}" for rank in range(8)}
        assert (await page_of(pager, node.name))["labels"]["alertname"] == "InferenceServerStalled"
        scrape = await node.exporter.scrape()
        assert scrape.holding("server_signature", "signature", server=node.name) == {"cold_deadlock"}
        names_cause_and_rank(node, *await node.told())
        said = await node.check("--look", "--for", "4s")
        assert "TP5: sleeps in futex" in said, said
        assert "looks like cold_deadlock" in said


async def test_cpu_time_that_was_burnt_is_no_movement(node, pager):
    """Much CPU time in the past, 205 threads, 207 files, an EAGLE draft: it hangs all the same, and nothing leaks."""
    environ = {**node.exporter._environ, "NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_verysecret"}
    async with node.exporter:
        await node.start(
            "--speculative-algorithm",
            "EAGLE",
            "--speculative-draft-model-path",
            "/models/d",
            "--api-key",
            "sk-verysecret",
            environ=environ,
        )
        await node.load()
        lines = node.server.log_path.read_text().count("\n")
        await node.server.log(*(f"{stamp()} TP{n % 8}] some line" for n in range(247 - lines)))
        node.gpus.show(utilization=0)
        await node.hang(burnt=0.3, threads=204, fds=204, cpu=0)

        def hangs(scrape):
            one = shows(scrape, node, "scheduler_TP0")
            return one["cpu_ratio"] == 0 and (one["threads"] or 0) >= 205 and (one["open_fds"] or 0) >= 207

        scrape = await node.exporter.until(hangs)
        assert shows(scrape, node, "scheduler_TP0")["cpu_seconds_total"] >= 0.3
        assert sum(value for _, value in scrape.all("log_lines_total", server=node.name)) == 247
        page = await page_of(pager, node.name)
        assert page["labels"]["alertname"] == "InferenceServerStalled"
        names_cause_and_rank(node, *await node.told())
        assert "verysecret" not in str(page) + scrape.text + node.exporter.log


async def test_a_restart_of_the_exporter_does_not_make_a_hang_look_young(node, tmp_path):
    """Another exporter goes on where the one before ended: what has not moved since then has not moved."""
    kept = {"STATE__ENABLED": "true", "STATE__FILE": str(tmp_path / "memory.json")}
    slow = {**FAST, "LIMITS__START_WITHOUT_MOVEMENT": "1h", "LIMITS__START_WITHOUT_MOVEMENT_PARTIAL": "1h", **kept}
    signals = ("gpu_memory", "io", "faults", "compile")

    def ages(scrape):
        names = {"server": node.name}
        return [scrape.age("server_last_movement_timestamp_seconds", signal=signal, **names) for signal in signals]

    def still_for(seconds):
        return lambda scrape: all((age or 0) >= seconds for age in ages(scrape))

    environ = node.exporter._environ
    async with ExporterProcess(environ, **slow) as first:
        await node.start()
        await node.load()
        await first.until(still_for(4))
    async with ExporterProcess(environ, **slow) as second:
        scrape = await second.until(lambda scrape: None not in ages(scrape))
        assert min(ages(scrape)) >= 4
