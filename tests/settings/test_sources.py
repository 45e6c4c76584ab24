"""Where settings come from, which source wins, and what is said of a wrong one."""

import argparse
from pathlib import Path

import pytest

from stallwatch.config import Config
from stallwatch.settings.flags import explain
from stallwatch.settings.sources import ConfigError, add_flags, file_of, given, load

DATA = Path(__file__).parents[1] / "data" / "config"

DURATION = "expected a duration above 0 such as 500ms, 15s or 1h30m"
LISTEN = "web.listen_address: expected an address such as :19847, 127.0.0.1:19847 or [::1]:19847"
TELEMETRY = "web.telemetry_path: expected a path such as /metrics, and none of /, /-/... and /api/..., which are taken"
SECTIONS = (
    "collectors, discovery, engine, evidence, gpu, health, interval, limits, log, notify, path, servers, socket, "
    "state, web, workers"
)
LIMITS = (
    "compile, evidence, lost_process, rendezvous, rendezvous_multinode, silent, split, stalled, stalled_high_power, "
    "start_without_movement, start_without_movement_partial, stopping, suspect, warm_up, weights"
)
SERVER = (
    "api_key_file, end_to_end_probe, engine, expected_schedulers, gpus, group, health, host, limits, log, name, port, "
    "tls, uid"
)
WEB = "config_file, enable_lifecycle, listen_address, max_requests, telemetry_path"

MESSAGES = {
    "anchor": "line 2, column 5: anchors and aliases are not allowed",
    "boolean": "collectors.gpu: expected true or false, got 'no'",
    "date": "line 1, column 18: an impossible number or date; quote it if it is text",
    "duplicate-key": "line 4, column 1: key interval stands here twice",
    "duration": f"discovery.interval: {DURATION}, got '15 minutes'",
    "health-path": "health.paths[1]: expected a path that begins with one / such as /health, got 'v1/models'",
    "health-paths-empty": "health.paths: expected at least one",
    "health-paths-text": "health.paths: expected a list, got text",
    "health-timeout": "health.timeout: expected a duration of at least 1s, got '500ms'",
    "health-when": "health.when: expected one of always, quiet, got 'sometimes'",
    "interval": "interval: expected a duration from 50ms to 20s, got '0s'",
    "interval-long": "interval: expected a duration from 50ms to 20s, got '2m'",
    "interval-nan": f"gpu.interval: {DURATION}, got nan",
    "interval-negative": f"gpu.interval: {DURATION}, got -5",
    "later-key": f"forward: unknown key; allowed: {SECTIONS}",
    "limits-high-power": "limits.stalled_high_power: expected at least stalled (20m), got 15m",
    "limits-order": "limits.evidence: expected more than suspect (3m), got 3m",
    "listen-address": f"{LISTEN}, got '19847'",
    "listen-address-name": f"{LISTEN}, got 'example.org:19847'",
    "listen-address-port": f"{LISTEN}, got '[::1]:70000'",
    "port": "servers[0].port: expected a port from 1 to 65535, got 99999",
    "port-type": "servers[0].port: expected a port from 1 to 65535, got '8000'",
    "section-text": f"web: expected a mapping of {WEB}, got text",
    "server-api-key": f"servers[0].api_key: unknown key; allowed: {SERVER}; did you mean api_key_file?",
    "server-api-key-list": "servers[0].api_key_file: expected a file name, got something else, which is not shown",
    "server-engine": "servers[0].engine: expected one of sglang, vllm, got 'tgi'",
    "server-gpus": "servers[0].gpus[1]: expected a GPU number from 0, got -1",
    "server-gpus-twice": "servers[0].gpus: expected each once, found 1 2 times",
    "server-host": "servers[0].host: expected an IP address such as 127.0.0.1 or ::1, or localhost, got 'example.org'",
    "server-limit-order": "servers[1].limits.stalled: expected at least evidence (3m), got 2m",
    "server-limit-unknown": f"servers[0].limits.stale: unknown key; allowed: {LIMITS}; did you mean stalled?",
    "server-name-missing": "servers[0].name: missing, and every entry needs it",
    "server-name-twice": "servers[2].name: expected a name that no server above has, got 'a'",
    "servers-mapping": "servers: expected a list, got a mapping",
    "syntax": "line 3, column 2: expected <block end>, but found '<block mapping start>'",
    "tag": "line 1, column 18: not a plain YAML value",
    "telemetry-path": f"{TELEMETRY}, got 'metrics'",
    "telemetry-path-api": f"{TELEMETRY}, got '/api/metrics'",
    "telemetry-path-lifecycle": f"{TELEMETRY}, got '/-/metrics'",
    "telemetry-path-root": f"{TELEMETRY}, got '/'",
    "top-level": f"expected a mapping of {SECTIONS}, got a list",
    "two-documents": "line 2, column 1: but found another document",
    "unknown-key": "health.intervall: unknown key; allowed: interval, paths, timeout, when; did you mean interval?",
    "unknown-section": f"helth: unknown key; allowed: {SECTIONS}; did you mean health?",
}


