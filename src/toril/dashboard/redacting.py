"""Payloads with what is nobody's business left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from toril.errors import InvalidOptionError

HIDDEN = "••••••"
MOST_DEPTH = 100

Redact = bool | Iterable[str] | Callable[[str, Any], Any]
"""True hides payloads, names hide the fields of that name, a function decides for each field."""


class Unreadable(str):
    """The text of a payload that cannot be taken apart."""

    __slots__ = ()


class Redactor:
    """Masks values by the name of their field, however deep it is."""

    def __init__(self, redact: Redact | None) -> None:
        if isinstance(redact, str):
            raise InvalidOptionError("redact= is a list of field names, not one string")
        self._hides_all = redact is True
        self._function = redact if callable(redact) else None
        names = () if redact is None or isinstance(redact, bool) or callable(redact) else redact
        self._names = frozenset(name.lower() for name in names)

    def __call__(self, value: Any) -> Any:
        """The payload as it may be shown."""
        if value is None:
            return None
        if self._hides_all or isinstance(value, Unreadable):
            return HIDDEN
        if not self._names and self._function is None:
            return value
        return self._masked(value, 0)

    def hides(self, value: Any) -> bool:
        """Is something in this payload masked? Then it cannot be edited here."""
        return bool(self(value) != value)

    def unreadable(self, text: str) -> Any:
        """A payload that is no JSON: nobody can tell what of it is to be masked, so it all is."""
        return Unreadable(text) if self._names or self._function is not None else text

    def _masked(self, value: Any, depth: int) -> Any:
        if depth > MOST_DEPTH:
            return HIDDEN
        if isinstance(value, dict):
            return {name: self._field(str(name), one, depth) for name, one in value.items()}
        if isinstance(value, list):
            return [self._masked(one, depth + 1) for one in value]
        return value

    def _field(self, name: str, value: Any, depth: int) -> Any:
        if name.lower() in self._names:
            return HIDDEN
        if self._function is not None:
            value = self._function(name, value)
        return self._masked(value, depth + 1)
