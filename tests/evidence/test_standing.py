"""Standing: what the hangs that were reported look like, and who is pointed at."""

from dataclasses import dataclass

import pytest

from known_stacks import (
    API_AWAITS_CORES,
    BARRIER_OF_CAPTURE,
    BATON,
    CAPTURE,
    COPY,
    CORE_ASKS,
    CORE_ASKS_BY_YIELDING,
    CORE_AWAITS_REPLICAS,
    CORE_IDLE,
    CORE_STARTS_WORKERS,
    LOADS,
    NCCL_INIT,
    NEVER_SEEN,
    RENDEZVOUS,
    REQUESTS,
    SHM,
    SHM_BETWEEN,
    TRITON,
    WEIGHTS,
    WORKER_CAPTURES,
    WORKER_COMPILES,
    WORKER_COPY,
    WORKER_ODD,
    WRITES,
    ZMQ,
)
from stallwatch.evidence.standing import Stack, Standing, stacks_of, standing, told
from stallwatch.sources.stacks import Frame, ProcessStacks, StacksReading, ThreadStack


def ranks(*frames, kernel=()):
    """Return a stack of each of TP0, TP1, ..."""
    return [Stack(f"TP{number}", one, kernel) for number, one in enumerate(frames)]


def seven_and(odd, others):
    """Return eight ranks of which TP5 stands elsewhere."""
    return ranks(*(odd if number == 5 else others for number in range(8)))


@pytest.mark.parametrize(
    ("others", "odd", "sentence"),
    [
        (REQUESTS, CAPTURE, "7 ranks wait in gloo broadcast, TP5 is in CUDA graph capture"),
        (REQUESTS, COPY, "7 ranks wait in gloo broadcast, TP5 waits for the GPU (synchronize)"),
        (COPY, REQUESTS, "7 ranks wait for the GPU (synchronize), TP5 waits in gloo broadcast"),
        (REQUESTS, ZMQ, "7 ranks wait in gloo broadcast, TP5 waits for a message over ZeroMQ"),
        (REQUESTS, WRITES, "7 ranks wait in gloo broadcast, TP5 waits in gloo all_reduce"),
        (REQUESTS, NEVER_SEEN, "7 ranks wait in gloo broadcast, TP5 is in mystery (sglang/srt/layers/odd.py:42)"),
        (RENDEZVOUS, NCCL_INIT, None),
        (SHM, NEVER_SEEN, None),
        (
            BARRIER_OF_CAPTURE,
            TRITON,
            "7 ranks wait in gloo barrier, during CUDA graph capture, TP5 is in compilation of Triton kernels",
        ),
        (WEIGHTS, BATON, "7 ranks are in weight loading, TP5 waits for the lock of a compilation (file_baton)"),
    ],
)
def test_the_one_that_does_not_come_is_pointed_at(others, odd, sentence):
    """Seven ranks wait, and the eighth is elsewhere."""
    found = standing(seven_and(odd, others))
    assert found.odd == ("TP5",)
    assert [len(stand.who) for stand in found.stands] == [7, 1]
    if sentence:
        assert found.sentence.startswith(sentence)


def test_one_that_is_ahead_of_the_others_is_not():
    """It has loaded its weights and waits for those that have not."""
    found = standing(seven_and(BARRIER_OF_CAPTURE, WEIGHTS))
    assert found.odd == ()
    assert found.sentence == ("7 ranks are in weight loading, TP5 waits in gloo barrier, during CUDA graph capture")


@pytest.mark.parametrize(
    ("first", "second", "odd"),
    [(WRITES, COPY, ()), (REQUESTS, CAPTURE, ("TP1",)), (NEVER_SEEN, SHM, ("TP0",)), (WEIGHTS, CAPTURE, ())],
)
def test_of_two_ranks_both_are_named(first, second, odd):
    """Only one that is in no collective while the other one is can be pointed at."""
    found = standing(ranks(first, second))
    assert found.odd == odd
    assert found.sentence.startswith("TP0 ")
    assert ", TP1 " in found.sentence


