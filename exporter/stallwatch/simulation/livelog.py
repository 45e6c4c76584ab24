"""What does a played server write into its log? The lines of the real engine, for what a scenario says of it."""

import time
from collections.abc import Iterator

from stallwatch.simulation.player import Player

PHASE_LINES = {
    "launch": "server_args=ServerArgs(model_path='played')",
    "distributed_init": "Init torch distributed begin.",
    "loading_weights": "Load weight begin. avail mem=94.40 GB",
    "loaded": "Load weight end. type=PlayedForCausalLM, dtype=torch.bfloat16, avail mem=18.00 GB, mem usage=76.00 GB.",
    "allocating_memory": "KV Cache is allocated. #tokens: 500000, KV size: 10.00 GB",
    "compiling": "Entering DeepGEMM JIT Pre-Compile session.",
    "capturing_graphs": "Capture cuda graph begin. This can take up to several minutes. avail mem=8.00 GB",
    "warming_up": "max_total_num_tokens=500000, chunked_prefill_size=8192, context_len=40960",
    "ready": "The server is fired up and ready to roll!",
    "stopping": "Gracefully exiting... Remaining number of requests 1. Remaining requests remaining_rids=['played'].",
}
OF_EACH_RANK = ("distributed_init", "loading_weights", "loaded", "allocating_memory", "compiling", "capturing_graphs")
VLLM_LINES = {
    "launch": "Initializing a V1 LLM engine (v0.11.0) with config: model='played'",
    "distributed_init": "world_size=2 rank=0 local_rank=0 distributed_init_method=tcp://127.0.0.1:1 backend=nccl",
    "loading_weights": "Starting to load model played...",
    "loaded": "Model loading took 61.03 GiB and 33.52 seconds",
    "allocating_memory": "Available KV cache memory: 10.00 GiB",
    "compiling": "Dynamo bytecode transform time: 5.73 s",
    "capturing_graphs": "Registering 1 cuda graph addresses",
    "warming_up": "init engine (profile, create kv cache, warmup model) took 60.00 seconds",
    "ready": "INFO:     Application startup complete.",
    "stopping": "[shutdown] API server: shutdown triggered",
}
DECODE = (
    "Decode batch, #running-req: 5, #token: {n}, token usage: 0.01, gen throughput (token/s): 412.50, #queue-req: 0"
)
PROBE = "Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0, token usage: 0.00, #running-req: 0"
THROUGHPUT = (
    "Engine 000: Avg prompt throughput: {n}.0 tokens/s, Avg generation throughput: {n}.0 tokens/s, Running: {n} reqs"
)
ACCESS = 'INFO:     10.0.0.9:40500 - "GET /health HTTP/1.1" 200 OK'
BARS = {
    "loading_weights": "Loading safetensors checkpoint shards: {part:3d}% Completed | {n}/9999 [00:01<00:09, 1.00s/it]",
    "capturing_graphs": "Capturing batches (bs=8 avail_mem=7.00 GB): {part:3d}%|  | {n}/9999 [00:01<00:09,  1.00it/s]",
    "compiling": "DeepGEMM warmup: {part:3d}%|  | {n}/9999 [00:01<00:09,  1.00it/s]",
}


class LogLines:
    """The lines of one server, a few for each moment that is shown."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._is_vllm = player.played.engine == "vllm"
        self._phase_lines = VLLM_LINES if self._is_vllm else PHASE_LINES
        self._phase: str | None = None
        self._literal: object = None
        self._count = 0

    def lines(self, t: float) -> Iterator[str]:
        """Yield what is written now."""
        state = self._player.state
        phase, word = state.word("phase"), state.word("log")
        if phase != self._phase:
            self._phase = phase
            yield from self._of_phase(phase)
        if isinstance(word, tuple):
            if word is not self._literal:
                self._literal = word
                yield from word
        elif word == "progress":
            yield self._progress(phase, t)
        elif word in {"access", "heartbeat"}:
            yield self._stamped(ACCESS) if word == "access" else self._turns()

    def last_words(self) -> list[str]:
        """Return what an orderly end leaves in the log."""
        return [self._stamped(self._phase_lines["stopping"].replace("requests 1", "requests 0"))]

    def _turns(self) -> str:
        """Return what is written by a loop that turns and gets nothing done."""
        return self._stamped(THROUGHPUT.format(n=0)) if self._is_vllm else self._stamped(PROBE, "TP0")

    def _of_phase(self, phase: str | None) -> Iterator[str]:
        if phase is None:
            return
        text = self._phase_lines[phase]
        if phase in OF_EACH_RANK:
            yield from (self._stamped(text, rank) for rank in self._player.ranks)
        else:
            yield self._stamped(text)

    def _progress(self, phase: str | None, t: float) -> str:
        self._count += 1
        bar = BARS.get(phase or "")
        if bar:
            done = self._done(t)
            return bar.format(n=int(9999 * done), part=int(100 * done))
        if self._is_vllm:
            return self._stamped(THROUGHPUT.format(n=self._count))
        return self._stamped(DECODE.format(n=self._count), "TP0")

    def _done(self, t: float) -> float:
        """Return which part of its segment has passed, from 0 to 1."""
        state = self._player.state
        if not state.segment or not state.segment.seconds:
            return 1.0
        return min(1.0, (t - state.segment_begin) / state.segment.seconds)

    def _stamped(self, text: str, rank: str = "") -> str:
        if self._is_vllm:
            alone = len(self._player.ranks) == 1  # then there is no worker
            who = "APIServer" if not rank else "EngineCore" if alone else f"Worker_{rank}"
            return f"({who} pid=1) INFO {time.strftime('%m-%d %H:%M:%S')} [played.py:1] {text}"
        ranks = f" {rank.replace('_', ' ')}" if rank else ""
        return f"{time.strftime('[%Y-%m-%d %H:%M:%S')}{ranks}] {text}"
