"""The image: built of pinned parts, of what is sent to be built, and good by the linter's rules."""

import os
import re
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bundle import DOCKERFILE, ROOT, SERVICES, flag
from stallwatch.cli import main


def test_hadolint_finds_nothing():
    """The image is built as it is held to be good."""
    hadolint = os.path.join(os.path.dirname(sys.executable), "hadolint")
    command = [hadolint, ROOT / "exporter" / "Dockerfile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_packages_of_the_image_are_pinned():
    """What the package asks for is among the versions that the image is built of, and they are such as it asks for."""
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "exporter" / "constraints.txt").read_text(), re.MULTILINE))
    versions = {canonicalize_name(name): version for name, version in pinned.items()}
    listed = re.search(r"^dependencies = \[\n(.*?)^]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    asked = [Requirement(text) for text in re.findall(r'"([^"]+)"', listed[1])]
    assert asked
    assert all(need.specifier.contains(versions[canonicalize_name(need.name)]) for need in asked)
    assert "hatchling" in versions


def test_what_the_image_copies_is_sent_to_be_built():
    """The .dockerignore lets through each path that the Dockerfile copies, and each path is there."""
    copied = [path for line in re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE) for path in line.split()]
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert copied
    assert all((ROOT / path).exists() and path in sent for path in copied)
    assert "exporter/Dockerfile" in sent
    build = {"context": ".", "dockerfile": "exporter/Dockerfile"}
    built = {name: service["build"] for name, service in SERVICES.items() if "build" in service}
    assert built == {"exporter": build, "demo": build}


def test_the_image_asks_for_its_health_as_compose_does():
    """Both hold the same command."""
    test = SERVICES["exporter"]["healthcheck"]["test"]
    assert test == SERVICES["demo"]["healthcheck"]["test"]
    assert f'    CMD ["python", "-c", "{test[3]}"]' in DOCKERFILE.splitlines()
    assert f"EXPOSE {flag('exporter', '--web.listen-address').rpartition(':')[2]}" in DOCKERFILE.splitlines()


def test_commands_of_the_image_are_commands_of_the_program():
    """What the exporter is started with is a good configuration, and the demo's scenario is a shipped one."""
    assert main([*SERVICES["exporter"]["command"], "--config.check"]) == 0
    command, scenario, *flags = SERVICES["demo"]["command"]
    assert command == "demo"
    assert (ROOT / "exporter" / "stallwatch" / "scenarios" / f"{scenario}.yml").is_file()
    with pytest.raises(SystemExit) as end:
        main([command, scenario, *flags, "--help"])
    assert end.value.code == 0
    assert 'ENTRYPOINT ["stallwatch"]' in DOCKERFILE
