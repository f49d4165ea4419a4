"""Which queues have partitions, and how many: read from the server, and cached for some seconds.

A growing queue takes no jobs from processes that do not know it grows, so producers ask again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from toril.client.connection import Connection
from toril.errors import (
    InvalidInputError,
    InvalidOptionError,
    PartitionMismatchError,
    ServerRefusalError,
)
from toril.protocol import partitioning
from toril.protocol.command import Command
from toril.protocol.keys import Keys
from toril.protocol.partitioning import MOST_PARTITIONS, Numbers
from toril.protocol.placing import told_of

AGREE_AGAIN_S = 10.0
"""How long a process trusts the number of partitions that it has read."""
MOST_KNOWN = 10_000


class Agreeing:
    """The numbers of partitions of the queues under one prefix.

    ``told`` are the numbers that the user gave.  With ``asks`` every other queue is looked up too;
    without it, every other queue is a plain one.
    """

    def __init__(
        self,
        connection: Connection,
        prefix: str,
        told: Mapping[str, int] | None,
        *,
        asks: bool = False,
    ) -> None:
        self.told = check_told(told, prefix)
        self._connection = connection
        self._prefix = prefix
        self._asks = asks
        self._known: dict[str, tuple[float, Numbers]] = {}

    @property
    def is_needed(self) -> bool:
        """Can any queue have partitions?"""
        return bool(self.told) or self._asks

    async def of(self, names: Iterable[str]) -> dict[str, Numbers]:
        """The numbers of those queues among ``names`` that have partitions.

        Raises ``PartitionMismatchError`` if one has a different number than the user gave, or is
        growing.
        """
        found: dict[str, Numbers] = {}
        refused: Exception | None = None
        for name, answer in (await self.each(names)).items():
            if isinstance(answer, Exception):
                refused = answer
            elif answer.now:
                found[name] = answer
        if refused is not None:
            raise refused
        return found

    async def each(self, names: Iterable[str]) -> dict[str, Numbers | Exception]:
        """What is known about each queue, or why it is unknown or nothing can be added to it."""
        told = {name: told_of(name, self.told) for name in dict.fromkeys(names)}
        wanted = [name for name, count in told.items() if count > 1 or self._asks]
        now = time.monotonic()
        # Taken before the server is asked: while it answers, others may forget what is known.
        found: dict[str, Numbers | Exception] = {
            name: self._known[name][1]
            for name in wanted
            if name in self._known and self._known[name][0] >= now
        }
        unknown = {name: told[name] for name in wanted if name not in found}
        if unknown:
            found |= await self._ask(unknown, now)
        answers: dict[str, Numbers | Exception] = {}
        for name in wanted:
            answer = found[name]
            if isinstance(answer, Numbers):
                count = told[name] if told[name] > 1 else answer.now
                answer = _refusal(answer, Keys(self._prefix, name), count) or answer
            if isinstance(answer, Exception):
                self._known.pop(name, None)  # it may be over soon
            answers[name] = answer
        return answers

    async def _ask(self, told: Mapping[str, int], now: float) -> dict[str, Numbers | Exception]:
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
        answers: dict[str, Numbers | Exception] = {}
        commands: dict[str, Command[Numbers]] = {}
        for name, count in told.items():
            try:
                keys = Keys(self._prefix, name)
            except InvalidInputError as error:
                answers[name] = error
                continue
            commands[name] = (
                partitioning.agree(keys, count) if count > 1 else partitioning.read(keys)
            )
        replies = await self._connection.run_each(list(commands.values()))
        for name, reply in zip(commands, replies, strict=True):
            is_new = isinstance(reply, Numbers) and not reply.now and told[name] > 1
            answers[name] = known = Numbers((), told[name]) if is_new else reply
            if isinstance(known, Numbers):
                self._known[name] = (now + AGREE_AGAIN_S, known)
        return answers


async def sizes_of(connection: Connection, prefix: str, names: Iterable[str]) -> dict[str, int]:
    """How many partitions those of the queues have that have several.

    If another program wrote something else there, the queue is a plain one.
    """
    asked = list(names)
    reads = [partitioning.read(Keys(prefix, name)) for name in asked]
    answers = await connection.run_each(reads) if reads else []
    sizes: dict[str, int] = {}
    for name, answer in zip(asked, answers, strict=True):
        if isinstance(answer, Numbers):
            sizes |= {name: answer.now} if 1 < answer.now <= MOST_PARTITIONS else {}
        elif not isinstance(answer, ServerRefusalError):
            raise answer
    return sizes


def _refusal(numbers: Numbers, keys: Keys, count: int) -> PartitionMismatchError | None:
    try:
        numbers.refuse(keys, count, writes=True)
    except PartitionMismatchError as error:
        return error
    return None


def check_told(told: Mapping[str, int] | None, prefix: str) -> dict[str, int]:
    """The numbers of partitions that a user gave, if they are valid."""
    if told is None:
        return {}
    if not isinstance(told, Mapping):
        raise InvalidOptionError(
            f"partitions={told!r} must be a dict from queue names to numbers: {{'mail': 16}}"
        )
    for name, count in told.items():
        partitioning.check(Keys(prefix, name), count)
    return {name: count for name, count in told.items() if count > 1}
