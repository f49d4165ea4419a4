"""The checks that all options share: a number, a duration, a moment, a text, a choice.

Each refuses what does not fit with an error that names the option.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from toril.checking import shown
from toril.errors import InvalidOptionError, UnknownOptionError

Duration = int | timedelta
"""A length of time: milliseconds, or a ``timedelta``."""

MAX_DELAY_MS = 10 * 366 * 24 * 3600 * 1000


def milliseconds(value: Duration, option: str, *, least: int = 0) -> int:
    """``value`` in whole milliseconds, or an error that names ``option``."""
    if isinstance(value, timedelta):
        value = round(value.total_seconds() * 1000)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOptionError(
            f"{option}={shown(value)} is not a duration; give an int (milliseconds) or a timedelta"
        )
    if not least <= value <= MAX_DELAY_MS:
        raise InvalidOptionError(
            f"{option}={value!r} is out of range; it must be between {least} and {MAX_DELAY_MS} ms"
        )
    return value


def epoch_ms(value: int | datetime, option: str) -> int:
    """A moment in milliseconds since the epoch; a ``datetime`` needs its time zone."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidOptionError(
                f"{option}={value!r} has no time zone; use datetime.now(timezone.utc) or the like"
            )
        return round(value.timestamp() * 1000)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOptionError(
            f"{option}={shown(value)} is not a point in time; give an int (milliseconds since the"
            f" epoch) or a datetime with its time zone"
        )
    return whole(value, option)


def whole(value: int, option: str, *, least: int = 0, most: int = 2**53 - 1) -> int:
    """``value`` if it is an integer in range, or an error that names ``option``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidOptionError(
            f"{option}={shown(value)} is out of range; it must be an integer from {least} to {most}"
        )
    return value


def check_text(value: str, option: str) -> None:
    """Refuse a string that cannot be encoded, such as half a surrogate pair."""
    if not isinstance(value, str):
        raise InvalidOptionError(f"{option}={shown(value)} must be a string")
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidOptionError(f"{option}={value!r} is not valid Unicode: {error}") from error


def flag(value: bool | None, option: str) -> None:
    """Refuse anything but True, False and None."""
    if value is not None and not isinstance(value, bool):
        raise InvalidOptionError(f"{option}={shown(value)} must be True or False")


def check_choice(value: str | None, choices: tuple[str, ...], option: str) -> None:
    """Refuse anything but one of ``choices`` and None."""
    if value is not None and not (isinstance(value, str) and value in choices):
        raise InvalidOptionError(f"{option}={shown(value)} is not known; use one of {choices}")


def refuse_unknown(options: Mapping[str, Any], known: frozenset[str], owner: str) -> None:
    """Raise for the first option that is not ``known``, with the name that was probably meant."""
    if not isinstance(options, Mapping):
        raise InvalidOptionError(f"{owner} must be a dict of options, not {shown(options)}")
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(str(option), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
            raise UnknownOptionError(f"unknown option {option!r} for {owner}; {hint}")
