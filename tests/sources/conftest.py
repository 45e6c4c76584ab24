"""What tests of several sources start."""

import pytest

from stuck_programs import Programs, in_place_of_py_spy


@pytest.fixture
def start():
    """Start Python programs that are killed after the test."""
    with Programs() as programs:
        yield programs.start


@pytest.fixture
def spy(tmp_path):
    """Write a program in the place of py-spy and return what finds it."""
    return lambda code: in_place_of_py_spy(tmp_path, code)
