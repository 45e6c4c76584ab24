"""What waits in the kernel's TCP sockets of some ports?

Asked over netlink, which walks the kernel's tables but hands over only these ports, in our own network namespace; or
read from `net/tcp` and `net/tcp6` of a process, which hold every socket of its namespace, whichever that is. Both say
the same. Connections in which nothing waits are left out: a busy node has thousands of them.
"""

import errno
import os
import re
import socket
import struct
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

from stallwatch.node.procfs import Procfs

ANY_IPV4, ANY_IPV6 = bytes(4), bytes(16)
NETLINK_TIMEOUT = 1.0

_ESTABLISHED, _CLOSE_WAIT, _LISTEN = 1, 8, 10
_MAPPED = bytes(10) + b"\xff\xff"

# linux/netlink.h, sock_diag.h and inet_diag.h
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST_DUMP = 0x1 | 0x300
_DONE, _ERROR = 3, 2
_BYTECODE = 1
_JUMP, _PORT_AT_LEAST, _PORT_AT_MOST = 1, 2, 3
_BLOCK = 20
_REQUEST = struct.Struct("=IHHII BBBxI48x HH")
_STEP, _PORT = struct.Struct("=BBH"), struct.Struct("=2xH")
_HEADER, _STATUS = struct.Struct("=IH"), struct.Struct("=16xi")
_SOCKET = struct.Struct("=16xBB2x2s2x16s32xII4xI")  # family, state, port, address, both queues, inode


@dataclass(frozen=True, slots=True)
class TcpSocket:
    """A listener, or a connection in which something waits.

    `address` is the packed local one, that of IPv4 also where an IPv6 socket carries it. `waiting` counts connections
    that a listener has not accepted yet, or the bytes of a connection that nobody has read, accepted or not.
    """

    port: int
    address: bytes
    listens: bool
    waiting: int
    inode: int
    backlog: int | None = field(default=None, compare=False)  # how many may wait at a listener, where the kernel said


def namespace_of(procfs: Procfs, pid: int | str) -> int | None:
    """Return a number that tells the network namespace of a process from others; None where the process is gone.

    It is that of the file `net/tcp`, which takes no right to see, unlike the link `ns/net`.
    """
    try:
        return os.stat(procfs.path(pid, "net/tcp")).st_ino  # noqa: PTH116  (as in procfs)
    except PermissionError:
        raise
    except OSError:
        return None


def open_netlink() -> socket.socket:
    """Open a channel to the kernel's socket tables."""
    channel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
    channel.settimeout(NETLINK_TIMEOUT)
    return channel


def ask_kernel(ports: Collection[int], connect: Callable[[], socket.socket] = open_netlink) -> list[TcpSocket]:
    """List the sockets of these ports in our network namespace; OSError where the kernel does not answer."""
    packed = {port.to_bytes(2, "big"): port for port in ports}
    with connect() as channel:
        found = []
        for family in (socket.AF_INET, socket.AF_INET6):
            channel.send(_request(family, sorted(ports)))
            found += [one for part in _replies(channel) for one in parse_reply(part, packed)]
        return found


def parse_reply(data: bytes, ports: dict[bytes, int]) -> Iterator[TcpSocket]:
    """Parse the messages of one datagram; `ports` maps the ports as they travel to what they are."""
    for at, length, kind in _messages(data):
        if kind != _SOCK_DIAG_BY_FAMILY or length < _SOCKET.size:
            continue
        family, state, packed, address, waiting, room, inode = _SOCKET.unpack_from(data, at)
        if (waiting or state == _LISTEN) and packed in ports:
            local = address[:4] if family == socket.AF_INET else address
            told = _worth_telling(ports[packed], local, state, waiting, inode)
            yield from (replace(one, backlog=room) if one.listens else one for one in told)


def parse_table(data: bytes, ports: Collection[int]) -> Iterator[TcpSocket]:
    """Parse a `net/tcp` or `net/tcp6` file; lines that are none are left out."""
    wanted = "|".join(f"{port:04X}" for port in ports)
    ends = rf"^ *\d+: ([0-9A-F]{{32}}|[0-9A-F]{{8}}):({wanted}) [0-9A-F]+:[0-9A-F]{{4}}"
    line = rf"{ends} (01|08|0A) [0-9A-F]+:([0-9A-F]{{8}}) \S+ +\S+ +\d+ +\d+ (\d+) "
    for found in re.finditer(line.encode(), data, re.MULTILINE):
        address, port, state, waiting, inode = found.groups()
        yield from _worth_telling(int(port, 16), _packed(address), int(state, 16), int(waiting, 16), int(inode))


def _worth_telling(port: int, address: bytes, state: int, queue: int, inode: int) -> Iterator[TcpSocket]:
    waiting = queue - 1 if state == _CLOSE_WAIT else queue  # the end that the peer has sent counts as a byte
    if state == _LISTEN or waiting > 0:
        yield TcpSocket(port, address.removeprefix(_MAPPED), state == _LISTEN, waiting, inode)


def _packed(text: bytes) -> bytes:
    return b"".join(int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8))


def _request(family: int, ports: list[int]) -> bytes:
    code = _bytecode(ports)
    states = 1 << _ESTABLISHED | 1 << _CLOSE_WAIT | 1 << _LISTEN
    head = (_REQUEST.size + len(code), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    return _REQUEST.pack(*head, family, socket.IPPROTO_TCP, 0, states, 4 + len(code), _BYTECODE) + code


def _bytecode(ports: list[int]) -> bytes:
    """Write a program that lets these local ports through: it accepts at its very end, and refuses past that.

    A step says how far to go on when it holds and when it does not. Equality came to the kernel late.
    """
    blocks = []
    for left in range(len(ports), 0, -1):
        port = _PORT.pack(ports[-left])
        to_next = _BLOCK if left > 1 else _BLOCK + 4
        at_least = _STEP.pack(_PORT_AT_LEAST, 8, to_next) + port
        at_most = _STEP.pack(_PORT_AT_MOST, 8, to_next - 8) + port
        blocks.append(at_least + at_most + _STEP.pack(_JUMP, 4, left * _BLOCK - 16))
    return b"".join(blocks)


def _replies(channel: socket.socket) -> Iterator[bytes]:
    while True:
        data = channel.recv(1 << 16)
        yield data
        for at, _, kind in _messages(data):
            if kind in (_DONE, _ERROR):
                (code,) = _STATUS.unpack_from(data, at)
                if code < 0:
                    raise OSError(-code, os.strerror(-code))
                return


def _messages(data: bytes) -> Iterator[tuple[int, int, int]]:
    at = 0
    while at < len(data):
        length, kind = _HEADER.unpack_from(data, at) if at + _STATUS.size <= len(data) else (0, 0)
        if length < _STATUS.size or at + length > len(data):
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        yield at, length, kind
        at += (length + 3) & ~3
