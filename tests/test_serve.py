"""The exporter as a process: how it begins, takes another configuration, logs, and ends."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from exporter_process import ExporterProcess
from prefixed_exporter import NOBODY, python_of_everybody
from stallwatch.simulation.pager import free_port
from stallwatch.simulation.played import PlayedServer

QUICK = {"INTERVAL": "200ms", "DISCOVERY__INTERVAL": "200ms"}


def settings(silent="10m", **more):
    """Return a configuration that shows in the metrics of a server which is configured and never seen."""
    lines = {"servers": "[{name: mine, port: 1}]", "limits": f"{{silent: {silent}}}", **more}
    return "".join(f"{key}: {value}\n" for key, value in lines.items())


def silent(scrape):
    """Return the limit that a configuration set."""
    return scrape.value("server_limit_seconds", server="mine", limit="silent")


def post(exporter, path):
    """Return the status and text of a POST."""
    request = urllib.request.Request(f"http://127.0.0.1:{exporter.port}{path}", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as answer:
        with answer:
            return answer.code, answer.read().decode()


@pytest.fixture
def file(tmp_path):
    """Return a configuration file."""
    path = tmp_path / "stallwatch.yml"
    path.write_text(settings())
    return path


def replace(path, text):
    """Write the file so that nobody sees a part of it."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.replace(path)


async def serving(exporter):
    """Wait until it says in its log that it serves."""
    while "msg=serving" not in exporter.log:
        assert exporter.process.returncode is None, exporter.log
        await asyncio.sleep(0.05)


async def test_it_serves_its_pages():
    """Metrics, the page for people, health and readiness are served, and the log says where and which version."""
    async with ExporterProcess(**QUICK) as exporter:
        assert " - Stallwatch</title>" in await exporter.get("/")
        assert ":root" in await exporter.get("/assets/style.css")
        assert await exporter.get("/-/healthy") == "stallwatch is healthy\n"
        assert await exporter.get("/-/ready") == "stallwatch is ready\n"
        assert f"msg=serving address=127.0.0.1:{exporter.port} version=" in exporter.log


async def test_sigterm_ends_it_well():
    """SIGTERM ends it within two seconds with exit code 0, and the last line of the log says so."""
    async with ExporterProcess(**QUICK) as exporter:
        workers = await exporter.workers()
        assert workers.keys() >= {"host"}
        assert await exporter.stop() < 2
        assert exporter.process.returncode == 0
        assert exporter.log.endswith("level=info msg=ended\n")
        assert "Traceback" not in exporter.log


async def test_sigterm_ends_it_whatever_hangs(file):
    """Clients that send half a request or read no answer, and a file that cannot be read, do not keep it."""
    async with ExporterProcess(flags=(f"--config.file={file}",), **QUICK) as exporter:
        half, deaf = (socket.create_connection(("127.0.0.1", exporter.port)) for _ in range(2))
        with half, deaf:
            half.sendall(b"GET /metrics HT")
            deaf.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 500)
            pipe = file.with_suffix(".pipe")
            os.mkfifo(pipe)
            pipe.replace(file)
            exporter.process.send_signal(signal.SIGHUP)
            await exporter.scrape()
            assert await exporter.stop() < 2
        assert exporter.process.returncode == 0
        assert "Traceback" not in exporter.log


