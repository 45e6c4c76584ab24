"""How does SGLang look from outside?

Its processes title themselves some seconds after they were spawned; the main process keeps its command line (except in
0.5.2). Ranks in titles are those of the whole server, not of the node, and their parts stand in an order that changed
from version to version.
"""

import re
from collections.abc import Iterable, Sequence

from stallwatch.engines.command_line import flag_values, program, with_config
from stallwatch.engines.engine import (
    LAUNCHER,
    OTHER,
    ROUTER,
    SCHEDULER,
    Argv,
    Engine,
    Identity,
    Member,
    ReadText,
    number,
    rank_parts,
    valid_rank,
)
from stallwatch.redaction import public
from stallwatch.snapshot import Launch

NAME = "sglang"
ROUTER_MODULE = "sglang_router.launch_server"

_TITLE = re.compile(r"(?:sglang|sgl_diffusion)::([A-Za-z0-9_./:-]{1,100})")
_TOKENIZER_WORKER = re.compile(r"tokenizer_worker:[0-9]{1,10}")
_ROLES = {
    "scheduler": SCHEDULER,
    "detokenizer": "detokenizer",
    "detokenizer_router": "detokenizer",
    "data_parallel_controller": "data_parallel_controller",
    "router": ROUTER,
    "server": LAUNCHER,
    "http_server/tokenizer_manager": LAUNCHER,
    "http_server/multi_tokenizer_router": LAUNCHER,
}
# The kernel's own name of a process holds 15 bytes; it is all there is of a zombie, or where a title cannot be read.
_CUT = {"schedul": "scheduler", "detoken": "detokenizer", "data_pa": "data_parallel_controller", "http_se": "server"}
_FLAGS = {
    "--model-path": "model",
    "--model": "model",
    "--served-model-name": "served",
    "--host": "host",
    "--port": "port",
    "--ssl-certfile": "tls",
    "--tp-size": "tp",
    "--tensor-parallel-size": "tp",
    "--dp-size": "dp",
    "--data-parallel-size": "dp",
    "--pp-size": "pp",
    "--pipeline-parallel-size": "pp",
    "--enable-dp-attention": "attention_dp",
    "--attn-dp-size": "attn_dp_size",
    "--attention-data-parallel-size": "attn_dp_size",
    "--nnodes": "nnodes",
    "--node-rank": "node_rank",
    "--dist-init-addr": "dist_init_addr",
    "--nccl-init-addr": "dist_init_addr",
    "--base-gpu-id": "base_gpu_id",
    "--gpu-id-step": "gpu_id_step",
    "--config": "config",
    "--use-ray": "uncountable",
    "--encoder-only": "uncountable",
}
_SWITCHES = ("attention_dp", "uncountable")


def identify(argv: Argv) -> Identity | None:
    """Say what an SGLang process is, by title or command line."""
    title = _TITLE.fullmatch(argv[0]) if argv else None
    if title:
        return _titled(title[1])
    if program(argv, (NAME,))[:2] == ("-m", ROUTER_MODULE):
        return Identity(NAME, ROUTER, ROUTER, flags=True)
    return Identity(NAME, LAUNCHER, LAUNCHER, flags=True) if _arguments(argv) is not None else None


def launch(argv: Argv, read_text: ReadText) -> Launch:
    """Parse a launcher's command line, or that of a router which starts servers with the same flags."""
    words = _arguments(argv) or ()
    config = flag_values(words, _FLAGS, _SWITCHES).get("config")
    values = flag_values(with_config(words, config, read_text), _FLAGS, _SWITCHES)
    model = words[0] if words and not words[0].startswith("-") else ""
    node_rank = number(values.get("node_rank"), 0, least=0)
    return Launch(
        model=public(values.get("served") or values.get("model") or model),
        host=public(values.get("host", "127.0.0.1")),
        port=number(values.get("port"), 30000),
        tls=bool(values.get("tls")),
        tp_size=number(values.get("tp"), 1),
        pp_size=number(values.get("pp"), 1),
        dp_size=number(values.get("dp"), 1),
        attention_dp="attention_dp" in values or number(values.get("attn_dp_size"), 1) > 1,
        nnodes=number(values.get("nnodes"), 1),
        node_rank=node_rank,
        worker=node_rank > 0,
        dist_init_addr=public(values.get("dist_init_addr", "")),
        base_gpu_id=number(values.get("base_gpu_id"), 0, least=0),
        gpu_id_step=number(values.get("gpu_id_step"), 1),
    )


def expected(found: Launch, argv: Argv) -> int | None:
    """Count the schedulers that belong on this node; None where they run elsewhere (Ray) or do not exist."""
    if "uncountable" in flag_values(_arguments(argv) or (), _FLAGS, _SWITCHES):
        return None
    pp_per_node, tp_per_node = _per_node(found)
    return pp_per_node * tp_per_node * (1 if found.attention_dp else found.dp_size)


def gpu_ids(found: Launch, ranks: Iterable[str]) -> dict[str, int]:
    """Say which GPU each rank uses by the flags, counted among those in CUDA_VISIBLE_DEVICES."""
    pp_per_node, tp_per_node = _per_node(found)
    ids = {}
    for rank in ranks:
        parts = rank_parts(rank)
        replica = 0 if found.attention_dp else parts.get("DP", 0)
        if replica >= found.dp_size:
            continue  # a replica that someone else numbers, and gives GPUs to
        ids[rank] = (
            found.base_gpu_id
            + replica * found.tp_size * found.pp_size * found.gpu_id_step
            + (parts.get("PP", 0) % pp_per_node) * tp_per_node
            + (parts.get("TP", 0) % tp_per_node) * found.gpu_id_step
        )
    return ids


def settle(_found: Launch, _count: int | None, members: Sequence[Member]) -> Sequence[Identity]:
    """Leave the roles as they are: each title tells its own."""
    return [identity for identity, _ in members]


def _per_node(found: Launch) -> tuple[int, int]:
    nodes_per_stage = max(found.nnodes // found.pp_size, 1)
    return max(found.pp_size // found.nnodes, 1), max(found.tp_size // nodes_per_stage, 1)


def _arguments(argv: Argv) -> tuple[str, ...] | None:
    words = program(argv, (NAME,))
    if words[:2] in (("-m", "sglang.launch_server"), ("-m", ROUTER_MODULE), (NAME, "serve")):
        return words[2:]
    if words[:3] in (("-m", NAME, "serve"), ("-m", "sglang.cli.main", "serve")):
        return words[3:]
    return words[1:] if words[:1] == ("sglang/launch_server.py",) else None


def _titled(text: str) -> Identity | None:
    if text.startswith("scheduler_"):
        rank = text.removeprefix("scheduler_")
        return Identity(NAME, SCHEDULER, text, rank) if valid_rank(rank) else None
    if _TOKENIZER_WORKER.fullmatch(text):
        return Identity(NAME, "tokenizer_worker", text)
    name = _CUT.get(text, text)
    role = _ROLES.get(name, OTHER)
    rank = "TP0" if text == "scheduler" else ""
    return Identity(NAME, role, LAUNCHER if role == LAUNCHER else name, rank)


ENGINE = Engine(NAME, (2, 1), identify, launch, expected, gpu_ids, settle)
