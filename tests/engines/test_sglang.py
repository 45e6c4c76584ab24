"""How SGLang is told by titles and command lines."""

import pytest

from stallwatch.engines import identify
from stallwatch.engines.engine import Identity
from stallwatch.engines.sglang import ENGINE, expected, gpu_ids, launch
from stallwatch.snapshot import Launch

MODULE = ("python3", "-m", "sglang.launch_server")


def no_file(path):
    """Fail where a configuration file is asked for."""
    raise AssertionError(path)


def parse(*flags):
    """Return the launch of these flags."""
    return launch((*MODULE, *flags), no_file)


@pytest.mark.parametrize(
    ("title", "role", "name", "rank"),
    [
        ("sglang::scheduler", "scheduler", "scheduler", "TP0"),
        ("sglang::scheduler_None", "scheduler", "scheduler_None", "None"),
        ("sglang::scheduler_1", "scheduler", "scheduler_1", "1"),
        ("sglang::scheduler_TP7", "scheduler", "scheduler_TP7", "TP7"),
        ("sglang::scheduler_DP1_TP3_PP0", "scheduler", "scheduler_DP1_TP3_PP0", "DP1_TP3_PP0"),
        ("sglang::scheduler_DP0_TP1_EP1_PP1", "scheduler", "scheduler_DP0_TP1_EP1_PP1", "DP0_TP1_EP1_PP1"),
        ("sglang::scheduler_PP0_TP15_EP15", "scheduler", "scheduler_PP0_TP15_EP15", "PP0_TP15_EP15"),
        (
            "sglang::scheduler_DP0_PP0_ATTN_CP1_MOE_DP0_TP3",
            "scheduler",
            "scheduler_DP0_PP0_ATTN_CP1_MOE_DP0_TP3",
            "DP0_PP0_ATTN_CP1_MOE_DP0_TP3",
        ),
        ("sgl_diffusion::scheduler_0", "scheduler", "scheduler_0", "0"),
        ("sgl_diffusion::scheduler_TP1_U0_R0", "scheduler", "scheduler_TP1_U0_R0", "TP1_U0_R0"),
        ("sglang::detokenizer", "detokenizer", "detokenizer", ""),
        ("sglang::detokenizer_router", "detokenizer", "detokenizer_router", ""),
        ("sglang::data_parallel_controller", "data_parallel_controller", "data_parallel_controller", ""),
        ("sglang::tokenizer_worker:4711", "tokenizer_worker", "tokenizer_worker:4711", ""),
        ("sglang::http_server/tokenizer_manager", "launcher", "launcher", ""),
        ("sglang::http_server/multi_tokenizer_router", "launcher", "launcher", ""),
        ("sglang::server", "launcher", "launcher", ""),
        ("sglang::router", "router", "router", ""),
        ("sglang::something_new", "other", "something_new", ""),
        ("sglang::schedul", "scheduler", "scheduler", ""),
        ("sglang::detoken", "detokenizer", "detokenizer", ""),
    ],
)
def test_every_title_is_known(title, role, name, rank):
    """Titles of all versions, and what the kernel leaves of them."""
    assert identify((title,)) == Identity("sglang", role, name, rank)


@pytest.mark.parametrize(
    "title",
    [
        "sglang::scheduler_TP999999999",
        "sglang::scheduler_TP0 evil",
        'sglang::scheduler_TP0"} 1\n',
        "sglang::scheduler_\x1b[31m",
        "sglang::scheduler_",
        "sglang::scheduler_" + "TP1" * 60,
        "sglang::",
        "sglang:: ",
        "sglang::\u0665",
        "xsglang::scheduler",
        "",
    ],
)
def test_a_hostile_title_is_nothing(title):
    """Anyone may call a process anything."""
    assert identify((title,)) is None