async def test_a_port_in_use_is_said_in_one_line():
    """A port that another process has is named in one line, with exit code 1 and no worker started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "stallwatch", "serve", f"--web.listen-address={address}"]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert 'level=error msg="cannot serve"' in done.stderr
    assert "address already in use" in done.stderr
    assert address.rpartition(":")[2] in done.stderr


async def test_a_free_port_is_said():
    """Port 0 takes a free one, and the log says which."""
    exporter = ExporterProcess(flags=("--web.listen-address=127.0.0.1:0",), **QUICK)
    await exporter.start()
    try:
        await serving(exporter)
        exporter.port = int(exporter.log.partition("address=127.0.0.1:")[2].split()[0])
        assert await exporter.get("/-/healthy") == "stallwatch is healthy\n"
    finally:
        await exporter.stop()


async def test_it_listens_on_ipv6():
    """An IPv6 address is given in brackets."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    exporter = ExporterProcess(**QUICK)
    exporter._flags = [f"--web.listen-address=[::1]:{exporter.port}"]
    await exporter.start()
    try:
        await serving(exporter)
        with urllib.request.urlopen(f"http://[::1]:{exporter.port}/-/healthy", timeout=10) as answer:
            assert answer.status == 200
        assert f"[::1]:{exporter.port}" in exporter.log
    finally:
        await exporter.stop()


async def test_sighup_reloads(file):
    """After SIGHUP the same process runs by the file as it is now."""
    async with ExporterProcess(flags=(f"--config.file={file}",), **QUICK) as exporter:
        await exporter.until(lambda scrape: silent(scrape) == 600)
        file.write_text(settings("11m"))
        exporter.process.send_signal(signal.SIGHUP)
        scrape = await exporter.until(lambda scrape: silent(scrape) == 660)
        assert scrape.value("config_last_reload_successful") == 1
        assert 'msg="configuration loaded"' in exporter.log


async def test_sighup_without_a_file_harms_nothing():
    """Without a file SIGHUP reads flags and environment again, as often as it comes."""
    async with ExporterProcess(**QUICK) as exporter:
        for times in (1, 2):
            exporter.process.send_signal(signal.SIGHUP)
            await exporter.until(lambda _, times=times: exporter.log.count('msg="configuration loaded"') == times)


async def test_a_reload_over_http_must_be_allowed(file):
    """POST /-/reload is refused unless it was switched on; then it answers with what is wrong."""
    flag = f"--config.file={file}"
    async with ExporterProcess(flags=(flag,), **QUICK) as exporter:
        assert (await asyncio.to_thread(post, exporter, "/-/reload"))[0] == 403
    async with ExporterProcess(flags=(flag, "--web.enable-lifecycle"), **QUICK) as exporter:
        replace(file, settings("12m"))
        assert await asyncio.to_thread(post, exporter, "/-/reload") == (200, "reloaded\n")
        await exporter.until(lambda scrape: silent(scrape) == 720)
        replace(file, "limits: {silent: never}\n")
        status, text = await asyncio.to_thread(post, exporter, "/-/reload")
        assert (status, text.count("\n")) == (400, 1)
        assert "limits.silent" in text


async def test_a_bad_file_changes_nothing(file):
    """A file that is wrong shows in a metric and in one line of the log; the configuration before goes on."""
    async with ExporterProcess(flags=(f"--config.file={file}",), **QUICK) as exporter:
        await exporter.until(lambda scrape: silent(scrape) == 600)
        replace(file, settings("11m", interval="soon"))
        scrape = await exporter.until(lambda scrape: scrape.value("config_last_reload_successful") == 0)
        assert silent(scrape) == 600
        replace(file, settings("12m"))
        scrape = await exporter.until(lambda scrape: silent(scrape) == 720)
        await exporter.until(lambda scrape: scrape.value("config_last_reload_successful") == 1)
        assert exporter.log.count("configuration not loaded") == 1


async def test_a_swapped_config_map_is_taken_over(tmp_path):
    """Kubernetes swaps a link beside the file, which itself never changes."""

    def revision(name, text):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stallwatch.yml").write_text(text)
        (tmp_path / "..data_new").symlink_to(name)
        (tmp_path / "..data_new").replace(tmp_path / "..data")

    revision("..1", settings())
    (tmp_path / "stallwatch.yml").symlink_to("..data/stallwatch.yml")
    async with ExporterProcess(flags=(f"--config.file={tmp_path / 'stallwatch.yml'}",), **QUICK) as exporter:
        await exporter.until(lambda scrape: silent(scrape) == 600)
        revision("..2", settings("13m"))
        await exporter.until(lambda scrape: silent(scrape) == 780)


