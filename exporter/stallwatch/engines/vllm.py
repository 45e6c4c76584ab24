"""How does vLLM look from outside?

Its workers are what SGLang calls schedulers. An EngineCore with one GPU has no workers and does their work itself.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from stallwatch.engines.command_line import flag_values, program, with_config
from stallwatch.engines.engine import (
    LAUNCHER,
    OTHER,
    SCHEDULER,
    Argv,
    Engine,
    Identity,
    ReadText,
    number,
    rank_parts,
    valid_rank,
)
from stallwatch.redaction import public
from stallwatch.snapshot import Launch

NAME = "vllm"
ENGINE_CORE = "engine_core"

_TITLE = re.compile(r"VLLM::([A-Za-z0-9_./:-]{1,100})")
_FLAGS = {
    "--model": "model",
    "--served-model-name": "served",
    "--host": "host",
    "--port": "port",
    "--ssl-certfile": "tls",
    "--tensor-parallel-size": "tp",
    "-tp": "tp",
    "--data-parallel-size": "dp",
    "-dp": "dp",
    "--data-parallel-size-local": "dp_local",
    "-dpl": "dp_local",
    "--data-parallel-start-rank": "dp_start",
    "-dpr": "dp_start",
    "--data-parallel-address": "address",
    "-dpa": "address",
    "--pipeline-parallel-size": "pp",
    "-pp": "pp",
    "--nnodes": "nnodes",
    "-n": "nnodes",
    "--node-rank": "node_rank",
    "-r": "node_rank",
    "--master-addr": "address",
    "--master-port": "meeting_port",
    "--data-parallel-rpc-port": "meeting_port",
    "-dpp": "meeting_port",
    "--config": "config",
    "--headless": "headless",
}
_SWITCHES = ("headless",)


def identify(argv: Argv) -> Identity | None:
    """Say what a vLLM process is, by title or command line."""
    title = _TITLE.fullmatch(argv[0]) if argv else None
    if title:
        return _titled(title[1])
    if tuple(argv) == (NAME,):
        return Identity(NAME, LAUNCHER, LAUNCHER)
    return Identity(NAME, LAUNCHER, LAUNCHER, flags=True) if _arguments(argv) is not None else None


def launch(argv: Argv, read_text: ReadText) -> Launch:
    """Parse a launcher's command line."""
    words = _arguments(argv) or ()
    config = flag_values(words, _FLAGS, _SWITCHES).get("config")
    values = flag_values(with_config(words, config, read_text), _FLAGS, _SWITCHES)
    model = words[0] if words and not words[0].startswith("-") else ""
    dp_size = number(values.get("dp"), 1)
    dp_local = number(values.get("dp_local"), dp_size)
    return Launch(
        model=public(values.get("served") or values.get("model") or model),
        host=public(values.get("host", "0.0.0.0")),  # noqa: S104  (vLLM's default, not an address of ours)
        port=None if "headless" in values else number(values.get("port"), 8000),
        tls=bool(values.get("tls")),
        tp_size=number(values.get("tp"), 1),
        pp_size=number(values.get("pp"), 1),
        dp_size=dp_size,
        nnodes=number(values.get("nnodes"), max(dp_size // dp_local, 1)),
        node_rank=number(values.get("node_rank"), number(values.get("dp_start"), 0) // dp_local, least=0),
        dist_init_addr=public(_meeting(values)),
    )


def _meeting(values: Mapping[str, str]) -> str:
    """Return where several nodes meet; the port tells apart servers of the same nodes."""
    address, port = values.get("address", ""), values.get("meeting_port", "")
    return f"{address}:{port}" if address and port else address


def expected(found: Launch, _argv: Argv) -> int | None:
    """Count the workers that belong on this node."""
    return max(found.dp_size * found.pp_size * found.tp_size // found.nnodes, 1)


def gpu_ids(found: Launch, ranks: Iterable[str]) -> dict[str, int]:
    """Say which GPU each rank uses by the flags, counted among those in CUDA_VISIBLE_DEVICES."""
    here = expected(found, ()) or 1
    ids = {}
    for rank in ranks:
        parts = rank_parts(rank)
        stage = parts.get("DP", 0) * found.pp_size + parts.get("PP", 0)
        ids[rank] = (stage * found.tp_size + parts.get("TP", 0)) % here
    return ids


def settle(found: Launch, identities: Sequence[Identity]) -> Sequence[Identity]:
    """Let an EngineCore be the scheduler where no workers are, nor will be."""
    if found.tp_size * found.pp_size > 1 or any(identity.role == SCHEDULER for identity in identities):
        return identities
    return [
        replace(identity, role=SCHEDULER, rank=identity.rank or "TP0") if identity.role == ENGINE_CORE else identity
        for identity in identities
    ]


def _arguments(argv: Argv) -> tuple[str, ...] | None:
    words = program(argv, (NAME,))
    if words[:2] in (("-m", "vllm.entrypoints.openai.api_server"), (NAME, "serve")):
        return words[2:]
    if words[:3] in (("-m", NAME, "serve"), ("-m", "vllm.entrypoints.cli.main", "serve")):
        return words[3:]
    return words[1:] if words[:1] == ("openai/api_server.py",) else None


def _titled(text: str) -> Identity | None:
    name, _, rank = text.partition("_")
    if rank and not valid_rank(rank):
        return None
    if name == "Worker":
        return Identity(NAME, SCHEDULER, text, rank or "TP0")
    if name in ("EngineCore", "EngineCor"):
        return Identity(NAME, ENGINE_CORE, text, rank)
    if text == "APIServer":
        return Identity(NAME, LAUNCHER, LAUNCHER)
    return Identity(NAME, OTHER, text)


ENGINE = Engine(NAME, (1, 2), identify, launch, expected, gpu_ids, settle)
