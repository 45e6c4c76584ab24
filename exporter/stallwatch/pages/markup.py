"""How does text become HTML? Only through `tag`, which escapes whatever it did not build itself.

Elements are `Markup` of markupsafe, and everything else is text: what a watched process names cannot be forgotten to be
escaped. A template engine would do the same for 4 MiB more on every node, where this one takes 0.1 MiB.
"""

from collections.abc import Iterable

from markupsafe import Markup, escape

__all__ = ["Html", "joined", "named", "tag"]

Html = Markup
VOID = frozenset({"meta", "link", "br"})


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element; None among children and attributes is left out, True is an attribute without a value.

    `class_` and `for_` stand for attributes that are words of Python, `aria_label` for `aria-label`.
    """
    stated = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Markup(f"<{name}{stated}>")  # noqa: S704 the attributes are escaped below, names come from this package
    return Markup(f"<{name}{stated}>{joined(*children)}</{name}>")  # noqa: S704 so are the children


def joined(*parts: object) -> Html:
    """Return parts one after another, each escaped unless it is an element; lists of parts are taken apart."""
    return Markup("").join(_flat(parts))


def named(name: str) -> Html:
    """Return a name that others chose: a direction of writing that it switches on ends with it."""
    return tag("bdi", name)


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    word = key.rstrip("_").replace("_", "-")
    return f" {word}" if value is True else f' {word}="{escape(value)}"'


def _flat(parts: Iterable[object]) -> Iterable[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, Iterable):
            yield from _flat(part)
        elif part is not None:
            yield str(part)
