"""What is the system call of this number called? Those that a server's threads wait in, on x86-64 and on ARM64."""

import os
import re

_X86_64 = {
    0: "read",
    1: "write",
    7: "poll",
    9: "mmap",
    11: "munmap",
    16: "ioctl",
    17: "pread64",
    18: "pwrite64",
    19: "readv",
    20: "writev",
    23: "select",
    24: "sched_yield",
    26: "msync",
    28: "madvise",
    34: "pause",
    35: "nanosleep",
    42: "connect",
    43: "accept",
    44: "sendto",
    45: "recvfrom",
    46: "sendmsg",
    47: "recvmsg",
    61: "wait4",
    73: "flock",
    74: "fsync",
    75: "fdatasync",
    128: "rt_sigtimedwait",
    130: "rt_sigsuspend",
    202: "futex",
    220: "semtimedop",
    230: "clock_nanosleep",
    232: "epoll_wait",
    247: "waitid",
    257: "openat",
    262: "newfstatat",
    270: "pselect6",
    271: "ppoll",
    281: "epoll_pwait",
    288: "accept4",
    299: "recvmmsg",
    426: "io_uring_enter",
    441: "epoll_pwait2",
    449: "futex_waitv",
    455: "futex_wait",
}
_ARM64 = {
    22: "epoll_pwait",
    29: "ioctl",
    32: "flock",
    56: "openat",
    63: "read",
    64: "write",
    65: "readv",
    66: "writev",
    67: "pread64",
    68: "pwrite64",
    72: "pselect6",
    73: "ppoll",
    79: "newfstatat",
    82: "fsync",
    83: "fdatasync",
    95: "waitid",
    98: "futex",
    101: "nanosleep",
    115: "clock_nanosleep",
    124: "sched_yield",
    133: "rt_sigsuspend",
    137: "rt_sigtimedwait",
    192: "semtimedop",
    202: "accept",
    203: "connect",
    206: "sendto",
    207: "recvfrom",
    211: "sendmsg",
    212: "recvmsg",
    215: "munmap",
    222: "mmap",
    227: "msync",
    233: "madvise",
    242: "accept4",
    243: "recvmmsg",
    260: "wait4",
    426: "io_uring_enter",
    441: "epoll_pwait2",
    449: "futex_waitv",
    455: "futex_wait",
}
_TABLES = {"x86_64": _X86_64, "aarch64": _ARM64}
_ON_DESCRIPTORS = re.compile(
    "p?(read|write)(v|64)?|ioctl|connect|accept4?|send(to|msg)|recv(from|msg)|recvmmsg|epoll_p?wait2?|flock"
    "|f(data)?sync|io_uring_enter"
)


def syscall_name(number: int, machine: str = os.uname().machine) -> str:
    """Return the name of a system call, nothing for one that is not in the table."""
    return _TABLES.get(machine, {}).get(number, "")


def of_a_descriptor(name: str) -> bool:
    """Say whether the first argument of a system call is a file descriptor."""
    return _ON_DESCRIPTORS.fullmatch(name) is not None
