"""Group commit: jobs added at the same time travel together.

The first add goes at once, by itself.  Those that arrive while it is away are sent together when it
is back, and so on: no timer delays anything, and under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

from toril.client.connection import Connection
from toril.errors import RefusedError
from toril.protocol import adding
from toril.protocol.adding import MOST_JOBS_PER_CALL, Added, Prepared, count_for_one_call
from toril.protocol.keys import Keys

T = TypeVar("T")

MOST_CALLS_AT_ONCE = 4
"""Enough for the server and us to work at the same time, and few enough to let others between."""


class Batcher:
    """Adds jobs to one queue; each caller gets its own answer or its own error."""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys
        self._waiting: deque[tuple[Prepared, asyncio.Future[Added]]] = deque()
        self._is_away = False
        self._sender: asyncio.Task[None] | None = None

    async def add(self, job: Prepared) -> Added:
        """Add one job, alone or with others that are added meanwhile."""
        if not self._is_away:
            return await self._add_alone(job)
        answer: asyncio.Future[Added] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, answer))
        return await answer

    async def add_all(self, jobs: list[Prepared], each: Callable[[Prepared, Added], T]) -> list[T]:
        """Add many jobs, in slices; raises the first refusal when all have been answered.

        Answers go through ``each`` while the server works on the next slices.
        """
        commands = []
        start = 0
        while start < len(jobs):
            part = jobs[start : start + MOST_JOBS_PER_CALL]
            part = part[: count_for_one_call(part)]
            commands.append(adding.add_each(self._keys, part, each))
            start += len(part)
        added: list[T] = []
        for answers in await self._connection.run_all(commands, at_once=MOST_CALLS_AT_ONCE):
            for answer in answers:
                if isinstance(answer, RefusedError):
                    raise answer
                added.append(answer)
        return added

    async def close(self) -> None:
        """Wait for what is under way."""
        if self._sender is not None:
            await self._sender

    async def _add_alone(self, job: Prepared) -> Added:
        self._is_away = True
        try:
            answer = (await self._connection.run(adding.add(self._keys, [job])))[0]
        finally:
            self._is_away = False
            if self._waiting:
                self._is_away = True
                self._sender = asyncio.create_task(self._send_waiting())
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def _send_waiting(self) -> None:
        """Send batch after batch until nobody waits; a caller that left is no reason to stop."""
        try:
            while self._waiting:
                count = count_for_one_call(job for job, _ in self._waiting)
                batch = list(islice(self._waiting, count))
                for _ in range(count):
                    self._waiting.popleft()
                await self._send(batch)
        finally:
            self._is_away = False

    async def _send(self, batch: list[tuple[Prepared, asyncio.Future[Added]]]) -> None:
        try:
            answers = await self._connection.run(adding.add(self._keys, [job for job, _ in batch]))
        except Exception as error:  # noqa: BLE001 (every caller gets it)
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
