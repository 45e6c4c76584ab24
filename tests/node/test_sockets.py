"""What the kernel's TCP tables say of a port."""

import errno
import os
import socket
import struct
from contextlib import ExitStack

import pytest

from stallwatch.node.procfs import Procfs
from stallwatch.node.sockets import TcpSocket, ask_kernel, namespace_of, open_netlink, parse_reply, parse_table

LOOPBACK = socket.inet_aton("127.0.0.1")
ROW = "   0: {address}:{port} 00000000:0000 {state} 00000000:{queue} 00:00000000 00000000  0  0 {inode} 1 0 100\n"


def row(address="0100007F", port="7530", state="0A", queue="00000002", inode="77"):
    """Write a line of a table."""
    return ROW.format(address=address, port=port, state=state, queue=queue, inode=inode)


def parsed(text, *ports):
    """Parse a table."""
    return list(parse_table(text.encode(), ports or (30000,)))


def message(family=socket.AF_INET, *, state=10, port=30000, address=LOOPBACK, queue=2, inode=77):
    """Write one socket as the kernel does: its header, the socket and an attribute that nobody asked for."""
    ends = struct.pack(">HH", port, 0) + address.ljust(16, b"\0") + bytes(16 + 4 + 8)
    body = struct.pack("=BBBB", family, state, 0, 0) + ends + struct.pack("=IIIII", 0, queue, 0, 0, inode)
    body += struct.pack("=HHB3x", 5, 8, 0)
    return struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body


def status(kind, code):
    """Write the message that ends an answer."""
    return struct.pack("=IHHIIi", 20, kind, 2, 1, 0, code)


def answering(stack, *datagrams):
    """Return a channel on which these datagrams have come in."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    stack.enter_context(theirs)
    for datagram in datagrams:
        theirs.send(datagram)
    return lambda: ours


@pytest.fixture
def stack():
    """Return a stack that closes what a test opens."""
    with ExitStack() as stack:
        yield stack


class Recorded:
    """A channel that keeps what the kernel said."""

    def __init__(self):
        self.channel = open_netlink()
        self.said = []

    def __enter__(self):
        """Stay open."""
        return self

    def __exit__(self, *_):
        """Close."""
        self.channel.close()

    def send(self, data):
        """Ask."""
        self.channel.send(data)

    def recv(self, size):
        """Keep and return."""
        self.said.append(self.channel.recv(size))
        return self.said[-1]


def test_addresses_of_the_tables_are_in_the_byte_order_of_the_machine():
    """Word by word; IPv4 within IPv6 is IPv4."""
    words = ["0100007F", "0000000000000000FFFF00000100007F", "000080FE00000000FF0000020100FEFC"]
    found = [one.address for one in parsed("".join(row(address=word) for word in words))]
    assert found == [LOOPBACK, LOOPBACK, socket.inet_pton(socket.AF_INET6, "fe80::200:ff:fcfe:1")]


def test_only_listeners_and_connections_in_which_something_waits_are_told():
    """The end that the peer has sent is counted by the kernel, and is no byte."""
    states = [("0A", 0), ("0A", 3), ("01", 0), ("01", 5), ("08", 0), ("08", 1), ("08", 6), ("03", 9), ("06", 9)]
    found = parsed("".join(row(state=state, queue=f"{queue:08X}") for state, queue in states))
    assert [(one.listens, one.waiting) for one in found] == [(True, 0), (True, 3), (False, 5), (False, 5)]


def test_only_the_ports_that_were_asked_for_are_told():
    """Wherever else their digits stand."""
    text = "".join(row(port=port) for port in ("7530", "7531", "0050", "7532"))
    assert [one.port for one in parsed(text, 30000, 80, 5)] == [30000, 80]


def test_lines_that_are_none_are_left_out():
    """A table may be cut off, or be none."""
    good, bad = row(), ["\n", "x\n", row(address="0100"), row(port="753"), row(queue="xyz"), row(inode="x"), "\0\xff\n"]
    assert parsed("".join((*bad, good, good[:60]))) == [TcpSocket(30000, LOOPBACK, True, 2, 77)]


def test_a_reply_is_parsed():
    """Messages follow each other, and their addresses are as long as their family has it."""
    mapped = bytes(10) + b"\xff\xff" + LOOPBACK
    data = (
        message()
        + message(socket.AF_INET6, state=1, address=mapped, queue=5, inode=0)
        + message(port=1)
        + message(state=1)
    )
    data += message(state=8, queue=1) + status(3, 0)
    found = list(parse_reply(data, {(30000).to_bytes(2, "big"): 30000}))
    assert [(one.address, one.listens, one.waiting, one.inode) for one in found] == [
        (LOOPBACK, True, 2, 77),
        (LOOPBACK, False, 5, 0),
        (LOOPBACK, False, 2, 77),
    ]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
@pytest.mark.parametrize("count", [1, 2, 13, 300])
def test_the_kernel_hands_over_no_other_ports(stack, family, count):
    """Thousands of sockets may be open on a node."""
    address = "127.0.0.1" if family == socket.AF_INET else "::1"
    servers = [
        stack.enter_context(socket.create_server((address, 0), family=family)) for _ in range(min(count, 13) + 1)
    ]
    other, *ports = (server.getsockname()[1] for server in servers)
    ports += [port for port in range(1, count) if port not in (other, *ports)][: count - len(ports)]
    channel = Recorded()
    found = ask_kernel(ports, lambda: channel)
    mine = {os.fstat(server.fileno()).st_ino: server.getsockname()[1] for server in servers[1:]}
    assert {one.inode: one.port for one in found if one.inode in mine} == mine
    every_port = {port.to_bytes(2, "big"): port for port in range(1, 65536)}
    handed = {one.port for part in channel.said for one in parse_reply(part, every_port)}
    assert handed == {one.port for one in found}


def test_an_answer_in_parts_is_read_to_its_end(stack):
    """One for each family."""
    other = message(socket.AF_INET6, address=bytes(16), inode=78)
    connect = answering(stack, message(), message(inode=76), status(3, 0), other + status(3, 0))
    assert [one.inode for one in ask_kernel([30000], connect)] == [77, 76, 78]


@pytest.mark.parametrize("kind", [2, 3])
def test_a_refusal_is_told(stack, kind):
    """A kernel without sock_diag answers so."""
    with pytest.raises(OSError, match="No such file") as caught:
        ask_kernel([30000], answering(stack, status(kind, -errno.ENOENT)))
    assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize("garbage", [bytes(16), b"\x40" + bytes(19), b"\x07\0\0\0\x14\0", b"\x01"])
def test_garbage_is_told(stack, garbage):
    """It neither loops nor yields a number."""
    with pytest.raises(OSError, match="message"):
        ask_kernel([30000], answering(stack, garbage))


def test_the_namespace_of_a_process_that_has_gone_is_unknown(tmp_path):
    """And ours is always the same."""
    assert namespace_of(Procfs(str(tmp_path)), 7) is None
    assert namespace_of(Procfs(), os.getpid()) == namespace_of(Procfs(), "self") is not None
