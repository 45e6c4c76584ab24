"""What the kernel alone reports of a GPU: from its log to the verdict of the server on it, and to the metrics."""

from dataclasses import replace

from exporter_process import Scrape
from readings import BOOT, NAME, a_log, a_server, a_snapshot, gpus, health
from stallwatch.collectors.kernel import KernelReading, Xid
from stallwatch.exposition import Exposition
from stallwatch.recording import line_of, recorded
from stallwatch.replay import play_recording
from stallwatch.snapshot import Failure
from stallwatch.view import View


def a_look(now, *xids, born=0.0, gpu=True):
    """Return a snapshot of an idle server of two ranks, on GPUs whose driver asks for nothing."""
    seen = gpus(now, count=2)
    addressed = replace(seen, gpus=tuple(replace(one, pci_bus_id=f"00000000:1{one.index}:00.0") for one in seen.gpus))
    readings = (a_log(now), KernelReading(now, xids), health(now), *([addressed] if gpu else []))
    server = a_server(ranks=2, born=born, incarnation=str(born), gpus=())
    return a_snapshot(now, *readings, servers=(server,))


def judged(path, *looks):
    """Record the looks, play the recording, and return what was said of the last and the look itself."""
    path.write_bytes(b"".join(map(line_of, looks)))
    *_, last = play_recording(recorded(path))
    return last.verdicts[NAME], last


def xid(at, code=79, address="0000:11:00"):
    """Return an Xid at a monotonic time."""
    return Xid(address, code, 1, BOOT + at, BOOT + at if code == 79 else None)


def test_a_gpu_that_only_the_kernel_calls_broken(tmp_path):
    """The server that holds it is dead, for as long as the report, and stays so while the driver is out of reach."""
    looks = [a_look(10.0), a_look(15.0, xid(12.0)), a_look(20.0, xid(12.0), gpu=False)]
    for count in (2, 3):
        verdict, look = judged(tmp_path / "r.jsonl", *looks[:count])
        assert (verdict.state, verdict.signature) == ("dead", "device_fault")
        assert verdict.since == look.moment.unix_of(12.0)
        assert "Xid 79 of GPU 1 (fell off the bus)" in verdict.reason


def test_what_was_reported_before_the_server_began_is_not_its_fault(tmp_path):
    """Nor what is reported of a GPU that it does not hold, or of an address at which there is none."""
    verdict, _ = judged(tmp_path / "r.jsonl", a_look(10.0, born=9.0), a_look(15.0, xid(5.0), born=9.0))
    assert verdict.state == "idle"
    verdict, _ = judged(tmp_path / "r.jsonl", a_look(10.0), a_look(15.0, xid(12.0, address="0000:5e:00")))
    assert verdict.state == "idle"


def test_an_error_of_a_program_leaves_the_verdict(tmp_path):
    """It is published, and evidence once something hangs."""
    verdict, look = judged(tmp_path / "r.jsonl", a_look(10.0), a_look(15.0, xid(12.0, code=31)))
    assert verdict.state == "idle"
    view = View(look.snapshot, look.pasts, (), (), look.verdicts)
    scrape = Scrape(Exposition(view).page("text/plain").plain.decode())
    assert scrape.all("gpu_xid_total") == [({"gpu": "1", "uuid": "GPU-1", "xid": "31"}, 1.0)]
    assert scrape.value("gpu_xid_last_timestamp_seconds", uuid="GPU-1") == look.moment.unix_of(12.0)
    assert not scrape.all("signal_success", signal="kernel")


def test_a_kernel_log_that_cannot_be_read_is_no_missing_signal(tmp_path):
    """Its absence is told once for the node, and weighs on no verdict."""
    refused = Failure("kernel", "no_permission", "/dev/kmsg: not permitted")
    looks = [a_look(10.0), a_look(15.0)]
    without = tuple(one for one in looks[1].readings if not isinstance(one, KernelReading))
    verdict, look = judged(tmp_path / "r.jsonl", looks[0], replace(looks[1], readings=without, failures=(refused,)))
    assert look.snapshot.failures == (refused,)
    assert verdict.state == "idle"
    assert not [signal for signal in verdict.missing if "kernel" in signal]
