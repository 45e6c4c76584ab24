"""What is left behind goes once a minute, and what is there at the start is not gone through for it."""

import gc
import os
import subprocess
import sys
import weakref

import pytest

from stallwatch.tidying import EVERY_SECONDS, Tidying

TELLING = """
import gc, sys, threading, time
from stallwatch.cli import main

def tell():
    while not gc.get_freeze_count():
        time.sleep(0.01)
    print("tidied", flush=True)

threading.Thread(target=tell, daemon=True).start()
main(["serve", "--web.listen-address=127.0.0.1:0"])
"""


class Clock:
    """Tells the time that it is set to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        """Return it."""
        return self.now


class Ring:
    """Holds itself, as a closed connection and its reader hold each other."""

    def __init__(self):
        self.itself = self


@pytest.fixture
def clock():
    """Return a clock; Python collects only what the test has it collect, and nothing stays frozen."""
    gc.disable()
    yield Clock()
    gc.unfreeze()
    gc.enable()


def left_behind():
    """Leave a ring behind, and return what tells whether it is there."""
    return weakref.ref(Ring())


def test_what_is_left_behind_goes_once_a_minute(clock):
    """Not before, since it takes time, and each minute anew."""
    tidy = Tidying(clock)
    for _ in range(2):
        ring = left_behind()
        clock.now += EVERY_SECONDS - 1.0
        tidy()
        assert ring()
        clock.now += 1.0
        tidy()
        assert ring() is None


def test_what_was_there_at_the_start_is_not_gone_through_again(clock):
    """That is nearly all: what is still garbage then goes first, so that it does not stay for good."""
    garbage = left_behind()
    before = len(gc.get_objects())
    Tidying(clock)
    assert garbage() is None
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects()) < before / 10


def test_freed_tuples_are_not_hoarded(clock):
    """Python keeps those that it shortened as it made them, thousands of them, until it is tidied up."""
    tidy = Tidying(clock)
    made = [tuple(item for item in range(count % 8 + 1)) for count in range(16_000)]
    made.clear()
    hoarded = sys.getallocatedblocks()
    clock.now += EVERY_SECONDS
    tidy()
    assert sys.getallocatedblocks() < hoarded - 5_000


def test_an_exporter_is_tidied():
    """It begins once all is loaded."""
    off = {"STALLWATCH_STATE__ENABLED": "false", "STALLWATCH_EVIDENCE__ENABLED": "false"}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", TELLING], stdout=pipe, stderr=pipe, env={**os.environ, **off}) as one:
        assert one.stdout.readline() == b"tidied\n"
        one.terminate()
        assert b"ended" in one.stderr.read()
    assert one.returncode == 0
