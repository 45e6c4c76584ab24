"""Servers by the dozen: real processes with the command lines and titles of SGLang's, each of some kilobytes."""

import os
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "crowd.c"


@pytest.fixture(scope="session")
def crowd_program(tmp_path_factory):
    """Compile the server, where any user may run it."""
    program = tmp_path_factory.mktemp("crowd") / "server"
    subprocess.run(["gcc", "-O2", "-Wall", "-Werror", "-o", str(program), str(SOURCE)], check=True)
    open_the_way_to(program.parent)
    return program


def open_the_way_to(folder):
    """Let every user reach this folder of a test."""
    top = Path(tempfile.gettempdir())
    for part in (folder, *folder.parents):
        if part.is_relative_to(top) and part != top and part.stat().st_uid == os.geteuid():
            part.chmod(0o755)


class Server:
    """One server: its launcher and its ranks."""

    def __init__(self, program, port, log, *, ranks=2, user=None):
        self.name, self.port, self.log = f"sglang:{port}", port, log
        self._arguments = ["python", "-m", "sglang.launch_server", "--port", str(port), "--tp-size", str(ranks)]
        self._settings = {"executable": str(program), "user": user, "group": user, "extra_groups": () if user else None}
        self.process = None

    @property
    def pid(self):
        """The pid of the launcher."""
        return self.process.pid

    def start(self):
        """Start it, and return once it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._arguments, stdout=subprocess.PIPE, stderr=log, **self._settings)
        assert self.process.stdout.readline() == b"ready\n"
        return self

    def stop(self):
        """Kill all its processes."""
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None


@contextmanager
def running(servers):
    """Start servers, and kill them at the end."""
    try:
        yield [server.start() for server in servers]
    finally:
        for server in servers:
            server.stop()
