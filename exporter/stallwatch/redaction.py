"""What of a text that somebody else wrote may be shown?"""

import os.path
import re
from typing import Any

HIDDEN = "<hidden>"
_WORD = r"(?:api[-_ ]?key|token|secret|passwd|password)"
_VALUE = r"""(?:'(?:[^'\\]|\\.)*(?:'|\\?\Z)|"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[^\s,;&)\]}]+)"""
_COUNT = r"#(?=token: [0-9]+(?:,|\Z))"  # how an engine writes how many tokens a batch has
SECRET_KEY = re.compile(rf"{_WORD}$|authorization$", re.IGNORECASE)
_SECRETS = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), rf"\g<1>{HIDDEN}")
    for pattern in (
        rf"""(authorization["']?\s*[:=]\s*)["']?(?:(?:bearer|basic|token|digest)\s+)?{_VALUE}""",
        rf"(\bbearer\s+){_VALUE}",
        rf"""((?<![\w-])--[\w-]{{0,64}}{_WORD}["']?(?:\s*,\s*|\s+|=)){_VALUE}""",
        rf"""((?<!{_COUNT}){_WORD}["']?\s*[=:]\s*){_VALUE}""",
        r"(://[^/\s:@]{0,256}:)[^/\s@]{1,256}(?=@)",
        r"(://)[^/\s:@]{1,256}(?=@)",
        r"([?&][\w.-]{0,64}(?:sig|signature|credential|key|keyid)=)[^\s&]{1,4096}",
        r"(\bsk-|\bhf_)[A-Za-z0-9_-]{12,}",
    )
)
_URL_USER = re.compile(r"(://)[^/\s@]{1,512}@")
_URL_QUERY = re.compile(r"(://[^\s?#]{0,1000})[?#]\S*")
_TOKEN = re.compile(r"\b(?:sk-[A-Za-z0-9_-]{20,}|hf_[A-Za-z0-9]{30,})")
LONGEST = 200


def redact(text: str) -> str:
    """Return the text without what looks like a secret in it."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def redacted(data: Any) -> Any:
    """Return plain data (of JSON) with every text in it redacted, and the values of keys that name a secret hidden."""
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, dict):
        return {redact(str(key)): _of_key(str(key), value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [redacted(item) for item in data]
    return data


def _of_key(key: str, value: Any) -> Any:
    return HIDDEN if isinstance(value, str) and SECRET_KEY.search(key) else redacted(value)


def public(text: str, limit: int = LONGEST) -> str:
    """Return what may be published of a name that a stranger gave: no URL's user or query, no token, and it is clean.

    Unlike `redact`, it takes no word for a sign of a secret, since a model may have any name.
    """
    text = _URL_USER.sub(r"\1", text[: 10 * limit])
    return clean(_TOKEN.sub(HIDDEN, _URL_QUERY.sub(r"\1", text)), limit)


def clean(text: str, limit: int = LONGEST) -> str:
    """Make a text fit for one line and a label: no control characters, and not longer than `limit`."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:limit])


def told(error: BaseException) -> str:
    """Name an error and its place, without its text: that may quote what was being read, such as a prompt."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    file = os.path.basename(trace.tb_frame.f_code.co_filename) if trace else "?"  # noqa: PTH119 pathlib costs 1 MiB here
    return f"{type(error).__name__} at {file}:{trace.tb_lineno if trace else '?'}"
