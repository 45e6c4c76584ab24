"""What lines mean: tables and scanner, on made lines and on the logs of real servers."""

from pathlib import Path

import pytest

from stallwatch.logs import markers
from stallwatch.logs.scan import Scanner
from stallwatch.snapshot import PHASES

LOGS = Path(__file__).parents[1] / "data" / "logs"
STAMP = b"[2026-03-04 10:00:00 TP3] "
PREFILL = b"#new-seq: %d, #new-token: %d, #cached-token: %d, token usage: 0.00, #running-req: 0, #queue-req: 0, "


def scan(line, engine="sglang"):
    """Scan one line."""
    return Scanner(engine).scan(line + b"\n")


def kind(line, engine="sglang"):
    """Return the one kind that this line counts as."""
    (found,) = (kind for kind, count in scan(line, engine).lines.items() if count)
    return found


def step(line, engine="sglang"):
    """Return the phase, the marker and the rank of the only telling thing in this line."""
    (mark,) = scan(line, engine).marks
    return mark.marker.phase, mark.marker.word, mark.rank


@pytest.mark.parametrize(
    ("text", "phase", "word"),
    [
        (b"server_args=ServerArgs(model_path='/m')", "launch", "launch"),
        (b"server_args={'model_path': '/m'}", "launch", "launch"),
        (b"Init torch distributed begin.", "distributed_init", "dist_init"),
        (b"Init parallel begin.", "distributed_init", "dist_init"),
        (b"Init torch distributed ends. mem usage=1.05 GB", "distributed_init", "dist_done"),
        (b"Init parallel ends. elapsed=2.31 s", "distributed_init", "dist_done"),
        (b"Memory baseline taken. mem usage=1.00 GB", "distributed_init", "dist_done"),
        (b"Load weight begin. avail mem=138.40 GB", "loading_weights", "load_begin"),
        (b"Load weight end. elapsed=3.1 s, type=X, avail mem=1 GB, mem usage=2 GB.", "loaded", "load_end"),
        (b"KV Cache is allocated. #tokens: 731904", "allocating_memory", "kv_alloc"),
        (b"KV Cache is allocated. dtype: torch.bfloat16, #tokens: 731904", "allocating_memory", "kv_alloc"),
        (b"Mamba Cache is allocated. max_mamba_cache_size: 5", "allocating_memory", "kv_alloc"),
        (b"Memory pool end. avail mem=17.10 GB", "allocating_memory", "pool_end"),
        (b"Running FlashInfer autotune with cache: /x", "compiling", "autotune"),
        (b"Entering DeepGEMM JIT Pre-Complie session. It may take a long time", "compiling", "deep_gemm"),
        (b"Entering DeepGEMM JIT Pre-Compile session. It may take a long time", "compiling", "deep_gemm"),
        (b"Capture cuda graph begin. This can take up to several minutes.", "capturing_graphs", "graph_begin"),
        (b"Capture target decode CUDA graph begin. backend=full", "capturing_graphs", "graph_begin"),
        (b"Capture draft extend cuda graph begin. This can take", "capturing_graphs", "graph_begin"),
        (b"Capture cpu graph begin. This can take", "capturing_graphs", "graph_begin"),
        (b"Capture target decode CUDA graph end. bs=[1, 2], elapsed=3 s", "capturing_graphs", "graph_end"),
        (b"max_total_num_tokens=731904, chunked_prefill_size=8192", "warming_up", "scheduler_ready"),
        (b"Engine startup timings (s): load_weight=3.0", "warming_up", "engine_ready"),
        (b"INFO:     Application startup complete.", "warming_up", "http_up"),
        (b"The server is fired up and ready to roll!", "ready", "ready"),
        (b"Starting dummy health check server at 0.0.0.0:30000", "ready", "worker_ready"),
        (b"Dummy health check server started in background thread at 0.0.0.0:30000", "ready", "worker_ready"),
        (b"SIGTERM received. signum=None frame=None. Draining requests and shutting down...", "stopping", "stopping"),
        (b"Gracefully exiting... Remaining number of requests 1.", "stopping", "stopping"),
    ],
)
def test_sglang_phases_of_all_versions(text, phase, word):
    """Each wording that any version has for a step of the start means that step."""
    assert step(STAMP + text) == (phase, word, "TP3")


