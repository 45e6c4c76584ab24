"""How does one played process behave? It takes its title, burns CPU, holds threads, files and memory, hangs as told.

Commands are JSON objects, one per line of standard input; at its end the process ends. A scheduler is
`python -m stallwatch.simulation.actor TITLE`; nothing heavy is imported, since eight of them run at once.
"""

import ctypes
import json
import mmap
import os
import select
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

BEAT = 0.1


class Actor:
    """One process and what it does until it is told otherwise."""

    def __init__(self) -> None:
        self._cpu = 0.0
        self._pending = b""
        self._descriptors: list[int] = []
        self._mappings: list[mmap.mmap] = []

    def play(self) -> None:
        """Do as told until standard input ends."""
        while self._listen(None if self._cpu == 0 else BEAT * (1 - self._cpu)):
            self._burn(BEAT * self._cpu)

    def _listen(self, timeout: float | None) -> bool:
        ready, _, _ = select.select([0], [], [], timeout)
        if not ready:
            return True
        data = os.read(0, 65536)
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))
        return bool(data)

    def _obey(self, command: dict[str, Any]) -> None:
        self._cpu = command.get("cpu", self._cpu)
        for _ in range(command.get("threads", 0)):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        self._descriptors += [os.open(os.devnull, os.O_RDONLY) for _ in range(command.get("fds", 0))]
        if "share" in command:
            self._share(**command["share"])
        if "burnt" in command:
            self._burn(command["burnt"])
        if "hang" in command:
            threading.Thread(target=_end_with_input, daemon=True).start()
            HANGS[command["hang"]]()

    def _share(self, path: str, times: int) -> None:
        """Map one file of shared memory several times over: resident memory then counts its pages as often."""
        descriptor = os.open(path, os.O_RDWR)
        for _ in range(times):
            mapping = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED)
            for page in range(0, len(mapping), mmap.PAGESIZE):
                mapping[page]
            self._mappings.append(mapping)
        os.close(descriptor)

    def _burn(self, seconds: float) -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass


def _end_with_input() -> None:
    while os.read(0, 65536):
        pass
    os._exit(0)


def wait_for_peer() -> None:
    """Wait for bytes of a peer that never come, as ranks in a collective over the CPU do."""
    one, _other = socket.socketpair()
    one.recv(1)


def wait_for_lock() -> None:
    """Wait for a lock that nobody lets go of."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def spin() -> None:
    """Burn CPU and get nowhere."""
    while True:
        pass


HANGS = {"peer": wait_for_peer, "lock": wait_for_lock, "spin": spin}


def take_title(title: str) -> None:
    """Overwrite the command line of this process with a title, padded with NULs, as the real engines do."""
    name = title.encode()
    Path("/proc/self/comm").write_bytes(name[:15])
    start, end = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:47])
    ctypes.memmove(start, name[: end - start].ljust(end - start, b"\0"), end - start)


def main() -> None:
    """Take the title given and play."""
    take_title(sys.argv[1])
    print("ready", flush=True)  # noqa: T201 the launcher waits for the title to be there
    Actor().play()


if __name__ == "__main__":
    main()
