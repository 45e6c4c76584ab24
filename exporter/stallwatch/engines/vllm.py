"""How does vLLM look from outside?

Its workers are what SGLang calls schedulers. An EngineCore with one GPU has no workers and does their work itself; with
Ray they are children of Ray, and only the EngineCore is seen. Replicas of a dense model do not know of each other:
their workers have the same titles, and the EngineCore above them tells which one they belong to.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

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

NAME = "vllm"
ENGINE_CORE = "engine_core"

_TITLE = re.compile(r"VLLM::([A-Za-z0-9_./:-]{1,100})")
_CORE = re.compile(r"(?:DP)?EngineCor(?:e(?:Proc)?)?")  # the kernel's own name of it is cut
_FRONTS = frozenset({"APIServer", "APIServerProcessManager", "ExternalLBRank"})
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
    "--data-parallel-rank": "dp_rank",
    "-dpn": "dp_rank",
    "--data-parallel-external-lb": "external",
    "-dpe": "external",
    "--data-parallel-hybrid-lb": "hybrid",
    "-dph": "hybrid",
    "--data-parallel-multi-port-external-lb": "port_each",
    "--data-parallel-backend": "dp_backend",
    "-dpb": "dp_backend",
    "--distributed-executor-backend": "executor",
    "--data-parallel-address": "address",
    "-dpa": "address",
    "--pipeline-parallel-size": "pp",
    "-pp": "pp",
    "--prefill-context-parallel-size": "pcp",
    "-pcp": "pcp",
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
_SWITCHES = ("headless", "external", "hybrid", "port_each")


def identify(argv: Argv) -> Identity | None:
    """Say what a vLLM process is, by title or command line."""
    title = _TITLE.fullmatch(argv[0]) if argv else None
    if title:
        return _titled(title[1])
    if tuple(argv) == (NAME,):
        return Identity(NAME, LAUNCHER, LAUNCHER)
    words = _arguments(argv)
    if words is None:
        return None
    # It starts a server for each of its replicas, each with a port of its own.
    role = ROUTER if "port_each" in _values(words) else LAUNCHER
    return Identity(NAME, role, role, flags=True)


def launch(argv: Argv, read_text: ReadText) -> Launch:
    """Parse a launcher's command line."""
    words = _arguments(argv) or ()
    values = _values(with_config(words, _values(words).get("config"), read_text))
    model = words[0] if words and not words[0].startswith("-") else ""
    dp_size, local = number(values.get("dp"), 1), _local_replicas(values)
    first = number(values.get("dp_rank", values.get("dp_start")), 0, least=0)
    return Launch(
        model=public(values.get("served") or values.get("model") or model),
        host=public(values.get("host", "0.0.0.0")),  # noqa: S104  (vLLM's default, not an address of ours)
        port=None if "headless" in values else number(values.get("port"), 8000),
        tls=bool(values.get("tls")),
        tp_size=number(values.get("tp"), 1),
        pp_size=number(values.get("pp"), 1),
        dp_size=dp_size,
        nnodes=number(values.get("nnodes"), max(dp_size // (local or dp_size), 1)),
        node_rank=number(values.get("node_rank"), first // (local or dp_size), least=0),
        worker="headless" in values,
        dist_init_addr=public(_meeting(values)),
    )


def _meeting(values: Mapping[str, str]) -> str:
    """Return where several nodes meet; the port tells apart servers of the same nodes."""
    address, port = values.get("address", ""), values.get("meeting_port", "")
    return f"{address}:{port}" if address and port else address


def _local_replicas(values: Mapping[str, str]) -> int | None:
    """Return how many replicas the flags give this node, None where they do not say; 0 is a front end alone."""
    if "dp_rank" in values or "external" in values:
        return 1
    return number(values["dp_local"], 1, least=0) if "dp_local" in values else None


def expected(found: Launch, argv: Argv) -> int | None:
    """Count the workers that belong on this node; None with Ray, and where no flag gives this node its replicas."""
    values = _values(_arguments(argv) or ())
    replica = found.tp_size * found.pp_size * number(values.get("pcp"), 1)
    if "ray" in {values.get("executor"), values.get("dp_backend")}:
        return None
    if "port_each" in values:
        return replica
    local = None if "nnodes" in values else _local_replicas(values)
    if local is not None:
        return local * replica
    is_untold = "dp_start" in values and "nnodes" not in values
    return None if is_untold else max(found.dp_size * replica // found.nnodes, 1)


def gpu_ids(found: Launch, ranks: Iterable[str]) -> dict[str, int]:
    """Say which GPU each rank uses by the flags, counted among those in CUDA_VISIBLE_DEVICES."""
    here = expected(found, ()) or 1
    ids = {}
    for rank in ranks:
        parts = rank_parts(rank)
        if "PCP" in parts or parts.get("DP", 0) >= found.dp_size:
            continue  # what launches it gives it its GPUs
        stage = parts.get("DP", 0) * found.pp_size + parts.get("PP", 0)
        ids[rank] = (stage * found.tp_size + parts.get("TP", 0)) % here
    return ids


def settle(found: Launch, count: int | None, members: Sequence[Member]) -> Sequence[Identity]:
    """Let an EngineCore be the scheduler where no workers are, nor will be; name workers by their replica."""
    known = [_of_replica(identity, starter) for identity, starter in members]
    will_be = count is not None and found.tp_size * found.pp_size > 1
    if will_be or any(identity.role == SCHEDULER for identity in known):
        return [replace(identity, rank="") if identity.role == ENGINE_CORE else identity for identity in known]
    return [
        replace(identity, role=SCHEDULER, rank=identity.rank or "TP0") if identity.role == ENGINE_CORE else identity
        for identity in known
    ]


def _of_replica(identity: Identity, starter: Identity | None) -> Identity:
    replica = rank_parts(starter.rank).get("DP") if starter and starter.role == ENGINE_CORE else None
    if identity.role != SCHEDULER or replica is None or "DP" in rank_parts(identity.rank):
        return identity
    rank = f"DP{replica}_{identity.rank}"
    return replace(identity, name=f"Worker_{rank}", rank=rank)


def _values(words: Argv) -> dict[str, str]:
    return flag_values(words, _FLAGS, _SWITCHES)


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
    if _CORE.fullmatch(name):
        return Identity(NAME, ENGINE_CORE, text, f"DP{rank}" if rank.isdecimal() else rank)
    if name in _FRONTS:
        return Identity(NAME, LAUNCHER, text if rank else LAUNCHER)
    return Identity(NAME, OTHER, text)


ENGINE = Engine(NAME, (1, 2), identify, launch, expected, gpu_ids, settle)
