"""The GPU that the kernel tells of is the one that the driver has at that address, or had."""

from dataclasses import replace

from readings import gpus
from stallwatch.collectors.gpu import GpuReading
from stallwatch.collectors.kernel import KernelReading, Xid
from stallwatch.slots import Slots


def node(now, *addresses):
    """Return a reading of GPUs at these addresses, as NVML writes them."""
    reading = gpus(now, count=len(addresses))
    pairs = zip(reading.gpus, addresses, strict=True)
    return replace(reading, gpus=tuple(replace(gpu, pci_bus_id=address) for gpu, address in pairs))


TOLD = KernelReading(1.0, (Xid("0000:3b:00", 79, 1, 9.0, 9.0), Xid("0000:5e:00", 31, 2, 9.0)))


def named(slots, *readings):
    """Return whose the Xids are."""
    (kernel,) = (one for one in slots.name(readings) if isinstance(one, KernelReading))
    return {xid.code: (xid.gpu, xid.uuid) for xid in kernel.xids}


def test_gpus_are_found_by_their_address():
    """However either of them writes it; what nobody has keeps its address."""
    assert named(Slots(), node(1.0, "00000000:1A:00.0", "00000000:3B:00.0"), TOLD) == {
        79: ("1", "GPU-1"),
        31: ("0000:5e:00", ""),
    }


def test_a_gpu_that_cannot_be_read_any_more_keeps_its_name():
    """Neither a missing reading nor one of lost GPUs without an address makes it unknown."""
    slots = Slots()
    slots.name((node(1.0, "00000000:3B:00.0"),))
    assert named(slots, TOLD)[79] == ("0", "GPU-0")
    assert named(slots, GpuReading(2.0), TOLD)[79] == ("0", "GPU-0")
    assert named(slots, node(3.0, ""), TOLD)[79] == ("0", "GPU-0")


def test_a_new_index_is_followed():
    """A driver that is loaded anew may count differently; the UUID stays with the address."""
    slots = Slots()
    assert named(slots, node(1.0, "00000000:3B:00.0", "00000000:5E:00.0"), TOLD)[31] == ("1", "GPU-1")
    again = node(2.0, "00000000:5E:00.0", "00000000:3B:00.0")
    again = replace(again, gpus=tuple(replace(gpu, uuid=f"GPU-{1 - gpu.index}") for gpu in again.gpus))
    assert named(slots, again, TOLD) == {79: ("1", "GPU-0"), 31: ("0", "GPU-1")}


def test_what_was_named_before_it_was_recorded_keeps_its_name():
    """A recording may begin when the driver is out of reach."""
    slots = Slots()
    slots.name((node(1.0, "00000000:3B:00.0"),))
    (recorded,) = slots.name((TOLD,))
    assert named(Slots(), recorded)[79] == ("0", "GPU-0")


def test_the_same_reading_stays_the_same_object():
    """What has not changed is not rendered again."""
    slots, seen = Slots(), node(1.0, "00000000:3B:00.0")
    assert slots.name((seen, TOLD))[1] is slots.name((replace(seen, at=2.0), TOLD))[1]
    assert slots.name((TOLD,)) == slots.name((TOLD,))
    assert slots.name((seen,)) == (seen,)