@pytest.mark.parametrize(
    ("text", "phase", "word"),
    [
        (b"INFO 11-29 17:14:36 [api_utils.py:286] non-default args: {'api_key': 'k'}", "launch", "launch"),
        (b"INFO 11-29 17:14:42 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with", "launch", "engine_init"),
        (b"INFO 01-02 03:04:05 core.py:58] Initializing a V1 LLM engine (v0.8.5) with", "launch", "engine_init"),
        (
            b"INFO 11-29 17:14:50 [x.py:1] world_size=2 rank=0 distributed_init_method=tcp",
            "distributed_init",
            "dist_init",
        ),
        (b"INFO 11-29 17:14:50 [x.py:1] vLLM is using nccl==2.27.3", "distributed_init", "dist_init"),
        (b"INFO 11-29 17:14:50 [x.py:1] Starting to load model /m...", "loading_weights", "load_begin"),
        (b"INFO 11-29 17:14:50 [x.py:1] Loading weights took 9.01 seconds", "loading_weights", "weights_read"),
        (b"INFO 11-29 17:14:50 [x.py:1] Model loading took 61.03 GiB and 33.52 seconds", "loaded", "load_end"),
        (b"INFO 11-29 17:14:50 [x.py:1] Dynamo bytecode transform time: 5.73 s", "compiling", "compiling"),
        (
            b"INFO 11-29 17:14:50 [x.py:1] Compiling a graph for compile range (1, 2048) takes 9 s",
            "compiling",
            "compiling",
        ),
        (b"INFO 11-29 17:14:50 [x.py:1] GPU KV cache size: 49,152 tokens", "allocating_memory", "kv_alloc"),
        (
            b"INFO 11-29 17:14:50 [x.py:1] Graph capturing finished in 8 secs, took 0.31 GiB",
            "capturing_graphs",
            "graph_end",
        ),
        (b"INFO 11-29 17:14:50 [x.py:1] Starting vLLM API server 0 on http://0.0.0.0:8000", "warming_up", "http_up"),
        (
            b"INFO 11-29 17:14:36 [serve.py:161] Launching 2 data parallel engine(s) in headless mode,",
            "launch",
            "launch",
        ),
        (
            b"INFO 11-29 17:14:36 [serve.py:150] Launching vLLM (v0.32.0) headless multiproc executor,",
            "launch",
            "launch",
        ),
        (b"INFO 01-02 03:04:05 x.py:1] # GPU blocks: 27391, # CPU blocks: 2048", "allocating_memory", "kv_alloc"),
        (b"INFO 11-29 17:15:39 [serve.py:1] Waiting up to 30 seconds for processes to exit", "stopping", "stopping"),
        (b"INFO:     Application startup complete.", "ready", "ready"),
        (b"INFO 11-29 17:15:39 [launcher.py:254] [shutdown] API server: shutdown triggered", "stopping", "stopping"),
    ],
)
def test_vllm_phases(text, phase, word):
    """The lines of vLLM, old and new, mean their step, and the worker's rank is read from its prefix."""
    assert step(b"(Worker_TP1_EP1 pid=7) " + text, "vllm") == (phase, word, "TP1_EP1")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"Decode batch, #running-req: 5, #token: 3100, gen throughput (token/s): 412.50, #queue-req: 0", "progress"),
        (b"Decode batch. #running-req: 5, #token: 3100, gen throughput (token/s): 412.50, #queue-req: 0", "progress"),
        (b"Decode batch [1234], #running-req: 5, #full token: 3100, #queue-req: 0", "progress"),
        (b"Prefill batch. " + PREFILL % (1, 6, 0), "progress"),
        (b"Prefill batch [7], " + PREFILL % (3, 2412, 512), "progress"),
        (b"Prefill batch, " + PREFILL % (1, 1, 5), "progress"),
        (b"Prefill batch, " + PREFILL % (1, 1, 0), "heartbeat"),
        (b"Prefill batch. " + PREFILL % (1, 1, 0), "heartbeat"),
        (b"Prefill batch [9], " + PREFILL % (2, 2, 0), "heartbeat"),
        (b"Gated launch still waiting for activation. elapsed=10 s", "heartbeat"),
        (b'INFO:     10.0.0.9:40500 - "GET /health HTTP/1.1" 200 OK', "access"),
        (b'INFO:     2001:db8::1:40500 - "POST /generate?x=%20y HTTP/1.1" 503 Service Unavailable', "access"),
        (b"Endpoint '/get_model_info' is deprecated and will be removed", "other"),
        (
            b"Receive: obj=GenerateReqInput(text='[2026-03-04 10:00:00] Decode batch, #running-req: 1', rid='a')",
            "other",
        ),
        (b"Received output for rid='HEALTH_CHECK_1' but the state was deleted in TokenizerManager.", "other"),
        (b"waiting for baton release at /root/.cache/lock", "other"),
        (b"Using KV cache dtype: torch.bfloat16", "other"),
    ],
)
def test_kinds_of_sglang_lines(line, expected):
    """Only what a server that gets on writes is progress: never requests, probes and waiting."""
    assert kind(STAMP + line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"Avg prompt throughput: 5.2 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 1 reqs", "progress"),
        (b"Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.1 tokens/s, Running: 1 reqs", "progress"),
        (b"Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 9 reqs", "heartbeat"),
        (
            b"Generated response cmpl-1: output: '] Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 9'",
            "other",
        ),
        (b"Request cmpl-1 details: prompt: '] EngineCore encountered a fatal error.'", "other"),
        (
            b"Received request cmpl-1: prompt: 'Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 9'",
            "other",
        ),
    ],
)
def test_kinds_of_vllm_lines(line, expected):
    """A statistics line is progress only when tokens flowed, and what users write never is."""
    assert kind(b"(APIServer pid=1) INFO 11-29 17:15:05 [loggers.py:335] Engine 000: " + line, "vllm") == expected


