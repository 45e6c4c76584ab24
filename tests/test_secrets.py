"""What is secret at a watched server stands in nothing that the exporter says, writes or keeps."""

import asyncio
import gzip
import json
import os
import re
import sys
import tarfile
import urllib.request
from itertools import count

import pytest

from exporter_process import ExporterProcess
from stallwatch.engines import sglang, vllm
from stallwatch.redaction import HIDDEN, public
from stallwatch.simulation.pager import free_port
from stallwatch.simulation.played import PlayedServer

RANKS = ("sglang::scheduler_TP0", "sglang::scheduler_TP1")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
FAST = {"INTERVAL": "250ms", "GPU__INTERVAL": "1s", "DISCOVERY__INTERVAL": "500ms", "ENGINE__INTERVAL": "500ms"}


class Canaries:
    """Words that stand nowhere else; none looks like a key, so that no pattern can be what hides it."""

    def __init__(self):
        self._numbers = count(100)
        self.planted = {}

    def __call__(self, where):
        """Return a new one, to be planted there."""
        word = f"Canary{next(self._numbers)}Bird"
        self.planted[word] = where
        return word

    def found_in(self, outputs):
        """Return what was found: where it was planted, and in which output it is."""
        pattern = re.compile("|".join(self.planted), re.IGNORECASE)
        whole = {word.lower(): where for word, where in self.planted.items()}
        return {(whole[word.lower()], name) for name, text in outputs.items() for word in pattern.findall(text)}


def arguments(secret, config):
    """Return a command line with secrets in every form."""
    return [
        *(
            "--model-path",
            f"https://user:{secret('model user')}@host/model?token={secret('query')}#{secret('fragment')}",
        ),
        *("--api-key", secret("--api-key X"), f"--admin-api-key={secret('--admin-api-key=X')}"),
        *("--hf-token", secret("--hf-token"), "--ssl-keyfile-password", secret("--ssl-keyfile-password")),
        *("--model-loader-extra-config", json.dumps({"token": secret("json")}), "--config", str(config)),
        *("--dist-init-addr", f"tcp://{secret('user of an address')}@192.0.2.1:5000", "--nnodes", "2"),
    ]


def log_lines(secret):
    """Return lines of a log in which prompts and keys stand, some at the place of a rank or a version."""
    stamp = "[2026-01-01 00:00:00"
    return [
        f"{stamp}] server_args=ServerArgs(model_path='m', api_key='{secret('server_args')}', host='{secret('host')}')",
        f"{stamp} TP0] Load weight begin. avail mem={secret('memory')}",
        f"{stamp} {secret('rank').upper()}7] Load weight end. type={secret('type')}",
        f"{stamp} TP1] Scheduler watchdog timeout (watchdog_timeout=300, cur_batch.reqs=[Req('{secret('prompt')}')])",
        f"{stamp}] Receive: obj=GenerateReqInput(text='{secret('request')}', rid='{secret('rid')}')",
        f"{stamp} TP0] {secret('message')}: LLM engine (v1.0-{secret('version')})",
        f'INFO:     127.0.0.1:5 - "GET /generate?prompt={secret("access line")} HTTP/1.1" 200 OK',
        f"ERROR:    Exception in ASGI application {secret('exception')}",
        f"torch.cuda.OutOfMemoryError: CUDA out of memory. {secret('torch')}",
        f"{secret('unfinished bar')}: 25% Completed | 1/4 [00:00<00:03,  1.00it/s]",
    ]


def engine_page(secret):
    """Return an engine's metrics with secrets in every place."""
    model = f'model_name="{secret("model_name")}"'
    return "\n".join(
        [
            f"# HELP sglang:num_running_reqs {secret('help')}",
            f'sglang:num_running_reqs{{{model},dp_rank="0"}} 3',
            f'sglang:num_running_reqs{{{model},dp_rank="{secret("dp_rank")}"}} 1',
            f'sglang:num_queue_reqs{{{model},priority="{secret("priority")}",pid="{secret("pid")}"}} 1',
            f'sglang:realtime_tokens_total{{{model},mode="{secret("mode")}"}} 1',
            f"sglang:{secret('name')}{{{model}}} 1",
            "",
        ]
    )


