"""What does a person get to read? Shipped templates and receivers, sent by a real Alertmanager to services of ours."""

import queue
import threading
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from alertmanager_process import CONFIG, alert, running

TEMPLATES = CONFIG.parent / "templates"
RUNBOOKS = "https://github.com/stallwatch/stallwatch/blob/main/alerts/runbooks"
NAME = "sglang:30000@0123456789ab#42"
REASON = "It stands in loading weights (76 GiB on each of 8 GPUs) but nothing has moved for 12 min. <!channel> & <http://x|y>"
BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Service(ThreadingHTTPServer):
    """The services that Alertmanager tells, told apart by path."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Call)
        self.calls = queue.Queue()  # path, Authorization header, decoded body

    def told(self, path, of=""):
        """Return header and body of the next call here whose title begins so; others are passed over.

        Alertmanager may tell the first of several alerts at once, alone, and all of them a moment later.
        """
        while True:
            where, authorization, body = self.calls.get(timeout=20)
            if where == path and (not of or body["payload"]["summary"].startswith(of)):
                return authorization, body


class Call(BaseHTTPRequestHandler):
    """One call, answered as PagerDuty and Slack do."""

    def do_POST(self):
        """Hand it on."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.calls.put((self.path, self.headers["Authorization"], yaml.safe_load(body)))
        self.send_response(202 if self.path == "/pagerduty" else 200)
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        """Stay quiet."""


def configured(folder, port):
    """Return the shipped configuration with the addresses of our services, secrets in files, and no time to wait."""
    config = yaml.safe_load(CONFIG.read_text())
    config["templates"] = [str(TEMPLATES / "*.tmpl")]
    receivers = {receiver["name"]: receiver for receiver in config["receivers"]}
    pagerduty, slack = receivers["pager"]["pagerduty_configs"][0], receivers["channel"]["slack_configs"][0]
    webhook = receivers["webhook"]["webhook_configs"][0]
    pagerduty |= {"url": f"http://127.0.0.1:{port}/pagerduty", "routing_key_file": secret(folder / "key", "R0UT1NG")}
    slack["api_url_file"] = secret(folder / "slack", f"http://127.0.0.1:{port}/slack")
    webhook |= {"url": f"http://127.0.0.1:{port}/webhook"}
    webhook["http_config"]["authorization"]["credentials_file"] = secret(folder / "token", "T0KEN")
    for each in (config["route"], *config["route"]["routes"]):
        each |= {"group_wait": "100ms", "group_interval": "100ms"}
    config["route"]["routes"].insert(0, {"matchers": ["ours = yes"], "receiver": "webhook", "continue": True})
    return yaml.safe_dump(config)


def secret(path, text):
    """Write a secret as an editor would, with a newline at its end, and return where it lies."""
    path.write_text(f"{text}\n")
    return str(path)


@pytest.fixture(scope="module")
def paging(tmp_path_factory):
    """Return the services, and an Alertmanager that tells them of what it is sent."""
    folder = tmp_path_factory.mktemp("pages")
    service = Service()
    thread = threading.Thread(target=service.serve_forever, args=(0.05,))
    thread.start()
    (folder / "alertmanager.yml").write_text(configured(folder, service.server_port))
    try:
        with running(folder / "alertmanager.yml", folder) as manager:
            yield service, manager
    finally:
        service.shutdown()
        service.server_close()
        thread.join()


def fired(labels, description=REASON, **times):
    """Return an alert as Prometheus sends it, with the annotations that the shipped rules give."""
    annotations = {
        "summary": "Inference server has stalled.",
        "description": description,
        "runbook_url": f"{RUNBOOKS}/{labels['alertname']}.md",
    }
    return {"labels": labels, "annotations": annotations, "startsAt": BEGAN.isoformat(), **times}


def dashboard(link):
    """Return which dashboard a link opens, and with which variables and times."""
    parts = urlsplit(link)
    assert (parts.scheme, parts.netloc) == ("http", "localhost:3000")
    assert parts.fragment == ""
    return parts.path, {key: value for key, (value,) in parse_qs(parts.query, strict_parsing=True).items()}


