"""Who plays in a scenario? The servers as discovery would find them: names, ranks, pids, GPUs by the flags' formula."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from stallwatch.engines import engine_named
from stallwatch.engines.engine import rank_parts
from stallwatch.simulation.plot import Node, PlayedServer
from stallwatch.snapshot import Place, Process, Server

COMMANDS = {"sglang": ("python", "-m", "sglang.launch_server"), "vllm": ("vllm", "serve")}
EMBEDDED = ":embedded"
PIDS_PER_SERVER = 100_000
PIDS_PER_LIFE = 100


@dataclass(frozen=True, slots=True)
class Role:
    """One process of a played server, by the name that the `process` label has."""

    name: str
    role: str
    rank: str = ""


def server_of(played: PlayedServer, number: int, node: Node) -> Server:
    """Return the server as it is found, without processes; one named `:embedded` has neither launcher nor port."""
    engine = engine_named(played.engine)
    argv = (*COMMANDS[played.engine], *played.args)
    launch = engine.launch(argv, lambda _name: "")
    if played.name.endswith(EMBEDDED):
        launch = replace(launch, port=None)
    bare = Server(
        name=played.name or f"{played.engine}{EMBEDDED if launch.port is None else f':{launch.port}'}",
        engine=played.engine,
        launch=launch,
        version=played.version,
        expected_schedulers=engine.expected(launch, argv),
        log_path=f"/logs/{number}.log",
        address=None if launch.port is None else "127.0.0.1",
    )
    ids = engine.gpu_ids(launch, [role.rank for role in roles(bare) if role.rank])
    places = tuple(Place(f"GPU-{index}", index, rank) for rank, index in ids.items() if index < node.gpus)
    return replace(bare, gpus=places)


def roles(server: Server) -> tuple[Role, ...]:
    """Return the processes of a server by its flags: launcher, schedulers of this node, what stands between."""
    launcher = () if server.launch.port is None else (Role("launcher", "launcher"),)
    if server.engine == "vllm":
        return (*launcher, *_of_vllm(server))
    ranks = _ranks(server)
    schedulers = [Role(f"scheduler_{rank}" if len(ranks) > 1 else "scheduler", "scheduler", rank) for rank in ranks]
    controller = [Role("data_parallel_controller", "data_parallel_controller")] if server.launch.dp_size > 1 else []
    detokenizer = [Role("detokenizer", "detokenizer")] if server.launch.node_rank == 0 else []
    return (*launcher, *controller, *schedulers, *detokenizer)


def _of_vllm(server: Server) -> Iterator[Role]:
    """Yield an engine core for each replica of this node, and its workers where it has any."""
    launch = server.launch
    each = launch.tp_size * launch.pp_size
    if launch.nnodes > launch.dp_size and launch.node_rank > 0:  # a part of a replica, whose engine core is elsewhere
        yield from (Role(f"Worker_{rank}", "scheduler", rank) for rank in _ranks(server))
        return
    first = launch.node_rank * launch.dp_size // launch.nnodes
    for number in range(first, first + max(1, (server.expected_schedulers or 1) // each)):
        replica, core = (f"DP{number}", f"EngineCore_DP{number}") if launch.dp_size > 1 else ("", "EngineCore")
        alone = replace(server, launch=replace(launch, dp_size=1, nnodes=1), expected_schedulers=each)
        workers = ["_".join(filter(None, (replica, rank))) for rank in _ranks(alone)] if each > 1 else []
        yield Role(core, "engine_core") if workers else Role(core, "scheduler", replica or "TP0")
        yield from (Role(f"Worker_{rank}", "scheduler", rank) for rank in workers)


def _ranks(server: Server) -> list[str]:
    launch = server.launch
    here = server.expected_schedulers or 1
    replicas = launch.dp_size if launch.dp_size > 1 and not launch.attention_dp else 1
    each = max(1, here // replicas)
    stages = max(1, launch.pp_size // launch.nnodes)
    width = max(1, each // stages)
    first = width * launch.node_rank if launch.pp_size == 1 else 0
    ranks = []
    for replica in range(replicas):
        for stage in range(stages):
            for tensor in range(first, first + width):
                parts = [f"PP{stage}"] * (launch.pp_size > 1) + [f"TP{tensor}"]
                ranks.append("_".join([f"DP{replica}"] * (replicas > 1) + parts))
    if launch.attention_dp and launch.dp_size > 1:
        return [f"DP{n * launch.dp_size // len(ranks)}_{rank}" for n, rank in enumerate(ranks)]
    return ranks


def role_named(server: Server, name: str) -> str | None:
    """Return the process that a scenario means: by its name, its title, or as much of its rank as tells it apart."""
    known = roles(server)
    plain = name.rpartition("::")[2].casefold()
    exact = [role.name for role in known if role.name.casefold() == plain or role.role == plain]
    if exact:
        return exact[0]
    wanted = rank_parts(plain.rpartition("scheduler_")[2].rpartition("worker_")[2].upper()).items()
    alike = [role.name for role in known if role.rank and wanted and wanted <= rank_parts(role.rank).items()]
    return alike[0] if len(alike) == 1 else None


def alive(server: Server, number: int, life: int, began: float) -> Server:
    """Return the server with the processes of one life, begun at this time (seconds since boot)."""
    first = PIDS_PER_SERVER * (number + 1) + PIDS_PER_LIFE * life
    processes = tuple(
        Process(first + n, 100 * first + n, began, role.role, role.name, role.rank)
        for n, role in enumerate(roles(server))
    )
    # Which GPUs it holds is not known from its processes: that is found out from the GPUs.
    return replace(server, processes=processes, gpus=(), incarnation=f"{first}.{100 * first}")
