"""Passwords: who is let in, what a wrong one costs whom, and that nobody learns a name from it."""

import asyncio
import time

import bcrypt
import pytest

from stallwatch.gate.passwords import MOST_REMEMBERED, MOST_WAITING, MOST_WAITING_OF_ONE, BusyError, Passwords


class Checks:
    """Stands in for bcrypt: keeps what it was asked, and may be held up."""

    def __init__(self):
        self.asked = []
        self.running = self.most_at_once = 0

    def __call__(self, password, known):
        """Compare."""
        self.asked.append((password, known))
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        time.sleep(0.01)
        self.running -= 1
        return known == f"hash of {password.decode()}"


class Pauses:
    """Stands in for the pause after a failure, which lasts until it is let go."""

    def __init__(self):
        self.seconds = []
        self.over = asyncio.Event()

    async def __call__(self, seconds):
        """Wait."""
        self.seconds.append(seconds)
        await self.over.wait()


@pytest.mark.parametrize("prefix", ["$2a$", "$2b$", "$2y$"])
async def test_real_hashes_of_every_kind(prefix):
    """Those of htpasswd begin with $2y$; a password over 72 bytes counts as its first 72, as it did for the hash."""
    long = b"p" * 72
    hashed = bcrypt.hashpw(long, bcrypt.gensalt(4)).decode().replace("$2b$", prefix)
    passwords = Passwords({"ann": hashed}, pause=lambda _: asyncio.sleep(0))
    assert await passwords.right(b"ann", long, "")
    assert await passwords.right(b"ann", long + b" and more", "")
    for wrong in (b"", b"p\0", long[:71], b"\xff\0" * 40):
        assert not await passwords.right(b"ann", wrong, "")


async def test_a_success_is_remembered_and_a_failure_is_not():
    """A scrape each second costs one check."""
    checks = Checks()
    passwords = Passwords({"ann": "hash of a"}, checks, lambda _: asyncio.sleep(0))
    for _ in range(3):
        assert await passwords.right(b"ann", b"a", "")
        assert not await passwords.right(b"ann", b"b", "")
    assert checks.asked.count((b"a", "hash of a")) == 1
    assert checks.asked.count((b"b", "hash of a")) == 3


async def test_names_and_passwords_do_not_run_together():
    """What is remembered for one name and password is not taken for another pair that reads the same."""
    passwords = Passwords({"a": "hash of bc", "ab": "hash of x"}, Checks(), lambda _: asyncio.sleep(0))
    assert await passwords.right(b"a", b"bc", "")
    assert not await passwords.right(b"ab", b"c", "")


async def test_an_unknown_name_costs_as_much_as_a_known_one():
    """It is checked against a hash that is there, the same at each try, and never let in by it."""
    checks, pauses = Checks(), []

    async def pause(seconds):
        pauses.append(seconds)

    passwords = Passwords({"ann": "hash of a", "bob": "hash of a"}, checks, pause)
    for _ in range(5):
        assert not await passwords.right(b"eve", b"a", "")
    assert len(checks.asked) == len(pauses) == 5
    assert {known for _, known in checks.asked} == {"hash of a"}
    assert not passwords.remembers(b"eve", b"a")


async def test_guessing_is_slow_and_stands_in_nobodys_way():
    """One address has few places, all together have some more; who is known is let in at once all the same."""
    checks, pauses = Checks(), Pauses()
    passwords = Passwords({"ann": "hash of a"}, checks, pauses)
    assert await passwords.right(b"ann", b"a", "10.0.0.1")
    guesses = [
        asyncio.create_task(passwords.right(b"ann", b"%d" % n, f"10.6.6.{n % 100}")) for n in range(100 * MOST_WAITING)
    ]
    while len(pauses.seconds) < MOST_WAITING:
        await asyncio.sleep(0.01)
    assert await passwords.right(b"ann", b"a", "10.6.6.6")
    pauses.over.set()
    outcomes = await asyncio.gather(*guesses, return_exceptions=True)
    assert outcomes.count(False) == MOST_WAITING
    assert all(isinstance(outcome, BusyError) for outcome in outcomes if outcome is not False)
    assert set(pauses.seconds) == {1.0}
    assert checks.most_at_once == 1
    with pytest.raises(BusyError):
        await asyncio.gather(*(passwords.right(b"x", b"%d" % n, "::1") for n in range(MOST_WAITING_OF_ONE + 1)))
    assert passwords._waiting.total() <= MOST_WAITING_OF_ONE


async def test_what_is_remembered_is_bounded():
    """More users than it remembers are checked again, and all are let in."""
    users = {f"user{n}": "hash of a" for n in range(MOST_REMEMBERED + 10)}
    passwords = Passwords(users, Checks(), lambda _: asyncio.sleep(0))
    for user in users:
        assert await passwords.right(user.encode(), b"a", "")
    assert len(passwords._right) == MOST_REMEMBERED


async def test_a_check_leaves_the_event_loop_free():
    """While a real hash of a high cost is checked, the loop goes on."""
    passwords = Passwords({"ann": bcrypt.hashpw(b"right", bcrypt.gensalt(12)).decode()})
    check = asyncio.create_task(passwords.right(b"ann", b"right", ""))
    turns = 0
    while not check.done():
        await asyncio.sleep(0.005)
        turns += 1
    assert check.result()
    assert turns > 5
