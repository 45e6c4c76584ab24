"""Tests of the socket collector, against real sockets and against tables made of files."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import msgspec
import pytest

from procfs_tree import OUR_NETWORK, TCP_HEADER, ProcTree
from stallwatch.child import fields_of
from stallwatch.collectors.socket import (
    NETLINK,
    ServerSockets,
    SocketReading,
    _Look,
    families,
    reader,
    target,
)
from stallwatch.node.owners import Owners
from stallwatch.node.procfs import Procfs
from stallwatch.node.sockets import open_netlink
from stallwatch.snapshot import Failure, Launch, Moment, Process, Server

NOTHING = frozenset()
PIECE = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"  # of 33 bytes
HTTP_SERVER = """
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "2"); self.end_headers(); self.wfile.write(b"ok")
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
NEVER_ACCEPTS = """
import fcntl, socket, struct, sys
address, port, clients, own_network = sys.argv[1], *map(int, sys.argv[2:])
if own_network:
    with socket.socket() as any_socket:  # a new namespace has its loopback down
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 0x1))
server = socket.create_server((address, port))
held = [socket.create_connection(server.getsockname()) for _ in range(clients)]
for client in held:
    client.sendall(b"x" * 10)
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


def refuse():
    """Play a kernel that has no netlink for us."""
    raise PermissionError


class Looker:
    """Looks at the ports of this process, over netlink or in the tables, and keeps the notes."""

    def __init__(self, connect):
        self.notes = []
        self.read = reader({}, self.notes.append, connect=connect)

    def __call__(self, port, pid=None):
        """Return what waits on a port."""
        reading, failures = self.read([asked(port, pid or os.getpid())], NOTHING)
        assert failures == ()
        (found,) = reading.sockets
        return found

    def until(self, expected, port, pid=None):
        """Look until this is found: the kernel delivers a moment later."""
        deadline = time.monotonic() + 10
        while (found := self(port, pid)) != expected and time.monotonic() < deadline:
            time.sleep(0.005)
        assert found == expected


@pytest.fixture(params=["netlink", "table"])
def look(request):
    """Return a looker of each way, and check afterwards that it went that way."""
    looker = Looker(open_netlink if request.param == "netlink" else refuse)
    yield looker
    assert looker.notes
    assert any(note.startswith("table ") for note in looker.notes) == (request.param == "table")


@pytest.fixture
def stack():
    """Return a stack that closes what a test opens."""
    with ExitStack() as stack:
        yield stack


def asked(port, pid, *others, server="s"):
    """Ask for a port of one server."""
    return {"server": server, "port": port, "pid": pid, "others": list(others)}


def waiting(accept_queue=0, unread_bytes=0, *, listening=True, server="s"):
    """Expect this."""
    return ServerSockets(server, listening, accept_queue, unread_bytes)


def listen(stack, address="127.0.0.1", port=0, **settings):
    """Listen, and return the socket and its port."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = stack.enter_context(socket.create_server((address, port), family=family, **settings))
    return server, server.getsockname()[1]


def connect(stack, port, address="127.0.0.1", data=b""):
    """Connect, and say something."""
    client = stack.enter_context(socket.create_connection((address, port)))
    client.sendall(data)
    return client