def test_ranks_in_the_same_operation_of_different_callers_are_told_apart():
    """A mismatched collective: all of them are in all_reduce, but not in the same one."""
    found, file = standing(ranks(WRITES, LOADS, WRITES, WRITES)), "(sglang/srt/mem_cache/hiradix_cache.py)"
    assert found.odd == ("TP1",)
    assert found.sentence == (
        f"TP0, TP2 and TP3 wait in gloo all_reduce, at HiRadixCache.writing_check {file}, "
        f"TP1 waits in gloo all_reduce, at HiRadixCache.loading_check {file}"
    )


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (1, "TP0 waits for the GPU (synchronize)"),
        (2, "both ranks wait for the GPU (synchronize)"),
        (8, "all 8 ranks wait for the GPU (synchronize)"),
    ],
)
def test_all_at_the_same_place_is_said(number, sentence):
    """Nobody stands out."""
    assert standing(ranks(*[COPY] * number)) == Standing((standing(ranks(*[COPY] * number)).stands[0],), (), sentence)


def test_no_ranks_say_nothing():
    """Where py-spy and the kernel gave nothing there is no sentence."""
    assert standing([]) == Standing((), (), "")


def test_the_number_of_a_line_does_not_split_a_group():
    """A loop goes round at several lines."""
    moved = tuple(frame.replace(":2974)", ":2980)").replace(":42)", ":43)") for frame in REQUESTS)
    assert len(standing(ranks(REQUESTS, moved)).stands) == 1
    moved = (NEVER_SEEN[0].replace(":42)", ":43)"), *NEVER_SEEN[1:])
    assert len(standing(ranks(NEVER_SEEN, moved)).stands) == 1


def test_a_wait_that_polls_is_one_place():
    """Workers of vLLM that wait for a message are now in the poll, now beside it."""
    found = standing(ranks(SHM, SHM_BETWEEN, SHM, SHM))
    assert (found.sentence, found.odd) == ("all 4 ranks wait for a message of shm_broadcast", ())


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (CORE_ASKS, "waits for the answer of its workers"),
        (CORE_ASKS_BY_YIELDING, "waits for the answer of its workers"),
        (CORE_IDLE, "waits for requests"),
        (CORE_AWAITS_REPLICAS, "waits in all_reduce with the other replicas"),
        (CORE_STARTS_WORKERS, "waits for its workers to start"),
        (API_AWAITS_CORES, "waits for its engine cores to start"),
        (WORKER_COPY, "waits for the GPU (synchronize)"),
        (WORKER_CAPTURES, "waits for the GPU (synchronize), during CUDA graph capture"),
        (WORKER_COMPILES, "is in torch.compile"),
    ],
)
def test_frames_of_vllm_have_words(frames, words):
    """Of its engine core, which only waits for others in most hangs, and of its workers."""
    assert told(Stack("EngineCore", frames)) == words


def test_the_worker_that_does_not_answer_is_pointed_at():
    """The others have done their part of the step and wait for the next one."""
    found = standing(seven_and(WORKER_ODD, SHM))
    assert found.odd == ("TP5",)
    assert found.sentence.startswith("7 ranks wait for a message of shm_broadcast, TP5 is in mystery")


def test_work_at_different_depths_is_one_place():
    """Ranks load different tensors of the same model."""
    assert standing(ranks(WEIGHTS, WEIGHTS[1:], ("inside (torch/x.py:1)", *WEIGHTS))).sentence == (
        "all 3 ranks are in weight loading"
    )


def test_without_a_clear_majority_nobody_is_pointed_at():
    """Four places, all told; more than that are counted."""
    found = standing(ranks(REQUESTS, REQUESTS, REQUESTS, WRITES, WRITES, COPY, COPY))
    assert found.odd == ()
    assert found.sentence == (
        "TP0, TP1 and TP2 wait in gloo broadcast, TP3 and TP4 wait in gloo all_reduce, "
        "TP5 and TP6 wait for the GPU (synchronize)"
    )
    many = [(f"f{number} (a.py:1)",) for number in range(20)]
    assert standing(ranks(*many)).sentence.endswith("TP3 is in f3 (a.py:1), and 16 elsewhere")