FROM = str(int((BEGAN - timedelta(minutes=30)).timestamp() * 1000))
SERVER = {"var-job": "stallwatch", "var-instance": "gpu-node-1:19847", "var-server": NAME}


def test_pagerduty_is_told_the_reason_the_runbook_and_the_dashboard(paging):
    """The incident's title names alert, server and node; the reason stands in it whole, and its links lead there."""
    service, manager = paging
    labels = alert("InferenceServerStalled", "critical", NAME, "gpu-node-1:19847")
    manager.ask("/api/v2/alerts", [fired(labels)])
    _, event = service.told("/pagerduty")
    assert (event["routing_key"], event["event_action"]) == ("R0UT1NG", "trigger")
    payload = event["payload"]
    title = f"InferenceServerStalled {NAME} on gpu-node-1:19847: Inference server has stalled."
    assert (payload["summary"], payload["severity"], payload["component"]) == (title, "critical", NAME)
    links = {link["text"]: link["href"] for link in event["links"]}
    assert links["Runbook"] == f"{RUNBOOKS}/InferenceServerStalled.md"
    opened = ("/d/stallwatch-server", SERVER | {"from": FROM, "to": "now"})
    assert dashboard(links["Dashboard"]) == dashboard(event["client_url"]) == opened
    reason, runbook, where = payload["custom_details"]["description"].splitlines()
    assert (reason, runbook) == (REASON, f"Runbook: {RUNBOOKS}/InferenceServerStalled.md")
    assert dashboard(where.removeprefix("Dashboard: ")) == opened


def test_slack_is_told_the_same_and_nothing_in_it_is_markup(paging):
    """What a log line brought in can neither call a channel nor hide where a link leads."""
    service, manager = paging
    labels = alert("InferenceServerSuspect", "warning", NAME, "gpu-node-5:19847")
    manager.ask("/api/v2/alerts", [fired(labels)])
    _, message = service.told("/slack")
    (attachment,) = message["attachments"]
    assert attachment["title"] == f"InferenceServerSuspect {NAME} on gpu-node-5:19847"
    opened = ("/d/stallwatch-server", SERVER | {"var-instance": "gpu-node-5:19847", "from": FROM, "to": "now"})
    assert dashboard(attachment["title_link"]) == opened
    reason, links = attachment["text"].splitlines()
    assert reason == REASON.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    runbook, where = (link.strip("<>").rpartition("|") for link in links.split(" · "))
    assert runbook[0] == f"{RUNBOOKS}/InferenceServerSuspect.md"
    assert dashboard(where[0]) == opened


def test_slack_is_told_when_it_is_over(paging):
    """A resolved message says so, and its link spans the whole incident."""
    service, manager = paging
    labels = alert("InferenceServerSlow", "warning", "resolved:1", "gpu-node-1:19847")
    manager.ask("/api/v2/alerts", [fired(labels)])
    service.told("/slack")
    ended = datetime.now(timezone.utc)
    manager.ask("/api/v2/alerts", [fired(labels, endsAt=ended.isoformat())])
    _, message = service.told("/slack")
    (attachment,) = message["attachments"]
    assert attachment["title"].startswith("Resolved: InferenceServerSlow resolved:1")
    assert attachment["text"].startswith("Resolved: Inference server has stalled.")
    _, variables = dashboard(attachment["title_link"])
    assert variables["from"] == FROM
    assert int(variables["to"]) == pytest.approx((ended.timestamp() + 600) * 1000, abs=1000)


def test_the_loss_of_a_rack_is_told_in_a_text_that_fits(paging):
    """The title counts the exporters, the text has the first ten and says how many more there are."""
    service, manager = paging
    down = [alert("StallwatchDown", "critical", None, f"gpu-node-{n}:19847", rack="r1") for n in range(40)]
    manager.ask("/api/v2/alerts", [fired(labels) for labels in down])
    payload = service.told("/pagerduty", "StallwatchDown (40): ")[1]["payload"]
    text = payload["custom_details"]["description"]
    assert text.count(REASON) == 10
    assert text.endswith("And 30 more.")


