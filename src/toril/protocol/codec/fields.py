"""Fields of a hash and texts of a reply: raw text, names, numbers, reasons."""

from __future__ import annotations

import json
import math
from typing import Any

MOST = 2**53 - 1
"""Beyond this a number of JavaScript or Lua is no longer exact; larger ones count as this."""


def text(value: bytes | None, default: str = "") -> str:
    """A field that is raw text on the wire."""
    return default if value is None else value.decode("utf-8", "replace")


def text_or_none(value: bytes | None) -> str | None:
    """The same, where a field that is missing says something."""
    return None if value is None else text(value)


def name(value: bytes) -> str:
    """The name of a key or an id; one that is not UTF-8 can be sent back byte for byte."""
    return value.decode("utf-8", "surrogateescape")


def reason(value: str) -> str:
    """Why a job failed: raw text, except from Python's `bullmq` below 3, which writes it as JSON.

    Quotes that are part of the words stay: all that it writes is one text of JSON, in ASCII.
    """
    if len(value) < 2 or not value[0] == value[-1] == '"' or not value.isascii():
        return value
    try:
        return str(json.loads(value))
    except ValueError:
        return value


def words_of(error: BaseException) -> str:
    """An error's message, as text that JSON can carry; a class may fail to give one."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 (the user's class)
        message = "its message cannot be shown"
    return message if message.isascii() else message.encode("utf-8", "replace").decode()


def number(value: bytes | int | None) -> int | None:
    """A field that is a decimal number on the wire; tolerates what other writers leave."""
    if value is None or isinstance(value, int):
        return value
    try:
        found = int(value)
    except ValueError:
        try:
            found = int(float(value))
        except (ValueError, OverflowError):
            return None
    return _bounded(found)


def number_in(value: Any) -> int | None:
    """A number inside a JSON object; tolerates what other writers leave."""
    if isinstance(value, str):
        return number(value.encode())
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return _whole(value) if is_number else None


def _bounded(value: int) -> int:
    """``value``, or the nearest number that every language and every command can carry."""
    return max(-MOST, min(value, MOST))


def _whole(value: float) -> int | None:
    """A number of a JSON text as a bounded integer; None for one that is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return _bounded(int(value))