def start(stack, script, *arguments, under=()):
    """Start a script that prints its port; return its process and the port."""
    command = [*under, sys.executable, "-c", script, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    line = process.stdout.readline()
    assert line, f"{command[0]} did not come up"
    return process, int(line)


def test_nothing_waits_at_a_healthy_listener(look, stack):
    """It listens, and that is all."""
    _, port = listen(stack)
    assert look(port) == waiting()


def test_nobody_listens(look, stack):
    """A server that starts has no port yet."""
    server, port = listen(stack)
    server.close()
    assert look(port) == waiting(listening=False)


@pytest.mark.parametrize(
    ("bound", "addresses"),
    [
        ("127.0.0.1", ["127.0.0.1"] * 4),
        ("0.0.0.0", ["127.0.0.1", "127.0.0.2"] * 2),
        ("::1", ["::1"] * 4),
        ("::", ["::1", "127.0.0.1"] * 2),
    ],
)
def test_clients_that_are_not_accepted_are_counted(look, stack, bound, addresses):
    """Once each, also where one listener serves both families; what they sent is unread."""
    _, port = listen(stack, bound, dualstack_ipv6=bound == "::")
    for address in addresses:
        connect(stack, port, address, PIECE)
    look.until(waiting(4, 4 * len(PIECE)), port)


def test_the_listeners_of_one_port_are_added_up(look, stack):
    """Web workers may each have their own, and a client is in the queue of one of them."""
    _, port = listen(stack, reuse_port=True)
    listen(stack, port=port, reuse_port=True)
    for _ in range(8):
        connect(stack, port)
    look.until(waiting(8), port)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_bytes_that_nobody_reads_are_counted_until_they_are_read(look, stack, address):
    """Also after the client has left, whose farewell is no byte."""
    server, port = listen(stack, "::", dualstack_ipv6=True)
    client = connect(stack, port, address, PIECE)
    accepted = stack.enter_context(server.accept()[0])
    look.until(waiting(0, 33), port)
    client.close()
    accepted.recv(3)
    look.until(waiting(0, 30), port)
    accepted.recv(64)
    look.until(waiting(), port)


def test_a_client_that_says_nothing_is_no_demand(look, stack):
    """It is kept alive, or has gone without a word that anyone has to answer."""
    server, port = listen(stack)
    client = connect(stack, port)
    accepted = stack.enter_context(server.accept()[0])
    assert look(port) == waiting()
    client.shutdown(socket.SHUT_WR)
    accepted.recv(1, socket.MSG_PEEK)  # returns once the farewell is there, and leaves it
    assert look(port) == waiting()


def test_clients_that_left_unaccepted_stay_in_the_queue(look, stack):
    """A server that hangs has not seen that they left."""
    server, port = listen(stack)
    clients = [connect(stack, port, data=PIECE) for _ in range(4)]
    for client in clients:
        client.close()
    look.until(waiting(4, 132), port)
    for _ in clients:
        server.accept()[0].close()
    look.until(waiting(), port)


def test_what_came_in_before_the_listener_closed_is_still_owed(look, stack):
    """A server that drains no longer listens."""
    server, port = listen(stack)
    connect(stack, port, data=PIECE)
    stack.enter_context(server.accept()[0])
    server.close()
    look.until(waiting(0, 33, listening=False), port)


def test_only_the_port_of_the_server_counts(look, stack):
    """Not its other ports, and not the other end of its connections."""
    _, port = listen(stack)
    _, other = listen(stack)
    client = connect(stack, other, data=PIECE)
    look.until(waiting(1, 33), other)
    assert look(port) == waiting()
    assert look(client.getsockname()[1]) == waiting(listening=False)


def test_another_program_on_another_address_of_the_port_does_not_count(look, stack):
    """Whose a listener is tells its inode, whose a connection is its address."""
    _, port = listen(stack, "127.0.0.1")
    stranger, _ = start(stack, NEVER_ACCEPTS, "127.0.0.2", port, 3, 0)
    look.until(waiting(3, 30), port, stranger.pid)
    assert look(port) == waiting()
    connect(stack, port, data=PIECE)
    look.until(waiting(1, 33), port)
    assert look(port, stranger.pid) == waiting(3, 30)


def test_a_stopped_server_shows_and_recovers(look, stack):
    """So does a hang look when nobody probes."""
    server, port = start(stack, HTTP_SERVER)
    kept = connect(stack, port, data=PIECE)
    assert kept.recv(4096)
    assert look(port, server.pid) == waiting()
    server.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, server.pid, os.WSTOPPED | os.WNOWAIT)
    request = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"
    clients = [connect(stack, port, data=request) for _ in range(4)]
    kept.sendall(request)
    look.until(waiting(4, 5 * len(request)), port, server.pid)
    server.send_signal(signal.SIGCONT)
    for client in (*clients, kept):
        while client.recv(4096):
            pass
    look.until(waiting(), port, server.pid)


def test_another_network_namespace_is_looked_into(stack):
    """Through the tables of a process in it; the same port of ours is another one."""
    _, port = listen(stack)
    connect(stack, port)
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    inside, _ = start(stack, NEVER_ACCEPTS, "127.0.0.1", port, 2, 1, under=unshare)
    assert os.readlink(f"/proc/{inside.pid}/ns/net") != os.readlink("/proc/self/ns/net")
    notes = []
    read = reader({}, notes.append)
    targets = [asked(port, os.getpid(), server="ours"), asked(port, inside.pid, server="theirs")]
    reading, failures = read(targets, NOTHING)
    assert failures == ()
    assert reading.sockets == (waiting(1, server="ours"), waiting(2, 20, server="theirs"))
    assert notes == [NETLINK, f"table /proc/{inside.pid}/net/tcp", f"table /proc/{inside.pid}/net/tcp6"]


