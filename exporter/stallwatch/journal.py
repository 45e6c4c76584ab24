"""How is a log line written?

One event is one line, whatever stands in it: newlines, quotes and control characters are escaped, and what looks like a
secret is not written. Only the `stallwatch` logger is touched.
"""

import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any, TextIO

from stallwatch.redaction import HIDDEN, SECRET_KEY, redact

LOOP_FAULT_SECONDS = 60.0
_BARE = re.compile(r"[A-Za-z0-9_./:@%+,#~\[\]()<>*-]+")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_OWN = frozenset({"ts", "level", "msg", "exception"})


class Redaction(logging.Filter):
    """Takes what looks like a secret out of the message, the extras and the exception of a record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite the record and let it pass."""
        record.msg, record.args = redact(record.getMessage()), None
        if record.exc_info and record.exc_info[0]:
            record.exc_text = redact("".join(traceback.format_exception(*record.exc_info)))
        for key, value in _extras(record).items():
            if SECRET_KEY.search(key):
                setattr(record, key, HIDDEN)
            elif not isinstance(value, bool | int | float | None):
                setattr(record, key, redact(str(value)))
        return True


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the keys and values of a line, in their order."""
    at = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
    line = {"ts": at.replace("+00:00", "Z"), "level": record.levelname.lower(), "msg": record.getMessage()}
    for key, value in _extras(record).items():
        line[f"extra_{key}" if key in _OWN else key] = value
    if record.exc_info and record.exc_info[0]:
        line["exception"] = record.exc_text or "".join(traceback.format_exception(*record.exc_info))
    return line


class LogfmtFormatter(logging.Formatter):
    """Writes `ts=... level=info msg="..." server=...`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        pairs = fields(record).items()
        return " ".join(f"{re.sub(r'[^A-Za-z0-9_.-]', '_', key)}={_quoted(value)}" for key, value in pairs)


def _quoted(value: object) -> str:
    text = str(value)
    if _BARE.fullmatch(text):
        return text
    written = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in written)


class JsonFormatter(logging.Formatter):
    """Writes one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        # json would write NaN and infinity bare, which no reader of JSON accepts.
        line = {key: value if _is_plain(value) else str(value) for key, value in fields(record).items()}
        return json.dumps(line)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and abs(value) < float("inf"))


FORMATTERS: Mapping[str, Callable[[], logging.Formatter]] = {"logfmt": LogfmtFormatter, "json": JsonFormatter}


def setup(
    format: str = "logfmt",  # noqa: A002 - the name of the flag
    level: str = "info",
    stream: TextIO | None = None,
) -> logging.Logger:
    """Let the logger of the exporter write to the stream (standard error); a second call replaces the first."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(FORMATTERS[format]())
    handler.addFilter(Redaction())
    logger = logging.getLogger("stallwatch")
    for old in list(logger.handlers):
        logger.removeHandler(old)
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    return logger


class LoopFaults:
    """Logs what goes wrong in the event loop outside of all tasks, such as no descriptor for a client.

    The same again is logged once a minute at most.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._said: dict[str, float] = {}

    def __call__(self, _loop: object, context: Mapping[str, Any]) -> None:
        """Take a report of the loop."""
        error, now = context.get("exception"), self._clock()
        self._said = {text: at for text, at in self._said.items() if now - at < LOOP_FAULT_SECONDS}
        known = f"{context['message']} {error!r}"
        if known not in self._said:
            self._said[known] = now
            trace = None if isinstance(error, OSError) else error
            self._logger.error(str(context["message"]), exc_info=trace, extra={"error": str(error or "")})


class Changes:
    """Logs what is wrong when it begins, changes and ends, not each second.

    A key is a tuple with a value for each of `labels`, the reason last; its text says more. Numbers in the text do not
    count as a change, since an age in it would make a line each second.
    """

    def __init__(
        self,
        logger: logging.Logger,
        labels: tuple[str, ...] = ("collector", "server", "reason"),
        what: str = "signal",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logger = logger
        self._labels = labels
        self._what = what
        self._clock = clock
        self._open: dict[tuple[str, ...], tuple[str, float]] = {}

    def see(self, wrong: Mapping[tuple[str, ...], str]) -> None:
        """Take note of all that is wrong now; what was wrong before and is not in it has ended."""
        others = {key[:-1]: since for key, (_, since) in self._open.items() if key not in wrong}
        for key, text in wrong.items():
            gist, (before, since) = _NUMBER.sub("0", text), self._open.get(key, (None, others.get(key[:-1])))
            if gist != before:
                self._open[key] = (gist, self._clock() if since is None else since)
                message = f"{self._what} missing" if since is None else f"{self._what} missing for another reason"
                self._logger.warning(message, extra=self._named(key) | ({"detail": text} if text else {}))
        still = {key[:-1] for key in wrong}
        for key in self._open.keys() - wrong.keys():
            _, since = self._open.pop(key)
            if key[:-1] in still:
                continue  # it is not back: only the reason is another one
            extra = self._named(key) | {"seconds": round(self._clock() - since, 1)}
            self._logger.info(f"{self._what} back", extra=extra)  # noqa: G004 - both parts are ours

    def forget(self, ended: Callable[[tuple[str, ...]], bool]) -> None:
        """Drop what is of no concern any more, such as a server that has gone: it is not back."""
        self._open = {key: known for key, known in self._open.items() if not ended(key)}

    def _named(self, key: tuple[str, ...]) -> dict[str, Any]:
        return {label: value for label, value in zip(self._labels, key, strict=True) if value}