async def test_what_needs_a_restart_is_said(file):
    """A reload that changes what only a start can change says so; the way it logs changes at once."""
    async with ExporterProcess(flags=(f"--config.file={file}",), **QUICK) as exporter:
        replace(file, settings(workers="{deadline: 7s}", log="{format: json}"))
        await exporter.until(lambda _: "configuration loaded" in exporter.log)
        last = [json.loads(line) for line in exporter.log.splitlines() if line.startswith("{")]
        assert [line["settings"] for line in last if "restart" in line["msg"]] == ["workers"]


@pytest.mark.parametrize("format_", ["logfmt", "json"])
async def test_every_line_of_the_log_has_the_format(format_):
    """All of the log is in the format that is asked for, from the first line to the last."""
    async with ExporterProcess(flags=(f"--log.format={format_}",), **QUICK) as exporter:
        await exporter.stop()
    lines = exporter.log.splitlines()
    assert len(lines) >= 2
    for line in lines:
        if format_ == "json":
            assert {"ts", "level", "msg"} <= json.loads(line).keys()
        else:
            assert line.startswith("ts=")
            assert " level=" in line


async def test_without_rights_and_driver_it_says_once_what_is_missing(tmp_path):
    """Without rights and driver what can be read is read, and the log says of each thing once that it is missing."""
    if os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a driver")
    user, found = {}, (sys.executable, {})
    if os.geteuid() == 0:
        user, found = {"user": NOBODY}, python_of_everybody()
    if found is None:
        pytest.skip("no interpreter here may be run by another user")
    port = free_port()
    name = f"sglang:{port}"
    server = PlayedServer(tmp_path / "server", ["--model-path", "/models/m", "--port", str(port)])
    try:
        await server.start()
        await server.spawn("sglang::scheduler")
        settings_ = {**QUICK, "GPU__INTERVAL": "200ms"}
        async with ExporterProcess(found[1], python=found[0], **user, **settings_) as exporter:
            first = await exporter.until(lambda scrape: scrape.value("server_info", server=name) is not None)
            enough = first.value("snapshot_timestamp_seconds") + 2
            last = await exporter.until(lambda scrape: scrape.value("snapshot_timestamp_seconds") > enough)
            assert last.value("signal_success", server=name, signal="process") is not None
            missing = [line for line in exporter.log.splitlines() if "missing" in line]
            mine = [line for line in missing if "server=" not in line or f"server={name}" in line]
            assert [line for line in mine if "collector=gpu reason=library_not_found" in line]
            if user:
                assert [line for line in mine if f"collector=process server={name} reason=permission_denied" in line]
            keys = [line.partition("collector=")[2].partition(" detail=")[0] for line in mine]
            assert len(keys) == len(set(keys)), keys
            assert "Traceback" not in exporter.log
    finally:
        await server.stop()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /\x1b[31m\r\nts=0 level=error msg=forged HTTP/1.1\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: \x1b[2J\r\nAuthorization: Bearer canary\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: %b\r\n\r\n" % (b"canary" * 5000),
        b"GET / HTTP/1.1\r\ncanary\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\n\r\n",
    ],
)
async def test_a_client_writes_nothing_into_the_log(request_bytes):
    """What is no HTTP is refused, and the log has its own lines only."""
    async with ExporterProcess(LOG__LEVEL="debug", **QUICK) as exporter:
        reader, writer = await asyncio.open_connection("127.0.0.1", exporter.port)
        writer.write(request_bytes)
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.0 400")
        writer.close()
        await exporter.stop()
        assert all(line.startswith("ts=") for line in exporter.log.splitlines())
        assert not any(word in exporter.log for word in ("canary", "forged", "Traceback"))
