"""All sources that a worker reads, in a worker, on real processes in whose every place a secret is planted."""

import json
import subprocess
import sys

from stallwatch.lanes import decoder
from stallwatch.sources import descriptors, environment, kernel, lines, threads
from stallwatch.workers import Deadlines, Worker
from wedged import process, server_of

SOURCES = {
    descriptors: descriptors.DescriptorsReading,
    environment: environment.EnvironmentReading,
    kernel: kernel.KernelLinesReading,
    lines: lines.LinesReading,
    threads: threads.ThreadsReading,
}
MODULES = [source.__name__ for source in SOURCES]
CANARY = "Canary4711Bird"
LOG = (
    f"[2026-03-04 10:00:00] server_args=ServerArgs(model_path='/m', api_key='{CANARY}')\n"
    f"[2026-03-04 10:00:01 TP0] Load weight end. type={CANARY}, mem usage=1.05 GB\n"
    f"[2026-03-04 10:00:02] Receive: obj=GenerateReqInput(text='{CANARY}')\n"
    f"[2026-03-04 10:00:03 TP0] Scheduler watchdog timeout (watchdog_timeout=300, cur_batch.reqs=[Req('{CANARY}')])\n"
    f"{CANARY}\n"
)


async def test_all_sources_in_one_worker_let_no_secret_through(tmp_path):
    """Each gives its reading of a real server in good time, and no reply holds what was planted."""
    log, kmsg = tmp_path / f"{CANARY}.log", tmp_path / "kmsg"
    log.write_text(LOG)
    environ = {"NCCL_DEBUG": "INFO", "NCCL_TOKEN": CANARY, "OPENAI_API_KEY": CANARY, "TORCH_FR_BUFFER_SIZE": "2000"}
    options = {"environ": environ, "arguments": [f"--api-key={CANARY}"], "cwd": tmp_path}
    worker = Worker("evidence", MODULES, {"kmsg": str(kmsg)}, Deadlines(call=10, start=30, first_call=10))
    readings, replies = {}, {}
    with (
        log.open("ab") as written,
        process("lock", **options) as launcher,
        process("socket", "child", **options, stderr=written) as rank,
    ):
        kmsg.write_text(f"4,1,1,-;Out of memory: Killed process {rank.pid} (python) token={CANARY}\n")
        link = tmp_path / "fd2"
        link.symlink_to(log)  # what a configuration names may be a link
        server = server_of(launcher.pid, rank.pid, log_path=str(link))
        try:
            for source, reading in SOURCES.items():
                asked = [source.target(server)]
                replies[source] = await worker.call(source.NAME, asked)
                readings[source], failures = decoder(source.NAME, reading)(replies[source])
                assert {failure.reason for failure in failures} <= {"permission_denied"}, failures
        finally:
            await worker.close()
    assert {one.process for one in readings[threads].processes} == {"launcher", "scheduler_TP0"}
    assert {one.process for one in readings[descriptors].processes} == {"launcher", "scheduler_TP0"}
    assert [one.variables["NCCL_DEBUG"] for one in readings[environment].processes] == ["INFO"]
    assert [line.word for line in readings[lines].logs[0].lines] == ["launch", "load_end", "watchdog_timeout"]
    assert [line.process for line in readings[kernel].lines] == ["scheduler_TP0"]
    for source, reply in replies.items():
        assert CANARY.lower().encode() not in reply.lower(), source.NAME


async def test_a_bad_target_costs_no_more_than_its_own_reading():
    """A server whose processes have gone meanwhile gives readings without it."""
    with process("nothing") as gone:
        server = server_of(gone.pid, log_path="/nowhere/server.log")
    worker = Worker("evidence", MODULES, {"kmsg": "/dev/null"}, Deadlines(call=10, start=30, first_call=10))
    try:
        for source, reading in SOURCES.items():
            found, failures = decoder(source.NAME, reading)(await worker.call(source.NAME, [source.target(server)]))
            assert found is not None
            assert {failure.reason for failure in failures} <= {"not_found"}
            assert not getattr(found, "processes", ())
    finally:
        await worker.close()


def test_a_worker_with_all_sources_loads_nothing_heavy():
    """What costs megabytes per process stays in the exporter."""
    code = (
        f"import sys, json, {', '.join(['stallwatch.child', *MODULES])}\n"
        "heavy = ('aiohttp', 'prometheus_client', 'asyncio', 'msgspec', 'yaml', 'watchdog', 'pathlib', 'psutil')\n"
        "print(json.dumps([module for module in heavy if module in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30, check=True)
    assert json.loads(done.stdout) == []
