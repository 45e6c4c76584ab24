"""The demo's Prometheus and Alertmanager: which programs, which rules, which page."""

import asyncio
import re
import socket

import pytest
import yaml

from stallwatch.shipped import shipped_folder
from stallwatch.simulation.pager import Page, Pager, free_port, programs


def sent(alert="InferenceServerSilent", status="firing", server="sglang:30000"):
    """Return one alert as Alertmanager sends it."""
    labels = {"alertname": alert, "severity": "critical", "server": server}
    return {"status": status, "labels": labels, "annotations": {"description": "why", "runbook_url": "https://r"}}


def programs_in(folder, monkeypatch, *names):
    """Look for the programs where only these are installed."""
    for name in names:
        (folder / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(folder))
    return programs()


def test_alertmanager_is_known_by_both_of_its_names(tmp_path, monkeypatch):
    """Debian calls it prometheus-alertmanager."""
    found = programs_in(tmp_path, monkeypatch, "prometheus", "prometheus-alertmanager")
    assert found == {
        "prometheus": str(tmp_path / "prometheus"),
        "alertmanager": str(tmp_path / "prometheus-alertmanager"),
    }


def test_one_program_alone_cannot_page(tmp_path, monkeypatch):
    """Prometheus without Alertmanager counts as not installed."""
    assert programs_in(tmp_path, monkeypatch, "prometheus") is None


def test_a_port_that_is_free_is_taken_as_wished():
    """A wished port is returned where nobody listens, and another one where somebody does."""
    wished = free_port()
    assert free_port(wished) == wished
    with socket.create_server(("127.0.0.1", wished)):
        assert free_port(wished) not in {0, wished}


def test_the_rules_of_the_demo_are_the_shipped_ones_but_faster(tmp_path):
    """Every alert and expression is there; only intervals are shortened, and each group is evaluated every second."""
    pager = Pager(tmp_path, exporter_port=1)
    pager._prometheus()
    for source in (shipped_folder("alerts") / "rules").glob("*.yml"):
        shipped = yaml.safe_load(source.read_text())
        played = yaml.safe_load((tmp_path / "rules" / source.name).read_text())
        for ours, theirs in zip(played["groups"], shipped["groups"], strict=True):
            assert ours["interval"] == "1s"
            for one, other in zip(ours["rules"], theirs["rules"], strict=True):
                changed = {key for key in other if one[key] != other[key]}
                assert changed <= {"keep_firing_for"}


def test_only_what_pages_reaches_the_webhook(tmp_path):
    """The shipped routes and inhibitions stand, the pager is the webhook and every other receiver is nobody."""
    shipped = yaml.safe_load((shipped_folder("alerts") / "alertmanager.yml").read_text())
    played = Pager(tmp_path, exporter_port=1)._alertmanager(webhook_port=4711)
    assert played["inhibit_rules"] == shipped["inhibit_rules"]
    assert {receiver["name"] for receiver in played["receivers"]} == {one["name"] for one in shipped["receivers"]}
    hooked = [receiver["name"] for receiver in played["receivers"] if "webhook_configs" in receiver]
    assert hooked == ["pager"]
    assert re.findall(r'"group_\w+": "(\w+)"', str(played).replace("'", '"')) != []
    assert {played["route"]["group_wait"], played["route"]["group_interval"]} == {"1s"}


@pytest.mark.parametrize(
    "others", [sent(status="resolved"), sent(server="sglang:40000"), sent("StallwatchDown", server="")]
)
def test_the_next_page_is_one_that_fires_for_the_server(tmp_path, others):
    """What is resolved, and what is about another server or about none, is passed over."""
    pager = Pager(tmp_path, exporter_port=1)
    pager.pages.put_nowait({"alerts": [others]})
    assert pager.next_page("sglang:30000") is None
    pager.pages.put_nowait({"alerts": [others, sent()]})
    assert pager.next_page("sglang:30000") == Page(
        "InferenceServerSilent", "critical", "sglang:30000", "why", "https://r"
    )
    assert pager.next_page("sglang:30000") is None
    pager.pages.put_nowait({"alerts": [others, sent()]})
    assert pager.next_page("vllm:8000", "sglang:30000").server == "sglang:30000"


@pytest.mark.parametrize(("does", "alive"), [("exit 1", False), ("exec sleep 60", True)])
async def test_programs_that_end_at_once_are_not_counted_on(tmp_path, does, alive):
    """A Prometheus too old for the rules ends as soon as it has read them, and then nothing would ever page."""
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    pager = Pager(tmp_path / "pager", exporter_port=1)
    await pager.start({"prometheus": str(program), "alertmanager": str(program)})
    ended = asyncio.gather(*(process.wait() for process in pager._processes))
    await asyncio.wait([ended], timeout=0.5 if alive else 20)
    assert pager.alive is alive
    await pager.close()
    await ended
    assert not pager.alive
