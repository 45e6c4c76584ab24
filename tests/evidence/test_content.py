"""What stands in a bundle: each source in its file or why not, and no secret."""

import json

import pytest

from incidents import NAME, a_view, hung
from stallwatch.evidence.content import LARGEST_SOURCE, Content
from stallwatch.evidence.gathering import Found
from stallwatch.evidence.incidents import Incident
from stallwatch.snapshot import Failure
from stallwatch.sources.environment import Debugging, EnvironmentReading, ProcessEnvironment
from stallwatch.sources.threads import ThreadsReading

SECRET = "sk-canary00000000000000"
PLAIN = Debugging(None, False, False, False, True)


def environment(**variables):
    """Return the environment of one rank."""
    return EnvironmentReading(
        1.0, processes=(ProcessEnvironment(NAME, "scheduler_TP0", "TP0", 7, "TP0", variables, PLAIN),)
    )


def files(*found, recording=b"", still=240.0):
    """Return the files of a bundle of a server that hangs."""
    past = hung(still)
    view = a_view(past)
    incident = Incident(past, view.verdicts[NAME], view.verdicts[NAME].since, "its verdict is stalled")
    return Content(incident, view, found, recording).files()


def entries(written):
    """Return what the manifest says of each source."""
    return {entry["source"]: entry for entry in json.loads(written["manifest.json"])["sources"]}


def test_each_source_has_a_file_or_a_reason():
    """The manifest says which, and in how long."""
    failed = Found("stacks", None, (Failure("stacks", "not_installed", "no py-spy"), Failure("stacks", "late")), 0.5)
    written = files(Found("threads", ThreadsReading(1.0, dropped=3), (), 1.5), failed, recording=b"packed")
    assert set(written) == {
        "summary.md", "verdict.json", "snapshot.json", "threads.json", "recording.jsonl.gz", "manifest.json",
    }  # fmt: skip
    told = entries(written)
    assert (told["threads"]["file"], told["threads"]["seconds"], told["threads"]["dropped"]) == ("threads.json", 1.5, 3)
    assert (told["stacks"]["file"], told["stacks"]["missing"]) == (None, ["not_installed: no py-spy", "late"])
    assert list(written)[-1] == "manifest.json"


def test_a_source_that_says_far_too_much_has_no_file():
    """The others are kept, and it is said."""
    written = files(Found("environment", environment(NCCL_DEBUG="x" * LARGEST_SOURCE), (), 0.0))
    assert "environment.json" not in written
    assert entries(written)["environment"]["missing"] == ["too_large: more than 8388608 bytes"]


def test_a_summary_that_cannot_be_made_costs_no_evidence():
    """It says so in its place, without a text that may quote somebody."""
    written = files(Found("environment", EnvironmentReading(1.0, processes=("no process",)), (), 0.0))
    title, _, said = written["summary.md"].decode().splitlines()
    assert title == f"# {NAME}: stalled"
    assert said.startswith("No summary could be made: ValidationError at")
    assert b"no process" in written["environment.json"]


def test_nothing_that_looks_like_a_secret_is_written():
    """Neither what a source gave nor why one failed."""
    failure = Failure("lines", "error", f"at --api-key {SECRET}")
    written = files(Found("environment", environment(NCCL_X=f"token={SECRET}"), (failure,), 0.0))
    assert SECRET.encode() not in b"".join(written.values())
    assert b"NCCL_X" in written["environment.json"]


@pytest.mark.parametrize("still", [180.0, 240.0])
def test_the_signature_is_the_one_that_it_will_have(still):
    """Also of a server that is only suspect yet."""
    manifest = json.loads(files(still=still)["manifest.json"])
    assert manifest["signature"] == json.loads(files(still=240.0)["manifest.json"])["signature"] != ""
