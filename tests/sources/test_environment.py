"""What is told of the environments that real processes were started with."""

import json
import os
import subprocess
import sys

import pytest

from frozen_disk import FrozenDisk, sleeps_in_kernel
from stallwatch.child import fields_of
from stallwatch.lanes import decoder
from stallwatch.sources.environment import ALLOWED, EnvironmentReading, allowed, debugging_of, reader, target
from stallwatch.workers import Deadlines, Worker, WorkerError
from wedged import process, read_as_nobody, server_of, until

NOTHING = frozenset()
CANARY = "canary4711"
TITLED = "import setproctitle, sys; setproctitle.setproctitle('sglang::scheduler_TP0'); print('ready'); input()"


def look(*servers, skip=NOTHING, **options):
    """Read the environments of these servers, as they come from a worker."""
    reading, failures = reader(options, lambda _: None)([target(server) for server in servers], skip)
    sent = json.dumps({"reading": reading, "failures": failures}, default=fields_of).encode()
    assert CANARY.encode() not in sent
    return decoder("environment", EnvironmentReading)(sent)


def test_only_what_is_on_the_list_is_told():
    """A rank's own environment is read, and what is not on the list stays with it."""
    environ = {"NCCL_DEBUG": "INFO", "NCCL_API_KEY": CANARY, "OPENAI_API_KEY": CANARY, "MY_NCCL_DEBUG": CANARY}
    environ |= {"NCCL_NET": f"https://me:{CANARY}@x/?sig={CANARY}", "TORCH_NCCL_DUMP": f"token={CANARY}"}
    with process("nothing") as launcher, process("nothing", environ=environ) as rank:
        reading, failures = look(server_of(launcher.pid, rank.pid))
    (found,) = reading.processes
    assert failures == ()
    assert (found.process, found.rank, found.pid, found.taken_from) == ("scheduler_TP0", "TP0", rank.pid, "")
    assert found.variables["NCCL_DEBUG"] == "INFO"
    assert {"OPENAI_API_KEY", "MY_NCCL_DEBUG", "NCCL_API_KEY", "PATH"}.isdisjoint(found.variables)
    assert found.variables["NCCL_NET"].startswith("https://")


def test_a_rank_that_titled_itself_has_the_launchers():
    """Its own environment is overwritten, and whose it is stands beside what is told."""
    with process("nothing", environ={"NCCL_ALGO": "Ring"}) as launcher:
        command = [sys.executable, "-u", "-c", TITLED]
        environ = {**os.environ, "NCCL_ALGO": "Tree"}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as rank:
            assert rank.stdout.readline() == b"ready\n"
            reading, _ = look(server_of(launcher.pid, rank.pid))
            rank.communicate(b"\n")
    (found,) = reading.processes
    assert (found.pid, found.taken_from, found.variables["NCCL_ALGO"]) == (rank.pid, "launcher", "Ring")


def test_a_value_is_fit_for_one_line_and_not_long():
    """Whoever starts a server may put anything there."""
    (value,) = allowed([("NCCL_DEBUG_SUBSYS", "\x1b[31m\n" + "x" * 10_000)]).values()
    assert value.startswith("?[31m?x")
    assert len(value) <= 200


@pytest.mark.parametrize("name", [name.replace("*", "X") for name in ALLOWED])
def test_each_name_on_the_list_is_let_through(name):
    """None of them is taken for a secret."""
    assert allowed([(name, "1")]) == {name: "1"}


@pytest.mark.parametrize("name", ["nccl_debug", "NCCL_DEBUG\n", "NCCL_" + "X" * 70, "NCCL_X=Y", "UCX_TLS_X"])
def test_names_that_are_none_are_not(name):
    """A name is of upper case letters and not longer than names are."""
    assert allowed([(name, "1")]) == {}


def test_what_is_there_to_look_deeper_with():
    """What is said, what is said to be off, and what is left to the version of PyTorch."""
    nothing = debugging_of({})
    assert (nothing.flight_recorder, nothing.flight_recorder_pipe, nothing.core_dump_trigger, nothing.ras) == (
        None,
        False,
        False,
        True,
    )
    everything = debugging_of(
        {
            "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/tmp/pipe",
            "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
            "NCCL_RAS_ENABLE": "0",
        }
    )
    assert (everything.flight_recorder, everything.flight_recorder_pipe, everything.core_dump_trigger) == (True,) * 3
    assert not everything.ras
    assert debugging_of({"TORCH_FR_BUFFER_SIZE": "0"}).flight_recorder is False


def test_what_may_not_be_read_is_one_failure():
    """Without the right nothing is told but which right is missing."""
    with process("nothing") as one, process("nothing") as other:
        told = json.loads(read_as_nobody("environment", target(server_of(one.pid, other.pid))))
    reading, (failure,) = told["reading"], told["failures"]
    assert (reading["processes"], failure["reason"]) == ([], "permission_denied")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount")
async def test_an_environment_that_blocks_is_named_and_then_left_alone(tmp_path):
    """The worker hangs with the pid in its note, and a read that skips this pid returns."""
    with FrozenDisk(tmp_path / "frozen") as disk, disk.wedged() as wedged:
        until(lambda: sleeps_in_kernel(wedged.pid) and blocks(wedged.pid))
        deadlines = Deadlines(call=1.0, first_call=1.0, to_sigterm=0.1, to_sigkill=0.2)
        worker = Worker("evidence", ["stallwatch.sources.environment"], {}, deadlines)
        asked = [target(server_of(wedged.pid))]
        try:
            with pytest.raises(WorkerError) as caught:
                await worker.call("environment", asked)
            again = await worker.call("environment", asked, skip=[caught.value.stuck_in])
        finally:
            await worker.close()
    assert caught.value.stuck_in == f"pid {wedged.pid}"
    reading, failures = decoder("environment", EnvironmentReading)(again)
    assert reading.processes == ()
    assert [failure.reason for failure in failures] == ["quarantined"]


def blocks(pid):
    """Tell whether a thread waits for the lock of the process's map, so that its environment cannot be read."""
    states = []
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/stat") as file:
            states.append(file.read().rpartition(")")[2].split()[0])
    return states.count("D") >= 2