@pytest.mark.parametrize(
    "line",
    [
        b"(EngineCore pid=1) INFO 11-29 17:15:05 [x.py:501] No available shared memory broadcast block found in 60 s",
        b"(Worker_TP1 pid=7) DEBUG 01-02 03:04:05 [shm_broadcast.py:456] No available block found in 60 second. ",
        b"DEBUG 01-02 03:04:05 [utils.py:483] Waiting for 1 local, 0 remote core engine proc(s) to start.",
    ],
)
def test_the_waits_of_vllm_are_heartbeats(line):
    """They come once a minute in slow starts and in hangs, from whoever waits; neither progress nor an error."""
    assert kind(line, "vllm") == "heartbeat"
    assert not scan(line, "vllm").errors


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"Watchdog timeout (self.watchdog_timeout=300)", "watchdog_timeout"),
        (b"Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "watchdog_timeout"),
        (b"Scheduler watchdog timeout (self.watchdog_timeout=60, self.soft=True)", "soft_watchdog_timeout"),
        (b"DetokenizerManager watchdog timeout (self.watchdog_timeout=9, self.soft=True)", "soft_watchdog_timeout"),
        (b"Health check failed. Server couldn't get a response from detokenizer for last 20 s", "health_check_failed"),
        (b"Received sigquit from a child process. It usually means the child failed.", "process_died"),
        (b"SIGQUIT received. signum=None, frame=None. It usually means one child failed.", "process_died"),
        (b"Scheduler hit an exception: Traceback (most recent call last):", "scheduler_exception"),
        (b"TP rank 5 could finish the model loading, but there are other ranks that didn't", "barrier_expired"),
        (b"Rank 0 scheduler died during initialization (exit code: -9).", "process_died"),
        (b"Rank 0 scheduler is dead. Please check if there are relevant logs.", "process_died"),
        (b"Initialization failed. warmup error: x", "init_failed"),
        (b"Subprocess scheduler_0 (pid=7) crashed with exit code -9", "process_died"),
        (b"KV cache pool is full. Retract requests. #retracted_reqs: 1", "kv_pool_full"),
        (b"Decode out of memory happened. #retracted_reqs: 1", "kv_pool_full"),
        (b"[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=X)", "nccl_timeout"),
        (b"RuntimeError: [gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation", "gloo_timeout"),
        (b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "out_of_memory"),
        (b"ValueError: pool memory leak detected! x", "memory_leak"),
        (b"ERROR:    Exception in ASGI application", "http_exception"),
    ],
)
def test_errors(line, error):
    """A line that says what failed counts once, as an error of its kind."""
    found = scan(STAMP + line)
    assert +found.errors == {error: 1}
    assert +found.lines == {"error": 1}


