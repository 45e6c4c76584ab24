"""How vLLM is told by titles and command lines."""

import pytest

from stallwatch.engines import engine_named, identify
from stallwatch.engines.engine import Identity
from stallwatch.engines.vllm import expected, gpu_ids, launch, settle
from stallwatch.snapshot import Launch


def no_file(path):
    """Fail where a configuration file is asked for."""
    raise AssertionError(path)


@pytest.mark.parametrize(
    ("title", "role", "name", "rank"),
    [
        ("VLLM::EngineCore", "engine_core", "EngineCore", ""),
        ("VLLM::EngineCore_DP1", "engine_core", "EngineCore_DP1", "DP1"),
        ("VLLM::Worker_TP0", "scheduler", "Worker_TP0", "TP0"),
        ("VLLM::Worker_DP0_PP1_TP3_EP3", "scheduler", "Worker_DP0_PP1_TP3_EP3", "DP0_PP1_TP3_EP3"),
        ("VLLM::Worker", "scheduler", "Worker", "TP0"),
        ("VLLM::APIServer", "launcher", "launcher", ""),
        ("VLLM::APIServer_1", "launcher", "APIServer_1", ""),
        ("VLLM::APIServerProcessManager", "launcher", "launcher", ""),
        ("VLLM::ExternalLBRank_3", "launcher", "ExternalLBRank_3", ""),
        ("VLLM::EngineCoreProc_0", "engine_core", "EngineCoreProc_0", "DP0"),
        ("VLLM::DPEngineCoreProc_1", "engine_core", "DPEngineCoreProc_1", "DP1"),
        ("VLLM::Worker_TP1_DP0", "scheduler", "Worker_TP1_DP0", "TP1_DP0"),
        ("VLLM::DPCoordinator", "other", "DPCoordinator", ""),
        ("vllm", "launcher", "launcher", ""),
    ],
)
def test_every_title_is_known(title, role, name, rank):
    """Workers are what SGLang calls schedulers."""
    assert identify((title,)) == Identity("vllm", role, name, rank)


@pytest.mark.parametrize("title", ["VLLM::Worker_TP9999999", "VLLM::Worker_TP0 x", "VLLM::", "VLLM::Worker_\n"])
def test_a_hostile_title_is_nothing(title):
    """Anyone may call a process anything."""
    assert identify((title,)) is None


@pytest.mark.parametrize(
    "argv",
    [
        ("vllm", "serve", "m"),
        ("/v/bin/python3", "/v/bin/vllm", "serve", "m"),
        ("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"),
        ("python", "-m", "vllm.entrypoints.cli.main", "serve", "m"),
        ("numactl", "-N", "0", "vllm", "serve", "m"),
    ],
)
def test_launchers_are_known_by_what_they_run(argv):
    """By console script or by module, the model stands with or without a flag."""
    assert identify(argv).flags
    assert launch(argv, no_file) == Launch(model="m", host="0.0.0.0", port=8000)


def test_a_launcher_of_a_server_for_each_replica_routes_to_them():
    """Each has a port of its own, and the flags of all."""
    argv = ("vllm", "serve", "m", "-dp", "2", "-dpl", "2", "--data-parallel-multi-port-external-lb")
    assert identify(argv) == Identity("vllm", "router", "router", flags=True)


@pytest.mark.parametrize("argv", [("bash", "-c", "vllm serve m"), ("vllm", "bench"), ("ssh", "n", "vllm", "serve")])
def test_words_in_an_argument_make_no_launcher(argv):
    """Only what runs it counts."""
    assert identify(argv) is None


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (("-tp", "8"), "tp_size", 8),
        (("-tp=8",), "tp_size", 8),
        (("--tensor-parallel-size=8",), "tp_size", 8),
        (("--tensor_parallel_size", "8"), "tp_size", 8),
        (("-dp", "4"), "dp_size", 4),
        (("-pp", "2"), "pp_size", 2),
        (("--port", "9000"), "port", 9000),
        (("--headless",), "port", None),
        (("--headless",), "tp_size", 1),
        (("--served-model-name", "a", "b"), "model", "a"),
        (("-dp", "4", "-dpl", "2"), "nnodes", 2),
        (("-dp", "4", "-dpl", "2", "-dpr", "2"), "node_rank", 1),
        (("-dp", "4", "-dpl", "0"), "nnodes", 1),
        (("-dp", "4", "-dpn", "3"), "nnodes", 4),
        (("-dp", "4", "--data-parallel-rank", "3"), "node_rank", 3),
        (("-dp", "4", "-dpl", "2", "-dpr", "2", "-dph"), "worker", False),
        (("-dp", "4", "-dpl", "2", "-dpr", "2", "--headless"), "worker", True),
        (("--master-addr", "10.0.0.1", "--master-port", "29501"), "dist_init_addr", "10.0.0.1:29501"),
        (("-dpa", "10.0.0.1", "-dpp", "13345"), "dist_init_addr", "10.0.0.1:13345"),
        (("--master-addr", "10.0.0.1"), "dist_init_addr", "10.0.0.1"),
    ],
)
def test_flags_are_read(flags, field, value):
    """Short flags, long ones, and those of several nodes."""
    assert getattr(launch(("vllm", "serve", "m", *flags), no_file), field) == value