@pytest.mark.parametrize(
    "argv",
    [
        ("python", "-m", "sglang.launch_server", "--port", "1"),
        ("/opt/venv/bin/python3.11", "-X", "dev", "-W", "ignore", "-u", "-m", "sglang.launch_server"),
        ("python3", "-Xfrozen_modules=off", "-um", "sglang.launch_server"),
        ("python3", "-msglang.launch_server"),
        ("sglang", "serve", "some/model"),
        ("/opt/venv/bin/sglang", "serve", "--model-path", "m"),
        ("/opt/venv/bin/python", "/opt/venv/bin/sglang", "serve"),
        ("python3", "-m", "sglang", "serve"),
        ("python", "python/sglang/launch_server.py", "--tp", "2"),
        ("numactl", "--cpunodebind=0", "--membind=0", "python", "-m", "sglang.launch_server"),
        ("/usr/bin/env", "A=1", "sglang", "serve"),
    ],
)
def test_launchers_are_known_by_what_they_run(argv):
    """Interpreter options and wrappers that become the program stand before it."""
    found = identify(argv)
    assert (found.role, found.name, found.flags) == ("launcher", "launcher", True)


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("bash", "-c", "python -m sglang.launch_server --port 30000"),
        ("sh", "-c", "exec", "sglang", "serve"),
        ("ssh", "node", "python", "-m", "sglang.launch_server"),
        ("docker", "run", "image", "python3", "-m", "sglang.launch_server"),
        ("timeout", "1h", "python3", "-m", "sglang.launch_server"),
        ("vim", "sglang.launch_server"),
        ("grep", "-r", "sglang.launch_server", "."),
        ("tail", "-f", "sglang", "serve"),
        ("pgrep", "-f", "sglang.launch_server"),
        ("python3", "-c", "import x", "-m", "sglang.launch_server"),
        ("python3", "script.py", "-m", "sglang.launch_server"),
        ("python3", "-m", "sglang.bench_serving"),
        ("python3", "-m", "sglang.srt.weight_cache.daemon"),
        ("python3", "-m"),
        ("python3", "-X"),
        ("python3",),
        ("numactl", "--show"),
        ("numactl",),
        ("sglang",),
        ("sglang", "killall"),
    ],
)
def test_words_in_an_argument_make_no_launcher(argv):
    """A shell, an editor or a search that names the module does not run it."""
    assert identify(argv) is None


def test_the_router_that_starts_servers_is_no_server():
    """Its flags are those of the servers below it."""
    argv = ("python3", "-m", "sglang_router.launch_server", "--tp", "2", "--dp-size", "4")
    assert identify(argv) == Identity("sglang", "router", "router", flags=True)
    assert launch(argv, no_file).tp_size == 2


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (("--port", "31000"), "port", 31000),
        (("--port=31000",), "port", 31000),
        (("--port", "1", "--port", "2"), "port", 2),
        ((), "port", 30000),
        (("--port", "abc"), "port", 30000),
        (("--port", "99999999"), "port", 30000),
        (("--port", "0"), "port", 30000),
        (("--port",), "port", 30000),
        (("--port", "9" * 5000), "port", 30000),
        (("--", "--port", "5"), "port", 30000),
        (("--tp", "8"), "tp_size", 8),
        (("--tp=8",), "tp_size", 8),
        (("--tensor-parallel-size", "8"), "tp_size", 8),
        (("--tensor-par", "8"), "tp_size", 8),
        (("--tp", "-8"), "tp_size", 1),
        (("--dp", "2"), "dp_size", 2),
        (("--pp", "2"), "pp_size", 2),
        (("--ep", "8"), "tp_size", 1),
        (("--enable-dp-attention",), "attention_dp", True),
        (("--enable-dp-att",), "attention_dp", True),
        (("--enable-dp-attention-local-control-broadcast",), "attention_dp", False),
        (("--enable-dp-lm-head",), "attention_dp", False),
        (("--attn-dp-size", "2"), "attention_dp", True),
        (("--attn-dp-size", "1"), "attention_dp", False),
        (("--nnodes", "2"), "nnodes", 2),
        (("--node-rank", "1"), "node_rank", 1),
        (("--nccl-init-addr", "10.0.0.1:5000"), "dist_init_addr", "10.0.0.1:5000"),
        (("--base-gpu-id", "4"), "base_gpu_id", 4),
        (("--gpu-id-step", "2"), "gpu_id_step", 2),
        (("--host", "0.0.0.0"), "host", "0.0.0.0"),
        ((), "host", "127.0.0.1"),
        (("--ssl-certfile", "c.pem"), "tls", True),
        (("--ssl-ca-certs", "c.pem"), "tls", False),
        (("--model", "m", "--served-model-name", "kimi"), "model", "kimi"),
        (("--model-path", "/m/x"), "model", "/m/x"),
        (("--mod", "/m/x"), "model", "/m/x"),
        (("--model-path", "a\nb\x1b" + "c" * 400), "model", "a?b?" + "c" * 196),
        (("--api-key", "secret"), "model", ""),
    ],
)
def test_flags_are_read_as_argparse_would(flags, field, value):
    """Aliases, abbreviations, both ways to give a value; a bad one is the default."""
    assert getattr(parse(*flags), field) == value