@pytest.mark.parametrize(
    ("before", "word"),
    [
        (b"(EngineCore_DP0 pid=1) INFO", "step_wait"),
        (b"(EngineCore pid=1) INFO", "step_wait"),
        (b"(Worker_TP0 pid=7) INFO", "shm_wait"),
        (b"INFO", "shm_wait"),
    ],
)
def test_an_engine_core_that_waits_waits_for_a_step(before, word):
    """Workers also wait while they have nothing to do."""
    line = before + b" 11-30 03:42:14 [shm_broadcast.py:871] No available shared memory broadcast block found in 60 s"
    assert step(line, "vllm")[1] == word
    after = b"(EngineCore pid=1) INFO 11-30 03:42:14 [core.py:1] x\n(Worker_TP0 pid=7) INFO 11-30 03:42:14 [x.py:1] "
    assert step(after + b"No available shared memory broadcast block found in 60 s", "vllm")[1] == "shm_wait"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"[core.py:720] EngineCore encountered a fatal error.", "scheduler_exception"),
        (b"core.py:291] EngineCore hit an exception: Traceback (most recent call last):", "scheduler_exception"),
        (b"[multiproc_executor.py:597] WorkerProc hit an exception.", "scheduler_exception"),
        (b"[multiproc_executor.py:227] Worker proc VllmWorker-1 died unexpectedly, shutting down", "process_died"),
        (b"[core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly, shutting down", "process_died"),
        (b"[core.py:710] EngineCore failed to start.", "init_failed"),
        (b"[core.py:728] TimeoutError: RPC call to sample_tokens timed out.", "rpc_timeout"),
        (b"RuntimeError: Worker failed with error 'CUDA'", "scheduler_exception"),
        (b"RuntimeError: Process ApiServer_1 (PID: 77) died with exit code -9", "process_died"),
        (
            b"[async_llm.py:480] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
            "process_died",
        ),
    ],
)
def test_errors_of_vllm(text, error):
    """What the engine, its workers and its front end say of a failure, by whichever process says it."""
    found = scan(b"(EngineCore_DP0 pid=7) ERROR 11-29 17:15:05 " + text, "vllm")
    assert +found.errors == {error: 1}


@pytest.mark.parametrize(
    ("before", "rank"),
    [
        (b"[2026-03-04 10:00:00 DP0 PP1 TP3 EP3] ", "DP0_PP1_TP3_EP3"),
        (b"[2026-03-04 10:00:00.123 DP1 TP10] ", "DP1_TP10"),
        (b"[2026-03-04 10:00:00 PP1 ATTN_CP0 MOE_DP2 TP3] ", "PP1_ATTN_CP0_MOE_DP2_TP3"),
        (b"[2026-03-04 10:00:00] ", ""),
        (b"[2026-03-04 10:00:00 encode_server] ", ""),
        (b"sglang-1  | [2026-03-04 10:00:00 TP1] ", "TP1"),
        (b"(SGLangWorker pid=7) [2026-03-04 10:00:00 TP1] ", "TP1"),
        (b"2026-03-04T09:00:00.1Z stderr F [2026-03-04 10:00:00 TP1] ", "TP1"),
        (b"2026-03-04 10:00:00,1 - INFO - [2026-03-04 10:00:00 TP1] ", "TP1"),
    ],
)
def test_rank_of_a_line(before, rank):
    """The rank is read from the prefix wherever wrappers put it in the line."""
    assert step(before + b"Load weight end. avail mem=1 GB") == ("loaded", "load_end", rank)


@pytest.mark.parametrize(
    ("before", "rank"),
    [
        (b"(Worker_DP0_PP1_TP3_EP3 pid=7) ", "DP0_PP1_TP3_EP3"),
        (b"(VllmWorker TP1 pid=7) ", "TP1"),
        (b"(EngineCore_DP1 pid=7) ", "DP1"),
        (b"(EngineCore pid=7) ", ""),
        (b"(EngineCore_0 pid=7) ", ""),
        (b"(VllmWorker-1 pid=7) ", ""),
        (b"\x1b[0;36m(Worker_TP1 pid=7)\x1b[0;0m ", "TP1"),
    ],
)
def test_rank_of_a_line_of_vllm(before, rank):
    """Where one GPU is enough for a replica, its engine core writes what workers write otherwise."""
    line = before + b"INFO 11-29 17:14:50 [x.py:1] Model loading took 61.03 GiB and 33.52 seconds"
    assert step(line, "vllm") == ("loaded", "load_end", rank)


