"""What does a log line say about how far the server is?

Tables of what each engine writes, in every version, and what it means. A marker is a short word for a kind of line
(`load_end`); only such words ever leave the exporter, never the text of a line, which may hold keys and prompts.

Kinds of lines, each line has one:
    progress   the server got on: a phase began or ended, a bar rose, a batch ran
    heartbeat  it only turned: the batch of a health probe, a statistics line without a token, a wait that goes on
    access     a request of somebody, also ours
    error      it says that something failed
    other      all the rest, whatever it says of requests, probes or waiting
"""

from dataclasses import dataclass

KINDS = ("progress", "heartbeat", "access", "error", "other")
ERROR_KINDS = (
    "barrier_expired",
    "cuda_error",
    "gloo_timeout",
    "health_check_failed",
    "http_exception",
    "init_failed",
    "kv_pool_full",
    "memory_leak",
    "nccl_error",
    "nccl_timeout",
    "out_of_memory",
    "process_died",
    "rpc_timeout",
    "scheduler_exception",
    "soft_watchdog_timeout",
    "watchdog_timeout",
)


@dataclass(frozen=True, slots=True)
class Marker:
    """What one kind of line means; in `texts`, `*` stands for a few words and `**` for more of the line.

    A text stands at the beginning of the message, behind the time and the ranks, unless its table says otherwise.

    `of_each_rank` is true where every rank writes the line, so that a rank which lacks it lags behind its peers.
    `waiting` is what the server waits for from now on. `writer` is whose line it has to be, as its prefix names it.
    """

    word: str
    texts: tuple[str, ...]
    kind: str = "progress"
    phase: str = ""
    error: str = ""
    of_each_rank: bool = False
    begins_life: bool = False
    waiting: str = ""
    writer: str = ""


def _step(phase: str, word: str, *texts: str, of_each_rank: bool = False, begins_life: bool = False) -> Marker:
    return Marker(word, texts, phase=phase, of_each_rank=of_each_rank, begins_life=begins_life)


def _error(error: str, *texts: str) -> Marker:
    return Marker(error, texts, kind="error", error=error)


