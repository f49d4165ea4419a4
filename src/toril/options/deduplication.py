"""Only one job with the same id at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toril.checking import shown
from toril.errors import InvalidOptionError
from toril.options.checks import Duration, check_text, flag, milliseconds, refuse_unknown


class Deduplication(msgspec.Struct, frozen=True):
    """Allow only one job with this ``id`` at a time.

    Without ``ttl`` this lasts until that job has finished; with it, for that long.  With ``extend``
    each duplicate restarts the time, with ``replace`` the newest job replaces one that is still
    delayed (debounce), with ``keep_last_if_active`` the newest is remembered and runs after the
    active one, and with ``reschedule`` a duplicate moves a job that is still delayed to its own
    time.
    """

    id: str
    ttl: Duration | None = None
    extend: bool = False
    replace: bool = False
    keep_last_if_active: bool = False
    reschedule: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise InvalidOptionError(
                f"deduplication id={shown(self.id)} must be a non-empty string"
            )
        check_text(self.id, "deduplication id")
        for mode in ("extend", "replace", "keep_last_if_active", "reschedule"):
            flag(getattr(self, mode), f"deduplication {mode}")
        if self.ttl is not None:
            milliseconds(self.ttl, "deduplication ttl", least=1)
        if self.extend and self.ttl is None:
            raise InvalidOptionError(
                f"deduplication {self.id!r} has extend but no ttl; there is no time to extend"
            )
        if self.reschedule and self.replace:
            raise InvalidOptionError(
                f"deduplication {self.id!r} has both reschedule and replace; give one"
            )

    @property
    def ttl_ms(self) -> int | None:
        return None if self.ttl is None else milliseconds(self.ttl, "deduplication ttl", least=1)

    @classmethod
    def of(cls, value: Any) -> Deduplication:
        """``value`` in any of the accepted forms: itself, its id alone, or a mapping."""
        if isinstance(value, Deduplication):
            is_plain = value.ttl is None or isinstance(value.ttl, int)
            return value if is_plain else msgspec.structs.replace(value, ttl=value.ttl_ms)
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping):
            given = {_DEDUPLICATION.get(str(name), str(name)): each for name, each in value.items()}
            refuse_unknown(given, frozenset(cls.__struct_fields__), f"deduplication={value!r}")
            return cls.of(cls(**{"id": None, **given}))
        raise InvalidOptionError(
            f"deduplication={shown(value)} is not known; write Deduplication('some-id'), or the id"
            f" alone"
        )


_DEDUPLICATION = {"keepLastIfActive": "keep_last_if_active"}
