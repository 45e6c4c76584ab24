"""Does the bundle hang together? Every path, port, name and uid, followed through all of its files."""

import os
import re
import subprocess
from urllib.parse import parse_qsl, urlsplit

import pytest

from bundle import (
    ALERTMANAGER,
    COMPOSE,
    DASHBOARDS,
    DATASOURCES,
    DOCKERFILE,
    PROMETHEUS,
    PROVIDERS,
    ROOT,
    RULES,
    SERVICES,
    TEMPLATES,
    flag,
    mounts,
    outside,
    probed,
)
from stallwatch import __version__

WATCHERS = ("exporter", "demo")
EVERY = sorted(SERVICES)


def run(*command, **environ):
    """Run a command in the repository and return its exit code and all that it prints."""
    env = {**os.environ, **environ}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=50)
    return done.returncode, done.stdout + done.stderr


def test_compose_accepts_the_file():
    """No key is unknown, and no variable is without a value."""
    assert run("docker-compose", "config", "-q") == (0, "")


def test_images_are_pinned():
    """Every image has a full version; our own is that of the package."""
    images = {name: service["image"] for name, service in SERVICES.items()}
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert all(re.search(r":v?\d+\.\d+\.\d+(-[a-z-]+)?$", image) for image in (*images.values(), *bases))
    assert len(set(bases)) == 1
    assert {images[name] for name in WATCHERS} == {f"stallwatch:{__version__}"}


@pytest.mark.parametrize("name", EVERY)
def test_a_service_is_kept_up_and_kept_small(name):
    """It is started again, asked for its health, limited, and its log does not grow for ever."""
    service = SERVICES[name]
    assert service["restart"] == "unless-stopped"
    assert {"test", "interval", "timeout", "retries", "start_period"} == set(service["healthcheck"])
    assert all(service[key] for key in ("mem_limit", "cpus", "pids_limit", "stop_grace_period"))
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}