PROCESSES = ("Scheduler", "DetokenizerManager", "TokenizerManager", "DataParallelController", "MultiDetokenizerRouter")
POOLS = ("pool", "token_to_kv_pool_allocator", "req_to_token_pool")
SGLANG = (
    _step("launch", "launch", "server_args=", begins_life=True),
    _step("distributed_init", "dist_init", "Init torch distributed begin", "Init parallel begin", of_each_rank=True),
    _step("distributed_init", "dist_done", "Init torch distributed ends", "Init parallel ends", of_each_rank=True),
    _step("distributed_init", "dist_done", "Memory baseline taken", of_each_rank=True),
    _step("loading_weights", "load_begin", "Load weight begin", of_each_rank=True),
    _step("loading_weights", "weight_format", "Using model weights format"),
    _step("loaded", "load_end", "Load weight end", of_each_rank=True),
    _step("allocating_memory", "kv_alloc", "KV Cache is allocated", "KV Cache VA upper bound", of_each_rank=True),
    _step("allocating_memory", "kv_alloc", "Mamba Cache is allocated", of_each_rank=True),
    _step("allocating_memory", "pool_end", "Memory pool end", of_each_rank=True),
    _step("compiling", "autotune", "Running FlashInfer autotune", "FlashInfer autotune completed"),
    _step("compiling", "deep_gemm", "Entering DeepGEMM JIT Pre-Comp", "Try DeepGEMM JIT Compiling"),
    _step("capturing_graphs", "graph_begin", "Capture * graph begin", of_each_rank=True),
    _step("capturing_graphs", "graph_sizes", "Capture * graph bs ["),
    _step("capturing_graphs", "graph_sizes", "Registering * cuda graph addresses"),
    _step("capturing_graphs", "graph_end", "Capture * graph end", of_each_rank=True),
    _step("warming_up", "scheduler_ready", "max_total_num_tokens="),
    _step("warming_up", "engine_ready", "Engine startup timings"),
    _step("warming_up", "http_up", "Starting embedded Granian"),
    _step("warming_up", "warm_up", "Start of pd disaggregation warmup", "End of pd disaggregation warmup"),
    _step("ready", "ready", "The server is fired up and ready to roll"),
    _step("ready", "worker_ready", "Starting dummy health check server at", "Dummy health check server started"),
    Marker("gated", ("Gated launch waiting", "Gated launch still waiting"), kind="heartbeat", waiting="gated"),
    _step("", "gate_open", "Gated launch activated"),
    Marker("stopping", ("SIGTERM received", "Signal SIGTERM received", "Gracefully exiting"), "other", "stopping"),
    *(_error("soft_watchdog_timeout", f"{process} watchdog timeout (**soft=True") for process in PROCESSES),
    *(_error("watchdog_timeout", f"{process} watchdog timeout (") for process in PROCESSES),
    *(_error("scheduler_exception", f"{process} hit an exception") for process in PROCESSES),
    _error("watchdog_timeout", "Watchdog timeout ("),
    _error("health_check_failed", "Health check failed"),
    _error("process_died", "Received sigquit from a child process", "SIGQUIT received", "Rank * scheduler is dead"),
    _error("process_died", "Rank * scheduler died during init", "Subprocess * crashed with exit"),
    _error("process_died", "Scheduler or DataParallelController * terminated with"),
    _error("barrier_expired", "TP rank * could finish the model loading, but"),
    _error("init_failed", "Initialization failed"),
    _error("kv_pool_full", "KV cache pool is full", "Decode out of memory happened"),
    _error("out_of_memory", "Prefill out of memory"),
    _error("memory_leak", *(f"{pool} memory leak detected" for pool in POOLS)),
)
STEP_WAIT = "step_wait"
_SHM_WAITS = ("No available shared memory broadcast block", "No available block found in")
VLLM = (
    _step("launch", "launch", "non-default args: ", "vLLM API server version ", begins_life=True),
    _step("launch", "launch", "Launching * data parallel engine(s) in headless", begins_life=True),
    _step("launch", "launch", "Launching vLLM (v*) headless", begins_life=True),
    _step("launch", "engine_init", "Initializing a V* LLM engine", "Initializing an LLM engine"),
    _step("distributed_init", "dist_init", "world_size=**distributed_init_method=", of_each_rank=True),
    _step("distributed_init", "dist_init", "vLLM is using nccl=="),
    _step("distributed_init", "dist_done", "rank * in world size * is assigned as", of_each_rank=True),
    _step("loading_weights", "load_begin", "Starting to load model", of_each_rank=True),
    _step("loading_weights", "weights_read", "Loading weights took", of_each_rank=True),
    _step("loaded", "load_end", "Model loading took", of_each_rank=True),
    _step("compiling", "compiling", "Using cache directory: **torch.compile", "Dynamo bytecode transform time"),
    _step("compiling", "compiling", "Cache the graph", "Compiling a graph for", "Directly load the compiled graph"),
    _step("compiling", "compiling", "torch.compile takes", "torch.compile took", "torch.compile and initial profiling"),
    _step("allocating_memory", "kv_alloc", "Available KV cache memory", "Explicitly set (**KV cache"),
    _step("allocating_memory", "kv_alloc", "GPU KV cache size: ", "CPU KV cache size: "),
    _step("allocating_memory", "kv_alloc", "# GPU blocks: ", "# cuda blocks: "),
    _step(
        "capturing_graphs", "graph_begin", "Capturing the model for CUDA graphs", "Registering * cuda graph addresses"
    ),
    _step("capturing_graphs", "graph_end", "Graph capturing finished in", of_each_rank=True),
    _step("warming_up", "engine_ready", "init engine (profile"),
    _step("warming_up", "http_up", "Starting vLLM server on", "Starting vLLM API server"),
    # It names who waits, which is rarely who is to blame, and comes in slow starts as in hangs. An engine core waits so
    # only while its workers are at a step.
    Marker(STEP_WAIT, _SHM_WAITS, "heartbeat", writer="(EngineCore"),
    Marker("shm_wait", _SHM_WAITS, "heartbeat"),
    Marker("engine_wait", ("Waiting for * local, * remote core engine proc",), "heartbeat"),
    Marker("sleeping", ("It took * seconds to fall asleep",), kind="other", waiting="sleeping"),
    _step("", "awake", "It took * seconds to wake up"),
    Marker("stopping", ("[shutdown] * shutdown triggered", "[shutdown] * trigger received"), "other", "stopping"),
    Marker("stopping", ("Waiting up to * seconds for processes to exit",), "other", "stopping"),
    Marker("stopping", ("Received signal *, forwarding graceful termination",), "other", "stopping"),
    _error("process_died", "Worker proc * died unexpectedly", "RayWorkerProc * died unexpectedly"),
    _error("process_died", "Engine core proc * died unexpectedly", "[shutdown] MPClient: engine core exited unexpect"),
    _error("scheduler_exception", "EngineCore encountered a fatal error", "EngineCore hit an exception"),
    _error("scheduler_exception", "WorkerProc hit an exception", "WorkerProc failed."),
    _error("init_failed", "EngineCore failed to start", "WorkerProc failed to start"),
)
TORCH = (
    _error("nccl_timeout", "Watchdog caught collective operation timeout", "ProcessGroupNCCL's watchdog got stuck"),
    _error("nccl_timeout", "Heartbeat monitor timed out"),
    _error("gloo_timeout", "Timed out waiting *ms for "),
)
EXCEPTIONS = (  # stand behind `Error: `
    _error("out_of_memory", "CUDA out of memory", "HIP out of memory"),
    _error("cuda_error", "CUDA error: "),
    _error("nccl_error", "NCCL error"),
    _error("rpc_timeout", "RPC call to * timed out"),
    _error("process_died", "EngineCore encountered an issue", "Executor failed", "Process * died with exit code"),
    _error("scheduler_exception", "Worker failed with error"),
    _error("init_failed", "Engine core initialization failed"),
    _error("memory_leak", "* memory leak detected"),
)
UVICORN = (  # stand behind `INFO:     ` or `ERROR:    `
    _step("warming_up", "http_up", "Started server process", "Waiting for application startup"),
    Marker("stopping", ("Shutting down",), "other", "stopping"),
    _error("http_exception", "Exception in ASGI application"),
)
_UP = "Application startup complete"
STARTED = {"sglang": _step("warming_up", "http_up", _UP), "vllm": _step("ready", "ready", _UP)}
BARS = (  # the first words of a bar
    _step("loading_weights", "fetching", "Fetching ", "Downloading "),
    _step("loading_weights", "loading", "Loading ", "Multi-thread loading ", "quant weights to fp8"),
    _step("compiling", "compiling", "DeepGEMM warmup", "Compiling num tokens"),
    _step("capturing_graphs", "capturing", "Capturing "),
    _step("warming_up", "warm_up", "Warmup prefill shapes", "Profiling prefill latency"),
)
DECODE, PREFILL, THROUGHPUT = Marker("decode", ()), Marker("prefill", ()), Marker("throughput", ())
PROBE, NO_THROUGHPUT = Marker("probe", (), kind="heartbeat"), Marker("no_throughput", (), kind="heartbeat")
SERVING = frozenset({"decode", "throughput"})  # only an engine that is ready writes them
FOREIGN = {  # behind these comes text of users, which may look like anything (regular expressions)
    "sglang": (r'obj(?:=|": )', r"cur_batch\.reqs="),
    "vllm": (r"Received request ", r"Request \S+ details: ", r"Generated response ", r"Dumping scheduler output "),
}
