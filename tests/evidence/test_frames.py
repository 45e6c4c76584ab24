"""Frames: the words for those that are known, and what becomes of the others."""

import pytest

from known_stacks import NCCL_INIT, RENDEZVOUS
from stallwatch.evidence.frames import says_something
from stallwatch.evidence.standing import Stack, standing, told


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (RENDEZVOUS, "waits in the set-up of process groups"),
        (NCCL_INIT, "waits in the set-up of an NCCL communicator"),
        (
            ("Condition.wait (threading.py:355)", "Queue.get (queue.py:171)", "f (a.py:1)"),
            "waits for a queue",
        ),
        (("Condition.wait (threading.py:355)", "Future.result (concurrent/futures/_base.py:1)"), "waits for a future"),
        (("Event.wait (threading.py:655)", "f (a.py:1)"), "waits for a lock"),
        (("Connection._recv (multiprocessing/connection.py:395)", "f (a.py:1)"), "waits for another process (pipe)"),
        (("select (selectors.py:468)", "communicate (subprocess.py:2000)"), "waits for a child process"),
        (
            ("EpollSelector.select (selectors.py:468)", "_run_once (asyncio/base_events.py:1)"),
            "waits for events (select)",
        ),
        (("SocketIO.readinto (socket.py:700)",), "waits for a socket"),
        (("BaseFileLock.acquire (filelock/_api.py:330)",), "waits for a lock on a file"),
        (("replay (torch/cuda/graphs.py:88)",), "waits for the GPU (launch of a CUDA graph)"),
        (("cudaStreamSynchronize (libcudart.so.12)",), "waits for the GPU (cudaStreamSynchronize)"),
        (("gloo::transport::tcp::UnboundBuffer::waitRecv (libtorch_cpu.so)",), "waits in gloo recv"),
        (("recv_object (distributed/parallel_state.py:1050)",), "waits in gloo recv_object"),
        (
            ("all_reduce (torch/distributed/distributed_c10d.py:2)", "f (a.py:1)"),
            "waits in all_reduce of torch.distributed",
        ),
        (("dispatch (deep_ep/buffer.py:3)",), "waits in DeepEP dispatch"),
        (("run_ninja (flashinfer/jit/cpp_ext.py:9)",), "is in compilation of FlashInfer kernels"),
        (
            ("_compile_deep_gemm_one_type_all (layers/deep_gemm_wrapper/compile_utils.py:9)",),
            "is in compilation of DeepGEMM kernels",
        ),
        (("compile_fx_inner (torch/_inductor/compile_fx.py:9)",), "is in torch.compile"),
        (("snapshot_download (huggingface_hub/_snapshot_download.py:9)",), "is in the download of the model"),
        (("<module> (<string>:1)",), "is in <module> (<string>:1)"),
        ((), "is in no frame at all"),
        (("folio_wait_bit_common", "filemap_fault", "exc_page_fault"), "waits for a disk"),
        (("x", "y", "z", "u", "v", "filemap_fault"), "waits in a page fault"),
        (("do_epoll_wait",), "waits for events (epoll)"),
        (("unix_stream_read_generic",), "waits for a socket"),
        (("os_acquire_mutex [nvidia]",), "waits in the GPU driver (os_acquire_mutex [nvidia])"),
        (("uvm_spin_loop",), "waits in the GPU driver (uvm_spin_loop)"),
        (("do_signal_stop",), "is stopped (by a signal, a debugger or a freezer)"),
        (("do_wait",), "waits for a child process"),
        (("running",), "is on the CPU"),
        (("nothing_known",), "is in nothing_known"),
    ],
)
def test_known_frames_have_words(frames, words):
    """What is not known is shown as it is."""
    assert told(Stack("TP0", frames)) == words


@pytest.mark.parametrize(
    "frame", ["(" * 5000, "a (b" * 2000, ") (:1)", "load_" * 1000 + " (x.py:1)", "\n (\n:1)", "x (y:99999999999999999)"]
)
def test_a_hostile_frame_is_only_a_frame(frame):
    """It is shown, and takes no time."""
    assert frame.partition(":")[0] in standing([Stack("TP0", (frame, frame))]).sentence


def test_wrappers_say_nothing():
    """What only calls the frame inside it is passed over; what bears a like name is not."""
    wrappers = (
        "_exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)",
        "context_decorator.<locals>.decorate_context (torch/utils/_contextlib.py:120)",
        "Thread._bootstrap_inner (threading.py:1045)",
        "BaseProcess.run (multiprocessing/process.py:108)",
        "<module> (<string>:1)",
    )
    others = ("compile_fx_inner (torch/_inductor/compile_fx.py:9)", "run (subprocess.py:550)", "run (engine.py:1)")
    assert [says_something(frame) for frame in (*wrappers, *others)] == [False] * 5 + [True] * 3
