"""The summary: an engineer who has nothing else learns the class of cause, the odd rank, and what is missing."""

import json

import msgspec

from incidents import WHOLE, a_view, hung
from pasts import gpus, ranks
from readings import NAME
from stallwatch.evidence.causes import CAUSES
from stallwatch.evidence.store import SourceEntry
from stallwatch.evidence.summary import summary
from stallwatch.report import server_report
from stallwatch.sources.gpus import GpuState, GpuStateReading
from stallwatch.sources.stacks import Frame, ProcessStacks, StacksReading, ThreadStack
from stallwatch.sources.threads import ProcessThreads, Thread, ThreadsReading

HOSTILE = "x```\n# forged\n<script>alert(1)</script> [link](http://evil) \x1b[31m | `"


def told(still=240.0, **fields):
    """Return the entry of a server that hangs."""
    past = hung(still, ranks=ranks(*[0.0] * 8), gpus=gpus(0.0), **fields)
    return json.loads(json.dumps(server_report(past, a_view(past))))


def a_summary(sources=None, entry=None, **manifest):
    """Return the summary of a bundle with these sources."""
    times = {"at": 1_800_000_000.0, "begun": 1_799_999_760.0}
    kept = msgspec.structs.replace(WHOLE, **{"server": NAME, **times, **manifest})
    return summary(kept, entry or told(), {name: msgspec.to_builtins(one) for name, one in (sources or {}).items()})


def thread(pid, wchan, *, call="recvfrom"):
    """Return the main thread of a process, asleep."""
    return Thread(pid, "python", "S", "sleeps", 1.0, 0.0, 0, 0, wchan, 45, call, "socket", (wchan, "do_syscall_64"))


def kernel(odd=None):
    """Return the threads of eight ranks, of which one sleeps elsewhere."""
    processes = [
        ProcessThreads(
            NAME,
            f"scheduler_TP{rank}",
            f"TP{rank}",
            101 + rank,
            descendant=False,
            threads=(
                thread(101 + rank, "futex_do_wait", call="futex") if rank == odd else thread(101 + rank, "sk_wait"),
            ),
        )
        for rank in range(8)
    ]
    return ThreadsReading(1.0, seconds=0.7, processes=tuple(processes))


def python(odd):
    """Return the Python stacks of eight ranks, of which one captures a graph while the others wait in gloo."""

    def stack(rank):
        if rank == odd:
            return (Frame("capture", "sglang/srt/model_executor/cuda_graph_runner.py", 7),)
        gloo = Frame("broadcast", "torch/distributed/distributed_c10d.py", 5)
        return (gloo, Frame("recv_requests", "sglang/srt/managers/scheduler.py", 9))

    processes = [
        ProcessStacks(
            f"scheduler_TP{rank}",
            f"TP{rank}",
            101 + rank,
            (ThreadStack("MainThread", 101 + rank, active=True, owns_gil=False, frames=stack(rank)),),
        )
        for rank in range(8)
    ]
    return StacksReading(1.0, NAME, tuple(processes))


def odd_line(text):
    """Return what is said of the odd one out."""
    (line,) = [line for line in text.splitlines() if line.startswith("- **Odd one out**")]
    return line


def test_the_answer_stands_first():
    """What, since when, the class of cause and the odd one, before any table."""
    text = a_summary(verdict="stalled", signature="cold_deadlock")
    title, head = text.split("\n## ")[0].splitlines()[0], text.split("\n## ")[0]
    assert title == f"# {NAME}: stalled (cold_deadlock)"
    assert f"**Class of cause**: {CAUSES['cold_deadlock']}" in head
    assert "**Since**: 2027-01-15 07:56:00 UTC, 4 min before this was gathered" in head
    assert "none; all ranks look alike" in odd_line(text)


def test_the_odd_rank_is_named_by_its_kernel_stack():
    """Without py-spy."""
    text = a_summary({"threads": kernel(odd=5)})
    assert "by what the kernel shows of them: TP5" in odd_line(text)
    assert "7 ranks wait" in text


def test_the_odd_rank_is_named_by_its_python_stack():
    """With it, and in which work it is."""
    text = a_summary({"threads": kernel(), "stacks": python(odd=3)})
    assert "by their Python stacks: TP3" in odd_line(text)
    assert "TP3 is in CUDA graph capture" in text


def test_a_broken_gpu_is_named():
    """By its state, with what is wrong with it."""
    fine, broken = GpuState(0, "GPU-0", ecc_volatile_uncorrected=0), GpuState(3, "GPU-3", ecc_volatile_uncorrected=2)
    text = a_summary({"gpu_state": GpuStateReading(1.0, gpus=(fine, broken))})
    assert "by the state of the GPUs: GPU 3 (2 uncorrected memory errors)" in odd_line(text)


def test_what_is_missing_is_told_with_its_reason():
    """Of each source, and what was left out as too much."""
    entries = (
        SourceEntry(source="stacks", file=None, seconds=0.0, missing=("not_installed: py-spy is not here",)),
        SourceEntry(source="threads", file="threads.json", seconds=1.0, dropped=7),
    )
    text = summary(msgspec.structs.replace(WHOLE, sources=entries), told(), {})
    assert "- stacks: not_installed: py-spy is not here" in text
    assert "- threads: 7 left out, since they were too many" in text
    assert "- threads.json: read in 1.0 s" in text


def test_nothing_a_server_names_is_markup():
    """Neither in a sentence nor in a block, which nothing can end."""
    entry = told() | {"reason": HOSTILE, "model": HOSTILE, "marker": HOSTILE, "marker_rank": HOSTILE}
    entry["ranks"][0]["rank"] = entry["ranks"][0]["wchan"] = HOSTILE
    reading = kernel()
    text = a_summary({"threads": reading}, entry, server=HOSTILE, why=HOSTILE, node=HOSTILE)
    assert "\x1b" not in text
    assert "\n# forged" not in text
    assert text.count("```") % 2 == 0
    outside = "".join(text.split("```")[::2])
    assert "[link]" not in outside.replace("\\[", "")
    assert "<script" not in outside.replace("\\<", "")