@pytest.mark.parametrize("name", EVERY)
def test_a_service_has_no_right_that_it_does_not_need(name):
    """Nothing can be written but its own volume, no capability is left, and only the exporter sees the node."""
    service = SERVICES[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert "no-new-privileges:true" in service["security_opt"]
    assert not {"privileged", "ipc"} & set(service)
    exporters = {"pid", "user", "cap_add", "deploy", "devices"}
    assert exporters & set(service) == (exporters if name == "exporter" else set())
    assert service.get("devices", [])[1:] == []
    assert all(device == "/dev/kmsg:/dev/kmsg:r" for device in service.get("devices", ()))
    bound = [volume for volume in service.get("volumes", ()) if volume.startswith(".")]
    assert all(volume.endswith(":ro") for volume in bound)


def test_the_exporter_reaches_processes_ports_and_the_driver():
    """It shares the node's processes and network, and is given the driver's library and nothing else of the GPUs."""
    service = SERVICES["exporter"]
    assert (service["pid"], service["network_mode"], service["user"]) == ("host", "host", "0:0")
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"]) == ("nvidia", "all")
    assert set(device["capabilities"]) == {"gpu", "utility"}


def test_nothing_is_reachable_from_another_machine():
    """All share the host's network, publish no port, and listen on the loopback address only."""
    assert {service["network_mode"] for service in SERVICES.values()} == {"host"}
    assert not [name for name, service in SERVICES.items() if "ports" in service]
    listening = [flag(name, "--web.listen-address") for name in ("exporter", "prometheus", "alertmanager")]
    grafana = SERVICES["grafana"]["environment"]
    listening.append(f"{grafana['GF_SERVER_HTTP_ADDR']}:{grafana['GF_SERVER_HTTP_PORT']}")
    assert listening == [f"127.0.0.1:{port}" for port in (19847, 9090, 9093, 3000)]
    assert flag("alertmanager", "--cluster.listen-address") == ""


def port_of(service):
    """Return the port that a service listens on."""
    if service == "grafana":
        return int(SERVICES[service]["environment"]["GF_SERVER_HTTP_PORT"])
    if service == "demo":
        command = SERVICES[service]["command"]
        return int(command[command.index("--port") + 1])
    return int(flag(service, "--web.listen-address").rpartition(":")[2])


@pytest.mark.parametrize("name", EVERY)
def test_health_is_asked_where_a_service_listens(name):
    """A check of another port would call a service ill that is well."""
    assert probed(name) == port_of(name)


def test_prometheus_finds_the_exporter_and_alertmanager():
    """Targets are where these listen, and the demo stands where the exporter does."""
    (job,) = PROMETHEUS["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"localhost:{port_of('exporter')}"]}]
    assert port_of("demo") == port_of("exporter")
    (manager,) = PROMETHEUS["alerting"]["alertmanagers"]
    assert manager["static_configs"] == [{"targets": [f"localhost:{port_of('alertmanager')}"]}]


def test_rules_look_for_the_job_that_is_scraped():
    """Where `up` is asked for, it is by the name of the job."""
    text = str(RULES)
    asked = set(re.findall(r'up\{job="([^"]+)"', text))
    assert asked == {job["job_name"] for job in PROMETHEUS["scrape_configs"]}


def test_the_demo_takes_the_place_of_the_exporter():
    """Plain `up` watches this node, profile `demo` a simulated one; never both, and what all use needs neither."""
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {"exporter": ["node"], "demo": ["demo"]}
    assert "COMPOSE_PROFILES=node" in (ROOT / ".env").read_text().splitlines()
    assert set(SERVICES["demo"]["depends_on"]) == set(SERVICES) - set(WATCHERS)
    assert not [name for name in EVERY if name != "demo" and "depends_on" in SERVICES[name]]
    assert SERVICES["demo"]["init"]


@pytest.mark.parametrize("name", EVERY)
def test_what_is_mounted_is_there(name):
    """Every path exists, every volume is declared, and each service has one volume at most."""
    sources = list(mounts(name).values())
    volumes = [source for source in sources if not source.startswith("./")]
    assert all((ROOT / source).is_dir() for source in sources if source.startswith("./"))
    assert set(volumes) <= set(COMPOSE["volumes"])
    assert len(volumes) == (name != "demo")


def test_every_volume_is_used_by_one_service():
    """None is left over and none is shared."""
    used = [source for name in EVERY for source in mounts(name).values() if not source.startswith("./")]
    assert sorted(used) == sorted(COMPOSE["volumes"])


def test_what_is_written_lies_in_a_volume():
    """Where each service keeps its data is where its volume is mounted."""
    assert flag("prometheus", "--storage.tsdb.path") in mounts("prometheus")
    assert flag("alertmanager", "--storage.path") in mounts("alertmanager")
    assert "/var/lib/grafana" in mounts("grafana")
    (state,) = mounts("exporter")
    assert state in DOCKERFILE


def test_configurations_are_those_of_the_repository():
    """Prometheus and Alertmanager read the very files, with their rules and templates beside them."""
    assert outside("prometheus", flag("prometheus", "--config.file")) == ROOT / "alerts/prometheus.yml"
    assert outside("alertmanager", flag("alertmanager", "--config.file")) == ROOT / "alerts/alertmanager.yml"
    patterns = (*PROMETHEUS["rule_files"], *ALERTMANAGER["templates"])
    assert all(list((ROOT / "alerts").glob(pattern)) for pattern in patterns)


def files_named(node):
    """Yield the values of all keys that name a file of a secret."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, (dict, list)):
            yield from files_named(value)
        elif str(key).endswith("_file"):
            yield value


def test_secrets_that_alertmanager_reads_are_given_to_it():
    """Each file that its configuration names is a secret of compose, from a file that .env names, and in no image."""
    given = {secret["target"]: secret["source"] for secret in SERVICES["alertmanager"]["secrets"]}
    assert set(files_named(ALERTMANAGER["receivers"])) == set(given)
    used = {*given.values(), *SERVICES["grafana"]["secrets"]}
    assert used == set(COMPOSE["secrets"])
    for name, secret in COMPOSE["secrets"].items():
        variable = f"{name.upper()}_FILE"
        assert secret == {"file": f"${{{variable}:-/dev/null}}"}
        assert f"{variable}=/dev/null" in (ROOT / ".env").read_text().splitlines()


def test_a_folder_with_secrets_is_committed_by_nobody():
    """Who keeps them beside the file that names them is safe."""
    assert run("git", "check-ignore", "-q", "secrets/pagerduty_routing_key")[0] == 0
    assert (ROOT / ".dockerignore").read_text().splitlines()[0] == "*"


@pytest.mark.parametrize(("password", "account"), [("", False), ("s3cret", True)])
def test_grafana_has_an_account_only_with_a_password(tmp_path, password, account):
    """Without a password there is no account, rather than one whose password everybody knows."""
    (secret,) = SERVICES["grafana"]["secrets"]
    (tmp_path / secret).write_text(password)
    *shell, script = SERVICES["grafana"]["entrypoint"]
    here = script.replace(f"/run/secrets/{secret}", str(tmp_path / secret)).replace("/run.sh", "env")
    code, output = run(*shell, here)
    assert code == 0
    told = dict(line.split("=", 1) for line in output.splitlines() if line.startswith("GF_"))
    if account:
        assert told == {"GF_SECURITY_ADMIN_PASSWORD__FILE": str(tmp_path / secret)}
    else:
        assert told == dict.fromkeys(
            ("GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION", "GF_AUTH_DISABLE_LOGIN_FORM", "GF_AUTH_ANONYMOUS_ENABLED"),
            "true",
        )
    assert SERVICES["grafana"]["environment"]["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"


def test_grafana_asks_the_prometheus_that_runs():
    """The datasource's address is Prometheus' own, and it is the default of every dashboard."""
    (source,) = DATASOURCES
    where = urlsplit(source["url"])
    assert (where.hostname, where.port) == ("localhost", port_of("prometheus"))
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    for board in DASHBOARDS.values():
        variable = next(each for each in board["templating"]["list"] if each["name"] == "datasource")
        assert (variable["type"], variable["query"]) == ("datasource", source["type"])


def test_grafana_finds_the_dashboards():
    """Provisioning lies where Grafana looks for it, and names the folder that the dashboards are mounted at."""
    assert outside("grafana", "/etc/grafana/provisioning") == ROOT / "grafana/provisioning"
    (provider,) = PROVIDERS
    assert outside("grafana", provider["options"]["path"]) == ROOT / "grafana/dashboards"
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert outside("grafana", home).is_file()


def test_links_of_pages_lead_to_dashboards_that_are_there():
    """The templates' address of Grafana is its own, and each uid and variable that they name exists."""
    (address,) = re.findall(r'define "stallwatch.grafana" }}(\S+){{ end }}', TEMPLATES)
    assert SERVICES["grafana"]["environment"]["GF_SERVER_ROOT_URL"] == f"{address}/"
    assert urlsplit(address).port == port_of("grafana")
    assert set(re.findall(r"stallwatch-\w+", TEMPLATES)) == set(DASHBOARDS)
    variables = {name for name, _ in parse_qsl("&".join(re.findall(r"&(var-\w+=)", TEMPLATES)), keep_blank_values=True)}
    known = {f"var-{each['name']}" for each in DASHBOARDS["stallwatch-server"]["templating"]["list"]}
    assert variables == known - {"var-datasource"}


def test_every_alert_leads_to_a_runbook_that_is_there():
    """The last part of each address is a file of the repository."""
    rules = [rule for file in RULES.values() for group in file["groups"] for rule in group["rules"] if "alert" in rule]
    assert rules
    for rule in rules:
        place, _, name = rule["annotations"]["runbook_url"].rpartition("/alerts/runbooks/")
        assert place == "https://github.com/stallwatch/stallwatch/blob/main"
        assert (ROOT / "alerts" / "runbooks" / name).is_file()


def test_addresses_in_pages_open_where_the_programs_listen():
    """Links from Prometheus and Alertmanager name the address that they listen on, and not a container."""
    for name in ("prometheus", "alertmanager"):
        assert flag(name, "--web.external-url") == f"http://localhost:{port_of(name)}/"