def test_the_kernel_says_what_an_unknown_frame_waits_for():
    """A lock, a sleep or a read is no frame of Python's."""
    stack = Stack("TP0", NEVER_SEEN, ("hrtimer_nanosleep", "clock_nanosleep"))
    assert told(stack) == "is in mystery (sglang/srt/layers/odd.py:42), waiting for a timer (sleep)"
    assert told(Stack("TP0", NEVER_SEEN, ("running",))) == "is in mystery (sglang/srt/layers/odd.py:42), on the CPU"
    assert told(Stack("TP0", REQUESTS, ("futex_do_wait",))) == "waits in gloo broadcast"


@dataclass(frozen=True)
class KernelThread:
    """A thread as the `threads` source gives it."""

    tid: int
    state: str = "S"
    wchan: str | None = None
    syscall_name: str = ""
    stack: tuple[str, ...] | None = None


@dataclass(frozen=True)
class KernelProcess:
    """A process as the `threads` source gives it."""

    rank: str
    pid: int
    threads: tuple[KernelThread, ...]
    descendant: bool = False


def python(rank, pid, *threads):
    """Return a process as the `stacks` source gives it; each thread is a tuple of (function, file)."""
    found = [
        ThreadStack(f"t{number}", pid + number, False, False, tuple(Frame(*frame, 7) for frame in frames))
        for number, frames in enumerate(threads)
    ]
    return ProcessStacks(f"scheduler_{rank}" if rank else "launcher", rank, pid, tuple(found))


def test_a_rank_that_py_spy_left_alone_stands_where_the_kernel_says():
    """The others' frames of Python are kept; descendants and processes that are no rank do not count."""
    broadcast = (("broadcast", "torch/distributed/distributed_c10d.py"), ("recv_requests", "scheduler.py"))
    reading = StacksReading(1.0, "a", (*[python(f"TP{n}", n * 100, broadcast) for n in (10, 2)], python("", 9, ())))
    processes = [
        KernelProcess("TP3", 300, (KernelThread(301, "R"), KernelThread(300, "D", "folio_wait_bit_common"))),
        KernelProcess("TP3", 399, (KernelThread(399, "R"),), descendant=True),
        KernelProcess("TP2", 200, (KernelThread(200, "S", "futex_do_wait", "futex"),)),
        KernelProcess("", 9, (KernelThread(9, "S", "do_wait"),)),
        KernelProcess("TP4", 400, ()),
    ]
    stacks = stacks_of(reading, processes)
    assert [(stack.who, stack.frames[0]) for stack in stacks] == [
        ("TP2", "broadcast (torch/distributed/distributed_c10d.py:7)"),
        ("TP3", "folio_wait_bit_common"),
        ("TP10", "broadcast (torch/distributed/distributed_c10d.py:7)"),
    ]
    assert stacks[0].kernel == ("futex_do_wait", "futex")
    found = standing(stacks)
    assert (found.sentence, found.odd) == ("TP2 and TP10 wait in gloo broadcast, TP3 waits for a disk", ("TP3",))
    assert stacks_of(None) == ()


def test_the_kernel_alone_tells_a_spin_from_a_sleep():
    """Without py-spy, the state and what the kernel sleeps in are what there is."""
    asleep = [KernelProcess(f"TP{n}", n, (KernelThread(n, "S", "futex_do_wait"),)) for n in range(1, 4)]
    spinning = KernelProcess("TP0", 100, (KernelThread(100, "R", None, "", ("x",)),))
    found = standing(stacks_of(None, [spinning, *asleep]))
    assert found.sentence == "TP1, TP2 and TP3 wait for a lock (futex), TP0 is on the CPU"
    assert found.odd == ("TP0",)


def test_the_thread_that_works_for_the_main_one_is_looked_at():
    """With the older overlapped scheduling the main thread only waits for the one that runs the model."""
    main = (("wait", "threading.py"), ("get", "queue.py"), ("resolve", "managers/tp_worker_overlap_thread.py"))
    other = (("_recv_msg", "torch/_inductor/compile_worker/subproc_pool.py"),)
    worker = (("replay", "torch/cuda/graphs.py"), ("forward_thread_func_", "managers/tp_worker_overlap_thread.py"))
    (stack,) = stacks_of(StacksReading(1.0, "a", (python("TP0", 1, main, other, worker),)))
    assert told(stack) == "waits for the GPU (launch of a CUDA graph)"
    (stack,) = stacks_of(StacksReading(1.0, "a", (python("TP0", 1, main, other),)))
    assert told(stack) == "waits for a queue"
