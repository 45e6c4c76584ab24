"""Stacks as they were reported of servers that hang, and of servers that work: innermost frame first."""

SPAWNED = (
    "run_scheduler_process (sglang/srt/managers/scheduler.py:2972)",
    "Process.run (multiprocessing/process.py:108)",
    "Process._bootstrap (multiprocessing/process.py:314)",
    "_main (multiprocessing/spawn.py:135)",
    "spawn_main (multiprocessing/spawn.py:122)",
    "<module> (<string>:1)",
)
LOOP = (
    "Scheduler.event_loop_overlap (sglang/srt/managers/scheduler.py:1120)",
    "context_decorator.<locals>.decorate_context (torch/utils/_contextlib.py:120)",
    *SPAWNED,
)
STARTING = ("Scheduler.__init__ (sglang/srt/managers/scheduler.py:300)", *SPAWNED)
REQUESTS = (
    "broadcast (torch/distributed/distributed_c10d.py:2974)",
    "_exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)",
    "broadcast_pyobj (sglang/srt/utils/common.py:1455)",
    "Scheduler.recv_requests (sglang/srt/managers/scheduler.py:1300)",
    *LOOP,
)
WRITES = (
    "all_reduce (torch/distributed/distributed_c10d.py:2800)",
    "_exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)",
    "HiRadixCache.writing_check (sglang/srt/mem_cache/hiradix_cache.py:210)",
    *LOOP,
)
LOADS = (
    "all_reduce (torch/distributed/distributed_c10d.py:2800)",
    "_exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)",
    "HiRadixCache.loading_check (sglang/srt/mem_cache/hiradix_cache.py:240)",
    *LOOP,
)
COPY = (
    "Event.synchronize (torch/cuda/streams.py:231)",
    "process_batch_result_decode (managers/scheduler_output_processor_mixin.py:90)",
    *LOOP,
)
NEVER_SEEN = ("mystery (sglang/srt/layers/odd.py:42)", "Scheduler.run_batch (managers/scheduler.py:2000)", *LOOP)
CAPTURE = (
    "CudaGraphRunner.capture_one_batch_size (model_executor/cuda_graph_runner.py:640)",
    "CudaGraphRunner.capture (model_executor/cuda_graph_runner.py:500)",
    *STARTING,
)
BARRIER_OF_CAPTURE = (
    "barrier (torch/distributed/distributed_c10d.py:4800)",
    "GroupCoordinator.barrier (sglang/srt/distributed/parallel_state.py:1290)",
    *CAPTURE,
)
RENDEZVOUS = (
    "_store_based_barrier (torch/distributed/distributed_c10d.py:900)",
    "init_process_group (torch/distributed/distributed_c10d.py:1700)",
    "init_distributed_environment (sglang/srt/distributed/parallel_state.py:1400)",
    *STARTING,
)
NCCL_INIT = (
    "NCCLLibrary.ncclCommInitRank (device_communicators/pynccl_wrapper.py:405)",
    "PyNcclCommunicator.__init__ (device_communicators/pynccl.py:110)",
    *STARTING,
)
TRITON = ("make_cubin (triton/backends/nvidia/compiler.py:400)", "compile (triton/compiler/compiler.py:280)", *CAPTURE)
BATON = ("FileBaton.wait (torch/utils/file_baton.py:50)", "load (torch/utils/cpp_extension.py:1600)", *STARTING)
WEIGHTS = (
    "safetensors_weights_iterator (sglang/srt/model_loader/weight_utils.py:600)",
    "LlamaForCausalLM.load_weights (sglang/srt/models/llama.py:600)",
    "ModelRunner.load_model (sglang/srt/model_executor/model_runner.py:700)",
    *STARTING,
)
ZMQ = (
    "Socket.recv (zmq/sugar/socket.py:970)",
    "Scheduler.recv_requests (sglang/srt/managers/scheduler.py:1280)",
    *LOOP,
)
BUSY_LOOP = ("WorkerProc.worker_busy_loop (vllm/v1/executor/multiproc_executor.py:973)",)
SHM = (
    "Poller.poll (zmq/sugar/poll.py:106)",
    "wait (vllm/distributed/device_communicators/shm_broadcast.py:198)",
    "MessageQueue.acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:698)",
    "MessageQueue.dequeue (vllm/distributed/device_communicators/shm_broadcast.py:779)",
    *BUSY_LOOP,
)
SHM_BETWEEN = ("MessageQueue.acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:702)", *SHM[3:])
