"""A trial reads what was stuck, and harms nobody."""

import os

from stallwatch import trial


def test_a_trial_takes_nothing_out_of_a_pipe(tmp_path):
    """That a pipe answers is enough to know: what is in it is for its reader."""
    path, notes = tmp_path / "pipe", []
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    os.write(descriptor, b"x")
    _, failures = trial.reader({}, notes.append)([{"note": f"log {path}"}], frozenset())
    assert os.read(descriptor, 2) == b"x"
    os.close(descriptor)
    assert (failures, notes) == ((), [f"log {path}"])


def test_a_trial_of_what_has_gone_comes_back():
    """A process that has ended while it was left alone is a failure, and no reason to wait."""
    _, failures = trial.reader({}, print)([{"note": "pid 999999999"}], frozenset())
    assert [failure.reason for failure in failures] == ["error"]
