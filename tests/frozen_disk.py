"""A disk that stands still: whoever writes to it sleeps in the kernel, where no signal reaches, until it is thawed.

An ext4 image on a loop device, frozen by fsfreeze(8). It needs root, as mounting does.
"""

import ctypes
import mmap
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager


def run(*command):
    """Run a command of the system, failing with what it says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class FrozenDisk:
    """A small file system of its own, mounted for as long as the context lasts."""

    def __init__(self, directory):
        self.path = directory / "disk"
        self._image = directory / "disk.img"
        self._frozen = False

    def __enter__(self):
        self.path.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(8 << 20)
        run("mkfs.ext4", "-q", "-F", str(self._image))
        run("mount", "-o", "loop", str(self._image), str(self.path))
        return self

    def __exit__(self, *_):
        self.thaw()
        run("umount", "--lazy", str(self.path))

    def freeze(self):
        """Have every write to it sleep."""
        run("fsfreeze", "--freeze", str(self.path))
        self._frozen = True

    @contextmanager
    def wedged(self):
        """Freeze it, and have a process whose map of memory the kernel is going to hold until it is thawed."""
        page = self.path / "page"
        page.write_bytes(b"." * mmap.PAGESIZE)
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, __file__, str(page)], stdin=pipe, stdout=pipe) as process:
            try:
                assert process.stdout.readline() == b"mapped\n"
                self.freeze()
                process.stdin.write(b"go on\n")
                process.stdin.flush()
                yield process
            finally:
                self.thaw()
                process.kill()

    def thaw(self):
        """Let those that sleep go on."""
        if self._frozen:
            run("fsfreeze", "--unfreeze", str(self.path))
            self._frozen = False


def sleeps_in_kernel(pid):
    """Tell whether a thread of the process is in uninterruptible sleep."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "D":
                return True
    return False


def lock_memory(path):
    """Have the kernel hold this process's map of memory for ever, so that whoever reads its command line waits.

    A thread that writes to a mapped page of the frozen file sleeps in its page fault, and one that unmaps the page
    meanwhile sleeps with the map locked.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(path, os.O_RDWR)
    mapped = mmap.mmap(file, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    print("mapped", flush=True)
    sys.stdin.readline()  # frozen meanwhile
    touch = threading.Thread(target=lambda: ctypes.memset(address, 1, 1))
    touch.start()
    while not sleeps_in_kernel(os.getpid()):
        time.sleep(0.01)
    threading.Thread(target=lambda: libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE))).start()
    touch.join()


if __name__ == "__main__":
    lock_memory(sys.argv[1])
