"""A mount whose server has died: whoever asks it for anything waits, as on NFS, until it comes back.

One file, `server.log`, served over FUSE by a process of its own, which SIGSTOP makes dead and SIGCONT alive again. It
needs root, as mounting does. The messages are those of linux/fuse.h, protocol 7.31.
"""

import ctypes
import errno
import os
import signal
import stat
import struct
import subprocess
import sys
import time

ROOT, FILE = 1, 2
NAME = b"server.log"
LOOKUP, GETATTR, SETATTR, OPEN, READ, WRITE, RELEASE, FLUSH, INIT = 1, 3, 4, 14, 15, 16, 18, 25, 26
UNANSWERED = {2, 36, 42}  # FORGET, INTERRUPT, BATCH_FORGET
MESSAGE = 1 << 18


class DeadMount:
    """The mount, for as long as the context lasts; `path` is its file."""

    def __init__(self, directory):
        self._directory = directory / "mount"
        self.path = self._directory / NAME.decode()
        self._process = None

    def __enter__(self):
        self._directory.mkdir(parents=True)
        command = [sys.executable, __file__, str(self._directory)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout.readline() == b"mounted\n"
        return self

    def __exit__(self, *_):
        self._process.kill()  # which ends the wait of all that ask
        self._process.communicate()
        ctypes.CDLL(None).umount2(os.fsencode(self._directory), 2)  # MNT_DETACH

    def die(self):
        """Answer nobody any more."""
        self._process.send_signal(signal.SIGSTOP)
        while _state(self._process.pid) != "T":
            time.sleep(0.005)

    def revive(self):
        """Answer again."""
        self._process.send_signal(signal.SIGCONT)


def _state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


class Disk:
    """One file in memory, and the answers about it."""

    def __init__(self):
        self.content = bytearray()
        self._answers = {
            INIT: lambda node, body: struct.pack("<IIIIHHIIHH32x", 7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 32, 0),
            LOOKUP: self._lookup,
            GETATTR: lambda node, body: struct.pack("<QII", 0, 0, 0) + self._attributes(node),
            SETATTR: lambda node, body: struct.pack("<QII", 0, 0, 0) + self._attributes(node),
            OPEN: lambda node, body: struct.pack("<QII", node, 1, 0),  # direct: nothing is kept by the kernel
            READ: self._read,
            WRITE: self._write,
            RELEASE: lambda node, body: b"",
            FLUSH: lambda node, body: b"",
        }

    def answer(self, operation, node, body):
        """Return (error number, content) for a request."""
        try:
            return 0, self._answers[operation](node, body)
        except KeyError:
            return -errno.ENOSYS, b""
        except FileNotFoundError:
            return -errno.ENOENT, b""

    def _attributes(self, node):
        mode, size = (stat.S_IFDIR | 0o755, 0) if node == ROOT else (stat.S_IFREG | 0o644, len(self.content))
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, 8, 1, 1, 1, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _lookup(self, node, body):
        if body.rstrip(b"\0") != NAME:
            raise FileNotFoundError
        return struct.pack("<QQQQII", FILE, 1, 0, 0, 0, 0) + self._attributes(FILE)

    def _read(self, node, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(self.content[offset : offset + size])

    def _write(self, node, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        self.content[offset : offset + size] = body[40 : 40 + size]
        return struct.pack("<II", size, 0)


def serve(directory):
    """Mount and answer until the mount has gone."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"stallwatch-test", os.fsencode(directory), b"fuse", 0, options):
        sys.exit(os.strerror(ctypes.get_errno()))
    print("mounted", flush=True)
    disk = Disk()
    while True:
        try:
            request = os.read(device, MESSAGE)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            continue
        _, operation, unique, node = struct.unpack_from("<IIQQ", request)
        if operation in UNANSWERED:
            continue
        failed, content = disk.answer(operation, node, request[40:])
        os.write(device, struct.pack("<IiQ", 16 + len(content), failed, unique) + content)


if __name__ == "__main__":
    serve(sys.argv[1])
