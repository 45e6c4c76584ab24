"""Which exporters are compared, and how is each started? Stallwatch, and those that tell the same things together."""

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from stallwatch.simulation.pager import free_port

ROOT = Path(__file__).parents[1]
NVITOP = ROOT / ".cache" / "nvitop" / "bin" / "nvitop-exporter"
LOG_PROGRAM = r"""
counter log_lines_total by kind
gauge log_last_progress
gauge log_running_requests by rank
/(?P<rank>TP\d+)\] Decode batch.*#running-req: (?P<running>\d+)/ {
  log_lines_total["decode"]++
  log_running_requests[$rank] = $running
  log_last_progress = timestamp()
}
/Prefill batch/ {
  log_lines_total["prefill"]++
  log_last_progress = timestamp()
}
/HTTP\/1\.1" \d+/ {
  log_lines_total["access"]++
}
/Traceback|CUDA error|out of memory|NCCL/ {
  log_lines_total["error"]++
}
"""
PROCESS_NAMES = {
    "process_names": [
        {"name": "{{.Matches.Title}}", "cmdline": [r"^(?P<Title>sglang::\S+)"]},
        {"name": "launcher", "cmdline": [r"sglang\.launch_server"]},
    ]
}


@dataclass(slots=True)
class Exporter:
    """One exporter as a process, and where it is scraped."""

    name: str
    port: int
    command: list[str]
    path: str = "/metrics"
    environ: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def pid(self) -> int:
        """Return its pid."""
        if self.process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self.process.pid

    def start(self, folder: Path) -> None:
        """Start it; what it says goes to a file in the folder."""
        with (folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env={**os.environ, **self.environ})
        favour(self.process.pid)

    def stop(self) -> None:
        """End it."""
        if self.process:
            self.process.terminate()
            self.process.wait()


def favour(pid: int) -> bool:
    """Let a process go first, so that what else runs on this machine hardly shows; says whether that is allowed."""
    with suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
        return True
    return False


def stallwatch(folder: Path, gpus: dict[str, str]) -> Exporter:
    """Return the exporter as its users run it, all settings the usual ones."""
    port = free_port()
    kept = {"STALLWATCH_STATE__FILE": str(folder / "memory.json")}
    kept["STALLWATCH_EVIDENCE__DIRECTORY"] = str(folder / "evidence")
    command = [sys.executable, "-m", "stallwatch", "serve", f"--web.listen-address=127.0.0.1:{port}"]
    return Exporter("stallwatch", port, command, environ={**gpus, **kept})


def peers(folder: Path, gpus: dict[str, str], server_port: int, log: Path) -> list[Exporter]:
    """Return the four exporters that it takes for the same signals."""
    return [_nvitop(gpus), _process(folder), _blackbox(folder, server_port), _mtail(folder, log)]


def _nvitop(gpus: dict[str, str]) -> Exporter:
    port = free_port()
    command = [str(NVITOP), "--bind-address", "127.0.0.1", "--hostname", "node", "--port", str(port)]
    return Exporter("nvitop-exporter", port, command, environ=gpus)


def _process(folder: Path) -> Exporter:
    port, config = free_port(), folder / "process.yml"
    config.write_text(yaml.safe_dump(PROCESS_NAMES))
    command = [f"-web.listen-address=127.0.0.1:{port}", f"-config.path={config}"]
    return Exporter("process-exporter", port, ["prometheus-process-exporter", *command])


def _blackbox(folder: Path, server_port: int) -> Exporter:
    port, config = free_port(), folder / "blackbox.yml"
    config.write_text(yaml.safe_dump({"modules": {"http_2xx": {"prober": "http", "timeout": "5s"}}}))
    command = [f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}"]
    path = f"/probe?module=http_2xx&target=http://127.0.0.1:{server_port}/health"
    return Exporter("blackbox_exporter", port, ["prometheus-blackbox-exporter", *command], path)


def _mtail(folder: Path, log: Path) -> Exporter:
    port, programs = free_port(), folder / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "sglang.mtail").write_text(LOG_PROGRAM)
    words = ["-progs", str(programs), "-logs", str(log), "-address", "127.0.0.1", "-port", str(port), "-logtostderr"]
    return Exporter("mtail", port, ["mtail", *words])