def load_file(path):
    """Load only this file."""
    return load({"config.file": str(path)}, {})


def refusal(flags=(), environ=()):
    """Return what is said of these settings, which must be wrong."""
    with pytest.raises(ConfigError) as caught:
        load(dict(flags), dict(environ))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refusal_of(path, content):
    """Return what is said of a file with this content."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return refusal({"config.file": str(path)})


@pytest.mark.parametrize("what", sorted(MESSAGES))
def test_an_invalid_file_is_refused_in_one_line(what):
    """The line names the file, the key and what is allowed."""
    path = DATA / f"invalid-{what}.yml"
    assert refusal({"config.file": str(path)}) == f"{path}: {MESSAGES[what]}"


def test_every_invalid_file_has_its_message():
    """No file lies there unused."""
    assert {path.stem.removeprefix("invalid-") for path in DATA.glob("invalid-*.yml")} == set(MESSAGES)


def test_a_file_with_every_key_is_read():
    """Each key arrives where it belongs, and file names are relative to the file."""
    config = load_file(DATA / "valid-full.yml")
    kimi, qwen = config.servers
    assert config.file == DATA / "valid-full.yml"
    assert (config.web.listen_address, config.web.telemetry_path) == ("127.0.0.1:19848", "/stallwatch/metrics")
    assert (config.interval, config.discovery.interval, config.workers.start_deadline) == (0.5, 10.0, 90.0)
    assert (config.health.paths, config.health.when) == (("/health", "/v1/models"), "quiet")
    assert config.web.enable_lifecycle
    assert config.collectors.disabled == {"gpu"}
    assert config.path.procfs == str(DATA / "host" / "proc")
    assert config.notify.webhook_url_file == str(DATA / "secrets" / "webhook")
    assert (config.log.format, config.log.level) == ("json", "debug")
    assert (kimi.name, kimi.engine, kimi.port, kimi.host, kimi.gpus) == ("kimi", "sglang", 8000, "::1", (0, 1, 2, 3))
    assert (kimi.log, kimi.api_key_file) == (str(DATA / "logs" / "kimi.log"), "/run/secrets/key")
    assert config.health_of("kimi").paths == ("/health_generate",)
    assert config.health_of("kimi").ca_file == str(DATA / "ca.pem")
    assert (config.limits_of("kimi").stalled, config.limits_of("kimi").suspect) == (270.0, 30.0)
    assert (qwen.engine, qwen.gpus, config.limits_of("qwen").stalled) == ("vllm", None, 300.0)


@pytest.mark.parametrize("content", ["", "# nothing\n", "---\n", "\ufeff", "servers:\n", "web: {}\nservers: []\n"])
def test_a_file_that_says_nothing_leaves_the_defaults(tmp_path, content):
    """An empty file, only comments and empty sections are no mistake."""
    path = tmp_path / "stallwatch.yml"
    path.write_text(content)
    config = load_file(path)
    assert (config.web, config.limits, config.servers) == (Config().web, Config().limits, ())


def test_a_file_is_found_to_be_missing(tmp_path):
    """A named file that is not there is an error, not a default."""
    path = tmp_path / "missing.yml"
    assert refusal({"config.file": str(path)}) == f"{path}: cannot be read: No such file or directory"
    assert refusal({"config.file": str(tmp_path)}) == f"{tmp_path}: cannot be read: Is a directory"


def test_a_file_that_is_no_text_is_refused(tmp_path):
    """What is too large, not UTF-8 or nested without end is refused before it costs anything."""
    path = tmp_path / "c.yml"
    assert refusal_of(path, b"#" * (1 << 20) + b"\n") == f"{path}: larger than 1 MiB"
    assert refusal_of(path, b"web: \xff") == f"{path}: not UTF-8 at byte 5"
    assert refusal_of(path, b"web: \x00") == f"{path}: character 6: not allowed in YAML"
    assert refusal_of(path, "[" * 5000) == f"{path}: nested too deeply"


@pytest.mark.parametrize(
    "content",
    [
        "servers: [{name: a, api_key_file: !hunter2 x}]",
        "servers: [{name: a, api_key_file: !hunter2!x y}]",
        "servers: [{name: a, api_key_file: *hunter2 }]",
        "servers: [{name: a, api_key_file: {hunter2: hunter2}}]",
        "notify: {webhook_url_file: [hunter2]}",
        "notify: {webhook_url: 'https://hunter2.example.org/hunter2'}",
        "servers: hunter2",
        "servers: [hunter2]",
        "servers: [{name: a, host: 'root:hunter2@example.org'}]",
        "servers: [{name: a, tls: hunter2}]",
        "servers: [{name: a, port: 'api_key=hunter2'}]",
        "hunter2",
    ],
)
def test_no_message_shows_a_secret(tmp_path, content):
    """Whatever is wrong around a secret, the message does not repeat it."""
    assert "hunter2" not in refusal_of(tmp_path / "c.yml", content)


@pytest.mark.parametrize(
    "content", ["interval: '1\\n2'", '"a\\nb": 1', '"a\\u2028b": 1', "? [a]\n: 1", f"{'k' * 999}: 1"]
)
def test_a_message_stays_one_short_line(tmp_path, content):
    """Neither a key nor a value can break or flood the line."""
    assert len(refusal_of(tmp_path / "c.yml", content)) < 400


@pytest.mark.parametrize("content", [f"interval: {'9' * 5000}", f"interval: 0x{'9' * 5000}", f"0x{'9' * 5000}: 1"])
def test_a_number_beyond_all_bounds_is_refused(tmp_path, content):
    """A number that Python itself will not write is an error like others."""
    assert refusal_of(tmp_path / "c.yml", content).startswith(str(tmp_path))


def test_flags_win_over_environment_over_file_over_defaults(tmp_path):
    """Each source is used where no stronger one says anything."""
    path = tmp_path / "stallwatch.yml"
    path.write_text("interval: 2s\ngpu: {interval: 2s}\nhealth: {interval: 2s, timeout: 2s}\n")
    environ = {
        "STALLWATCH_CONFIG__FILE": str(path),
        "STALLWATCH_GPU__INTERVAL": "3s",
        "STALLWATCH_HEALTH__INTERVAL": "3s",
    }
    config = load({"health.interval": "4s"}, environ)
    assert (config.interval, config.gpu.interval, config.health.interval) == (2.0, 3.0, 4.0)
    assert (config.health.timeout, config.discovery.interval) == (2.0, 5.0)


def test_the_file_of_the_flag_wins():
    """A file named by a flag is read instead of the one that the environment names."""
    environ = {"STALLWATCH_CONFIG__FILE": "b.yml"}
    assert file_of({"config.file": "a.yml"}, environ) == Path("a.yml")
    assert file_of({}, environ) == Path("b.yml")
    assert file_of({}, {}) is None


def test_the_environment_sets_values_of_every_kind():
    """Durations, lists, switches and words are read from text."""
    environ = {
        "STALLWATCH_HEALTH__PATHS": "/health, /v1/models",
        "STALLWATCH_COLLECTORS__GPU": "false",
        "STALLWATCH_WEB__ENABLE_LIFECYCLE": "True",
        "STALLWATCH_LIMITS__STALLED_HIGH_POWER": "20m",
        "STALLWATCH_INTERVAL": "2",
        "STALLWATCH_LOG__LEVEL": "debug",
        "HOME": "/root",
    }
    config = load({}, environ)
    assert config.health.paths == ("/health", "/v1/models")
    assert (config.collectors.disabled, config.web.enable_lifecycle) == ({"gpu"}, True)
    assert (config.limits.stalled_high_power, config.interval, config.log.level) == (1200.0, 2.0, "debug")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("STALLWATCH_HEALTH__INTERVALL", "1s", "unknown variable; did you mean STALLWATCH_HEALTH__INTERVAL?"),
        ("STALLWATCH_HEALTH__INTERVAL", "soon", f"health.interval: {DURATION}, got 'soon'"),
        ("STALLWATCH_HEALTH__INTERVAL", "", f"health.interval: {DURATION}, got ''"),
        (
            "STALLWATCH_HEALTH__PATHS",
            "/a,b",
            "health.paths[1]: expected a path that begins with one / such as /health, got 'b'",
        ),
        ("STALLWATCH_COLLECTORS__LOG", "off", "collectors.log: expected true or false, got 'off'"),
        ("STALLWATCH_LIMITS__SUSPECT", "10m", "limits.evidence: expected more than suspect (10m), got 3m"),
    ],
)
def test_a_wrong_variable_is_named(name, value, message):
    """An error in the environment names the variable."""
    assert refusal(environ={name: value}) == f"{name}: {message}"


def test_servers_stand_only_in_the_file():
    """A list of mappings has no variable."""
    assert refusal(environ={"STALLWATCH_SERVERS": "a"}).startswith("STALLWATCH_SERVERS: unknown variable; ")


@pytest.mark.parametrize(
    "name",
    [
        "STALLWATCH_FAKE_GPUS",
        "STALLWATCH_SERVICE_HOST",
        "STALLWATCH_SERVICE_PORT_HTTP",
        "STALLWATCH_PORT",
        "STALLWATCH_PORT_19847_TCP_ADDR",
    ],
)
def test_variables_of_others_are_left_alone(name):
    """What tests hand to stand-ins, and what Kubernetes sets beside a Service of this name, is no setting."""
    assert load({}, {name: "anything"}) == Config()


def test_a_clash_of_two_sources_names_the_stronger_one(tmp_path):
    """Where a flag breaks what the file says, the flag is named."""
    path = tmp_path / "c.yml"
    path.write_text("limits: {suspect: 2m}\n")
    message = refusal({"config.file": str(path)}, {"STALLWATCH_LIMITS__EVIDENCE": "1m"})
    assert message == "STALLWATCH_LIMITS__EVIDENCE: limits.evidence: expected more than suspect (2m), got 1m"


def parse(*arguments):
    """Return the settings among these arguments."""
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return given(parser.parse_args(arguments))


def test_only_flags_that_were_given_are_settings():
    """A flag that nobody gave does not hide what the environment or the file says."""
    assert parse() == {}
    assert parse("--web.listen-address", ":1", "--no-collector.gpu") == {
        "web.listen_address": ":1",
        "collectors.gpu": False,
    }


def test_every_flag_sets_its_key():
    """What is typed arrives in the configuration."""
    typed = (
        "--web.listen-address=[::1]:80 --web.telemetry-path=/m --web.enable-lifecycle --interval=2s --gpu.interval=3s "
        "--discovery.interval=4s --workers.deadline=6s --workers.start-deadline=7s --health.interval=8s "
        "--health.timeout=9s --health.paths=/a,/b --health.when=quiet --no-collector.gpu --no-collector.process "
        "--no-collector.log --no-collector.health --path.procfs=/host/proc --log.format=json --log.level=error"
    )
    config = load(parse(*typed.split()), {})
    assert (config.web.listen_address, config.web.telemetry_path, config.web.enable_lifecycle) == (
        "[::1]:80",
        "/m",
        True,
    )
    assert (config.interval, config.gpu.interval, config.discovery.interval) == (2.0, 3.0, 4.0)
    assert (config.workers.deadline, config.workers.start_deadline) == (6.0, 7.0)
    assert (config.health.interval, config.health.timeout, config.health.paths) == (8.0, 9.0, ("/a", "/b"))
    assert (config.health.when, config.path.procfs) == ("quiet", "/host/proc")
    assert config.collectors.disabled == {"gpu", "process", "log", "health"}
    assert (config.log.format, config.log.level) == ("json", "error")


def test_a_wrong_flag_is_named():
    """An error in a flag names the flag as it was typed."""
    message = refusal(parse("--web.telemetry-path", "/"))
    assert message == f"--web.telemetry-path: {TELEMETRY}, got '/'"


def test_the_help_tells_the_defaults():
    """The help of a flag says what holds without it."""
    parser = argparse.ArgumentParser()
    explain(add_flags(parser))
    text = " ".join(parser.format_help().split())
    assert "how often to probe a server (default 15s)" in text
    assert "separated by commas in a flag or variable (default /health)" in text
