"""Which finished jobs are kept."""

from __future__ import annotations

import msgspec

from toril.checking import shown
from toril.errors import InvalidOptionError
from toril.options.checks import Duration, milliseconds, whole


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """Which finished jobs are kept: the newest ``count``, none older than ``age``."""

    count: int | None = None
    age: Duration | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            whole(self.count, "count")
        if self.age is not None:
            milliseconds(self.age, "age")
        if self.limit is not None:
            whole(self.limit, "limit", least=1)

    @property
    def age_ms(self) -> int | None:
        return None if self.age is None else milliseconds(self.age, "age")

    @classmethod
    def of(cls, value: Keep | bool | int) -> Keep:
        """``True`` removes at once, ``False`` keeps all, a number keeps that many."""
        if isinstance(value, Keep):
            is_plain = value.age is None or isinstance(value.age, int)
            return value if is_plain else msgspec.structs.replace(value, age=value.age_ms)
        if isinstance(value, bool):
            return cls(count=0) if value else cls()
        return cls(count=whole(value, "keep"))

    @classmethod
    def of_option(cls, value: Keep | bool | int, option: str) -> Keep:
        """The same, with an error that names ``option``."""
        if not isinstance(value, Keep | int):
            raise InvalidOptionError(
                f"{option}={shown(value)} does not say which jobs to keep; give True, False, a"
                f" number of jobs, or Keep(count=…, age=…)"
            )
        return cls.of(value)