def test_bars_are_progress_while_they_rise():
    """A bar that is drawn again with the same count is no progress, and one that starts over rises anew."""
    scanner = Scanner("sglang")
    bar = b"Loading safetensors checkpoint shards:  50%% Completed | %d/%d [00:0%d<00:08,  2.00s/it]\n"
    counts = [(0, 5), (1, 5), (1, 5), (5, 5), (5, 5), (0, 1), (1, 1)]
    found = [scanner.scan(bar % (count, total, count)) for count, total in counts]
    assert [one.lines["progress"] for one in found] == [0, 1, 0, 1, 0, 0, 1]
    assert [mark.ratio for one in found for mark in one.marks] == [0.2, 1.0, 1.0]


def test_a_bar_without_times_is_a_bar():
    """Wrappers and reports cut the times off a bar: its numbers count where the line ends with them."""
    (mark,) = scan(b"Loading safetensors checkpoint shards: 100% Completed | 163/163\n").marks
    assert (mark.marker.phase, mark.ratio) == ("loading_weights", 1.0)


@pytest.mark.parametrize(
    ("bar", "phase"),
    [
        (b"Multi-thread loading shards:  50% Completed | 2/4 [00:01<00:01,  1.00it/s]", "loading_weights"),
        (b"Capturing batches (bs=8 avail_mem=1.00 GB):  50%|### | 2/4 [00:01<00:01,  1.00it/s]", "capturing_graphs"),
        (b"DeepGEMM warmup:   2%|1   | 300/16384 [00:10<09:00, 30.0it/s]", "compiling"),
        (b"Capturing CUDA graphs (decode, FULL):  50%|## | 2/4 [1:00:01<00:01,  1.00s/it]", "capturing_graphs"),
    ],
)
def test_bars_of_other_phases(bar, phase):
    """Bars of every kind that the engines draw name their phase."""
    (mark,) = scan(bar).marks
    assert mark.marker.phase == phase
    assert 0 < mark.ratio <= 0.5


def test_version_is_read_where_a_line_states_it():
    """The banner of vLLM states its version, and so does the start of its engine; SGLang states none."""
    assert (
        scan(b"INFO 11-29 17:14:42 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with", "vllm").version
        == "0.32.0"
    )
    assert scan("(APIServer pid=1) INFO  █ ▀▀  █  version 0.9.2rc1".encode(), "vllm").version == "0.9.2rc1"
    assert scan(STAMP + b"Load weight end. ").version == ""


def test_the_tables_use_the_closed_sets():
    """Every marker has a kind, a phase and an error of the closed sets."""
    tables = (markers.SGLANG, markers.VLLM, markers.TORCH, markers.EXCEPTIONS, markers.UVICORN, markers.BARS)
    for marker in (marker for table in tables for marker in table):
        assert marker.kind in markers.KINDS
        assert marker.phase in (*PHASES, "")
        assert marker.error in (*markers.ERROR_KINDS, "")
        assert bool(marker.error) == (marker.kind == "error")


def test_an_unknown_engine_is_read_with_all_tables():
    """Lines of either engine are understood where the engine is not known."""
    assert step(STAMP + b"Load weight end. ", "other")[:2] == ("loaded", "load_end")
    assert step(b"INFO 11-29 17:14:50 [x.py:1] Model loading took 61.03 GiB", "other")[:2] == ("loaded", "load_end")


def test_real_health_probes_are_heartbeats():
    """In the log of a real server the batches of probes count as heartbeats, those of requests as progress."""
    found = Scanner("sglang").scan((LOGS / "sglang_0.5.9_steady.log").read_bytes().replace(b"\r", b"\n"))
    assert found.lines["heartbeat"] == 17
    assert found.lines["access"] == 70
    assert +found.errors == {"http_exception": 2}