def test_the_kernel_is_asked_once_for_all_servers(stack):
    """However many they are."""
    ports = [listen(stack)[1] for _ in range(5)]
    connect(stack, ports[3])
    notes = []
    read = reader({}, notes.append)
    reading, _ = read([asked(port, os.getpid(), server=str(port)) for port in ports], NOTHING)
    assert [one.accept_queue for one in reading.sockets] == [0, 0, 0, 1, 0]
    assert notes == [NETLINK]


def test_a_kernel_that_never_answers_is_given_up(stack):
    """The tables say the same."""

    def silent():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        stack.enter_context(theirs)
        ours.settimeout(0.01)
        return ours

    _, port = listen(stack)
    connect(stack, port)
    assert Looker(silent)(port) == waiting(1)


def test_netlink_that_hung_is_not_tried_again(stack):
    """Its note is among those to skip."""
    _, port = listen(stack)
    notes = []
    reading, failures = reader({}, notes.append)([asked(port, os.getpid())], frozenset({NETLINK}))
    assert (reading.sockets, failures) == ((waiting(),), ())
    assert NETLINK not in notes


def test_a_process_that_has_gone_is_passed_over(look, stack):
    """Any other of the server sees the same network; a server that is gone altogether is absent."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    _, port = listen(stack)
    targets = [asked(port, gone.pid, os.getpid(), server="a"), asked(port, gone.pid, server="b")]
    reading, failures = look.read(targets, NOTHING)
    assert (reading.sockets, failures) == ((waiting(server="a"),), ())


# What follows looks at tables made of files: server 7 has inode 700 open, stranger 9 has 900.


@pytest.fixture
def tree(tmp_path):
    """Return a tree with a server and a stranger."""
    tree = ProcTree(tmp_path)
    for pid in (7, 9):
        tree.add(pid, "x", fds={3: f"socket:[{pid}00]"})
    return tree


def tables(tree, tcp=(), tcp6=()):
    """Write the tables: address as the kernel writes it, state, receive queue, inode; all on port 30000 (7530)."""
    for name, rows in (("tcp", tcp), ("tcp6", tcp6)):
        text = "".join(
            f"{at:4}: {address}:7530 {'0' * len(address)}:9C40 {state} 00000000:{queue:08X} 00:00000000 00000000"
            f"     0        0 {inode} 1 0000000000000000 100 0 0 10 0\n"
            for at, (address, state, queue, inode) in enumerate(rows)
        )
        (tree.root / "networks" / OUR_NETWORK / name).write_text(TCP_HEADER + text)


def look_at(tree, pid=7, skip=NOTHING):
    """Look at a tree of files."""
    return reader({"procfs": str(tree.root)}, lambda _: None, connect=refuse)([asked(30000, pid)], skip)


LOOPBACK, OUTER, ANY = "0100007F", "0500000A", "00000000"
LOOPBACK6, MAPPED, ANY6 = "0" * 24 + "01000000", "0000000000000000FFFF00000100007F", "0" * 32
MAPPED_OUTER = "0000000000000000FFFF00000500000A"


@pytest.mark.parametrize(
    ("tcp", "tcp6", "expected"),
    [
        ([(LOOPBACK, "0A", 2, 700), (LOOPBACK, "01", 5, 0)], [], waiting(2, 5)),
        ([(ANY, "0A", 1, 700), (ANY, "0A", 4, 701), (OUTER, "08", 6, 1)], [], waiting(1, 5)),
        ([], [(ANY6, "0A", 1, 700), (MAPPED, "01", 5, 1), (LOOPBACK6, "01", 2, 1)], waiting(1, 7)),
        # a proxy on the outer address, in front of a server on all others, and the other way round
        ([(ANY, "0A", 1, 700), (OUTER, "0A", 3, 900), (OUTER, "01", 5, 1), (LOOPBACK, "01", 2, 1)], [], waiting(1, 2)),
        ([(ANY, "0A", 1, 900), (OUTER, "0A", 3, 700), (OUTER, "01", 5, 1), (LOOPBACK, "01", 2, 1)], [], waiting(3, 5)),
        ([(ANY, "0A", 1, 700), (ANY, "01", 5, 1)], [(ANY6, "0A", 3, 900), (LOOPBACK6, "01", 9, 1)], waiting(1, 5)),
        (
            [(LOOPBACK, "0A", 1, 700)],
            [(ANY6, "0A", 3, 900), (MAPPED_OUTER, "01", 9, 1), (MAPPED, "01", 2, 1)],
            waiting(1, 2),
        ),
        ([(LOOPBACK, "0A", 1, 900), (LOOPBACK, "01", 5, 1)], [], waiting(listening=False)),
        ([(LOOPBACK, "03", 5, 0), (LOOPBACK, "06", 5, 0), (LOOPBACK, "08", 1, 1)], [], waiting(listening=False)),
    ],
)
def test_a_connection_belongs_to_the_listener_it_came_through(tree, tcp, tcp6, expected):
    """The one on its address, else the one on any, as the kernel chooses."""
    tables(tree, tcp, tcp6)
    assert look_at(tree)[0].sockets == (expected,)


def test_a_node_without_ipv6_is_read(tree):
    """It has no such table."""
    tables(tree, [(LOOPBACK, "0A", 2, 700)])
    (tree.root / "networks" / OUR_NETWORK / "tcp6").unlink()
    reading, failures = look_at(tree)
    assert (reading.sockets, failures) == ((waiting(2),), ())


def test_a_table_that_hung_or_breaks_is_a_failure(tree):
    """And nothing is told of the server."""
    path = tree.root / "networks" / OUR_NETWORK / "tcp"
    name = f"{tree.root}/7/net/tcp"
    reading, failures = look_at(tree, skip=frozenset({f"table {name}"}))
    assert (reading.sockets, failures) == ((), (Failure("socket", "quarantined", name, "s"),))
    path.unlink()
    path.mkdir()
    reading, failures = look_at(tree)
    assert (reading.sockets, failures) == ((), (Failure("socket", "unreadable", f"{name}: Is a directory", "s"),))


class HidesOwners(Procfs):
    """A /proc in which we may not see who has what open."""

    __slots__ = ()

    def fds(self, pid):
        """Refuse."""
        raise PermissionError(pid)


class HidesNetworks(Procfs):
    """A /proc in which we may not see the network of others."""

    __slots__ = ()

    def path(self, pid, name):
        """Refuse."""
        raise PermissionError(pid)


def test_every_listener_counts_where_owners_are_hidden(tree):
    """A queue with a stranger's in it is better than none."""
    tables(tree, [(LOOPBACK, "0A", 2, 700), (OUTER, "0A", 3, 900), (OUTER, "01", 4, 1)])
    look = _Look(HidesOwners(str(tree.root)), Owners(), refuse)
    assert (list(look.servers([asked(30000, 7)])), look.failures) == ([waiting(5, 4)], [])