def test_the_page_of_several_nodes_names_the_group_and_opens_the_fleet(paging):
    """There is no one node to look at."""
    service, manager = paging
    labels = alert("InferenceGroupStalled", "critical", None, None, group="10.0.0.1:5000")
    manager.ask("/api/v2/alerts", [fired(labels)])
    _, event = service.told("/pagerduty", "InferenceGroupStalled 10.0.0.1:5000: ")
    assert dashboard(event["client_url"])[0] == "/d/stallwatch-fleet"


@pytest.mark.parametrize(
    ("labels", "path", "variables"),
    [
        (
            alert("InferenceGPUFault", "critical", None, "gpu-node-2:19847", gpu="3"),
            "/d/stallwatch-fleet",
            {"var-job": "stallwatch", "var-instance": "gpu-node-2:19847"},
        ),
        (
            alert("StallwatchSnapshotStale", "critical", None, "gpu-node-3:19847"),
            "/d/stallwatch-exporter",
            {"var-job": "stallwatch", "var-instance": "gpu-node-3:19847"},
        ),
        (alert("StallwatchDown", "critical", None, None), "/d/stallwatch-exporter", {"var-job": "stallwatch"}),
    ],
    ids=["a GPU without a server", "an exporter", "no exporter at all"],
)
def test_what_has_no_server_leads_to_the_dashboard_that_shows_it(paging, labels, path, variables):
    """A faulty GPU is shown among its node's, an exporter on its own; a label that is not there is no variable."""
    service, manager = paging
    manager.ask("/api/v2/alerts", [fired(labels)])
    _, event = service.told("/pagerduty", labels["alertname"])
    assert dashboard(event["client_url"]) == (path, variables | {"from": FROM, "to": "now"})


def test_all_of_a_group_are_told(paging):
    """A GPU fault that takes two servers is one page with both sentences, each with its own link."""
    service, manager = paging
    servers = ["sglang:30000", "sglang:30001"]
    faults = [alert("InferenceGPUFault", "critical", server, "gpu-node-4") for server in servers]
    manager.ask("/api/v2/alerts", [fired(fault, f"{fault['server']} lost a GPU.") for fault in faults])
    lines = []
    while len(lines) < 2 * 3 + 1:  # the first of the two may be told at once, alone
        _, event = service.told("/pagerduty", "InferenceGPUFault")
        lines = event["payload"]["custom_details"]["description"].splitlines()
    assert [line for line in lines if "lost a GPU" in line] == [f"{server} lost a GPU." for server in servers]
    opened = [dashboard(line.removeprefix("Dashboard: "))[1] for line in lines if line.startswith("Dashboard: ")]
    assert [variables["var-server"] for variables in opened] == servers


def test_a_webhook_gets_the_annotations_and_shows_its_token(paging):
    """The example for a program of one's own: JSON with reason and runbook, and a token from a file."""
    service, manager = paging
    labels = alert("InferenceServerDead", "critical", "hooked:1", ours="yes")
    manager.ask("/api/v2/alerts", [fired(labels)])
    authorization, call = service.told("/webhook")
    assert authorization == "Bearer T0KEN"
    (sent,) = call["alerts"]
    assert sent["labels"] == labels
    assert (sent["annotations"]["description"], call["status"]) == (REASON, "firing")
    assert sent["annotations"]["runbook_url"] == f"{RUNBOOKS}/InferenceServerDead.md"


def test_every_template_that_a_receiver_names_is_shipped():
    """A template that is missing would fail the page itself."""
    shipped = "".join(path.read_text() for path in TEMPLATES.glob("*.tmpl"))
    named = {part.split('"')[1] for part in CONFIG.read_text().split("{{ template ")[1:]}
    assert named
    assert all(f'{{{{ define "{name}" ' in shipped for name in named)


def test_grafana_is_named_in_one_place():
    """Who has another address for it changes one line."""
    files = [CONFIG, *TEMPLATES.glob("*"), *(Path(CONFIG.parent) / "rules").glob("*")]
    assert sum(file.read_text().count(":3000") for file in files) == 1
