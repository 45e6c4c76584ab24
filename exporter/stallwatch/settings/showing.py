"""How is a setting named in an error? In one line that shows no secret."""

import re

from stallwatch.redaction import HIDDEN, redact


def shown_key(key: object) -> str:
    """Name a key in an error: as it is where it looks like one of ours."""
    if isinstance(key, str) and key.isascii() and key.replace("-", "_").isidentifier() and len(key) <= 64:
        return key
    return shown(key)


def shown(value: object) -> str:
    """Name a plain value in an error: one line, and short."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return str(value).lower() if isinstance(value, bool) else shown_kind(value)
    try:
        text = ascii(_without_user(redact(value)) if isinstance(value, str) else value)
    except ValueError:  # more digits than Python writes
        return "a number that is too large"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _without_user(text: str) -> str:
    return re.sub(r"^\S*@", f"{HIDDEN}@", text)


def shown_kind(value: object) -> str:
    """Name only the kind of a value, which may hold anything."""
    kinds = {dict: "a mapping", list: "a list", type(None): "nothing", str: "text", int: "a number", float: "a number"}
    return kinds.get(type(value), "another kind of value")
