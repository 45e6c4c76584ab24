"""A small /proc of plain files and links, for tests that must not depend on what runs on this machine."""

import os
import socket
import struct
from collections import Counter

from stallwatch.node.procfs import TICKS_PER_SECOND, Procfs, read_file

OUR_NETWORK = "net:[4026531840]"
ROUTES = """Main:
  +-- 10.0.0.0/8 2 0 2
     |-- 10.0.0.0
        /8 link UNICAST
     |-- 10.0.0.5
        /32 host LOCAL
"""
TCP_HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


class ProcTree:
    """Builds the tree below `folder`; what a test does not give has the value of an ordinary process."""

    def __init__(self, folder):
        self.folder = folder
        self.root = folder / "proc"
        self.root.mkdir()
        self.network(OUR_NETWORK)
        self._link("self/ns/net", OUR_NETWORK)
        self._link("self/net", self.root / "networks" / OUR_NETWORK)

    def add(
        self,
        pid,
        *argv,
        ppid=1,
        comm=None,
        state="S",
        start=1000.0,
        session=1,
        pgrp=1,
        cgroup="0::/\n",
        environ=(),
        fds=None,
        network=OUR_NETWORK,
        root="/",
        cwd="/",
        exe="/usr/bin/python3",
    ):
        """Add a process; `start` is seconds since boot, `fds` maps descriptors to links, or to links and flags."""
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True, exist_ok=True)
        (folder / "fdinfo").mkdir(exist_ok=True)
        self._stat(
            pid, comm or (argv[0] if argv else "kthread").rpartition("/")[2][:15], state, ppid, pgrp, session, start
        )
        (folder / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
        (folder / "environ").write_bytes(b"".join(word.encode() + b"\0" for word in environ))
        (folder / "cgroup").write_text(cgroup)
        (folder / "status").write_text(f"Name:\tx\nPid:\t{pid}\nNSpid:\t{pid}\t7\nThreads:\t1\n{self._ids()}")
        links = {"root": root, "cwd": cwd, "exe": exe, "ns/net": network, "net": self.root / "networks" / network}
        for name, target in links.items():
            self._link(f"{pid}/{name}", target)
        for descriptor, target in (fds or {}).items():
            self.open(pid, descriptor, *([target] if isinstance(target, (str, os.PathLike)) else target))
        return pid

    def add_others(self, pids, start=1000.0):
        """Add processes that are of no interest, with only what a look reads of them."""
        for pid in pids:
            (self.root / str(pid)).mkdir()
            self._stat(pid, "sleep", "S", 1, 1, 1, start)
            (self.root / str(pid) / "cmdline").write_bytes(b"sleep\x001\0")

    def title(self, pid, title, **changes):
        """Let a process title itself as setproctitle does: padded with NULs, its environment wiped."""
        before = self._fields(pid)
        comm = changes.pop("comm", title[:15])
        self._stat(
            pid,
            comm,
            changes.get("state", before[0]),
            *(changes.get(k, v) for k, v in zip(("ppid", "pgrp", "session"), before[1:4], strict=True)),
            before[4],
        )
        (self.root / str(pid) / "cmdline").write_bytes(title.encode() + b"\0" * 40)
        (self.root / str(pid) / "environ").write_bytes(b"\0" * 60)

    def titled(self, pid, title, **settings):
        """Add a process that has titled itself."""
        self.add(pid, "python", comm=title[:15], **settings)
        self.title(pid, title)
        return pid

    def change(self, pid, **changes):
        """Change ppid, state or comm of a process."""
        state, ppid, pgrp, session, start, comm = self._fields(pid)
        now = {"state": state, "ppid": ppid, "comm": comm, **changes}
        self._stat(pid, now["comm"], now["state"], now["ppid"], pgrp, session, start)

    def die(self, pid):
        """Make a zombie of a process."""
        self.change(pid, state="Z")
        (self.root / str(pid) / "cmdline").write_bytes(b"")

    def remove(self, pid):
        """Let a process be gone."""
        (self.root / str(pid)).rename(self.folder / f"gone-{pid}-{os.urandom(4).hex()}")

    def open(self, pid, descriptor, target, flags=os.O_RDWR):
        """Give a process an open file."""
        self._link(f"{pid}/fd/{descriptor}", target)
        (self.root / str(pid) / "fdinfo" / str(descriptor)).write_text(f"pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t1\n")

    def network(self, name, listeners=()):
        """Say who listens in a namespace: address, port and inode; a connection follows, as in real tables."""
        folder = self.root / "networks" / name
        folder.mkdir(parents=True, exist_ok=True)
        for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
            mine = [one for one in listeners if (":" in one[0]) == (family == socket.AF_INET6)]
            lines = [_tcp_line(family, "0A", *one) for one in mine]
            connection = _tcp_line(family, "01", "::1" if family == socket.AF_INET6 else "127.0.0.1", 9, 99)
            (folder / table).write_text(TCP_HEADER + "".join((*lines, connection)))
        (folder / "fib_trie").write_text(ROUTES)
        (folder / "if_inet6").write_text("fd000000000000000000000000000005 02 40 00 80     eth0\n")

    def _ids(self):
        own = [
            f"{name}:\t{number}\t{number}\t{number}\t{number}\n"
            for name, number in (("Uid", os.getuid()), ("Gid", os.getgid()))
        ]
        return "".join((*own, "Groups:\t\n"))

    def _stat(self, pid, comm, state, ppid, pgrp, session, start):  # noqa: PLR0917  (the fields of the file)
        middle, ticks = "0 -1 4194560 1 0 0 0 5 6 0 0 20 0 1 0", round(start * TICKS_PER_SECOND)
        text = f"{pid} ({comm}) {state} {ppid} {pgrp} {session} {middle} {ticks} 1000 10 18446744073709551615\n"
        (self.root / str(pid) / "stat").write_text(text)

    def _fields(self, pid):
        head, _, tail = (self.root / str(pid) / "stat").read_text().rpartition(") ")
        fields = tail.split()
        return (
            fields[0],
            *(int(one) for one in fields[1:4]),
            int(fields[19]) / TICKS_PER_SECOND,
            head.partition(" (")[2],
        )

    def _link(self, name, target):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)


class CountingRead:
    """Reads files and counts, for each look, which of them."""

    def __init__(self):
        self.names = []

    def __call__(self, path, limit):
        """Read, and remember the name."""
        self.names.append(path.rpartition("/")[2])
        return read_file(path, limit)

    def take(self):
        """Return the counts since last time."""
        counts, self.names = Counter(self.names), []
        return counts


def _tcp_line(family, state, address, port, inode):
    data = socket.inet_pton(family, address)
    text = "".join(f"{word:08X}" for word in struct.unpack(f"={len(data) // 4}I", data))
    ends, queues = f"{text}:{port:04X} {'0' * len(text)}:0000", "00000000:00000000 00:00000000 00000000"
    return f"   0: {ends} {state} {queues}     0        0 {inode} 1 0 100 0 0 10 0\n"


class Denied(Procfs):
    """A /proc in which we may not follow links."""

    __slots__ = ()

    def link(self, pid, name):
        """Refuse."""
        raise PermissionError(name)
