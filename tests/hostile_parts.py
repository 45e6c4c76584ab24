"""The pieces that fuzz tests put together: what parsers look for, and what they may trip over."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from stallwatch.logs.markers import BARS, EXCEPTIONS, SGLANG, TORCH, UVICORN, VLLM

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
SLOW = settings(QUICK, max_examples=25)

DIGITS = "9" * 5000  # more than Python makes a number of
TABLES = (SGLANG, VLLM, TORCH, EXCEPTIONS, UVICORN, BARS)
MARKERS = [text.encode() for table in TABLES for marker in table for text in marker.texts]

# fmt: off
LOG_PARTS = [
    b"\n", b"\r", b"\0", b"\x1b[31m", b"\xff", b"] ", b"Error: ", b"INFO:     ", b"1", b"/", b":", b"it/s]",
    b"25% Completed | ", b"| 1/4 [00:00<00:00,  4.99it/s]", b' - "GET /x HTTP/1.1', DIGITS.encode(),
    b"[2026-01-01 00:00:00 TP0] ", b"[2026-01-01 00:00:00 TP", b"[0000-00-00 99:99:99 DP0 TP1] ",
    b"[2026-01-01 00:00:00 SECRET1] ", b"(VllmWorker TP0 pid=1)", b"(Worker_TP99999999 pid=1) INFO 01-01 00:00:00 ",
    b"Avg prompt throughput: 1.2.3 tokens/s, Avg generation throughput: . tokens/s",
    b"Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: %b tokens/s" % DIGITS.encode(),
    b"Prefill batch. #new-seq: 1, #new-token: 1, #cached-token: 0,", b"Decode batch. #", b"LLM engine (v1",
]
PAGE_PARTS = [
    "sglang:num_running_reqs", "sglang_num_queue_reqs", "vllm:num_requests_running", "sglang:realtime_tokens_total",
    "{", "}", '"', "\\", ",", "=", "\n", " ", "1", "1e400", "NaN", "-1", DIGITS, "\r", "\x1b[0m", "\u00e9",
    'dp_rank="', 'dp_rank="0"', 'mode="decode"', 'tp_rank="0"', 'engine="1"', '{dp_rank="0"} 1\n', 'priority="',
]
HTTP_PARTS = [
    b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 503 \x1b[31m\r\n", b"HTTP/9.9 99999 x\r\n", b"\r\n", b"5\r\nhello\r\n",
    b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: %b\r\n" % DIGITS.encode(),
    b"Transfer-Encoding: chunked\r\n", b"ffffffffffff\r\n", b"Content-Encoding: gzip\r\n",
    b"Location: http://169.254.169.254/\r\n", b"A: %b\r\n" % (b"x" * 10_000), b"sglang:num_running_reqs 1\n",
]
WORDS = [
    "python3", "-m", "sglang.launch_server", "vllm", "serve", "sglang", "sglang_router.launch_server", "bash", "-c",
    "--port", "--tp", "--port=-1", "--tp=999999", "--dp-size", "--nnodes=0", "--node-rank=5", "--pp-size=65535",
    "--config", "/proc/self/mem", "--config=/dev/tty", "--model-path", 'x\n"\\\x1b[0m', "--host", "169.254.169.254",
    "x" * 70_000,
    "sglang::scheduler_TP999999999", "sglang::scheduler_TP0", "sglang::scheduler_", "sglang::scheduler_DP1_TP3_PP2",
    "VLLM::Worker_TP0", "VLLM::EngineCore_0", "sglang::x" * 20, DIGITS, "", "-", "[::1]", "env", "taskset",
]
# fmt: on
LOGS = st.lists(st.one_of(st.sampled_from(MARKERS + LOG_PARTS), st.binary(max_size=30)), max_size=25).map(b"".join)
PAGES = st.lists(st.one_of(st.sampled_from(PAGE_PARTS), st.text(max_size=9)), max_size=40).map("".join)
REPLIES = st.lists(st.one_of(st.sampled_from(HTTP_PARTS), st.binary(max_size=20)), max_size=8).map(b"".join)
COMMANDS = st.lists(
    st.one_of(st.sampled_from(WORDS), st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)),
    max_size=7,
)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.just(10**400)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
)
