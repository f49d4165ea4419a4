"""Requests as the bytes that the server reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import cast

from hiredis import pack_command

from toril.errors import InvalidInputError

Word = str | bytes | int | float
"""One word of a server command."""

_pack = cast(Callable[[tuple[Word, ...]], bytes], pack_command)


def pack_words(words: tuple[Word, ...]) -> bytes:
    """A whole request."""
    try:
        return _pack(words)
    except UnicodeEncodeError:
        return _pack(as_bytes(words))


def pack_call(begin: tuple[Word, ...], keys: PackedKeys, rest: tuple[Word, ...]) -> bytes:
    """The request ``begin``, the number of keys, the keys, ``rest``; only the last is packed anew.

    A script has up to twenty keys, and they are the same at every call of a queue.
    """
    packed = pack_words(rest)
    first = packed.index(b"\n") + 1  # behind the number of its words
    count = len(begin) + keys.words + len(rest)
    return b"".join((b"*%d\r\n" % count, _begin(begin), keys.text, memoryview(packed)[first:]))


class PackedKeys:
    """The keys of a call, and their number before them."""

    __slots__ = ("text", "words")

    def __init__(self, keys: Sequence[str]) -> None:
        self.text = _without_count((len(keys), *keys))
        self.words = len(keys) + 1


@cache
def _begin(words: tuple[Word, ...]) -> bytes:
    return _without_count(words)


def _without_count(words: tuple[Word, ...]) -> bytes:
    return pack_words(words).partition(b"\n")[2]


def as_bytes(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Words of a command, with names that are not UTF-8 as their original bytes."""
    return tuple(raw(word) if isinstance(word, str) else word for word in words)


def raw(text: str, argument: str = "") -> bytes:
    """A name as the bytes it is (``codec.name``)."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        what = f"{argument}={text!r}" if argument else f"{text!r}"
        raise InvalidInputError(f"{what} is not valid Unicode: {error}") from error
