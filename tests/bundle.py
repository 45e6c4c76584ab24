"""The files of the bundle, read for those who follow wires through them: compose, Prometheus, Alertmanager, Grafana."""

import json
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def read(path):
    """Return a YAML file of the repository."""
    return yaml.safe_load((ROOT / path).read_text())


COMPOSE = read("docker-compose.yml")
SERVICES = COMPOSE["services"]
PROMETHEUS = read("alerts/prometheus.yml")
ALERTMANAGER = read("alerts/alertmanager.yml")
TEMPLATES = (ROOT / "alerts" / "templates" / "stallwatch.tmpl").read_text()
DATASOURCES = read("grafana/provisioning/datasources/prometheus.yml")["datasources"]
PROVIDERS = read("grafana/provisioning/dashboards/stallwatch.yml")["providers"]
DASHBOARDS = {
    board["uid"]: board for board in map(json.loads, (p.read_text() for p in ROOT.glob("grafana/dashboards/*.json")))
}
RULES = {path.name: yaml.safe_load(path.read_text()) for path in ROOT.glob("alerts/rules/*.yml")}
DOCKERFILE = (ROOT / "exporter" / "Dockerfile").read_text()


def flag(service, name):
    """Return the value of a flag in a service's command."""
    (value,) = [word.removeprefix(f"{name}=") for word in SERVICES[service]["command"] if word.startswith(f"{name}=")]
    return value


def mounts(service):
    """Return what is mounted into a service: the path in it, and the path in the repository or the volume's name."""
    pairs = (volume.removesuffix(":ro").split(":") for volume in SERVICES[service].get("volumes", ()))
    return {target: source for source, target in pairs}


def outside(service, path):
    """Return which file of the repository a service sees at a path."""
    target, source = max((pair for pair in mounts(service).items() if f"{path}/".startswith(f"{pair[0]}/")), key=len)
    assert source.startswith("./"), f"{path} of {service} lies in the volume {source}"
    return ROOT / source / path.removeprefix(target).lstrip("/")


def probed(service):
    """Return the port that a service's health check asks."""
    (port,) = set(re.findall(r"127\.0\.0\.1(?::|', )(\d+)", " ".join(SERVICES[service]["healthcheck"]["test"])))
    return int(port)
