"""Limits and missing rights: descriptors, inotify, namespaces, hidden processes. Each costs what is named then."""

import asyncio
import contextlib
import http.client
import json
import os
import resource
import subprocess
import sys

import pytest

from crowd import Server, crowd_program, open_the_way_to, running
from exporter_process import ExporterProcess, Scrape
from prefixed_exporter import NOBODY, PrefixedExporter, python_of_everybody
from stallwatch.simulation.pager import free_port

__all__ = ["crowd_program"]

QUICK = {
    "INTERVAL": "250ms",
    "DISCOVERY__INTERVAL": "500ms",
    "HEALTH__INTERVAL": "500ms",
    "COLLECTORS__GPU": "false",
    "COLLECTORS__ENGINE": "false",
}
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give rights away")


@pytest.fixture
def server(crowd_program, tmp_path):
    """Run one server of two ranks, whose log everybody may read."""
    log = tmp_path / "server.log"
    open_the_way_to(tmp_path)
    with running([Server(crowd_program, free_port(), log)]) as [one]:
        yield one


def sees(scrape, server):
    """Return which signals of a server are there."""
    found = scrape.all("signal_success", server=server.name)
    return {labels["signal"] for labels, value in found if value == 1} & {"process", "log", "health"}


def reasons(scrape, collector):
    """Return why rounds of a collector missed something so far."""
    return {labels["reason"] for labels, _ in scrape.all("collector_failures_total", collector=collector)}


def limit_files(pid, soft):
    """Set how many descriptors a process may have from now on."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


LOGS = 60


def mine(scrape):
    """Return how many of the logs that are configured are read."""
    return sum(labels["server"].startswith("mine") for labels, _ in scrape.all("log_size_bytes"))


async def test_more_logs_than_descriptors_cost_the_logs_that_are_too_many(server, tmp_path):
    """A low limit costs some logs, which are named; all else is read, and all logs are once the limit is raised."""
    config, entries = tmp_path / "stallwatch.yml", []
    for number in range(LOGS):
        (tmp_path / f"{number}.log").write_text("one line\n")
        entries.append(f"  - {{name: 'mine{number}', port: 1, log: {tmp_path / f'{number}.log'}}}\n")
    config.write_text("servers:\n" + "".join(entries))
    exporter = PrefixedExporter(
        tmp_path, "prlimit", "--nofile=48:4096", flags=(f"--config.file={config}", "--no-collector.health"), **QUICK
    )
    async with exporter:
        scrape = await exporter.until(lambda scrape: "too_many_open_files" in reasons(scrape, "log"))
        assert sees(scrape, server) >= {"process"}
        assert 0 < mine(scrape) < LOGS
        assert scrape.value("collector_success", collector="discovery") == 1
        workers = await exporter.workers()
        limit_files(workers["host"], 4096)
        await exporter.until(lambda scrape: mine(scrape) == LOGS)
        assert (await exporter.workers())["host"] == workers["host"]
        assert "Traceback" not in exporter.log


async def test_without_a_descriptor_left_it_still_answers_and_blames_no_server(server):
    """What cannot be probed is missing, not failing; a connection that is there gets its scrapes; then all is back."""
    async with ExporterProcess(**QUICK) as exporter:
        await exporter.until(lambda scrape: sees(scrape, server) == {"process", "log", "health"})
        known = http.client.HTTPConnection("127.0.0.1", exporter.port, timeout=10)

        def ask():
            known.request("GET", "/metrics")
            return Scrape(known.getresponse().read().decode())

        async def until(condition):
            while not condition(scrape := await asyncio.to_thread(ask)):
                assert scrape.holding("server_verdict", "verdict", server=server.name) <= {"idle", "busy", "unknown"}
                await asyncio.sleep(0.1)
            return scrape

        with contextlib.closing(known):
            first = await asyncio.to_thread(ask)
            limit_files(exporter.process.pid, 3)  # what is open stays open
            scrape = await until(lambda scrape: sees(scrape, server) == {"process", "log"})
            assert "no_socket" in reasons(scrape, "health")
            enough = first.value("snapshot_timestamp_seconds") + 3
            waiting = asyncio.create_task(exporter.scrape())
            await until(lambda scrape: scrape.value("snapshot_timestamp_seconds") > enough)
            limit_files(exporter.process.pid, 1024)
            await until(lambda scrape: sees(scrape, server) == {"process", "log", "health"})
            assert (await waiting).value("snapshot_timestamp_seconds") > enough
        assert exporter.log.count("no connection can be accepted") == 1
        assert all(line.startswith("ts=") for line in exporter.log.splitlines())
        assert "Traceback" not in exporter.log


async def test_without_inotify_the_configuration_is_still_reloaded(tmp_path):
    """In a user namespace without instances or watches that is told of once, and the file is looked at now and then."""
    await asyncio.gather(*(reloads_without(tmp_path, limit) for limit in ("instances", "watches")))


async def reloads_without(folder, limit):
    """Change the configuration of an exporter that may have none of these."""
    config = folder / f"{limit}.yml"
    config.write_text("servers: [{name: mine, port: 1}]\n")
    no_more = f'echo 0 > /proc/sys/user/max_inotify_{limit}; exec "$@"'
    none = ("unshare", "--user", "--map-root-user", "sh", "-c", no_more, "sh")
    async with PrefixedExporter(folder, *none, flags=(f"--config.file={config}",), **QUICK) as exporter:
        await exporter.until(lambda scrape: scrape.value("server_info", server="mine") is not None)
        for name in ("yours", "theirs"):  # the first may fall into the look with which it starts
            config.write_text(f"servers: [{{name: {name}, port: 1}}]\n")
            await exporter.until(lambda scrape, name=name: scrape.value("server_info", server=name) is not None)
        assert exporter.log.count("cannot watch the configuration, looking now and then") == 1
        assert "Traceback" not in exporter.log


async def looked(*prefix, flags=()):
    """Return what a look of some seconds says, behind other commands."""
    command = [*prefix, sys.executable, "-m", "stallwatch", "check", "--json", "--for=4s", *flags]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)} | {
        f"STALLWATCH_{key}": value for key, value in QUICK.items()
    }
    done = await asyncio.to_thread(
        subprocess.run, [*command, "--look"], capture_output=True, text=True, env=environ, check=False
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def failures(status, **wanted):
    """Return the reasons of failures with these values."""
    return {one["reason"] for one in status["failures"] if wanted.items() <= one.items()}


@as_root
async def test_without_the_pid_namespace_of_the_host_no_server_is_seen(server):
    """In a container without `hostPID`."""
    assert (await looked("unshare", "--pid", "--fork", "--mount-proc"))["servers"] == []


@as_root
async def test_without_the_network_of_the_host_it_takes_a_right_to_probe(server):
    """In a container without `hostNetwork` it takes CAP_SYS_ADMIN; processes and logs are read all the same."""
    bound = ("setpriv", "--bounding-set=-sys_admin")
    status = await looked("unshare", "--net", *bound, flags=(f"--server={server.name}",))
    assert failures(status, server=server.name) == {"other_network_namespace"}
    assert len(status["servers"][0]["ranks"]) == 2
    status = await looked("unshare", "--net", flags=(f"--server={server.name}",))
    assert failures(status, server=server.name) == set()


@as_root
async def test_hidden_processes_are_named(server, tmp_path):
    """With `hidepid` another user sees no server, and it is said why."""
    python, environ = python_of_everybody()
    hidden = ("unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc; exec "$@"', "sh", *AS_NOBODY)
    exporter = PrefixedExporter(tmp_path, *hidden, python=python, environ=environ, **QUICK)
    await exporter.start()
    try:
        scrape = await exporter.until(lambda scrape: "processes_hidden" in reasons(scrape, "discovery"))
        assert scrape.value("collector_success", collector="discovery") == 0
        assert scrape.value("server_info", server=server.name) is None
        assert "is mounted with hidepid" in exporter.log
        assert "Traceback" not in exporter.log
    finally:
        await exporter.stop()


WITHOUT_PTRACE = ("setpriv", "--bounding-set=-sys_ptrace")


@as_root
@pytest.mark.parametrize("rights", [AS_NOBODY, WITHOUT_PTRACE], ids=["another user", "root without CAP_SYS_PTRACE"])
async def test_without_rights_what_needs_none_is_seen(server, tmp_path, rights):
    """CPU, state and memory are there; log, port, bytes read and another's open files are named as missing."""
    python, environ = python_of_everybody() if rights == AS_NOBODY else (sys.executable, {})
    exporter = PrefixedExporter(tmp_path, *rights, python=python, environ=environ, **QUICK)
    async with exporter:
        scrape = await exporter.until(lambda scrape: sees(scrape, server) == {"process"})
        for name in ("cpu_seconds_total", "state", "resident_memory_bytes", "page_faults_total", "threads"):
            assert scrape.all(f"process_{name}", server=server.name), name
        for name in ("open_fds", "read_bytes_total") if rights == AS_NOBODY else ("read_bytes_total",):
            assert scrape.all(f"process_{name}", server=server.name) == [], name
        status = json.loads(await exporter.get("/api/v1/status"))
        for collector in ("process", "log", "health"):
            assert failures(status, collector=collector, server=server.name) == {"permission_denied"}
        assert "Traceback" not in exporter.log


