"""What of a value is not as it was before? Changes as plain values for JSON, and the value that they lead to.

A change of a number, a word or a truth is the new one. Of an object or a list of the same shape it is an object that
holds, by key or place, only what has changed; of any other it is `{"=": all of it}`, so that what is empty now is told
apart from what is as before.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any

SAME = object()
WHOLE = "="
_PLAIN = frozenset({str, int, float, bool, type(None)})


def changes(old: Any, new: Any) -> Any:
    """Return what leads from one value to another, SAME where nothing has changed.

    Both are made of dataclasses, tuples or lists, mappings with keys of text, and plain values.
    """
    if old is new:
        return SAME
    if type(new) in _PLAIN:
        return SAME if old == new else new
    parts = _parts(old, new)
    return {WHOLE: new} if parts is None else _of_each(*parts)


def _parts(old: Any, new: Any) -> tuple[Iterable[Any], Iterable[Any], Iterable[Any]] | None:
    """Return names, values before and values now; None of two that are not of the same shape."""
    kind = type(new)
    if type(old) is not kind:
        return None
    if is_dataclass(kind):
        names, values_of = _reads(kind)
        return names, values_of(old), values_of(new)
    if isinstance(new, Mapping):
        same = old.keys() == new.keys() and WHOLE not in new
        return (new, [old[key] for key in new], new.values()) if same else None
    return (range(len(new)), old, new) if len(old) == len(new) else None


def _of_each(names: Iterable[Any], before: Iterable[Any], after: Iterable[Any]) -> Any:
    found = {}
    for name, old, new in zip(names, before, after, strict=True):
        if old is new:
            continue
        if type(new) in _PLAIN:  # most are, and a call for each would cost more than all the rest
            if old != new:
                found[name] = new
        elif (inner := changes(old, new)) is not SAME:
            found[name] = inner
    return found or SAME


@cache
def _reads(kind: type) -> tuple[tuple[str, ...], Callable[[Any], Sequence[Any]]]:
    names = tuple(field.name for field in fields(kind))
    return names, attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)


def changed(old: Any, change: Any) -> Any:
    """Return the value that a change leads to, both as read from JSON; objects and lists are changed in place.

    Raises ValueError where the change is of something else.
    """
    if not isinstance(change, dict):
        return change
    if WHOLE in change:
        return change[WHOLE]
    for name, inner in change.items():
        if isinstance(old, dict) and name in old:
            old[name] = changed(old[name], inner)
        elif isinstance(old, list) and name.isdecimal() and len(name) < 10 and int(name) < len(old):
            old[int(name)] = changed(old[int(name)], inner)
        else:
            raise ValueError(f"it changes {name[:40]!r}, and there was no such thing before")
    return old
