"""What the exporter's own processes cost is read from /proc."""

import os
import subprocess
import sys

import pytest

from stallwatch.expense import expense_of, own_expense

BURN = """
import time
while time.process_time() < 0.3:
    pass
blob = bytearray(b"x") * (64 << 20)
print(flush=True)
input()
"""


def test_cpu_and_memory_of_another_process_are_told():
    """What it burnt and what it holds, in seconds and bytes."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", BURN], stdin=pipe, stdout=pipe) as process:
        process.stdout.readline()
        expense = expense_of(process.pid)
        process.communicate(b"\n")
    assert 0.3 <= expense.cpu_seconds < 30
    assert 64 << 20 <= expense.resident_bytes < 256 << 20
    assert expense.open_files is None


def test_a_name_with_brackets_and_spaces_does_not_shift_the_columns(tmp_path):
    """The second column is a name that anybody can choose."""
    (tmp_path / "7").mkdir()
    rest = " ".join(map(str, range(4, 53)))
    (tmp_path / "7" / "stat").write_text(f"7 (a) R 9 (b)) S {rest}\n")
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    expense = expense_of(7, tmp_path)
    # By proc(5): utime is the 14th column and stime the 15th, starttime the 22nd, rss in pages the 24th.
    assert (expense.cpu_seconds, expense.started) == (pytest.approx((14 + 15) / ticks), pytest.approx(22 / ticks))
    assert expense.resident_bytes == 24 * page


def test_a_process_that_has_gone_costs_nothing(tmp_path):
    """There is nothing to tell, which is no fault."""
    assert expense_of(7, tmp_path) is None


def test_own_descriptors_are_counted():
    """One more open file is one more descriptor."""
    before = own_expense().open_files
    with open(os.devnull):
        assert own_expense().open_files == before + 1
