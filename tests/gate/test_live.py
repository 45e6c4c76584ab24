"""The gate of a running exporter: its web file, certificates that change, floods, and its end."""

import asyncio
import base64
import contextlib
import os
import socket
import ssl
import subprocess
import sys
import time

import bcrypt
import pytest
import trustme

from doors import answer, trusting
from exporter_process import ExporterProcess

QUICK = {"INTERVAL": "200ms", "DISCOVERY__INTERVAL": "200ms"}


def hashed(password, cost=4):
    """Return the hash of a password."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


class Secured(ExporterProcess):
    """An exporter that is asked over TLS and with a password."""

    def __init__(self, file, context, password):
        super().__init__(flags=(f"--web.config.file={file}",), **QUICK)
        self.context, self.password = context, password

    async def get(self, path="/metrics"):
        """Return the text at a path."""
        name = base64.b64encode(f"ann:{self.password}".encode()).decode()
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Basic {name}\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context)
        writer.write(head.encode())
        try:
            status, _, body = answer(await asyncio.wait_for(reader.read(), 20))
        finally:
            writer.close()
        if status != 200:
            raise OSError(status)
        return body.decode()

    async def certificate(self, context):
        """Return the certificate that it shows."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        writer.close()
        return writer.get_extra_info("ssl_object").getpeercert(binary_form=True)


def replace(path, data):
    """Write a file so that nobody sees a part of it."""
    part = path.with_suffix(".part")
    part.write_bytes(data if isinstance(data, bytes) else data.encode())
    part.replace(path)