@pytest.fixture
async def planted(tmp_path):
    """Play a server that is full of secrets, and return it and them."""
    secret = Canaries()
    config, port = tmp_path / "engine.yaml", free_port()
    keys = ("api-key", "admin_api_key", "hf-token", "ssl-keyfile-password", "log-level")
    lines = [f"{key}: {secret(key)}" for key in keys]
    config.write_text("\n".join([*lines, f"x: {{y: [{secret('nested')}]}}", f"port: {port}", "tp-size: 2", ""]))
    environ = {name: secret(name) for name in ("HF_TOKEN", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY")}
    environ |= {"NCCL_SECRET_TOKEN": secret("NCCL_SECRET_TOKEN"), "NCCL_DEBUG": f"x?token={secret('a value')}"}
    environ |= {"CUDA_VISIBLE_DEVICES": f"0,{secret('devices')}", "VIRTUAL_ENV": f"/{secret('VIRTUAL_ENV')}"}
    server = PlayedServer(tmp_path, arguments(secret, config), {**os.environ, **environ})
    server.port, server.key_file = port, tmp_path / "key"
    server.key_file.write_text(secret("api_key_file"))
    await server.start()
    await server.spawn(*RANKS)
    await server.log(*log_lines(secret))
    await server.tell(listen=port, metrics=engine_page(secret), health=503)
    yield server, secret
    await server.stop()


def whole(scrape, name):
    """Say whether all that a server tells has been read."""
    running = scrape.value("engine_requests_running", server=name, dp_rank="0")
    errors = scrape.value("log_errors_total", server=name, kind="watchdog_timeout")
    return running == 3 and errors == 1 and bool(scrape.all("health_result", server=name))


async def said(exporter, name):
    """Return all that an exporter says, once it has seen the server; others may run on this machine."""
    scrape = await exporter.until(lambda scrape: whole(scrape, name))
    ((info, _),) = scrape.all("server_info", server=name)
    assert (info["model"], info["group"]) == ("https://host/model", "192.0.2.1:5000")
    assert exporter.process.returncode is None
    request = urllib.request.Request(f"http://127.0.0.1:{exporter.port}/metrics", headers={"Accept": OPENMETRICS})
    openmetrics = await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=10).read().decode())
    assert openmetrics.endswith("# EOF\n")
    pages = {path: await exporter.get(path) for path in ("/", "/api/v1/status")}
    checked = await run("check", "--url", f"http://127.0.0.1:{exporter.port}")
    assert name in checked
    return {"metrics": scrape.text, "openmetrics": openmetrics, **pages, "check": checked}


async def run(*words):
    """Run a command of ours, and return what it prints."""
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.STDOUT}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "stallwatch", *words, **pipes)
    out, _ = await process.communicate()
    return out.decode()


@pytest.mark.parametrize("form", ["logfmt", "json"])
async def test_an_exporter_gives_away_no_secret(planted, tmp_path, form):
    """Neither on a page nor in its own log at its most talkative nor in what it keeps."""
    server, secret = planted
    config, memory = tmp_path / "stallwatch.yml", tmp_path / "memory.json"
    named = f"{{name: kimi, port: {server.port}, api_key_file: {server.key_file}}}"
    config.write_text(f"servers: [{named}]\n" if form == "json" else "{}\n")
    kept = {"STATE__ENABLED": "true", "STATE__FILE": memory, "LOG__FORMAT": form, "LOG__LEVEL": "debug"}
    exporter = ExporterProcess(flags=[f"--config.file={config}"], **FAST, **kept)
    async with exporter:
        outputs = await said(exporter, "kimi" if form == "json" else f"sglang:{server.port}")
        assert "api_key_unreadable" not in outputs["/api/v1/status"]
    assert secret.found_in(outputs | {"log": exporter.log, "memory": memory.read_text()}) == set()
    assert exporter.log.count("\n") > 2


