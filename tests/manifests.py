"""What `kubectl apply -k` would send: the resources of a kustomization, resolved here, and by kubectl where it can."""

import shutil
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
KUBERNETES = ROOT / "deploy" / "kubernetes"
KNOWN = {"apiVersion", "kind", "namespace", "resources", "configMapGenerator", "generatorOptions", "images"}


def documents(path):
    """Return the resources of a file."""
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def resolved(folder):
    """Return the resources of a kustomization; raises for a file that is not there or a key that is not known."""
    page = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert page.keys() <= KNOWN, f"{folder}: {page.keys() - KNOWN}"
    found = []
    for name in page.get("resources", ()):
        path = (folder / name).resolve(strict=True)
        found += resolved(path) if path.is_dir() else documents(path)
    found += [
        config_map(folder, entry, page.get("generatorOptions", {})) for entry in page.get("configMapGenerator", ())
    ]
    return [placed(one, page.get("namespace")) for one in found]


def config_map(folder, entry, options):
    """Return a ConfigMap that is made of files."""
    options = {**options, **entry.get("options", {})}
    assert options.pop("disableNameSuffixHash"), "its name must stay as it is"
    parts = [name.rpartition("=") for name in entry["files"]]
    data = {key or Path(file).name: (folder / file).read_text() for key, _, file in parts}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": entry["name"], **options}, "data": data}


def placed(resource, namespace):
    """Return a resource in its namespace; a namespace itself is in none."""
    if resource["kind"] == "Namespace" or namespace is None:
        return resource
    return {**resource, "metadata": {**resource["metadata"], "namespace": namespace}}


def kustomized(folder):
    """Return the resources that kubectl makes of a kustomization, None where it is too old (before 1.24) or absent."""
    if not shutil.which("kubectl"):
        return None
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    if "unknown field" in done.stderr:
        return None
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def by_kind(resources):
    """Return the resources in a fixed order."""
    return sorted(resources, key=lambda one: (one["kind"], one["metadata"]["name"]))
