"""When is a message sent? At once when there is news, again and again until it is taken, and never two at a time.

What is sent is what there is to tell at that moment: an incident that ends before anybody could be told of it is not
told at all, and what an earlier try did not bring across is in the next one. So there is no queue that could grow.
"""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stallwatch.notify.address import AddressError
from stallwatch.notify.incidents import KEEP_FIRING, Incidents, News
from stallwatch.notify.message import Where, message
from stallwatch.notify.post import Outcome, Post
from stallwatch.notify.tally import Tally
from stallwatch.redaction import told
from stallwatch.view import View

logger = logging.getLogger("stallwatch.notify")


@dataclass(frozen=True, slots=True)
class Pace:
    """How long an alert holds, how long one message waits after another, and after a failure; in seconds."""

    keep_firing: float = KEEP_FIRING
    gap: float = 5.0
    first_retry: float = 2.0
    longest_retry: float = 300.0


USUAL_PACE = Pace()


class Webhook:
    """Tells the URL in a file of the incidents of this node; without a file it only knows them."""

    def __init__(self, post: Post | None = None, pace: Pace = USUAL_PACE) -> None:
        self._post = post or Post()
        self._pace = pace
        self._incidents = Incidents(pace.keep_firing)
        self._where = Where("", "")
        self._file: Path | None = None
        self._now = 0.0
        self._held_back: frozenset[str] = frozenset()
        self._fault = ""
        self._tally = Tally()
        self._woken = asyncio.Event()
        self._delivering: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None

    @property
    def tally(self) -> Tally | None:
        """Return what came of the notifications, None where none are to be sent."""
        return self._tally if self._file else None

    def begin(self, where: Where, file: str | None) -> None:
        """Tell of this place from now on."""
        self._where = where
        self.configure(file)

    def configure(self, file: str | None) -> None:
        """Go on with this file, and try at once what waits or was refused; needs a running event loop."""
        self._file = Path(file) if file else None
        self._incidents.try_refused()
        self._woken.set()
        if self._checking:
            self._checking.cancel()
        self._checking = asyncio.create_task(self._check(self._file)) if self._file else None

    def take(self, view: View) -> None:
        """Take in a new view, and begin to tell what is new in it."""
        moment = view.snapshot.moment
        self._now = moment.monotonic
        kept = {name: bundle.name for name in view.verdicts if (bundle := view.evidence_of(name))}
        self._incidents.look(view.verdicts, moment, self._where.instance, kept)
        if self._file is None:
            return
        self._say_what_is_held_back()
        if self._incidents.news(self._now) and (self._delivering is None or self._delivering.done()):
            self._delivering = asyncio.create_task(self._deliver())

    def remember(self) -> Any:
        """Return what an exporter that is started again must know so as to tell nothing twice, as plain values."""
        return self._incidents.remember()

    def recall(self, remembered: Any, now: float) -> None:
        """Go on with what an exporter before this one told."""
        self._incidents.recall(remembered, now)

    async def close(self) -> None:
        """Tell no more; what was not told yet is told after the next start, if it still holds."""
        tasks = [task for task in (self._delivering, self._checking) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _check(self, file: Path) -> None:
        try:
            await self._post.url(file)
        except AddressError as error:
            logger.warning("nobody can be notified", extra={"file": str(file), "error": str(error)})

    async def _deliver(self) -> None:
        wait = self._pace.first_retry
        while self._file and (news := self._incidents.news(self._now)):
            self._woken.clear()
            outcome = await self._sent(self._file, news)
            self._tally = self._tally.with_one(outcome.result, self._now)
            self._say(outcome, news, self._file)
            if outcome.result == "failed":
                await self._pause(wait)
                wait = min(2 * wait, self._pace.longest_retry)
            else:
                self._incidents.settle(news, self._now, delivered=outcome.result == "delivered")
                wait = self._pace.first_retry
                await asyncio.sleep(self._pace.gap)
        if self._fault:
            logger.info("what could not be told is over")
        self._fault = ""

    async def _sent(self, file: Path, news: News) -> Outcome:
        try:
            return await self._post.send(file, message(news, self._where))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one try, the next may go well
            return Outcome("failed", told(error))

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until the configuration is loaded again."""
        waking = asyncio.ensure_future(self._woken.wait())
        await asyncio.wait({waking}, timeout=seconds)
        waking.cancel()

    def _say(self, outcome: Outcome, news: News, file: Path) -> None:
        extra: dict[str, Any] = {"file": str(file), "begun": len(news.begun), "ended": len(news.ended)}
        if outcome.result == "delivered":
            logger.info("notified", extra=extra)
        elif outcome.result == "given_up":
            logger.error("a notification was refused and is given up", extra={**extra, "error": outcome.why})
        elif outcome.why != self._fault:  # not once for each try
            logger.warning("cannot notify, trying on", extra={**extra, "error": outcome.why})
        self._fault = outcome.why if outcome.result == "failed" else ""

    def _say_what_is_held_back(self) -> None:
        held_back = self._incidents.held_back(self._now)
        for server in sorted(held_back - self._held_back):
            logger.warning("too many incidents of one server, the next is told later", extra={"server": server})
        self._held_back = held_back
