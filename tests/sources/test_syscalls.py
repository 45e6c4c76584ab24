"""The names of system calls, of those that threads wait in."""

import pytest

from stallwatch.sources.syscalls import of_a_descriptor, syscall_name


@pytest.mark.parametrize(
    ("machine", "number", "name"),
    [("x86_64", 202, "futex"), ("aarch64", 98, "futex"), ("x86_64", 45, "recvfrom"), ("aarch64", 207, "recvfrom")],
)
def test_a_number_has_another_name_on_each_machine(machine, number, name):
    """As the kernel's tables have it."""
    assert syscall_name(number, machine) == name


def test_what_is_not_known_has_no_name():
    """Neither a number nor a machine."""
    assert syscall_name(99_999, "x86_64") == syscall_name(202, "riscv64") == ""


@pytest.mark.parametrize("name", ["read", "pread64", "readv", "epoll_wait", "epoll_pwait2", "recvmsg", "fdatasync"])
def test_a_call_on_a_descriptor_is_told_from_others(name):
    """Only of these the first argument is one."""
    assert of_a_descriptor(name)


@pytest.mark.parametrize("name", ["", "futex", "poll", "select", "wait4", "nanosleep", "readlink"])
def test_other_calls_take_none(name):
    """Their first argument is an address, a pid or a count."""
    assert not of_a_descriptor(name)
