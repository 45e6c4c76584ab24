"""Which name was probably meant?"""

from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is spelt most like this one, None where none is."""
    import difflib  # noqa: PLC0415 only who has mistyped something needs it

    return next(iter(difflib.get_close_matches(name[:64], known, n=1)), None)


def hint(name: str, known: Iterable[str]) -> str:
    """Return what is to be said of it behind what is wrong, nothing where no name is alike."""
    close = closest(name, known)
    return f"; did you mean {close}?" if close else ""
