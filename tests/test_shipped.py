"""What comes with a version is written out, and never over what somebody has changed."""

from pathlib import Path

import pytest

from stallwatch.cli import main
from stallwatch.shipped import ConflictError, shipped_files, shipped_folder, write_out

RULES = Path("alerts/rules/servers.yml")


def test_everything_is_written_into_a_new_folder(tmp_path):
    """Each file stands where it stands in the repository, and no other."""
    new, there = write_out(tmp_path / "a" / "b")
    found = {path.relative_to(tmp_path / "a" / "b"): path for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: file.read_bytes() for path, file in found.items()} == shipped_files()
    assert new == there == len(found)


def test_a_second_time_changes_nothing(tmp_path):
    """Files that are the same are left alone, with the time of their last change."""
    write_out(tmp_path)
    before = (tmp_path / RULES).stat()
    assert write_out(tmp_path)[0] == 0
    assert (tmp_path / RULES).stat().st_mtime_ns == before.st_mtime_ns


def test_what_somebody_changed_is_not_overwritten(tmp_path):
    """One file that differs, and nothing is written: a half of one version and a half of another is worse."""
    write_out(tmp_path)
    (tmp_path / RULES).write_text("mine")
    (tmp_path / "alerts" / "prometheus.yml").unlink()
    with pytest.raises(ConflictError) as refused:
        write_out(tmp_path)
    assert refused.value.paths == [RULES]
    assert (tmp_path / RULES).read_text() == "mine"
    assert not (tmp_path / "alerts" / "prometheus.yml").exists()
    assert write_out(tmp_path, force=True)[0] == 2
    assert (tmp_path / RULES).read_bytes() == shipped_files()[RULES]


def test_the_command_says_what_it_did(tmp_path, capsys):
    """A line with the folder and the numbers; what differs by name, with the way out."""
    assert main(["bundle", str(tmp_path)]) == 0
    assert (
        capsys.readouterr().out
        == f"{tmp_path}: {len(shipped_files())} files, {len(shipped_files())} of them new or changed\n"
    )
    (tmp_path / RULES).write_text("mine")
    assert main(["bundle", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert str(RULES) in told
    assert "--force" in told
    assert main(["bundle", str(tmp_path), "--force"]) == 0


def test_a_folder_that_cannot_be_made_is_named(tmp_path, capsys):
    """A file in the way is an error in one line."""
    (tmp_path / "file").touch()
    assert main(["bundle", str(tmp_path / "file")]) == 1
    assert f"{tmp_path / 'file'}" in capsys.readouterr().err


def test_the_wheel_is_asked_before_the_checkout(tmp_path):
    """An installed package has what came with it; beside a checkout the repository is what counts."""
    package = tmp_path / "exporter" / "stallwatch"
    assert shipped_folder("alerts", package) == tmp_path / "alerts"
    (package / "bundle" / "alerts").mkdir(parents=True)
    assert shipped_folder("alerts", package) == package / "bundle" / "alerts"
