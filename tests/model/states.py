"""What the server holds, as values: a cell is one key with its content, a state all of them.

Equal cells are one object, so states are compared by identity, and what is read out of a cell is
read once.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

State = tuple["Cell", ...]
"""All cells, by key."""

EMPTY: State = ()


class Cell:
    """A key, its type (with ``!`` if it has a time to live) and its content in canonical order."""

    def __init__(self, key: str, kind: str, words: list[bytes]) -> None:
        self.key = key
        self.kind = kind
        self.packed = pack(words)
        self._words = words

    @cached_property
    def content(self) -> list[str]:
        """Lists and sets as they are, hashes field, value …, sorted sets score, member …"""
        return [word.decode("utf-8", "surrogateescape") for word in self._words]

    @cached_property
    def pairs(self) -> dict[str, str]:
        """The fields of a hash."""
        return dict(zip(self.content[::2], self.content[1::2], strict=True))

    @cached_property
    def scores(self) -> dict[str, float]:
        """The members of a sorted set, in order."""
        flat = self.content
        return {member: float(score) for score, member in zip(flat[::2], flat[1::2], strict=True)}

    @property
    def has_end(self) -> bool:
        """Does the key expire by itself?"""
        return self.kind.endswith("!")

    def __repr__(self) -> str:
        return f"{self.key} ({self.kind}) {self.content}"


class Cells:
    """Every cell that was ever seen, once."""

    def __init__(self) -> None:
        self._as_told: dict[tuple[bytes, bytes, bytes], Cell] = {}
        self._known: dict[tuple[str, str, bytes], Cell] = {}

    def cell(self, key: bytes, kind: bytes, packed: bytes) -> Cell:
        """The cell for what the server told, in whatever order it was."""
        told = (key, kind, packed)
        cell = self._as_told.get(told)
        if cell is None:
            fresh = Cell(key.decode(), kind.decode(), _in_order(kind, unpack(packed)))
            cell = self._known.setdefault((fresh.key, fresh.kind, fresh.packed), fresh)
            self._as_told[told] = cell
        return cell


def state_of(cells: Iterable[Cell]) -> State:
    return tuple(sorted(cells, key=_by_key))


def _by_key(cell: Cell) -> str:
    return cell.key


def _in_order(kind: bytes, words: list[bytes]) -> list[bytes]:
    if kind == b"set":
        return sorted(words)
    if kind == b"hash":
        fields = sorted(zip(words[::2], words[1::2], strict=True))
        return [word for field in fields for word in field]
    if kind == b"zset":
        return [word for i in range(0, len(words), 2) for word in (words[i + 1], words[i])]
    return words


def pack(words: list[bytes]) -> bytes:
    """A MessagePack array of raw strings, as the server's cmsgpack reads it."""
    parts = [b"\xdd" + len(words).to_bytes(4, "big")]
    for word in words:
        parts += (b"\xdb" + len(word).to_bytes(4, "big"), word)
    return b"".join(parts)


def unpack(packed: bytes) -> list[bytes]:
    """What ``pack`` or cmsgpack packed."""
    words, place = [], {0xDC: 3, 0xDD: 5}.get(packed[0], 1)
    while place < len(packed):
        head = packed[place]
        width = {0xD9: 1, 0xDA: 2, 0xDB: 4}.get(head, 0)
        start = place + 1 + width
        size = int.from_bytes(packed[place + 1 : start], "big") if width else head & 0x1F
        words.append(packed[start : start + size])
        place = start + size
    return words
