"""Does long-term storage get what is worth keeping, and no more? A real Prometheus sends to a real VictoriaMetrics."""

import json
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from documents import ROOT
from stallwatch.simulation.pager import free_port

FOLDER = ROOT / "deploy" / "prometheus"
SCRAPE = b"""\
stallwatch_snapshot_timestamp_seconds 1
stallwatch_gpu_info{gpu="0",uuid="GPU-0"} 1
stallwatch_process_threads{server="a",process="launcher"} 7
stallwatch_server_verdict{server="a",verdict="busy"} 1
stallwatch_server_verdict{server="a",verdict="idle"} 0
"""
WITHIN = 40.0


class Exporter(BaseHTTPRequestHandler):
    """Shows a few of an exporter's series."""

    def do_GET(self):
        """Answer a scrape."""
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(SCRAPE)

    def log_message(self, *_):
        """Stay quiet."""


def hurried(folder, exporter, storage):
    """Write the example for fleets with these addresses, each second, and only the storage that runs here."""
    page = yaml.safe_load((FOLDER / "fleet.yml").read_text())
    page["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    rules = (FOLDER / "fleet_rules.yml").read_text().replace("interval: 1m", "interval: 1s")
    (folder / "fleet_rules.yml").write_text(rules)
    page["rule_files"] = ["fleet_rules.yml"]
    (job,) = page["scrape_configs"]
    del job["file_sd_configs"]
    job["static_configs"] = [{"targets": [f"127.0.0.1:{exporter}"]}]
    (remote,) = (one for one in page["remote_write"] if one["name"] == "victoriametrics")
    page["remote_write"] = [remote | {"url": remote["url"].replace("victoriametrics:8428", f"127.0.0.1:{storage}")}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(page))


def kept(port):
    """Return the series that the storage has."""
    words = urllib.parse.urlencode({"match[]": '{__name__!=""}', "start": time.time() - 600})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/series?{words}", timeout=5) as answer:
        return json.load(answer)["data"]


def until(condition, port):
    """Return the series that the storage has once a condition holds of them."""
    end, series = time.monotonic() + WITHIN, []
    while time.monotonic() < end:
        with suppress(OSError):
            series = kept(port)
            if condition({one["__name__"] for one in series}):
                return series
        time.sleep(0.2)
    raise AssertionError(series)


@pytest.fixture
def storage(tmp_path):
    """Return the port of a VictoriaMetrics to which a Prometheus sends by the example."""
    with ExitStack() as stack:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        port = free_port()
        hurried(tmp_path, server.server_port, port)
        for command in (
            ["victoria-metrics", f"-storageDataPath={tmp_path / 'vm'}", f"-httpListenAddr=127.0.0.1:{port}"],
            [
                "prometheus",
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{free_port()}",
            ],
        ):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield port


@pytest.mark.long
def test_storage_gets_what_is_worth_keeping(storage):
    """Verdicts, GPUs and what is recorded over the fleet, under the name of the cluster; not what each process does."""
    wanted = {"stallwatch_server_verdict", "stallwatch_gpu_info", "fleet:stallwatch_servers", "fleet:stallwatch_gpus"}
    series = until(wanted.issubset, storage)
    names = {one["__name__"] for one in series}
    assert names & {"stallwatch_process_threads", "stallwatch_snapshot_timestamp_seconds", "up"} == set()
    ours = [one for one in series if one["__name__"].startswith(("stallwatch", "fleet"))]
    assert {(one["cluster"], one["replica"]) for one in ours} == {("gpu-east", "a")}