def test_a_model_may_stand_without_a_flag():
    """`sglang serve MODEL` is a launcher too."""
    assert launch(("sglang", "serve", "some/model", "--port", "5"), no_file) == Launch(model="some/model", port=5)


def test_no_key_gets_into_a_launch():
    """What is not asked for stays behind."""
    found = launch((*MODULE, "--api-key", "sk-1", "--admin-api-key=sk-2", "--ssl-keyfile-password", "sk-3"), no_file)
    assert "sk-" not in repr(found)


def test_a_configuration_file_gives_what_the_command_line_leaves_out():
    """Keys are long flags with either dash; the command line wins."""
    texts = {"c.yaml": "tp-size: 8\nport: 31000\nenable_dp_attention: true\nmodel_path: m\nnnodes: [2]\nlora: {a: 1}\n"}
    found = launch((*MODULE, "--config", "c.yaml", "--port", "32000"), texts.__getitem__)
    assert found == Launch(model="m", port=32000, tp_size=8, attention_dp=True, nnodes=2)


@pytest.mark.parametrize("text", ["[1, 2", "- 1\n", "[" * 5000])
def test_a_configuration_file_that_is_none_is_a_value_error(text):
    """The caller makes a failure of it."""
    with pytest.raises(ValueError, match=r".*"):
        launch((*MODULE, "--config", "c.yaml"), lambda _path: text)


@pytest.mark.parametrize(
    ("found", "count"),
    [
        (Launch(), 1),
        (Launch(tp_size=8), 8),
        (Launch(tp_size=16, nnodes=2), 8),
        (Launch(tp_size=8, pp_size=2, nnodes=2), 8),
        (Launch(tp_size=4, pp_size=2), 8),
        (Launch(tp_size=8, pp_size=2, nnodes=4), 4),
        (Launch(tp_size=2, dp_size=4), 8),
        (Launch(tp_size=8, dp_size=8, attention_dp=True), 8),
        (Launch(tp_size=1, nnodes=4), 1),
    ],
)
def test_expected_schedulers_follow_from_the_flags(found, count):
    """Attention data parallelism lives inside tensor parallelism and adds none."""
    assert expected(found, MODULE) == count


def test_servers_without_schedulers_of_their_own_expect_none():
    """Ray runs them elsewhere; an encoder has none."""
    assert expected(Launch(), (*MODULE, "--use-ray")) is None
    assert expected(Launch(), (*MODULE, "--encoder-only")) is None


@pytest.mark.parametrize(
    ("found", "ids"),
    [
        (Launch(tp_size=2, base_gpu_id=4), {"TP0": 4, "TP1": 5}),
        (Launch(tp_size=2, gpu_id_step=2), {"TP0": 0, "TP1": 2}),
        (Launch(tp_size=16, nnodes=2, node_rank=1), {"TP8": 0, "TP15": 7}),
        (Launch(tp_size=2, pp_size=2), {"PP0_TP1": 1, "PP1_TP0": 2}),
        (Launch(tp_size=2, pp_size=2, nnodes=2, node_rank=1), {"TP1_PP1": 1}),
        (Launch(tp_size=2, dp_size=2), {"DP0_TP1": 1, "DP1_TP0": 2}),
        (Launch(tp_size=4, dp_size=4, attention_dp=True), {"DP3_TP3": 3}),
        (Launch(tp_size=4, attention_dp=True, dp_size=4), {"DP1_PP0_ATTN_CP1_MOE_DP0_TP2_EP3": 2}),
        (Launch(dp_size=2), {"0": 0, "1": 1}),
        (Launch(), {"TP0": 0}),
    ],
)
def test_the_gpu_of_a_rank_follows_from_the_flags(found, ids):
    """Parts of a rank are read by name, in any order."""
    assert gpu_ids(found, ids) == ids


def test_a_replica_that_someone_else_numbers_has_no_known_gpu():
    """Absent is better than wrong."""
    assert gpu_ids(Launch(tp_size=2), ["DP3_TP0"]) == {}


def test_hostile_ranks_and_launches_do_not_divide_by_zero():
    """Sizes that do not fit each other still give numbers."""
    assert gpu_ids(Launch(tp_size=1, nnodes=8, pp_size=3), ["TP99999", "", "None"])
    assert expected(Launch(tp_size=3, nnodes=7, pp_size=2), MODULE) >= 1


def test_the_log_goes_to_standard_error_first():
    """Only access lines go to standard output."""
    assert ENGINE.log_fds == (2, 1)