def test_a_hidden_network_is_a_failure(tree):
    """It is not known then what waits."""
    look = _Look(HidesNetworks(str(tree.root)), Owners(), refuse)
    assert list(look.servers([asked(30000, 7)])) == []
    assert look.failures == [Failure("socket", "no_permission", "pid 7 net/tcp", "s")]


def test_the_worker_is_told_the_port_and_who_may_have_it_open():
    """A web worker below the launcher may hold the socket; without port or process there is nothing to read."""
    launcher = Process(7, 1, 0.0, "launcher", "launcher", tree=(8, 9))
    rank = Process(8, 1, 0.0, "scheduler", "scheduler_TP0", "TP0", tree=(11,))
    server = Server("sglang:30000", "sglang", Launch(port=30000), (launcher, rank))
    assert target(server) == asked(30000, 7, 8, 9, 11, server="sglang:30000")
    assert target(Server("s", "sglang", Launch(port=30000))) is None
    for port in (None, -1, 0, 65536):
        assert target(Server("s", "sglang", Launch(port=port), (launcher,))) is None


def test_a_reading_survives_the_way_to_the_exporter():
    """It crosses as JSON."""
    reading = SocketReading(3.5, (waiting(1, 2),))
    assert msgspec.json.decode(json.dumps(reading, default=fields_of), type=SocketReading) == reading


def test_families_state_what_waits():
    """A server without a reading has no sample."""
    reading = SocketReading(3.5, (waiting(4, 33, server="a"), waiting(server="b")))
    found = {one.name: (one.kind, one.labels, one.samples) for one in families([reading], Moment(0, 0, 0))}
    assert found == {
        "stallwatch_socket_accept_queue": ("gauge", ("server",), ((("a",), 4.0), (("b",), 0.0))),
        "stallwatch_socket_unread_bytes": ("gauge", ("server",), ((("a",), 33.0), (("b",), 0.0))),
    }