def write_certificate(folder, authority):
    """Put a new certificate and its key in place, one after the other."""
    certificate = authority.issue_cert("127.0.0.1")
    replace(folder / "server.crt", b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    replace(folder / "server.key", certificate.private_key_pem.bytes())


def web_file(folder, password="right", more=""):
    """Write the file that names them."""
    tls = "tls_server_config: {cert_file: tls/server.crt, key_file: tls/server.key}\n"
    replace(folder / "web.yml", f"{tls}basic_auth_users: {{ann: {hashed(password)}}}\n{more}")
    return folder / "web.yml"


async def test_certificates_and_passwords_change_without_a_restart(tmp_path):
    """New connections get the new certificate; a wrong file keeps the old one and says so; a right one ends that."""
    old, new = trustme.CA(), trustme.CA()
    (tmp_path / "tls").mkdir()
    write_certificate(tmp_path / "tls", old)
    file = web_file(tmp_path)
    exporter = Secured(file, trusting(old), "right")
    async with exporter:
        first = await exporter.certificate(trusting(old))
        write_certificate(tmp_path / "tls", new)
        exporter.context = trusting(new)
        await exporter.until(lambda scrape: scrape.value("config_last_reload_successful") == 1)
        assert await exporter.certificate(trusting(new)) != first
        with pytest.raises(ssl.SSLError):
            await exporter.certificate(trusting(old))

        replace(tmp_path / "tls" / "server.key", "no key at all")
        await exporter.until(lambda scrape: scrape.value("config_last_reload_successful") == 0)
        assert "tls_server_config.key: no PEM key is in it" in exporter.log
        web_file(tmp_path, more="surprise: 1\n")
        await exporter.until(lambda _: "surprise: unknown key" in exporter.log)
        write_certificate(tmp_path / "tls", new)
        web_file(tmp_path, password="another")
        exporter.password = "another"
        await exporter.until(lambda scrape: scrape.value("config_last_reload_successful") == 1)
        assert await exporter.stop() < 2
    assert "Traceback" not in exporter.log, exporter.log
    assert "another" not in exporter.log


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "tls_server_config: {cert_file: absent, key_file: absent}\n",
            "cert_file: {0}/absent: cannot be read: No such",
        ),
        ("basic_auth_user: {}\n", "basic_auth_user: unknown key; allowed: tls_server_config,"),
        ("basic_auth_users: {ann: plain}\n", "basic_auth_users.ann: expected a bcrypt hash"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_file_refuses_to_start(tmp_path, text, says):
    """One line that names file and key, exit code 2; --config.check says the same."""
    file = tmp_path / "web.yml"
    if text is not None:
        file.write_text(text)
    for flags in ([], ["--config.check"]):
        command = [sys.executable, "-m", "stallwatch", "serve", f"--web.config.file={file}", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert f"{file}: " in done.stderr
        assert says.format(tmp_path) in done.stderr


async def test_every_answer_of_the_exporter_is_dressed():
    """Pages and refusals carry the security headers, none tells a version, and no path leads out."""
    async with ExporterProcess(flags=("--web.max-requests=3",), **QUICK) as exporter:
        for line, expected in {
            "GET /metrics": 200,
            "HEAD /": 200,
            "GET /static/../../../etc/passwd": 404,
            "POST /": 405,
            "POST /-/reload": 403,
            "GET http://other/metrics": 400,
            "GET": 400,
        }.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", exporter.port)
            writer.write(f"{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            status, headers, _ = answer(await asyncio.wait_for(reader.read(), 20))
            writer.close()
            assert status == expected, line
            assert headers["content-security-policy"].startswith("default-src 'none'"), line
            assert (headers["x-content-type-options"], headers["server"]) == ("nosniff", "stallwatch")
        assert await exporter.stop() < 2
    assert "Traceback" not in exporter.log, exporter.log


async def test_the_end_does_not_wait_for_a_password(tmp_path):
    """SIGTERM ends it within two seconds while bcrypt works on a hash that takes longer."""
    file = tmp_path / "web.yml"
    file.write_text(f"basic_auth_users: {{ann: {hashed('right', 4).replace('$04$', '$17$')}}}\n")
    exporter = ExporterProcess(flags=(f"--web.config.file={file}",), **QUICK)
    await exporter.start()
    try:
        while "msg=serving" not in exporter.log:
            await asyncio.sleep(0.05)
        _, writer = await asyncio.open_connection("127.0.0.1", exporter.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Basic YW5uOng=\r\n\r\n")
        while not any(name == "password" for name in threads(exporter.process.pid)):
            await asyncio.sleep(0.02)
        assert await exporter.stop() < 2
        writer.transport.abort()
    finally:
        await exporter.stop()
    assert exporter.process.returncode == 0
    assert "Traceback" not in exporter.log, exporter.log


def threads(pid):
    """Name the threads of a process that use the CPU of a password check."""
    busy = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
            if task != str(pid) and int(fields[11]) > 10:
                busy.append("password")
    return busy


def is_open(one):
    """Send one more byte, and say whether the other side still waits for the rest."""
    try:
        one.send(b"a")
        one.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


class Loris:
    """Sockets that each send one more byte of a request whenever they are told to, and come back when dropped."""

    def __init__(self, port, count):
        self.port, self.count, self.sockets = port, count, []

    def __enter__(self):
        self.drip()
        return self

    def __exit__(self, *_):
        for one in self.sockets:
            one.close()

    def drip(self):
        """Send a byte each."""
        alive = []
        for one in self.sockets:
            if is_open(one):
                alive.append(one)
            else:
                one.close()
        while len(alive) < self.count:
            one = socket.create_connection(("127.0.0.1", self.port), 20)
            one.sendall(b"GET /metrics HTTP/1.1\r\nX-a: ")
            one.setblocking(False)
            alive.append(one)
        self.sockets = alive


async def test_five_hundred_slow_clients_starve_no_scrape():
    """Each is answered well within a scrape timeout, what is watched stays fresh, descriptors stay bounded."""
    async with ExporterProcess(**QUICK) as exporter:
        before = len(os.listdir(f"/proc/{exporter.process.pid}/fd"))
        with Loris(exporter.port, 500) as loris:
            seconds, most = [], 0
            for _ in range(12):
                await asyncio.to_thread(loris.drip)
                begin = time.monotonic()
                scrape = await exporter.scrape()
                seconds.append(time.monotonic() - begin)
                most = max(most, len(os.listdir(f"/proc/{exporter.process.pid}/fd")))
            assert time.time() - scrape.value("snapshot_timestamp_seconds") < 5
            assert max(seconds) < 5
            assert before + 200 < most <= before + 256 + 8
            assert await exporter.stop() < 2
    assert "Traceback" not in exporter.log, exporter.log


async def test_with_few_descriptors_a_flood_starves_no_scrape():
    """Where the limit is low, fewer connections are held, so that workers and logs keep theirs."""
    command = ["sh", "-c", 'ulimit -n 100; exec "$0" "$@"', sys.executable]
    exporter = ExporterProcess(**QUICK)
    exporter._flags = ["-m", "stallwatch", "serve", *exporter._flags]
    exporter.process = await asyncio.create_subprocess_exec(
        *command, *exporter._flags, stderr=exporter._stderr, env=exporter._environ
    )
    try:
        await exporter.until(lambda scrape: scrape.value("collector_success", collector="discovery") == 1)
        with Loris(exporter.port, 200) as loris:
            for _ in range(5):
                await asyncio.to_thread(loris.drip)
                await exporter.scrape()
            assert len(os.listdir(f"/proc/{exporter.process.pid}/fd")) < 90
    finally:
        await exporter.stop()
    assert "Traceback" not in exporter.log, exporter.log
