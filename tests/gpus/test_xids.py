"""Lines of the kernel log that tell of GPUs are understood as drivers of all ages write them, and no others."""

import pytest

from stallwatch.gpus.xids import APPLICATION, CRITICAL, XidLine, address_of, words_of, xid_of

OFF_THE_BUS = "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("text", "address", "code"),
    [
        (f"NVRM: Xid (PCI:0000:3b:00): 79, {OFF_THE_BUS}", "0000:3b:00", 79),
        ("NVRM: Xid (PCI:0000:3B:00): 31, pid=1234, Ch 00000010, intr 10000000.", "0000:3b:00", 31),
        ("NVRM: Xid (PCI:0000:07:00 GPU-I:05): 94, pid=7, name=python3, Contained", "0000:07:00", 94),
        ("NVRM: Xid (0000:03:00): 13, 0001 00000000", "0000:03:00", 13),
        ("NVRM: Xid (PCI:0004:01:00.0): 119, pid=1, Timeout after 45s of waiting for RPC", "0004:01:00", 119),
        ("NVRM: Xid (PCI:00000000:3b:00): 48", "0000:3b:00", 48),
    ],
)
def test_lines_of_all_drivers(text, address, code):
    """Address, number and time are taken from the line, whatever follows them."""
    found = xid_of(f"4,8812,98765432,-;{text}")
    assert (found.at, found.address, found.code) == (98.765432, address, code)
    assert xid_of(f"4,8812,98765432,-,caller=T4242;{text}") == found


@pytest.mark.parametrize(
    "record",
    [
        "",
        "4,1,2,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "4,1,2,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30",
        "4,1,2,-;sshd: NVRM: Xid (PCI:0000:3b:00): 79",
        "NVRM: Xid (PCI:0000:3b:00): 79",
        " SUBSYSTEM=NVRM: Xid (PCI:0000:3b:00): 79",
        "12,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, written by a program",
        "4,1,2,-;NVRM: Xid (PCI:nowhere): 79",
        "4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 123456789",
        "4,1,9999999999999999999,-;NVRM: Xid (PCI:0000:3b:00): 79",
    ],
)
def test_what_is_no_xid(record):
    """Other lines, and those that only look like one, tell nothing."""
    assert xid_of(record) is None


def test_faults_of_the_gpu_and_of_programs():
    """A critical Xid is a fault of the GPU, one that a program can bring about is not, nor is one of neither list."""
    for code in (*CRITICAL, *APPLICATION, 63, 999):
        found = xid_of(f"4,1,5,-;NVRM: Xid (PCI:0000:3b:00): {code}, whatever")
        assert found == XidLine(5e-6, "0000:3b:00", code, code in CRITICAL)
    assert not CRITICAL.keys() & APPLICATION.keys()


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("0x0 (None)", False),
        ("0x1 (GPU Reset Required)", True),
        ("0x2 (Node Reboot Required)", True),
        ("0x3 (Drain P2P)", False),
        ("0x4 (Drain and Reset)", True),
        ("something new", True),
    ],
)
def test_a_recovery_that_is_not_asked_for_any_more(target, fault):
    """Xid 154 tells of the recovery action, which can as well become none."""
    text = f"NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to {target}"
    assert xid_of(f"4,1,5,-;{text}").fault == fault


def test_addresses_of_kernel_and_driver_meet():
    """NVML writes eight digits and a function, the kernel four and none; what is no address stays as it is."""
    assert address_of("00000000:3B:00.0") == address_of("0000:3b:00") == "0000:3b:00"
    assert address_of("00010000:07:00.0") == "10000:07:00"
    assert address_of("nonsense") == "nonsense"


def test_xids_have_words():
    """What is on a list can be said in words."""
    assert words_of(79) == "fell off the bus"
    assert all(map(words_of, (*CRITICAL, *APPLICATION)))
    assert words_of(999) == ""
