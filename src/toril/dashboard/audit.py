"""Who changed what, and when: a capped stream beside the keys of each queue."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toril.client.connection import Connection
from toril.errors import TorilError
from toril.logs import get_logger
from toril.protocol import codec
from toril.protocol.command import Command, Resend, plain
from toril.protocol.keys import Keys

MOST_ENTRIES = 1000
KEPT_S = 90 * 24 * 3600
MOST_UNWRITTEN = 100
_MOST_TEXT = 500
log = get_logger(__name__)


@dataclass(frozen=True)
class Entry:
    """One change."""

    id: str
    queue: str
    who: str
    what: str
    outcome: str
    is_written: bool = True
    """False: only this process knows it."""

    @property
    def at_ms(self) -> int:
        return int(self.id.partition("-")[0])


class AuditLog:
    """Writes and reads the changes that were made through the dashboard."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix
        self._unwritten: deque[Entry] = deque(maxlen=MOST_UNWRITTEN)

    async def write(self, queue: str, *, who: str, what: str, outcome: str) -> str:
        """Note a change; returns the id of the entry.

        A change is made, or refused, whether it can be noted or not: a server without memory lets
        jobs be removed and writes no notes.  What cannot be noted is logged, and kept here.
        """
        try:
            return await self._write(queue, who=who, what=what, outcome=outcome)
        except TorilError as error:
            log.warning(
                "%s by %s in the queue %s (%s) could not be noted: %s",
                what, who, queue, outcome, error,
            )  # fmt: skip
        entry_id = f"{time.time_ns() // 1_000_000}-{secrets.randbits(63)}"
        self._unwritten.append(Entry(entry_id, queue, who, what, outcome, is_written=False))
        return entry_id

    async def _write(self, queue: str, *, who: str, what: str, outcome: str) -> str:
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
        entries += [one for one in self._unwritten if one.queue in queues]
        return sorted(entries, key=lambda one: _order(one.id), reverse=True)[:most]

    async def one(self, queue: str, entry_id: str) -> Entry | None:
        """The entry with this id."""
        for entry in self._unwritten:
            if (entry.queue, entry.id) == (queue, entry_id):
                return entry
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