@as_root
async def test_without_rights_what_is_configured_is_seen(server, tmp_path):
    """Log and port are there where the configuration names them, unless the log may not be read."""
    python, environ = python_of_everybody()
    config = tmp_path / "stallwatch.yml"
    entry = {"name": server.name, "port": server.port, "host": "127.0.0.1", "log": str(server.log)}
    config.write_text(json.dumps({"servers": [entry]}))
    exporter = PrefixedExporter(
        tmp_path, *AS_NOBODY, python=python, environ=environ, flags=(f"--config.file={config}",), **QUICK
    )
    async with exporter:
        await exporter.until(lambda scrape: sees(scrape, server) == {"process", "log", "health"})
        server.log.rename(tmp_path / "kept.log")
        server.log.write_text("")
        server.log.chmod(0)
        scrape = await exporter.until(lambda scrape: sees(scrape, server) == {"process", "health"})
        assert reasons(scrape, "log") == {"permission_denied"}


@as_root
async def test_the_user_of_the_servers_needs_no_right(crowd_program, tmp_path):
    """Whoever runs as they do, without any capability, reads all of them."""
    python, environ = python_of_everybody()
    logs = tmp_path / "logs"
    logs.mkdir()
    os.chown(logs, NOBODY, NOBODY)
    open_the_way_to(tmp_path)
    exporter = PrefixedExporter(tmp_path, *AS_NOBODY, python=python, environ=environ, **QUICK)
    with running([Server(crowd_program, free_port(), logs / "server.log", user=NOBODY)]) as [server]:
        async with exporter:
            scrape = await exporter.until(lambda scrape: sees(scrape, server) == {"process", "log", "health"})
            assert scrape.all("process_open_fds", server=server.name)