async def test_evidence_holds_no_secret(planted, tmp_path):
    """Neither a file of a bundle, with Python stacks and all, nor what is shown or packed of it."""
    server, secret = planted
    limits = {"LIMITS__SUSPECT": "1s", "LIMITS__EVIDENCE": "2s", "LIMITS__STALLED": "3s"}
    directory = tmp_path / "evidence"
    kept = {"EVIDENCE__ENABLED": "true", "EVIDENCE__DIRECTORY": directory, "EVIDENCE__STACKS": "true"}
    name = f"sglang:{server.port}"
    async with ExporterProcess(**FAST, **limits, **kept) as exporter:
        await exporter.until(lambda scrape: whole(scrape, name))
        scrape = await exporter.until(lambda scrape: scrape.all("evidence_info", server=name))
    ((labels, _),) = scrape.all("evidence_info", server=name)
    bundle, pack = directory / labels["bundle"], tmp_path / "pack.tar.gz"
    files = {path.name: path.read_bytes() for path in bundle.iterdir()}
    assert files.keys() >= {"threads.json", "descriptors.json", "environment.json", "lines.json", "stacks.json"}
    shown = await run("evidence", "show", str(bundle))
    assert name in shown
    await run("evidence", "pack", str(bundle), "--output", str(pack))
    with tarfile.open(pack) as archive:
        packed = {f"pack {one.name}": archive.extractfile(one).read() for one in archive.getmembers()}
    texts = {where: unpacked(data) for where, data in {**files, **packed}.items()}
    assert len(packed) > len(files)
    assert secret.found_in(texts | {"shown": shown, "log": exporter.log, "metrics": scrape.text}) == set()


def unpacked(data):
    """Return the text of a file, whether it is compressed or not."""
    return (gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data).decode(errors="replace")


async def test_a_recording_holds_no_secret(planted, tmp_path):
    """Nor does what is printed while it is made, as a table or as data."""
    server, secret = planted
    recording = tmp_path / "recording.jsonl"
    outputs = {}
    for turn in range(5):  # a busy machine may take more than one to see all
        outputs[f"printed {turn}"] = await run("check", "--for", "3s", "--record", str(recording))
        outputs["recording"] = recording.read_text()
        if f"sglang:{server.port}" in outputs["recording"] and '"watchdog_timeout":1' in outputs["recording"]:
            break
    else:
        pytest.fail("the server was not seen")
    outputs["replayed"] = await run("replay", str(recording), "--json")
    assert secret.found_in(outputs) == set()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("https://user:x@host/m", "https://host/m"),
        ("https://x@host/m?token=x#x", "https://host/m"),
        ("s3://bucket/m?X-Amz-Signature=x", "s3://bucket/m"),
        (f"/models/hf_{'x' * 34}/m", f"/models/{HIDDEN}/m"),
        ("/data/hf_models_cache/meta-llama/Llama-3.3-70B", "/data/hf_models_cache/meta-llama/Llama-3.3-70B"),
        ("org/model@main", "org/model@main"),
        ("m\n\x1b[0m", "m??[0m"),
        ("x" * 300, "x" * 200),
    ],
)
def test_a_name_is_published_without_what_may_open_something(name, shown):
    """Of a URL its place stays, of a name all."""
    assert public(name) == shown


@pytest.mark.parametrize("engine", [sglang, vllm])
def test_only_known_flags_leave_a_command_line(engine):
    """A value that follows any other flag, or none, stays where it is."""
    module = {"sglang": "sglang.launch_server", "vllm": "vllm.entrypoints.openai.api_server"}[engine.NAME]
    secret = Canaries()
    words = [word for flag in ("--api-key", "--key", "--hf-token", "--t", "-x", "--") for word in (flag, secret(flag))]
    found = engine.launch(("python", "-m", module, *words, "--port", "5"), lambda _path: "")
    assert secret.found_in({"launch": repr(found)}) == set()
