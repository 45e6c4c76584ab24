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
        ("VLLM::APIServer_1", "other", "APIServer_1", ""),
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
        (("--master-addr", "10.0.0.1", "--master-port", "29501"), "dist_init_addr", "10.0.0.1:29501"),
        (("-dpa", "10.0.0.1", "-dpp", "13345"), "dist_init_addr", "10.0.0.1:13345"),
        (("--master-addr", "10.0.0.1"), "dist_init_addr", "10.0.0.1"),
    ],
)
def test_flags_are_read(flags, field, value):
    """Short flags, long ones, and those of several nodes."""
    assert getattr(launch(("vllm", "serve", "m", *flags), no_file), field) == value


@pytest.mark.parametrize(
    ("found", "count"),
    [
        (Launch(), 1),
        (Launch(tp_size=8), 8),
        (Launch(tp_size=2, pp_size=2, dp_size=4, nnodes=2), 8),
        (Launch(nnodes=4), 1),
    ],
)
def test_expected_workers_follow_from_the_flags(found, count):
    """All replicas count, divided among the nodes."""
    assert expected(found, ()) == count


def test_the_gpu_of_a_rank_follows_from_the_flags():
    """Replicas come after one another, and each node counts from its own first GPU."""
    assert gpu_ids(Launch(tp_size=2, dp_size=2), ["DP0_TP1", "DP1_TP0"]) == {"DP0_TP1": 1, "DP1_TP0": 2}
    assert gpu_ids(Launch(tp_size=2, dp_size=2, nnodes=2), ["DP1_TP1"]) == {"DP1_TP1": 1}


def test_an_engine_core_without_workers_is_the_scheduler():
    """With one GPU there is nobody else."""
    core = Identity("vllm", "engine_core", "EngineCore")
    assert settle(Launch(), [core]) == [Identity("vllm", "scheduler", "EngineCore", "TP0")]
    replica = Identity("vllm", "engine_core", "EngineCore_DP1", "DP1")
    assert settle(Launch(dp_size=2), [replica])[0].rank == "DP1"


def test_an_engine_core_with_workers_stays_one():
    """Also while they are still to come."""
    core, worker = Identity("vllm", "engine_core", "EngineCore"), Identity("vllm", "scheduler", "Worker_TP0", "TP0")
    assert settle(Launch(tp_size=2), [core]) == [core]
    assert settle(Launch(), [core, worker]) == [core, worker]


def test_engines_are_found_by_name():
    """The name is the label."""
    assert engine_named("vllm").log_fds == (1, 2)
