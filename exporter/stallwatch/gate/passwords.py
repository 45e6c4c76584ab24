"""Does this name go with this password?

A check costs as much as the bcrypt hash wants, so it happens in a thread, one at a time, and a success is remembered.
What is not remembered waits in a short queue, with few places for one address: who guesses holds up himself. An unknown
name costs the same as a known one.
"""

import asyncio
import hashlib
import secrets
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping

from stallwatch import aside

FAILURE_SECONDS = 1.0
MOST_WAITING = 16
MOST_WAITING_OF_ONE = 4
MOST_REMEMBERED = 64
LONGEST = 72  # what bcrypt looks at, and no hash was made of more


class BusyError(Exception):
    """Too many passwords wait to be checked."""


def verify(password: bytes, known: str) -> bool:
    """Check a password against a bcrypt hash; takes from milliseconds to seconds."""
    import bcrypt  # noqa: PLC0415 - only where passwords are configured

    return bcrypt.checkpw(password[:LONGEST], known.encode())


class Passwords:
    """The users, and who of them was right already."""

    def __init__(
        self,
        users: Mapping[str, str],
        verify: Callable[[bytes, str], bool] = verify,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.users = dict(users)
        self._hashes = sorted(self.users.values())
        self._verify = verify
        self._pause = pause
        self._salt = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._turn = asyncio.Lock()
        self._waiting: Counter[str] = Counter()

    def remembers(self, user: bytes, password: bytes) -> bool:
        """Say whether this password was right for this user before."""
        return self._digest(user, password) in self._right

    async def right(self, user: bytes, password: bytes, address: str) -> bool:
        """Say whether the password is right; a wrong one takes longer. Raises BusyError where too many wait."""
        if self.remembers(user, password):
            return True
        if self._waiting[address] >= MOST_WAITING_OF_ONE or self._waiting.total() >= MOST_WAITING:
            raise BusyError
        self._waiting[address] += 1
        try:
            is_right = await self._checked(user, password)
            if not is_right:
                await self._pause(FAILURE_SECONDS)
        finally:
            self._waiting[address] -= 1
            self._waiting += Counter()  # drops those at zero
        return is_right

    async def _checked(self, user: bytes, password: bytes) -> bool:
        digest = self._digest(user, password)
        known = self.users.get(user.decode(errors="replace"))
        async with self._turn:
            if digest in self._right:  # it was while this one waited
                return True
            # For an unknown name another one's hash is checked: always the same, and for nothing but the time it takes.
            hashed = known or self._hashes[digest_number(self._digest(user, b"")) % len(self._hashes)]
            matches = await aside.begin(lambda: self._verify(password, hashed), "password")
        if known is None or not matches:
            return False
        self._right[digest] = None
        if len(self._right) > MOST_REMEMBERED:
            self._right.popitem(last=False)
        return True

    def _digest(self, user: bytes, password: bytes) -> bytes:
        told = b"%d:%b%b" % (len(user), user, password)
        return hashlib.blake2b(told, key=self._salt).digest()


def digest_number(digest: bytes) -> int:
    """Return a number that follows from a digest."""
    return int.from_bytes(digest[:8], "big")
