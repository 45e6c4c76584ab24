"""Does the shipped alertmanager.yml page for what must page, once per incident, and for nothing else?"""

import copy
import json
import queue
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
import yaml

from alertmanager_process import CONFIG, alert, running


def amtool(*arguments):
    """Run amtool, failing with its output when it is not content."""
    done = subprocess.run(("amtool", *arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{arguments}:\n{done.stdout}\n{done.stderr}"


def route(receiver, *labels):
    """Assert where an alert with these labels goes."""
    amtool("config", "routes", "test", f"--config.file={CONFIG}", f"--verify.receivers={receiver}", *labels)


class Pager(ThreadingHTTPServer):
    """What the pager is told: a webhook in the place of the paging service."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Call)
        self.calls = queue.Queue()
        self.incidents = {}  # group key, which a paging service takes for one incident -> what each call said fires

    def until(self, server):
        """Take in calls until one is about this server."""
        while True:
            call = self.calls.get(timeout=20)
            if call["groupLabels"].get("server") == server:
                return
            firing = {each["labels"]["alertname"] for each in call["alerts"] if each["status"] == "firing"}
            self.incidents.setdefault(call["groupKey"], []).append(firing)


class Call(BaseHTTPRequestHandler):
    """One call of the webhook."""

    def do_POST(self):
        """Hand it on."""
        self.server.calls.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        """Stay quiet."""


def hurried(pager):
    """Return the shipped configuration with its times cut to parts of a second and the webhook for a pager."""
    config = copy.deepcopy(yaml.safe_load(CONFIG.read_text()))
    webhook = {"url": f"http://127.0.0.1:{pager.server_port}/"}
    config["receivers"] = [{"name": name} for name in ("nobody", "channel")]
    config["receivers"].append({"name": "pager", "webhook_configs": [webhook]})
    for each in (config["route"], *config["route"]["routes"]):
        each |= {"group_wait": "200ms", "group_interval": "100ms", "repeat_interval": "4h"}
    guard = {"matchers": ['server =~ "guard.*"'], "receiver": "pager", "group_wait": "1s"}
    config["route"]["routes"].insert(0, guard)
    return yaml.safe_dump(config)


@pytest.fixture
def alertmanager(tmp_path):
    """Run Alertmanager as shipped; its receivers have no secrets here and wait longer than a test does."""
    with running(CONFIG, tmp_path) as manager:
        yield manager


@pytest.fixture
def incidents(tmp_path):
    """Return what fires alerts, one batch after the other, and returns for each incident what the pager was told."""
    pager = Pager()
    thread = threading.Thread(target=pager.serve_forever, args=(0.05,))
    thread.start()
    (tmp_path / "alertmanager.yml").write_text(hurried(pager))

    def play(*batches):
        for number, batch in enumerate(batches):
            # The guard comes last and waits longest: once its page is there, so is what the batch called for.
            guard = alert("InferenceServerDead", "critical", f"guard-{number}")
            manager.ask("/api/v2/alerts", [{"labels": labels} for labels in batch])
            manager.ask("/api/v2/alerts", [{"labels": guard}])
            pager.until(guard["server"])
        return list(pager.incidents.values())

    try:
        with running(tmp_path / "alertmanager.yml", tmp_path) as manager:
            yield play
    finally:
        pager.shutdown()
        pager.server_close()
        thread.join()


def test_configuration_is_valid():
    """The file is accepted."""
    amtool("check-config", str(CONFIG))


def test_secrets_stay_in_files():
    """No receiver holds a secret, or an address that is one."""
    receivers = yaml.safe_load(CONFIG.read_text())["receivers"]
    kinds = [entries for receiver in receivers for entries in receiver.values() if isinstance(entries, list)]
    keys = {key for entries in kinds for entry in entries for key in entry}
    assert {"routing_key_file", "api_url_file"} <= keys
    assert not keys & {"routing_key", "service_key", "api_url"}
    addresses = [urlsplit(entry["url"]) for entries in kinds for entry in entries if "url" in entry]
    assert [(where.hostname, where.path, where.query, where.username) for where in addresses] == [
        ("127.0.0.1", "/", "", None)
    ]


def test_only_critical_alerts_page():
    """A critical alert goes to the pager, a warning to the channel, anything else to nobody."""
    route("pager", "alertname=InferenceServerSilent", "severity=critical", "instance=gpu-node-1", "server=a")
    route("pager", "alertname=StallwatchDown", "severity=critical")
    route("pager", "alertname=InferenceGPUFault", "severity=critical", "instance=gpu-node-1", "gpu=3")
    route("channel", "alertname=InferenceServerSilent", "severity=warning", "instance=gpu-node-1", "server=a")
    route("channel", "alertname=StallwatchWorkerStuck", "severity=warning", "instance=gpu-node-1")
    route("pager", "alertname=InferenceGroupStalled", "severity=critical", "group=10.0.0.1:5000")
    route("channel", "alertname=InferenceGroupLagging", "severity=warning", "group=10.0.0.1:5000")
    route("channel", "alertname=InferenceServerSuspect", "severity=warning", "group=10.0.0.1:5000", "server=a")
    route("nobody", "alertname=Watchdog", "severity=info")
    route("nobody", "alertname=Watchdog")


def test_one_server_is_one_page(alertmanager):
    """A stuck start mutes the silence of the same server, and of no other server, node or cluster."""
    muted = alertmanager.inhibited(
        alert("InferenceServerStartupStuck", "critical"),
        alert("InferenceServerSilent", "critical"),
        alert("InferenceServerSilent", "critical", server="vllm:8000"),
        alert("InferenceServerSilent", "critical", instance="gpu-node-2"),
        alert("InferenceServerSilent", "critical", cluster="west"),
    )
    assert muted == {1}


def test_a_server_that_pages_needs_no_warning(alertmanager):
    """A page mutes the warnings about its own server only."""
    muted = alertmanager.inhibited(
        alert("InferenceServerSilent", "critical"),
        alert("InferenceServerSilent", "warning"),
        alert("InferenceServerSilent", "warning", server="vllm:8000"),
    )
    assert muted == {1}


@pytest.mark.parametrize("name", ["StallwatchDown", "StallwatchSnapshotStale"])
def test_a_blind_watcher_explains_the_warnings_of_its_node(alertmanager, name):
    """A watcher that is down or stale mutes the warnings of its own node, and no page and nothing of others."""
    muted = alertmanager.inhibited(
        alert(name, "critical", server=None),
        alert("StallwatchWorkerStuck", "warning", server=None, worker="gpu"),
        alert("InferenceServerSilent", "warning"),
        alert("InferenceServerSilent", "critical", server="vllm:8000"),
        alert("StallwatchWorkerStuck", "warning", server=None, instance="gpu-node-2"),
        alert("DiskFull", "warning", server=None),
    )
    assert muted == {1, 2}


def test_a_prometheus_without_targets_mutes_nothing(alertmanager):
    """A StallwatchDown without an instance does not mute what has no instance either."""
    muted = alertmanager.inhibited(
        alert("StallwatchDown", "critical", server=None, instance=None),
        alert("StallwatchCollectorFailing", "warning", server=None, instance=None),
        alert("InferenceServerSilent", "warning"),
    )
    assert muted == set()


RAW = [alert("InferenceServerStartupStuck", "critical"), alert("InferenceServerSilent", "critical")]
WARNINGS = [alert(f"InferenceServer{name}", "warning") for name in ("Silent", "Slow", "Suspect", "Blind")]
STALLED, DEAD = alert("InferenceServerStalled", "critical"), alert("InferenceServerDead", "critical")
LOOPING, FAULT = alert("InferenceServerCrashLooping", "critical"), alert("InferenceGPUFault", "critical")


@pytest.mark.parametrize("verdict", [STALLED, DEAD], ids=["stalled", "dead"])
def test_a_verdict_mutes_what_raw_signals_find_later(alertmanager, verdict):
    """Stalled and dead mute the raw rules and the warnings of the same server only."""
    others = [each | {"server": "vllm:8000"} for each in RAW] + [each | {"instance": "gpu-node-2"} for each in RAW[1:]]
    muted = alertmanager.inhibited(*RAW, *WARNINGS, verdict, alert("InferenceServerStalled", "critical", "b"), *others)
    # Position 9 is the silence beside the stuck start of the other server, which is muted by that one.
    assert muted == {0, 1, 2, 3, 4, 5, 9}


def test_a_crash_loop_mutes_what_its_starts_do(alertmanager):
    """A crash loop mutes dead, stalled, stuck and silent of the same server, and of no other."""
    others = [each | {"cluster": "west"} for each in (STALLED, DEAD)]
    assert alertmanager.inhibited(STALLED, DEAD, *RAW, *WARNINGS, LOOPING, *others) == set(range(8))


def test_a_gpu_fault_of_a_server_mutes_all_else_about_it(alertmanager):
    """A GPU fault of a server mutes all pages and warnings about that server, and none about its neighbour."""
    others = [each | {"server": "vllm:8000"} for each in (STALLED, DEAD, LOOPING)]
    assert alertmanager.inhibited(STALLED, DEAD, LOOPING, *RAW, *WARNINGS, FAULT, *others[:2]) == set(range(9))


def test_a_gpu_fault_without_a_server_mutes_nothing(alertmanager):
    """A faulty GPU that no server holds says nothing about the servers of its node, nor about itself."""
    gpu = alert("InferenceGPUFault", "critical", server=None, gpu="3", uuid="GPU-3")
    assert (
        alertmanager.inhibited(gpu, STALLED, alert("InferenceServerSlow", "warning", "b"), FAULT | {"server": "c"})
        == set()
    )


GROUP = alert("InferenceGroupStalled", "critical", None, None, group="10.0.0.1:5000")
INCOMPLETE = GROUP | {"alertname": "InferenceGroupIncomplete"}
LAGGING = GROUP | {"alertname": "InferenceGroupLagging", "severity": "warning"}


def members(*names, nodes=16, group="10.0.0.1:5000"):
    """Return these alerts of each node of a group."""
    return [each | {"instance": f"gpu-node-{number}", "group": group} for each in names for number in range(nodes)]


def test_a_group_mutes_what_its_nodes_say(alertmanager):
    """Whatever sixteen nodes say is a part of what the whole does; another group, and a server of one node, is not."""
    own = members(STALLED, DEAD, LOOPING, *RAW, WARNINGS[2])
    others = [*members(STALLED | {"server": "b"}, nodes=2, group="10.0.0.9:5000"), STALLED | {"server": "c"}]
    muted = alertmanager.inhibited(*own, INCOMPLETE, LAGGING, GROUP, *others)
    assert muted == set(range(len(own) + 2))


def test_a_gpu_fault_explains_what_its_group_does(alertmanager):
    """The page is that of the node with the GPU; a fault on a server of one node mutes no group."""
    own = members(STALLED, *RAW, nodes=2)
    fault = FAULT | {"instance": "gpu-node-1", "group": "10.0.0.1:5000"}
    assert alertmanager.inhibited(*own, GROUP, INCOMPLETE, fault) == set(range(len(own) + 2))


def test_a_fault_of_a_server_of_one_node_mutes_no_group(alertmanager):
    """A label that both sides lack counts as equal, so it is asked for."""
    assert alertmanager.inhibited(FAULT, GROUP, *members(STALLED, nodes=2)[1:]) == {2}


def test_a_group_that_is_incomplete_mutes_warnings_and_not_what_is_dead(alertmanager):
    """What says why is heard."""
    own = members(*WARNINGS, nodes=2)
    assert alertmanager.inhibited(*own, LAGGING, INCOMPLETE, *members(DEAD, nodes=1)) == set(range(len(own) + 1))


def test_a_collector_that_fails_leaves_the_warning_about_blindness(alertmanager):
    """A server that cannot be judged is reported beside a failing collector, which may be one that it does not need."""
    collector = alert("StallwatchCollectorFailing", "warning", server=None, collector="gpu")
    assert alertmanager.inhibited(collector, WARNINGS[3]) == set()


def test_a_hang_at_start_is_one_incident(incidents):
    """A cold deadlock is paged once, as stalled, although a suspicion comes first and the raw rules fire after it."""
    assert incidents(WARNINGS[2:3], [STALLED], RAW[:1], RAW[1:]) == [[{"InferenceServerStalled"}]]


def test_a_hang_that_all_rules_find_at_once_is_one_incident(incidents):
    """Where Prometheus meets an old hang, one page says that it has stalled."""
    assert incidents([*RAW, *WARNINGS, STALLED]) == [[{"InferenceServerStalled"}]]


def test_a_hang_while_serving_is_one_incident(incidents):
    """A stall while serving that is killed at last stays one incident."""
    assert incidents([STALLED], RAW[1:], [DEAD]) == [
        [{"InferenceServerStalled"}, {"InferenceServerStalled", "InferenceServerDead"}]
    ]


def test_a_gpu_fault_is_one_incident(incidents):
    """A GPU fault of two hung servers is one page, and stays it when only the GPU is left."""
    neighbour = FAULT | {"server": "vllm:8000"}
    gpu = alert("InferenceGPUFault", "critical", server=None, gpu="3", uuid="GPU-3")
    calls = incidents([FAULT, neighbour, STALLED, DEAD, *RAW, *WARNINGS], [gpu])
    assert [set().union(*incident) for incident in calls] == [{"InferenceGPUFault"}]


def test_a_crash_loop_is_one_incident(incidents):
    """The first crash pages, and when the loop is known the same incident is called so."""
    assert incidents([DEAD], [LOOPING], RAW) == [[{"InferenceServerDead"}, {"InferenceServerCrashLooping"}]]


def test_a_server_of_sixteen_nodes_is_one_incident(incidents):
    """All its nodes stall, are silent and one is dead: one page, sent once."""
    own = members(STALLED, *RAW)
    assert incidents([*own, *members(DEAD, nodes=1), GROUP, INCOMPLETE], own) == [[{"InferenceGroupStalled"}]]


def test_two_servers_of_several_nodes_are_two_incidents(incidents):
    """Those that meet elsewhere are others."""
    other = GROUP | {"group": "10.0.0.9:5000"}
    assert incidents([GROUP, other]) == [[{"InferenceGroupStalled"}]] * 2


def test_the_loss_of_a_rack_is_one_incident(incidents):
    """400 exporters that cannot be scraped are one page, sent once."""
    down = [alert("StallwatchDown", "critical", None, f"gpu-node-{number}") for number in range(400)]
    assert incidents(down) == [[{"StallwatchDown"}]]


def test_racks_are_incidents_of_their_own(incidents):
    """Where the targets have a label for it."""
    down = [
        alert("StallwatchDown", "critical", None, f"gpu-node-{number}", rack=f"r{number % 2}") for number in range(400)
    ]
    assert incidents(down) == [[{"StallwatchDown"}]] * 2


def test_two_servers_are_two_incidents(incidents):
    """What hangs beside it is an incident of its own."""
    other = STALLED | {"server": "vllm:8000"}
    assert incidents([STALLED, other]) == [[{"InferenceServerStalled"}]] * 2
