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
CORE = (
    "EngineCoreProc.run_busy_loop (vllm/v1/engine/core.py:863)",
    "EngineCoreProc.run_engine_core (vllm/v1/engine/core.py:836)",
    *SPAWNED[1:],
)
CORE_STEPS = (
    "step_with_batch_queue (vllm/v1/engine/core.py:592)",
    "_process_engine_step (vllm/v1/engine/core.py:892)",
    *CORE,
)
CORE_ASKS = (
    "poll (zmq/sugar/poll.py:106)",
    "poll (zmq/sugar/socket.py:1062)",
    "recv (vllm/distributed/device_communicators/shm_broadcast.py:802)",
    "dequeue (vllm/distributed/device_communicators/shm_broadcast.py:794)",
    "get_response (vllm/v1/executor/multiproc_executor.py:387)",
    "_wait_for_response (vllm/v1/executor/multiproc_executor.py:95)",
    "result (vllm/v1/executor/multiproc_executor.py:90)",
    *CORE_STEPS,
)
CORE_ASKS_BY_YIELDING = (
    "sched_yield (vllm/distributed/utils.py:53)",
    "acquire_read (vllm/distributed/device_communicators/shm_broadcast.py:464)",
    "dequeue (vllm/distributed/device_communicators/shm_broadcast.py:507)",
    "collective_rpc (vllm/v1/executor/multiproc_executor.py:243)",
    *CORE_STEPS,
)
CORE_IDLE = (
    "wait (threading.py:355)",
    "get (queue.py:171)",
    "_process_input_queue (vllm/v1/engine/core.py:880)",
    *CORE,
)
CORE_AWAITS_REPLICAS = (
    "all_reduce (torch/distributed/distributed_c10d.py:2800)",
    "has_unfinished_dp (vllm/config/parallel.py:320)",
    "DPEngineCoreProc._has_global_unfinished_reqs (vllm/v1/engine/core.py:1290)",
    *CORE,
)
CORE_STARTS_WORKERS = (
    "select (selectors.py:415)",
    "wait (multiprocessing/connection.py:1136)",
    "wait_for_ready (vllm/v1/executor/multiproc_executor.py:420)",
    "_init_executor (vllm/v1/executor/multiproc_executor.py:130)",
    "EngineCore.__init__ (vllm/v1/engine/core.py:82)",
    *CORE,
)
API_AWAITS_CORES = (
    "poll (zmq/sugar/poll.py:106)",
    "wait_for_engine_startup (vllm/v1/engine/utils.py:900)",
    "launch_core_engines (vllm/v1/engine/utils.py:850)",
)
WORKER_STEP = (
    "execute_model (vllm/v1/worker/gpu_worker.py:560)",
    "WorkerProc.worker_busy_loop (vllm/v1/executor/multiproc_executor.py:980)",
)
WORKER_ODD = ("mystery (vllm/model_executor/layers/odd.py:42)", *WORKER_STEP)
WORKER_COPY = (
    "synchronize (torch/cuda/streams.py:231)",
    "get_output (vllm/v1/worker/gpu_model_runner.py:230)",
    *WORKER_STEP,
)
WORKER_CAPTURES = (
    "synchronize (torch/cuda/__init__.py:1083)",
    "_capture_cudagraphs (vllm/v1/worker/gpu_model_runner.py:4100)",
    "capture_model (vllm/v1/worker/gpu_model_runner.py:4040)",
    "compile_or_warm_up_model (vllm/v1/worker/gpu_worker.py:866)",
    "WorkerProc.worker_busy_loop (vllm/v1/executor/multiproc_executor.py:980)",
)
WORKER_COMPILES = (
    "compile (vllm/compilation/compiler_interface.py:200)",
    "determine_available_memory (vllm/v1/worker/gpu_worker.py:300)",
)
