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
    stated = "".join([_attribute(key, value) for key, value in attributes.items()])
    end = "" if name in VOID else f"{''.join(_escaped(children))}</{name}>"
    return Markup(f"<{name}{stated}>{end}")  # noqa: S704 names come from this package, all the rest is escaped


def joined(*parts: object) -> Html:
    """Return parts one after another, each escaped unless it is an element; lists of parts are taken apart."""
    return Markup("".join(_escaped(parts)))  # noqa: S704 each part is escaped


def named(name: str) -> Html:
    """Return a name that others chose: a direction of writing that it switches on ends with it."""
    return tag("bdi", name)


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    word = key.rstrip("_").replace("_", "-")
    return f" {word}" if value is True else f' {word}="{escape(value)}"'


def _escaped(parts: Iterable[object]) -> list[str]:
    texts: list[str] = []
    for part in parts:
        if type(part) is Markup:
            texts.append(part)
        elif isinstance(part, str):
            texts.append(escape(part))
        elif isinstance(part, Iterable):
            texts += _escaped(part)
        elif part is not None:
            texts.append(escape(part))
    return texts
