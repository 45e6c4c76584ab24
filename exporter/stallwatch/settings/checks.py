"""Is a value in a YAML file of the kind it must be? One line that names file, key and what is allowed says when not."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from stallwatch.config import ConfigError
from stallwatch.settings.showing import shown, shown_key, shown_kind
from stallwatch.settings.spelling import hint
from stallwatch.values import parse_duration

LONGEST_SECONDS = 366 * 86400.0


class Checks:
    """Checks of the values of one file."""

    def __init__(self, origin: str) -> None:
        self._origin = origin

    def fail(self, at: str, wrong: str) -> NoReturn:
        """Refuse what stands at this key path."""
        raise ConfigError(": ".join(part for part in (self._origin, at, wrong) if part))

    def mapping(self, raw: Any, at: str, allowed: Sequence[str] | None) -> Mapping[str, Any]:
        """Return a mapping with no key but those allowed (None: any); nothing at all is an empty one."""
        if raw is None and at:
            return {}
        if not isinstance(raw, Mapping):
            self.fail(at, f"expected a mapping, got {shown_kind(raw)}")
        for key in raw:
            if allowed is not None and key not in allowed:
                name = shown_key(key)
                path = f"{at}.{name}" if at else name
                self.fail(path, f"unknown key; allowed: {', '.join(allowed)}{hint(name, allowed)}")
        return raw

    def list(self, raw: Any, at: str) -> Sequence[Any]:
        """Return a list; nothing at all is an empty one."""
        if raw is None:
            return ()
        if not isinstance(raw, list):
            self.fail(at, f"expected a list, got {shown_kind(raw)}")
        return raw

    def number(self, raw: Any, at: str, *, most: float = 1e15) -> float:
        """Return a number that is not negative."""
        if isinstance(raw, bool) or not isinstance(raw, (int, float)) or not 0 <= raw <= most:
            self.fail(at, f"expected a number from 0 to {most:g}, got {shown(raw)}")
        return float(raw)

    def whole(self, raw: Any, at: str, *, least: int = 0, most: int = 1_000_000) -> int:
        """Return a whole number."""
        if isinstance(raw, bool) or not isinstance(raw, int) or not least <= raw <= most:
            self.fail(at, f"expected a whole number from {least} to {most}, got {shown(raw)}")
        return raw

    def duration(self, raw: Any, at: str, *, negative: bool = False) -> float:
        """Return seconds, written as `90s`, `25m45s`, `6h` or a plain number; negative ones only where asked for."""
        sign, text = 1.0, raw
        if negative and isinstance(raw, str):
            sign, text = (-1.0, raw[1:]) if raw.startswith("-") else (1.0, raw.removeprefix("+"))
        elif negative and isinstance(raw, (int, float)) and not isinstance(raw, bool) and raw < 0:
            sign, text = -1.0, -raw
        try:
            seconds = parse_duration(text)
        except ValueError:
            seconds = None
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= LONGEST_SECONDS:
            self.fail(at, f"expected a duration such as 90s, 25m45s or 6h, at most 366 days, got {shown(raw)}")
        return sign * float(seconds)

    def word(self, raw: Any, at: str, allowed: Sequence[str]) -> str:
        """Return one of these words."""
        if not isinstance(raw, str) or raw not in allowed:
            listed = ", ".join(word for word in allowed if word)
            self.fail(at, f"expected one of {listed}; got {shown(raw)}{hint(shown_key(raw), allowed)}")
        return raw

    def shown(self, raw: Any) -> str:
        """Return a value as an error may show it."""
        return shown(raw)

    def flag(self, raw: Any, at: str) -> bool:
        """Return true or false."""
        if not isinstance(raw, bool):
            self.fail(at, f"expected true or false, got {shown(raw)}")
        return raw

    def text(self, raw: Any, at: str) -> str:
        """Return text; a number is taken as it is written."""
        if isinstance(raw, bool) or not isinstance(raw, (str, int, float)):
            self.fail(at, f"expected text, got {shown_kind(raw)}")
        return str(raw)
