"""What does a frame of a stack mean, in words?

A frame is `function (file:line)` where it is Python's or a library's, and a bare name where it is the kernel's. What is
not in these tables is shown as it is. Of several rows the first counts, so that one that asks for an outer frame as
well stands before the one that does not.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

PEERS = "peers"  # waits for other ranks
GPU = "gpu"  # waits for its GPU, which may itself wait for other ranks
WAIT = "wait"  # waits for something else
WORK = "work"

_PARTS = re.compile(r"(?P<name>.*) \((?P<file>.*?)(?::-?\d+)?\)", re.DOTALL)
_OPERATION = (
    r"(broadcast|all_reduce|all_gather|reduce_scatter|all_to_all|gather|scatter|reduce|i?send|i?recv)\w*|\w*barrier"
)
_GROUPS = r"(init|_?new|split)_\w*group\w*|\w*rendezvous\w*|_create_c10d_store|_store_based_barrier"
_REPLICAS = r"_has_global_unfinished_reqs|has_unfinished_dp|\w*_across_dp|_synchronize_dp_ranks"
_ANSWER = r"^(\w+\.)*(get_response|_?wait_for_response|collective_rpc)\b"
_GLOO = r"pyobj|recv_requests|_object|\bbarrier .*parallel_state\.py|cache\w*\.py\)$|get_available_gpu_memory"

_CODE = (  # function, file, an outer frame where it takes one, words, kind
    (_GROUPS, r"torch/distributed/", "", "in the set-up of process groups", PEERS),
    (_OPERATION, r"distributed_c10d\.py", _REPLICAS, "in {function} with the other replicas", PEERS),
    (_OPERATION, r"distributed_c10d\.py", _GLOO, "in gloo {function}", PEERS),
    (_OPERATION, r"distributed_c10d\.py", "", "in {function} of torch.distributed", PEERS),
    (r".*gloo::.*waitRecv.*", "", "", "in gloo recv", PEERS),
    (r".*gloo::.*waitSend.*", "", "", "in gloo send", PEERS),
    (r"ncclCommInit\w*", "", "", "in the set-up of an NCCL communicator", PEERS),
    (r"nccl[A-Z]\w*", "", "", "in {function}", PEERS),
    (_OPERATION, r"pynccl\.py", "", "in NCCL {function}", PEERS),
    (r"(send|recv)_object|_pp_recv\w*|_pp_send\w*", "", "", "in gloo {function}", PEERS),
    (_OPERATION, r"custom_all_reduce\w*\.py|quick_all_reduce\.py|symm_mem\.py", "", "in custom {function}", PEERS),
    (r"\w*(dispatch|combine)\w*", r"deep_ep/", "", "in DeepEP {function}", PEERS),
    (r"acquire_write|enqueue", r"shm_broadcast\.py", "", "for the readers of shm_broadcast", PEERS),
    (r".*", r"shm_broadcast\.py", _ANSWER, "for the answer of its workers", PEERS),
    (r"poll|recv\w*", r"zmq/", _ANSWER, "for the answer of its workers", PEERS),
    (r".*", r"shm_broadcast\.py", "", "for a message of shm_broadcast", PEERS),
    (r"poll|recv\w*", r"zmq/", r"shm_broadcast\.py", "for a message of shm_broadcast", PEERS),
    (r"cu(da)?[A-Z][a-z]+Synchronize", "", "", "for the GPU ({function})", GPU),
    (r"synchronize", r"cuda/(__init__|streams)\.py|accelerator", "", "for the GPU (synchronize)", GPU),
    (r"replay", r"cuda/graphs\.py", "", "for the GPU (launch of a CUDA graph)", GPU),
    (r"capture_(begin|end)|__(enter|exit)__", r"cuda/graphs\.py", "", "in CUDA graph capture", WORK),
    (r"_?(re)?capture\w*|warmup_and_capture", r"graph|vllm/.*model_runner", "", "in CUDA graph capture", WORK),
    (r"compile|make_\w+|_do_compile|ast_to_ttir", r"triton/", "", "in compilation of Triton kernels", WORK),
    (r"_bench|benchmark|do_bench", r"triton/", "", "in tuning of Triton kernels", WORK),
    (
        r"\w*(compile|codegen|lower)\w*",
        r"torch/_(inductor|dynamo|functorch)/|vllm/compilation/",
        "",
        "in torch.compile",
        WORK,
    ),
    (r"\w*dummy_batch", r"vllm/", "", "in a dummy batch, for the other replicas", WORK),
    (
        r"profile_run|determine_available_memory|compile_or_warm_up_model|warmup_kernels",
        r"vllm/",
        "",
        "in the first run of the model",
        WORK,
    ),
    (r"wait", r"file_baton\.py", "", "for the lock of a compilation (file_baton)", WAIT),
    (r"load|_jit_compile|\w*ninja\w*", r"cpp_extension\.py", "", "in compilation of a CUDA extension", WORK),
    (
        r"build\w*|\w*ninja\w*|load\w*|gen_\w+",
        r"flashinfer/.*(jit|compil)",
        "",
        "in compilation of FlashInfer kernels",
        WORK,
    ),
    (r"_profile\w*", r"flashinfer/", "", "in tuning of FlashInfer kernels", WORK),
    (r"\w*compile\w*|build", r"deep_gemm|(^|/)compile_utils\.py", "", "in compilation of DeepGEMM kernels", WORK),
    (r"load_jit|build\w*|load", r"jit_kernel/|tvm_ffi/", "", "in compilation of JIT kernels", WORK),
    (r"snapshot_download|hf_hub_download|download_weights\w*", "", "", "in the download of the model", WORK),
    (r"process_weights_after_loading", "", "", "in processing of loaded weights", WORK),
    (r"\w*load_\w*(weight|model)\w*|\w*weights?_(iterator|loader)\w*", r"\.py$", "", "in weight loading", WORK),
    (r"wait", r"(^|/)threading\.py", r"_process_input_queue\b", "for requests", WAIT),
    (r"wait", r"(^|/)threading\.py", r"^(\w+\.)?(get|put|join) \(queue\.py", "for a queue", WAIT),
    (r"wait", r"(^|/)threading\.py", r"futures/_base\.py", "for a future", WAIT),
    (r"join|_wait_for_tstate_lock", r"(^|/)threading\.py", "", "for a thread to end", WAIT),
    (r"wait|wait_for|acquire|__enter__", r"(^|/)threading\.py", "", "for a lock", WAIT),
    (r"acquire|_acquire", r"filelock/", "", "for a lock on a file", WAIT),
    (r"select", r"selectors\.py", r"\bwait_for_ready\b", "for its workers to start", WAIT),
    (r"poll", r"zmq/", r"\bwait_for_engine_startup\b", "for its engine cores to start", WAIT),
    (r"select", r"selectors\.py", r"subprocess\.py", "for a child process", WAIT),
    (r"select", r"selectors\.py", r"(multiprocessing/)?connection\.py", "for another process (pipe)", WAIT),
    (r"select", r"selectors\.py", "", "for events (select)", WAIT),
    (r"\w*wait|_?communicate|run|call|check_\w+", r"(^|/)subprocess\.py", "", "for a child process", WAIT),
    (r"wait|poll", r"popen_\w+\.py", "", "for a child process", WAIT),
    (r"_?(recv|poll|wait|send)\w*", r"multiprocessing/connection\.py", "", "for another process (pipe)", WAIT),
    (
        r"wait|acquire|__enter__|get|put",
        r"multiprocessing/(synchronize|queues)",
        "",
        "for another process (lock)",
        WAIT,
    ),
    (r"poll|recv\w*", r"zmq/", "", "for a message over ZeroMQ", WAIT),
    (r"send\w*", r"zmq/", "", "to send over ZeroMQ", WAIT),
    (
        r"accept|read\w*|recv\w*|connect|create_connection|getaddrinfo",
        r"(^|/)(socket|ssl)\.py",
        "",
        "for a socket",
        WAIT,
    ),
)
_KERNEL = (  # name, words, kind
    (r".* \[nvidia\w*\]|uvm_\w+|os_acquire\w*|rm_\w+|_nv\w+", "in the GPU driver ({function})", WAIT),
    (r"nfs\w*|rpc_wait\w*|ceph\w*|fuse_\w+|request_wait_answer|ll_\w+", "for a network or FUSE file system", WAIT),
    (r"percpu_rwsem_wait|_*sb_start_write", "for a frozen file system", WAIT),
    (r"folio_wait\w*|io_schedule\w*|bit_wait_io|wait_on_page\w*|blk_\w+|jbd2\w*|balance_dirty\w*", "for a disk", WAIT),
    (r"filemap_fault|\w*page_fault|do_user_addr_fault|\w*page_mkwrite", "in a page fault", WAIT),
    (r"futex\w*", "for a lock (futex)", WAIT),
    (r"\w*epoll\w*|ep_poll", "for events (epoll)", WAIT),
    (r"(do_sys_)?p?poll\w*|do_select|p?select\d?", "for events (poll)", WAIT),
    (r"\w*nanosleep", "for a timer (sleep)", WAIT),
    (r"sk_wait_\w+|\w*recv(msg|from)\w*|unix_stream_\w+|inet_csk_accept|accept\d?|__skb_wait\w*", "for a socket", WAIT),
    (r"(anon_)?pipe_\w+", "for a pipe", WAIT),
    (r"\w*do_wait\w*|wait(4|id)|kernel_wait4", "for a child process", WAIT),
    (r"rwsem_\w+|down_(read|write)\w*|_*mutex_lock\w*", "for a lock of the kernel ({function})", WAIT),
    (r"do_signal_stop|ptrace_stop|\w*freez\w*|__refrigerator", "stopped (by a signal, a debugger or a freezer)", WORK),
    (r"running", "on the CPU", WORK),
)
_SAY_NOTHING = re.compile(
    r"([\w<>]+\.)*(run|_bootstrap\w*|_main|spawn_main) \((threading|multiprocessing/\w+|process|spawn)\.py"
    r"|([\w<>]+\.)*(decorate_context|_?wrapped_call_impl|_call_impl|inner|wrapper|_fn|__call__) \(torch/"
    r"|.* \((functools\.py|contextlib\.py|<frozen |runpy)|<module> |NCCL_CHECK "
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a frame means: words that follow `waits`, or `is` where it is work."""

    words: str
    kind: str


