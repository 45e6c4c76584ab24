"""What is shipped: one wheel that holds the package, the rules with their runbooks, and nothing else."""

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from stallwatch import __version__
from stallwatch.shipped import FOLDERS

ROOT = Path(__file__).parents[1]
BUNDLE = "stallwatch/bundle/"


def run(*command, cwd=ROOT):
    """Run a command and return what it prints."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=cwd, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel and return its path."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def contents(wheel):
    """Return the files in the wheel by name."""
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Install the wheel into a new environment, which borrows its dependencies from ours, and return its programs."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "pip", "install", "--no-index", "--no-deps", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Only folders are taken from such a file, and not what their own such files name, like the sources of a checkout.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin"


def metadata(contents):
    """Return the metadata of the wheel."""
    (name,) = (name for name in contents if name.endswith(".dist-info/METADATA"))
    return message_from_string(contents[name].decode())


def test_nothing_but_the_package_is_shipped(contents):
    """One package with its type marker, no test, no cache, no file of somebody's editor."""
    assert {name.split("/")[0] for name in contents} == {"stallwatch", f"stallwatch-{__version__}.dist-info"}
    package = {name for name in contents if name.startswith("stallwatch/") and not name.startswith(BUNDLE)}
    source = ROOT / "exporter" / "stallwatch"
    files = (*source.rglob("*.py"), *source.glob("scenarios/*.yml"))
    expected = {str(path.relative_to(ROOT / "exporter")) for path in files}
    assert package == {*expected, "stallwatch/py.typed", "stallwatch/pages/style.css", "stallwatch/pages/refresh.js"}


def test_rules_and_runbooks_travel_in_the_wheel(contents):
    """They are those of the repository, byte for byte."""
    files = [path for folder in FOLDERS for path in files_in(ROOT / folder)]
    assert {path.suffix for path in files} == {".yml", ".md", ".json", ".tmpl"}
    expected = {f"{BUNDLE}{path.relative_to(ROOT)}": path.read_bytes() for path in files}
    assert {name: content for name, content in contents.items() if name.startswith(BUNDLE)} == expected


def test_metadata_tells_what_it_is_and_what_it_needs(contents):
    """Name, version, licence, Python, dependencies and the text of the README."""
    told = metadata(contents)
    assert (told["Name"], told["Version"]) == ("stallwatch", __version__)
    assert (told["License-Expression"], told["Requires-Python"]) == ("Apache-2.0", ">=3.10")
    lines = told.get_all("Requires-Dist")
    assert [line for line in lines if "extra ==" in line] == ["py-spy<0.5,>=0.4; extra == 'stacks'"]
    needed = {re.split(r"[<>=!~ ;\[]", line)[0].lower() for line in lines if "extra ==" not in line}
    assert needed == {
        "aiohttp",
        "bcrypt",
        "markupsafe",
        "msgspec",
        "nvidia-ml-py",
        "prometheus-client",
        "psutil",
        "pyyaml",
        "watchdog",
    }
    assert told["Description-Content-Type"] == "text/markdown"
    assert told.get_payload() == (ROOT / "README.md").read_text()
    assert any(name.endswith("/licenses/LICENSE") for name in contents)


def test_it_runs_from_the_wheel(installed, tmp_path):
    """The command is there, in a folder that knows nothing of the repository."""
    assert run(installed / "stallwatch", "--version", cwd=tmp_path) == f"stallwatch {__version__}\n"
    assert run(installed / "stallwatch", "serve", "--config.check", cwd=tmp_path) == "the configuration is good\n"


def test_it_finds_what_the_page_needs_in_the_wheel(installed, tmp_path):
    """Style and script come with this version, and have addresses of their own."""
    code = "from stallwatch.pages.assets import Assets; print(len(Assets().files['style.css'].body), Assets().version)"
    size, version = run(installed / "python", "-c", code, cwd=tmp_path).split()
    assert int(size) == (ROOT / "exporter/stallwatch/pages/style.css").stat().st_size
    assert len(version) == 12


def test_it_writes_out_what_came_with_it(installed, tmp_path):
    """Rules, runbooks, dashboards and provisioning out of the wheel are those of the repository, byte for byte."""
    run(installed / "stallwatch", "bundle", "monitoring", cwd=tmp_path)
    written = {path.relative_to(tmp_path / "monitoring"): path.read_bytes() for path in files_in(tmp_path)}
    ours = {path.relative_to(ROOT): path.read_bytes() for folder in FOLDERS for path in files_in(ROOT / folder)}
    assert written == ours
    assert {path.parts[0] for path in ours} == {"alerts", "grafana"}


def files_in(folder):
    """List the files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]
