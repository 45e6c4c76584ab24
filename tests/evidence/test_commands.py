"""The command `stallwatch evidence`: what is kept, what one tells, and how it is passed on."""

import gzip
import json
import os
import tarfile

import pytest

from incidents import NAME, a_view, hung, written
from stallwatch.cli import main
from stallwatch.evidence import store
from stallwatch.evidence.content import Content
from stallwatch.evidence.incidents import Incident


@pytest.fixture
def kept(tmp_path):
    """Have a directory with a whole bundle of a server that hangs, and an older one of another."""
    written(tmp_path, 1_700_000_000.0, server="vllm:8000")
    past = hung(240.0)
    view = a_view(past)
    incident = Incident(past, view.verdicts[NAME], view.verdicts[NAME].since, "its verdict is stalled")
    content = Content(incident, view, (), gzip.compress(b""))
    store.write(tmp_path, content.name, content.files())
    return tmp_path


def run(capsys, directory, *words):
    """Run a command and return its exit code, its output and its errors."""
    code = main(["evidence", *words, f"--evidence.directory={directory}"])
    return code, *capsys.readouterr()


def test_the_bundles_are_listed_oldest_first(kept, capsys):
    """With server, verdict, signature, age and size."""
    code, out, _ = run(capsys, kept, "list")
    head, first, second = out.splitlines()
    assert (code, head.split()[:3]) == (0, ["bundle", "server", "verdict"])
    assert first.split()[:2] == ["20231114T221320Z-vllm-8000", "vllm:8000"]
    assert second.split()[:4] == ["20270115T080000Z-sglang-30000", NAME, "stalled", "cold_deadlock"]


def test_the_list_is_there_as_data(kept, capsys):
    """For scripts: where each lies, and what its manifest says."""
    code, out, _ = run(capsys, kept, "list", "--json")
    told = json.loads(out)
    assert (code, told["directory"]) == (0, str(kept))
    assert [one["server"] for one in told["bundles"]] == ["vllm:8000", NAME]
    assert told["bundles"][1]["path"] == str(kept / "20270115T080000Z-sglang-30000")


def test_where_nothing_is_kept_it_says_where_it_looked(tmp_path, capsys):
    """An empty list is no error; to show one of none is."""
    assert run(capsys, tmp_path / "none", "list")[:2] == (0, f"No evidence is kept in {tmp_path / 'none'}.\n")
    code, out, err = run(capsys, tmp_path / "none", "show")
    assert (code, out) == (2, "")
    assert "no evidence is kept" in err


@pytest.mark.parametrize("wanted", [(), (NAME,), ("20270115T080000Z-sglang-30000",), ("PATH",)])
def test_a_bundle_is_found_by_name_server_path_or_as_the_latest(kept, capsys, wanted):
    """What it tells is printed."""
    words = [str(kept / "20270115T080000Z-sglang-30000") if word == "PATH" else word for word in wanted]
    code, out, _ = run(capsys, kept, "show", *words)
    assert (code, out.splitlines()[0]) == (0, f"# {NAME}: stalled (cold_deadlock)")


@pytest.mark.parametrize("wanted", ["nobody:1", "/", "./nowhere"])
def test_what_is_no_bundle_is_refused(kept, capsys, wanted):
    """In one line that names it."""
    code, out, err = run(capsys, kept, "show", wanted)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert wanted in err


def test_a_bundle_that_this_version_cannot_read_tells_what_its_writer_said(kept, capsys):
    """The summary that was written with it."""
    bundle = kept / "20270115T080000Z-sglang-30000"
    (bundle / "verdict.json").write_text('{"server": 1}')
    (bundle / "summary.md").write_text("# as it was\n\x1b[31mred\n")
    code, out, _ = run(capsys, kept, "show")
    assert (code, out) == (0, "# as it was\n?[31mred\n")


@pytest.mark.parametrize("at", [1e300, -1e300, 1e18, 1e12])
def test_a_time_that_no_calendar_has_is_no_fault(kept, capsys, at):
    """Then the summary tells that was written with it."""
    bundle = kept / "20270115T080000Z-sglang-30000"
    manifest = json.loads((bundle / "manifest.json").read_text()) | {"at": at, "begun": at}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    for words in (("list",), ("show", bundle.name), ("pack", bundle.name, "--output", str(kept / "out.tar.gz"))):
        code, out, _ = run(capsys, kept, *words)
        assert (code, NAME in out or "out.tar.gz" in out) == (0, True)


def test_a_summary_that_is_a_pipe_keeps_nobody_waiting(kept, capsys):
    """It is said that it cannot be read."""
    bundle = kept / "20270115T080000Z-sglang-30000"
    for name in ("verdict.json", "summary.md"):
        (bundle / name).unlink()
        os.mkfifo(bundle / name)
    code, out, err = run(capsys, kept, "show")
    assert (code, out) == (2, "")
    assert "summary.md: cannot be read: is no regular file" in err


def test_a_bundle_is_packed_into_one_file(kept, capsys, tmp_path):
    """And what is to be looked at before it is passed on is said."""
    target = tmp_path / "incident.tar.gz"
    code, out, _ = run(capsys, kept, "pack", "--output", str(target))
    assert code == 0
    assert "names of models, hosts and paths are not" in out
    with tarfile.open(target) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {"summary.md", "verdict.json", "snapshot.json", "recording.jsonl.gz", "manifest.json", "SHA256SUMS"}
    assert run(capsys, kept, "pack", "--output", str(target))[0] == 2
