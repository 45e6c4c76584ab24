"""A server of several nodes, of which one hangs: is it one page, and does it say where?

Real processes in network and process namespaces, an exporter for each node, a real Prometheus and a real Alertmanager.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvml_library import build

HERE = Path(__file__).parent
APART = ["unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]


def played(folder, nodes):
    """Play a server of so many nodes whose last one hangs, and return what was paged and what fires."""
    library = build(folder)
    script = [sys.executable, str(HERE / "group_of_nodes.py"), str(folder), str(library), str(nodes)]
    path = os.pathsep.join((str(HERE), str(HERE.parent / "exporter")))
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([*APART, *script], capture_output=True, text=True, check=False, timeout=200, env=environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize("nodes", [2, 4])
def test_a_hung_rank_of_a_worker_node_is_one_page_that_names_it(tmp_path, nodes):
    """The first node stalls, the others spin, all health endpoints of workers say 200: one page names node and rank."""
    said = played(tmp_path, nodes)
    (page,) = [call for call in said["pages"] if call["status"] == "firing"]
    (alert,) = page["alerts"]
    assert alert["labels"] == {
        "alertname": "InferenceGroupStalled",
        "group": "10.77.0.1:5000",
        "job": "stallwatch",
        "severity": "critical",
    }
    description = alert["annotations"]["description"]
    last = f"node rank {nodes - 1} (sglang:30000 on 10.77.0.{nodes}:19847): the GPU of TP{2 * nodes - 1} rests"
    assert f"The server of {nodes} nodes that meets at 10.77.0.1:5000 does not go on." in description
    assert f"Look first at {last} while others spin" in description
    stalled = [one for one in said["firing"] if one["alertname"] == "InferenceServerStalled"]
    assert "10.77.0.1:19847" in {one["instance"] for one in stalled}
    assert {one["group"] for one in stalled} == {"10.77.0.1:5000"}
