"""Messages: what stands in them, and that a real Alertmanager sends the same."""

import asyncio
import json
from datetime import datetime, timezone

import pytest
import yaml

from alertmanager_process import CONFIG, running
from readings import moment
from stallwatch.notify.incidents import NAMES, Alert, Incidents, News
from stallwatch.notify.message import RUNBOOKS, SUMMARIES, Where, fingerprint, labels_of, message
from webhook_receiver import Receiver, dead, stalled

WHERE = Where("gpu-node-1:19847", "http://gpu-node-1:19847")
BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp()
STALLED = Alert(NAMES[0], "kimi", WHERE.instance, BEGAN, BEGAN + 600, "Nothing has moved for 4 min.", "cold_deadlock")
DEAD = Alert(NAMES[1], "qwen", WHERE.instance, BEGAN + 30, BEGAN + 90, "A rank is gone.")
HOSTILE = 'x"}],<!channel>\u202e\\ \ud800'


def body(*begun, ended=(), lasting=()):
    """Return what is posted."""
    return json.loads(message(News(tuple(begun), tuple(ended), tuple(lasting)), WHERE))


def rules():
    """Return the rules that are shipped for verdicts, by the name of their alert."""
    groups = yaml.safe_load((CONFIG.parent / "rules" / "verdicts.yml").read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def test_one_alert_is_told_whole():
    """Which server it is, of which node, since when and why, with the labels that the rules give."""
    told = body(STALLED)
    (alert,) = told["alerts"]
    assert alert["labels"] == {
        "alertname": "InferenceServerStalled",
        "severity": "critical",
        "server": "kimi",
        "instance": "gpu-node-1:19847",
        "job": "stallwatch",
    }
    assert alert["annotations"]["description"] == (
        "kimi on gpu-node-1:19847 has stalled: Nothing has moved for 4 min. Signature: cold deadlock. "
        "Since 2026-01-01T00:00:00.000Z."
    )
    times = (alert["status"], alert["startsAt"], alert["endsAt"])
    assert times == ("firing", "2026-01-01T00:00:00.000Z", "0001-01-01T00:00:00Z")
    assert (told["version"], told["status"], told["commonLabels"]) == ("4", "firing", alert["labels"])


@pytest.mark.parametrize("name", NAMES)
def test_the_words_are_those_of_the_rules(name):
    """Whoever moves to Alertmanager later reads the same."""
    rule = rules()[name]
    assert rule["annotations"]["summary"] == SUMMARIES[name]
    assert rule["annotations"]["runbook_url"] == f"{RUNBOOKS}/{name}.md"
    assert (CONFIG.parent / "runbooks" / f"{name}.md").is_file()
    assert rule["labels"].items() <= labels_of(STALLED).items()
    assert rule["keep_firing_for"] == "5m"


def test_it_is_resolved_when_nothing_fires_any_more():
    """As long as another server of the node fires, so does the group; an end has its time."""
    told = body(ended=[STALLED], lasting=[DEAD])
    assert [alert["status"] for alert in told["alerts"]] == ["resolved", "firing"]
    assert (told["status"], told["alerts"][0]["endsAt"]) == ("firing", "2026-01-01T00:10:00.000Z")
    assert body(ended=[STALLED, DEAD])["status"] == "resolved"


def test_what_alerts_share_is_said_once():
    """Common labels and annotations are those that all have alike."""
    told = body(STALLED, DEAD)
    assert told["commonLabels"] == {"severity": "critical", "instance": WHERE.instance, "job": "stallwatch"}
    assert told["commonAnnotations"] == {}


def test_whatever_a_process_calls_itself_stays_text():
    """A name and a reason from a stranger can neither break the JSON nor its encoding."""
    alert = Alert(NAMES[0], HOSTILE, WHERE.instance, -1e300, 1e300, HOSTILE, HOSTILE)
    (told,) = body(alert)["alerts"]
    assert told["labels"]["server"] == HOSTILE
    assert message(News((alert,)), WHERE).isascii()
    assert body(ended=[alert])["alerts"][0]["endsAt"].startswith("9999-12-31")


def shape(value):
    """Return the types of all that a JSON value holds, by key; a list has the shape of what is in it."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [json.loads(text) for text in sorted({json.dumps(shape(inner), sort_keys=True) for inner in value})]
    return type(value).__name__


def ruled(alert):
    """Return an alert as Prometheus sends it to Alertmanager when a shipped rule fires."""
    (told,) = body(alert)["alerts"]
    starts = {"startsAt": told["startsAt"], "generatorURL": told["generatorURL"]}
    return {"labels": told["labels"], "annotations": told["annotations"], **starts}


async def test_a_real_alertmanager_sends_the_same(tmp_path):
    """The same alerts, grouped by node: its message has just these keys, labels, fingerprints and group."""
    receiver = Receiver()
    async with receiver.listening():
        route = {"receiver": "stallwatch", "group_by": ["instance", "job"], "group_wait": "500ms"}
        hook = {"name": "stallwatch", "webhook_configs": [{"url": receiver.url}]}
        (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump({"route": route, "receivers": [hook]}))
        with running(tmp_path / "alertmanager.yml", tmp_path) as manager:
            await asyncio.to_thread(manager.ask, "/api/v2/alerts", [ruled(STALLED), ruled(DEAD)])
            theirs = await receiver.told()
    ours = body(STALLED, DEAD)
    assert shape(ours) == shape(theirs)
    for same in ("receiver", "status", "version", "groupKey", "groupLabels", "commonLabels", "truncatedAlerts"):
        assert ours[same] == theirs[same]
    assert {alert["fingerprint"]: alert["labels"] for alert in ours["alerts"]} == {
        alert["fingerprint"]: alert["labels"] for alert in theirs["alerts"]
    }
    assert {alert["endsAt"] for alert in theirs["alerts"]} == {alert["endsAt"] for alert in ours["alerts"]}


def test_a_fingerprint_hangs_on_every_label():
    """Two servers, and two alerts of one server, are told apart."""
    incidents = Incidents()
    incidents.look({"a": stalled(), "b": stalled(), "c": dead()}, moment(1.0), WHERE.instance)
    every = [*incidents.news(1.0).begun, STALLED, DEAD]
    assert len({fingerprint(labels_of(alert)) for alert in every}) == len(every)