@pytest.mark.parametrize(
    ("flags", "count"),
    [
        ("", 1),
        ("-tp 8", 8),
        ("-tp 4 -pcp 2", 8),
        ("-tp 2 -pp 2 -dp 4 -dpl 2", 8),
        ("-tp 2 -dp 5 -dpl 3", 6),
        ("-dp 8 -dpl 2 -dpr 6", 2),
        ("-dp 8 -dpl 0", 0),
        ("-tp 16 --nnodes 2 -r 1 --headless", 8),
        ("-tp 8 -dp 2 --nnodes 4 -r 1 --headless", 4),
        ("-dp 4 -dpn 2", 1),
        ("-tp 2 -dp 4 --data-parallel-external-lb --data-parallel-rank 1", 2),
        ("-tp 2 -dp 4 -dpl 4 --data-parallel-multi-port-external-lb", 2),
        ("-dp 8 -dpr 4", None),
        ("-tp 8 --distributed-executor-backend ray", None),
        ("-dp 8 --data-parallel-backend=ray", None),
    ],
)
def test_expected_workers_follow_from_the_flags(flags, count):
    """The replicas of this node count, and with several nodes per replica a part of one; Ray places them itself."""
    argv = ("vllm", "serve", "m", *flags.split())
    assert expected(launch(argv, no_file), argv) == count


def test_the_gpu_of_a_rank_follows_from_the_flags():
    """Replicas come after one another, and each node counts from its own first GPU."""
    assert gpu_ids(Launch(tp_size=2, dp_size=2), ["DP0_TP1", "DP1_TP0"]) == {"DP0_TP1": 1, "DP1_TP0": 2}
    assert gpu_ids(Launch(tp_size=2, dp_size=2, nnodes=2), ["DP1_TP1"]) == {"DP1_TP1": 1}


def test_ranks_that_something_else_gives_gpus_to_are_left_out():
    """A replica that a launcher of several servers numbers, and groups whose order no flag tells."""
    assert gpu_ids(Launch(tp_size=2), ["DP1_TP0", "PCP1_TP0", "TP1"]) == {"TP1": 1}


CORE = Identity("vllm", "engine_core", "EngineCore")
WORKER = Identity("vllm", "scheduler", "Worker_TP0", "TP0")


def core_of(replica, role="engine_core"):
    """Return the engine core of a replica."""
    return Identity("vllm", role, f"EngineCore_DP{replica}", f"DP{replica}")


def test_an_engine_core_without_workers_is_the_scheduler():
    """With one GPU there is nobody else."""
    assert settle(Launch(), 1, [(CORE, None)]) == [Identity("vllm", "scheduler", "EngineCore", "TP0")]
    assert settle(Launch(dp_size=2), 2, [(core_of(1), None)]) == [core_of(1, "scheduler")]


def test_an_engine_core_whose_workers_are_of_ray_is_the_scheduler():
    """They are not below it."""
    assert settle(Launch(tp_size=8), None, [(CORE, None)]) == [Identity("vllm", "scheduler", "EngineCore", "TP0")]


def test_an_engine_core_with_workers_stays_one():
    """Also while they are still to come; it is no rank then."""
    assert settle(Launch(tp_size=2), 2, [(CORE, None)]) == [CORE]
    assert settle(Launch(), 1, [(CORE, None), (WORKER, CORE)]) == [CORE, WORKER]
    settled = settle(Launch(tp_size=2, dp_size=2), 4, [(core_of(1), None)])
    assert [(one.role, one.name, one.rank) for one in settled] == [("engine_core", "EngineCore_DP1", "")]


def test_workers_of_a_dense_model_are_named_by_their_replica():
    """Their titles are the same in each replica; those of a mixture of experts say it themselves."""
    told = Identity("vllm", "scheduler", "Worker_DP1_TP0_EP2", "DP1_TP0_EP2")
    members = [(WORKER, core_of(0)), (WORKER, core_of(1)), (told, core_of(1))]
    settled = settle(Launch(tp_size=2, dp_size=2), 4, members)
    assert [one.name for one in settled] == ["Worker_DP0_TP0", "Worker_DP1_TP0", "Worker_DP1_TP0_EP2"]
    assert [one.rank for one in settled] == ["DP0_TP0", "DP1_TP0", "DP1_TP0_EP2"]


def test_engines_are_found_by_name():
    """The name is the label."""
    assert engine_named("vllm").log_fds == (1, 2)
