"""What does a worker do? Requests come in on standard input, readings go out, one at a time.

A worker loads only the modules it is told (`python -m stallwatch.leanchild NAME OPTIONS NOTE_FD MODULE...`), so that it
stays small, and it may get stuck for ever in a system call: nobody waits for it then. Before each read that can block
it leaves a note in memory shared with the exporter, which tells what it is stuck in.
"""

import importlib
import json
import mmap
import os
import signal
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import IO, Any

from stallwatch.redaction import told
from stallwatch.snapshot import Failure, Reading
from stallwatch.tidying import Tidying

NOTE_BYTES = 512
# A call that hangs in a killable way ends by itself after this long, even when the exporter is gone.
LAST_RESORT_SECONDS = 120

Read = Callable[[list[dict[str, Any]], frozenset[str]], tuple[Reading, tuple[Failure, ...]]]


class Note:
    """What is being read right now, in memory that the exporter sees too."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, NOTE_BYTES)

    def __call__(self, text: str) -> None:
        """Say what is about to be read."""
        self._memory[:] = text.encode(errors="replace")[:NOTE_BYTES].ljust(NOTE_BYTES, b"\0")

    def text(self) -> str:
        """Return what was being read last."""
        return self._memory[:].rstrip(b"\0").decode(errors="replace")

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()


def main(argv: list[str]) -> None:
    """Serve requests until standard input ends."""
    name, options, note_fd, *modules = argv
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the exporter ends its workers itself
    for number in (signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # `systemctl kill` reaches the exporter and its workers alike
    signal.signal(signal.SIGTERM, _leave)  # acts between calls only: a driver call is not to be torn
    signal.alarm(LAST_RESORT_SECONDS)
    note = Note(int(note_fd))
    readers = _load(modules, json.loads(options), note)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get between the replies
    try:
        _send(out, {"worker": name})
        _serve(readers, note, out)
    except BrokenPipeError:
        os._exit(0)  # the exporter has gone while we read; the flush at a regular exit would fail once more


def _serve(readers: Mapping[str, Read], note: Note, out: IO[bytes]) -> None:
    signal.alarm(0)
    tidy = Tidying()
    for line in sys.stdin.buffer:
        signal.alarm(LAST_RESORT_SECONDS)
        _send(out, _answer(readers, json.loads(line)))
        tidy()
        signal.alarm(0)
        note("")


def _leave(_signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(0)


def _load(modules: list[str], options: Mapping[str, str], note: Note) -> dict[str, Read]:
    loaded = [importlib.import_module(module) for module in modules]
    return {module.NAME: module.reader(options, note) for module in loaded}


def _answer(readers: Mapping[str, Read], request: dict[str, Any]) -> dict[str, Any]:
    name = request["read"]
    try:
        reading, failures = readers[name](request["targets"], frozenset(request["skip"]))
    except Exception as error:  # noqa: BLE001 the one place where a reader's fault becomes a failure
        failures = (Failure(name, "error", told(error)),)
        return {"id": request["id"], "reading": None, "failures": failures}
    return {"id": request["id"], "reading": reading, "failures": failures}


def _send(out: IO[bytes], message: dict[str, Any]) -> None:
    text = json.dumps(message, default=fields_of, separators=(",", ":"), ensure_ascii=False)
    out.write(text.encode(errors="replace") + b"\n")  # a path may hold bytes that are no UTF-8
    out.flush()


def fields_of(value: object) -> dict[str, Any]:
    """Return the fields of a slotted dataclass, those of its base classes first, for JSON."""
    names = [name for base in reversed(type(value).__mro__) for name in getattr(base, "__slots__", ())]
    return {name: getattr(value, name) for name in names}
