"""Servers in containers, as they are seen from a pod with `hostPID`, from the host and from a sidecar."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from contained import CONTAINER, as_root, contained, control_group
from prefixed_exporter import PrefixedExporter

POD_UID = "0f0e0d0c-0b0a-0908-0706-050403020100"
SCOPE = f"kubepods.slice/kubepods-pod{POD_UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope"
LOADING = "[2026-01-01 00:00:01 TP0] Load weight begin. avail mem=78.68 GB"
QUICK = {"INTERVAL": "250ms", "DISCOVERY__INTERVAL": "500ms", "HEALTH__INTERVAL": "500ms", "COLLECTORS__GPU": "false"}
INIT = 'mount --make-rprivate / && mount --bind "$1" /var/log && echo up && exec sleep infinity'
OWN_MOUNTS = ("unshare", "--mount", "sh", "-c")


def kubelet(logs):
    """Return where the runtime of a node with these logs is to write, linked to as the kubelet does."""
    log = logs / "pods" / f"ns_kimi-0_{POD_UID}" / "sglang" / "0.log"
    log.parent.mkdir(parents=True)
    (logs / "containers").mkdir()
    link = logs / "containers" / f"kimi-0_ns_sglang-{CONTAINER}.log"
    link.symlink_to(f"/var/log/{log.relative_to(logs)}")
    return log


@contextlib.contextmanager
def played_node(logs):
    """Run a node with these logs and return what leads into it; all that runs on it ends with it."""
    alone = ("unshare", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "sh", "-c", INIT, "sh", str(logs))
    with subprocess.Popen(alone, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"up\n"
            first = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
            yield ("nsenter", f"--target={first}", "--pid", "--mount")
        finally:
            process.kill()


@contextlib.contextmanager
def runtime(log):
    """Give a pipe whose lines are written to a file as containerd does."""
    reading, writing = os.pipe()

    def copy():
        with open(reading, "rb") as lines, log.open("ab", buffering=0) as file:
            for line in lines:
                file.write(b"2026-01-01T00:00:00.000000000Z stderr F " + line)

    copying = threading.Thread(target=copy)
    copying.start()
    try:
        yield writing
    finally:
        os.close(writing)
        copying.join()


async def seen_by(*prefix, until):
    """Look behind other commands until what is seen is so, since a busy machine may show little within a second."""
    for _ in range(8):
        if until(status := await status_of(*prefix)):
            break
    return status


def misses(status):
    """Return which signals of servers are missing, and why."""
    return {(one["collector"], one["reason"]) for one in status["failures"] if one["server"]}


async def status_of(*prefix):
    """Return what a look of a second says that is made behind other commands."""
    command = [*prefix, sys.executable, "-m", "stallwatch", "check", "--json", "--for=1s", "--look"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environ |= {f"STALLWATCH_{key}": value for key, value in QUICK.items()}
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, env=environ, check=False)
    assert done.stderr == ""
    return json.loads(done.stdout)


@as_root
async def test_from_a_pod_with_the_processes_of_the_host_all_of_a_server_is_seen(tmp_path):
    """Its ids, the log that its runtime keeps on the node, its port and the metrics of its engine."""
    pod, logs = (*OWN_MOUNTS, 'umount /var/log; exec "$@"', "sh"), tmp_path / "var-log"
    with (
        control_group(SCOPE) as group,
        runtime(kubelet(logs)) as output,
        played_node(logs) as within,
        contained(tmp_path, output=output, under=within, GROUP=group, SAYS=LOADING) as inside,
    ):
        name = f"sglang:{inside.port}"
        async with PrefixedExporter(tmp_path, *within, *pod, **QUICK) as exporter:
            scrape = await exporter.until(
                lambda scrape: (
                    scrape.value("health_success", server=name, path="/health") == 1
                    and scrape.value("engine_requests_running", server=name, dp_rank="0") == 3
                    and scrape.value("log_lines_total", server=name, kind="progress") == 1
                )
            )
            ((info, _),) = scrape.all("server_info", server=name)
            assert (info["container_id"], info["pod_uid"]) == (CONTAINER, POD_UID)
            assert scrape.value("server_processes", server=name, role="scheduler") == 2
            assert "Traceback" not in exporter.log


@as_root
async def test_from_the_host_the_files_of_a_container_are_reached_through_its_root(tmp_path):
    """Its log and its configuration lie where only it can see them by their paths."""
    config = "model-path: /models/kimi"
    with contained(tmp_path, "--config", "server.yaml", CONFIG=config, LOG="server.log", SAYS=LOADING) as inside:
        assert not (inside.hidden / "server.log").exists()
        server = inside.found()
        assert server.launch.model == "/models/kimi"
        assert server.log_path == f"/proc/{inside.pid}/root{inside.hidden}/server.log"
        assert LOADING in Path(server.log_path).read_text()
        assert [process.name for process in server.processes] == ["launcher", "scheduler_TP0", "scheduler_TP1"]


@as_root
async def test_a_server_whose_runtime_keeps_no_file_is_told_what_to_do(tmp_path):
    """The pipe of a container leads to nobody that can be seen."""
    reading, writing = os.pipe()
    with control_group(SCOPE) as group, contained(tmp_path, output=writing, GROUP=group) as inside:
        found = inside.found()
        assert (found.container_id, found.pod_uid) == (CONTAINER, POD_UID)
        assert found.log_absence.startswith("runtime: ")
    os.close(reading)
    os.close(writing)


@as_root
async def test_a_sidecar_sees_the_server_of_its_pod(tmp_path):
    """With `shareProcessNamespace`: processes, a log in a file of the server's, and its port on their one loopback."""
    with contained(tmp_path, LOG="server.log", SAYS=LOADING) as inside:
        sidecar = ("nsenter", f"--target={inside.pid}", "--pid", "--net", *OWN_MOUNTS)
        command = (*sidecar, 'mount -t proc proc /proc; exec "$@"', "sh")
        status = await seen_by(*command, until=lambda status: status["servers"][0]["marker"])
        (server,) = status["servers"]
        assert server["server"] == f"sglang:{inside.port}"
        assert (server["marker"], server["marker_rank"]) == ("load_begin", "TP0")
        assert server["processes"] == {"launcher": 1, "scheduler": 2}
        assert {rank["pid"] for rank in server["ranks"]} <= set(range(1, 1000))
        assert misses(status) == set()


@as_root
async def test_a_sidecar_without_rights_is_told_what_is_missing(tmp_path):
    """As another user than the server's: what its processes do is seen, where it logs and listens is not."""
    with contained(tmp_path, LOG="server.log", SAYS=LOADING) as inside:
        bound = ("setpriv", "--bounding-set=-sys_ptrace,-dac_read_search,-dac_override", "--inh-caps=-all")
        sidecar = ("nsenter", f"--target={inside.pid}", "--pid", "--net", *OWN_MOUNTS)
        wanted = {("log", "permission_denied"), ("health", "permission_denied")}
        command = (*sidecar, 'mount -t proc proc /proc; exec "$@"', "sh", *bound)
        status = await seen_by(*command, until=lambda status: misses(status) >= wanted)
        assert misses(status) >= wanted
        assert status["servers"][0]["processes"] == {"launcher": 1, "scheduler": 2}
