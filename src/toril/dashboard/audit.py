"""Who changed what, and when: a capped stream beside the keys of each queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toril.client.connection import Connection
from toril.protocol import codec
from toril.protocol.command import Command, Resend, plain
from toril.protocol.keys import Keys

MOST_ENTRIES = 1000
KEPT_S = 90 * 24 * 3600
_MOST_TEXT = 500


@dataclass(frozen=True)
class Entry:
    """One change."""

    id: str
    queue: str
    who: str
    what: str
    outcome: str

    @property
    def at_ms(self) -> int:
        return int(self.id.partition("-")[0])


class AuditLog:
    """Writes and reads the changes that were made through the dashboard."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix

    async def write(self, queue: str, *, who: str, what: str, outcome: str) -> str:
        """Note a change; returns the id of the entry."""
        key = self._key(queue)
        words: list[str] = []
        for name, value in (("who", who), ("what", what), ("outcome", outcome)):
            words += (name, value[:_MOST_TEXT])
        added: Command[str] = plain(
            "XADD", key, "MAXLEN", "~", MOST_ENTRIES, "*", *words,
            parse=codec.text, resend=Resend.NEVER,
        )  # fmt: skip
        expires: Command[Any] = plain("EXPIRE", key, KEPT_S, parse=int)
        answers = await self._connection.run_all([added, expires])
        return str(answers[0])

    async def newest(self, queues: Sequence[str], most: int = 100) -> list[Entry]:
        """The last changes in these queues, the newest first."""
        commands = [
            plain("XREVRANGE", self._key(name), "+", "-", "COUNT", most, parse=list)
            for name in queues
        ]
        replies = await self._connection.run_all(commands) if commands else []
        entries = [
            _entry(name, *raw) for name, reply in zip(queues, replies, strict=True) for raw in reply
        ]
        return sorted(entries, key=lambda one: _order(one.id), reverse=True)[:most]

    async def one(self, queue: str, entry_id: str) -> Entry | None:
        """The entry with this id."""
        first, dash, second = entry_id.partition("-")
        if not (dash and first.isdecimal() and second.isdecimal() and len(entry_id) < 42):
            return None
        if not (first.isascii() and second.isascii()):
            return None
        command = plain("XRANGE", self._key(queue), entry_id, entry_id, parse=list)
        found = await self._connection.run(command)
        return _entry(queue, *found[0]) if found else None

    def _key(self, queue: str) -> str:
        return Keys(self._prefix, queue).own("dashboard-log")


def _entry(queue: str, entry_id: bytes, fields: Any) -> Entry:
    words = [*fields.items()] if isinstance(fields, dict) else zip(*[iter(fields)] * 2, strict=True)
    known = {codec.text(name): codec.text(value) for name, value in words}
    return Entry(
        codec.text(entry_id),
        queue,
        known.get("who", ""),
        known.get("what", ""),
        known.get("outcome", ""),
    )


def _order(entry_id: str) -> tuple[int, int]:
    first, _, second = entry_id.partition("-")
    return int(first), int(second)