def says_something(frame: str) -> bool:
    """Tell whether a frame is more than a wrapper around the one inside it."""
    return _SAY_NOTHING.match(frame) is None


def is_of_kernel(frame: str) -> bool:
    """Tell whether a frame is a bare name, as the kernel gives them."""
    return _PARTS.fullmatch(frame) is None


def without_line(frame: str) -> str:
    """Return a frame without the number of its line, by which the same call may differ."""
    return re.sub(r":-?\d+\)\Z", ")", frame)


def meaning(frame: str, outer: Sequence[str]) -> Meaning | None:
    """Return what a frame means within the outer ones, None where that is not known."""
    parts = _PARTS.fullmatch(frame)
    if parts is None:
        return _of_kernel(frame)
    function = parts["name"] if "::" in parts["name"] else parts["name"].rpartition(".")[2]
    for names, files, within, words, kind in _CODE:
        if re.fullmatch(names, function) and re.search(files, parts["file"]) and _within(within, outer):
            return Meaning(words.replace("{function}", function), kind)
    return None


def _within(wanted: str, outer: Sequence[str]) -> bool:
    return not wanted or any(re.search(wanted, without_line(frame)) for frame in outer)


def _of_kernel(name: str) -> Meaning | None:
    found = ((words, kind) for pattern, words, kind in _KERNEL if re.fullmatch(pattern, name))
    return next((Meaning(words.replace("{function}", name), kind) for words, kind in found), None)
