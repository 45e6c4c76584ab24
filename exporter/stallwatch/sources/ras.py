"""What does NCCL itself say of the ranks of a server: who is missing, and who has launched fewer collectives?

Each process that uses NCCL (2.24 and later, where NCCL_RAS_ENABLE is not 0) has a thread that answers on one port of
the node. All of them share it, those of other jobs too, so that a connection may come to one that is frozen: it is then
tried again. It is asked twice, since what differs and moves is no hang. The thread answers while a collective hangs:
that all ranks answer does not say that they are well.

Asked is only where a process of the server listens, in the network namespace of the exporter, and only this node.

Reasons of failures: `not_listening`, `not_local`, `refused`, `timeout`, `too_much`, `garbage` and `other_job`.
"""

import asyncio
import ipaddress
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from stallwatch.node.procfs import Procfs
from stallwatch.snapshot import Failure, Reading, Server
from stallwatch.sources.descriptors import ProcessDescriptors
from stallwatch.sources.ras_answer import Answer, Who, of_json
from stallwatch.sources.ras_text import of_text

NAME = "ras"
ADDRESS = "localhost:28028"
MOST_BYTES = 4 << 20
ATTEMPTS = 6
_LONGEST_LINE = 4096
_LOOPBACK = ("127.0.0.1", "::1")
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 where it listens so, and where it is then asked


@dataclass(frozen=True, slots=True)
class Look:
    """One answer: `at` is monotonic; an older NCCL answers with text, which names only what stands out."""

    at: float
    json: bool
    answer: Answer


@dataclass(frozen=True, slots=True)
class RasReading(Reading):
    """Two answers, some seconds apart; there is but one where it did not answer again."""

    server: str
    looks: tuple[Look, ...]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long it may take, in seconds: for an attempt to get a first word, a whole answer, and between the two."""

    attempt: float = 1.0
    answer: float = 20.0
    between: float = 5.0


class _NoAnswerError(Exception):
    """There is no answer, for this reason."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Port:
    """What has to be known of a server to ask: the caller looks, since this reads neither sockets nor environments.

    `listens`: one of its processes listens on the port. `namespaced`: the NSpid of its processes by their pid, of which
    NCCL tells the last. `address`: what NCCL_RAS_ADDR says, `host:port`; empty where it is not set.
    """

    listens: bool
    namespaced: Mapping[int, Sequence[int]]
    address: str = ""


def is_listened_on(processes: Iterable[ProcessDescriptors], address: str) -> bool:
    """Say whether one of these processes listens on the port of this address, or on the usual one."""
    port = (address or ADDRESS).rpartition(":")[2]
    sockets = (one for process in processes for one in process.tcp if one.state == "listen")
    return any(one.local.rpartition(":")[2] == port for one in sockets)


async def read(
    server: Server,
    port: Port,
    deadlines: Deadlines = Deadlines(),
    here: Callable[[], Collection[str]] = lambda: Procfs().addresses(),
) -> tuple[RasReading | None, tuple[Failure, ...]]:
    """Ask twice what NCCL knows of the ranks of a server; `here` gives the addresses of this node."""
    ours = set(here())
    ranks = {(port.namespaced.get(one.pid) or (one.pid,))[-1]: one.rank for one in server.processes if one.rank}
    who = Who(ranks, lambda host: host in ours or _is_loopback(host))
    looks: list[Look] = []
    failures: tuple[Failure, ...] = ()
    try:
        client = _Client(*_place(port, ours), deadlines)
        looks.append(await client.look(who))
        await asyncio.sleep(deadlines.between)
        looks.append(await client.look(who))
    except _NoAnswerError as error:
        failures = (Failure(NAME, error.reason, str(error), server.name),)
    return RasReading(time.monotonic(), server.name, tuple(looks)) if looks else None, failures


def _place(known: Port, ours: Collection[str]) -> tuple[tuple[str, ...], int]:
    """Return the addresses to try and the port; an address that a stranger set leads nowhere but to this node."""
    if not known.listens:
        raise _NoAnswerError("not_listening", "no process of it listens on the port of NCCL RAS")
    host, _, port = (known.address or ADDRESS).rpartition(":")
    host = host.strip("[]")
    literal = _ANY.get(host, host)
    if not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 1 << 16:
        raise _NoAnswerError("not_local", "NCCL_RAS_ADDR is no host and port")
    if literal == "localhost":
        return _LOOPBACK, int(port)
    if literal not in ours and not _is_loopback(literal):
        raise _NoAnswerError("not_local", "NCCL_RAS_ADDR is no address of this node")
    return (literal,), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


@dataclass(slots=True)
class _Client:
    """Speaks with whichever process answers."""

    hosts: tuple[str, ...]
    port: int
    deadlines: Deadlines

    async def look(self, who: Who) -> Look:
        """Return one answer."""
        try:
            async with self._connected() as (reader, writer):
                whole = self._answer(reader, writer)
                body, is_json = await asyncio.wait_for(whole, self.deadlines.answer)
        except (asyncio.TimeoutError, TimeoutError) as error:
            raise _NoAnswerError("timeout", f"no whole answer in {self.deadlines.answer:g} s") from error
        except (OSError, EOFError) as error:
            raise _NoAnswerError("garbage", "the connection broke off") from error
        try:
            answer = of_json(body, who) if is_json else of_text(body, who)
        except ValueError as error:
            raise _NoAnswerError("garbage", f"what answers on port {self.port}: {error}") from error
        if answer.others and not (answer.communicators or answer.lost):
            raise _NoAnswerError("other_job", f"it tells of {answer.others} communicators, and none is of this server")
        return Look(time.monotonic(), is_json, answer)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        writer, why = None, _NoAnswerError("refused", f"nobody answers on port {self.port}")
        for attempt in range(ATTEMPTS):
            host = self.hosts[attempt % len(self.hosts)]
            try:
                reader, writer = await asyncio.wait_for(self._greet(host), self.deadlines.attempt)
                break
            except (asyncio.TimeoutError, TimeoutError):
                why = _NoAnswerError(
                    "timeout", f"{ATTEMPTS} attempts, and none who listens on port {self.port} answers"
                )
            except (OSError, EOFError):
                continue
        if writer is None:
            raise why
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def _greet(self, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(host, self.port, limit=_LONGEST_LINE)
        greeted = False
        try:
            greeted = (await _asked(reader, writer, b"CLIENT PROTOCOL 2")).startswith(b"SERVER PROTOCOL ")
        finally:
            if not greeted:
                writer.transport.abort()
        if not greeted:
            raise _NoAnswerError("garbage", f"what listens on port {self.port} is not NCCL RAS")
        return reader, writer

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[bytes, bool]:
        await _asked(reader, writer, b"TIMEOUT 5")
        is_json = await _asked(reader, writer, b"SET FORMAT json") == b"OK\n"
        writer.write(b"VERBOSE STATUS\n")
        body = bytearray()
        while part := await reader.read(1 << 16):
            body += part
            if len(body) > MOST_BYTES:
                raise _NoAnswerError("too_much", f"an answer of more than {MOST_BYTES} bytes")
        return bytes(body), is_json


async def _asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, command: bytes) -> bytes:
    """Send a command and return the line that answers it."""
    writer.write(command + b"\n")
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError as error:
        raise _NoAnswerError("garbage", "a line that has no end") from error
    return line
