"""What may stand in a configuration, and what follows from it."""

import msgspec
import pytest

from stallwatch.config import Config, RuleError
from stallwatch.sections import HealthConfig, Limits, ServerConfig, ServerHealthConfig, TlsConfig
from stallwatch.values import format_duration, parse_duration, split_listen_address


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("15s", 15.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("25m45s", 1545.0),
        ("1h0m1s1ms", 3601.001),
        ("1.5h", 5400.0),
        ("15", 15.0),
        ("0.25", 0.25),
    ],
)
def test_a_duration_is_read_as_seconds(text, seconds):
    """Every way to write a duration yields its seconds."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "5 m", "-5s", "5m1h", "5s5s", "1d", "5M", "٣s", "1e3", "5sm", "5ss", "1h30"])
def test_what_is_no_duration_is_refused(text):
    """Units out of order, twice, unknown or missing are no duration."""
    with pytest.raises(ValueError, match="no duration"):
        parse_duration(text)


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.5, 1.0, 60.0, 90.0, 3600.0, 5400.0, 1545.0, 90061.25])
def test_a_written_duration_reads_back(seconds):
    """Writing a duration and reading it yields the same seconds."""
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        (":19847", (None, 19847)),
        ("127.0.0.1:19847", ("127.0.0.1", 19847)),
        ("[::1]:19847", ("::1", 19847)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_a_listen_address_has_a_host_and_a_port(address, parts):
    """A listen address falls into what a socket is bound to."""
    assert split_listen_address(address) == parts


@pytest.mark.parametrize("address", ["", "19847", ":", ":65536", "::1:19847", "[::1]", "[127.0.0.1]:1", "a.b:1", ":1 "])
def test_what_is_no_listen_address_is_refused(address):
    """A missing port, a name to resolve and a bare IPv6 address are no listen address."""
    with pytest.raises(ValueError, match=r".+"):
        split_listen_address(address)


def test_the_defaults_are_those_that_are_documented():
    """A configuration without any setting is complete."""
    config = Config()
    assert (config.web.listen_address, config.web.telemetry_path) == (":19847", "/metrics")
    assert (config.interval, config.discovery.interval, config.gpu.interval) == (1.0, 5.0, 5.0)
    assert (config.workers.deadline, config.workers.start_deadline) == (5.0, 60.0)
    assert config.health == HealthConfig(interval=15.0, timeout=25.0, paths=("/health",), when="always")
    assert (config.limits.suspect, config.limits.evidence, config.limits.stalled) == (60.0, 180.0, 240.0)
    assert config.collectors.disabled == frozenset()


def test_a_server_overrides_only_the_limits_it_names():
    """Other limits of that server, and all of another one, are the general ones."""
    limits = Limits(suspect=30.0)
    config = Config(limits=limits, servers=(ServerConfig(name="kimi", limits={"stalled": 200.0}),))
    assert config.limits_of("kimi") == msgspec.structs.replace(limits, stalled=200.0)
    assert config.limits_of("other") == limits
    assert limits.named()["suspect"] == 30.0


def test_a_server_is_probed_its_own_way():
    """Paths, key file and authorities of one server stay with it."""
    server = ServerConfig(
        name="kimi", health=ServerHealthConfig(paths=("/a",)), api_key_file="/key", tls=TlsConfig(ca_file="/ca.pem")
    )
    config = Config(health=HealthConfig(timeout=5.0), servers=(server, ServerConfig(name="plain")))
    kimi = config.health_of("kimi")
    assert (kimi.paths, kimi.timeout, kimi.api_key_file, kimi.ca_file) == (("/a",), 5.0, "/key", "/ca.pem")
    assert config.health_of("plain") == config.health_of("unknown")
    assert config.health_of("plain").paths == ("/health",)


def test_a_configuration_cannot_be_changed():
    """A part that holds a configuration can rely on it."""
    with pytest.raises(AttributeError):
        Config().interval = 2.0


def test_limits_out_of_order_are_refused_however_they_are_made():
    """The rule holds for a configuration made in code too."""
    with pytest.raises(RuleError, match=r"limits\.stalled: expected at least evidence"):
        Config(limits=Limits(stalled=100.0))
