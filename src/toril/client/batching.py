"""Group commit: jobs added at the same time are sent in one call.

The first add is sent at once, by itself.  Those that arrive before its reply are sent in one batch
after it, and so on: no timer delays anything, and under load the batches grow by themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar, cast

from toril.client.connection import Connection
from toril.client.places import PerPlace
from toril.options import Replicas
from toril.protocol import adding
from toril.protocol.adding import (
    MOST_JOBS_PER_CALL,
    Added,
    NotAdded,
    Prepared,
    count_for_one_call,
)
from toril.protocol.command import Command
from toril.protocol.keys import Keys

T = TypeVar("T")

MOST_CALLS_AT_ONCE = 4
"""Enough for the server and us to work in parallel, and few enough to let others in between."""


class _Line:
    """The callers that wait on one loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.waiting: deque[tuple[Prepared, asyncio.Future[Added]]] = deque()
        self.is_away = False
        self.sender: asyncio.Task[None] | None = None
        self.closing: list[asyncio.Future[None]] = []
        """Those who wait until no call is under way."""

    def next_batch(self) -> list[tuple[Prepared, asyncio.Future[Added]]]:
        """Those whose jobs leave with the next call; none if all of them were cancelled."""
        count = count_for_one_call(job for job, future in self.waiting if not future.done())
        batch: list[tuple[Prepared, asyncio.Future[Added]]] = []
        while self.waiting and (len(batch) < count or self.waiting[0][1].done()):
            job, future = self.waiting.popleft()
            if not future.done():
                batch.append((job, future))
        return batch

    def rest(self) -> None:
        """No call is under way, and nobody waits to be sent."""
        self.is_away = False
        for closing in self.closing:
            if not closing.done():
                closing.set_result(None)
        self.closing.clear()


class Batcher:
    """Adds jobs to one queue; each caller gets its own answer or its own error."""

    def __init__(
        self, connection: Connection, keys: Keys, replicas: Replicas | None = None
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._replicas = replicas
        self._lines = PerPlace(_Line)

    @property
    def is_away(self) -> bool:
        """Is a call in flight, which new jobs have to wait for?"""
        return self._lines.here().is_away

    async def add(self, job: Prepared) -> Added:
        """Add one job, alone or together with others that are added at the same time."""
        line = self._lines.here()
        if line.is_away:
            waiting: asyncio.Future[Added] = line.loop.create_future()
            line.waiting.append((job, waiting))
            return await waiting
        line.is_away = True
        try:
            answer = (await self._connection.run(self._add([job])))[0]
        finally:
            if line.loop.is_closed():
                line.is_away = False
            elif line.waiting:
                line.sender = line.loop.create_task(self._send_waiting(line))
            else:
                line.rest()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def add_all(self, jobs: list[Prepared], each: Callable[[Prepared, Added], T]) -> list[T]:
        """Add many jobs, in slices.  Once all have been answered it raises the first refusal, or
        else ``NotReplicatedError`` if too few replicas have some of them.

        Answers go through ``each`` while the server works on the next slices.
        """
        commands = []
        start = 0
        while start < len(jobs):
            part = jobs[start : start + MOST_JOBS_PER_CALL]
            part = part[: count_for_one_call(part)]
            commands.append(adding.add_each(self._keys, part, each, self._replicas))
            start += len(part)
        slices = await self._connection.run_all(commands, at_once=MOST_CALLS_AT_ONCE)
        answers = [answer for part in slices for answer in part]
        adding.raise_worst(answers)
        return cast(list[T], answers)

    def _add(self, jobs: list[Prepared]) -> Command[list[Added | NotAdded]]:
        return adding.add(self._keys, jobs, replicas=self._replicas)

    async def close(self) -> None:
        """Wait for the calls in flight; whoever gives up here stops none of them."""
        line = self._lines.here()
        if line.is_away:
            closing: asyncio.Future[None] = line.loop.create_future()
            line.closing.append(closing)
            await closing

    async def _send_waiting(self, line: _Line) -> None:
        """Send batch after batch until nobody waits; who has left is not sent any more."""
        batch: list[tuple[Prepared, asyncio.Future[Added]]] = []
        try:
            while line.waiting:
                batch = line.next_batch()
                if batch:
                    await self._send(batch)
        except BaseException:
            # It was cancelled, with its loop: nobody else would ever answer these callers.
            if not line.loop.is_closed():
                for _, future in (*batch, *line.waiting):
                    future.cancel()
            line.waiting.clear()
            raise
        finally:
            if line.loop.is_closed():
                line.is_away = False
            else:
                line.rest()

    async def _send(self, batch: list[tuple[Prepared, asyncio.Future[Added]]]) -> None:
        try:
            answers = await self._connection.run(self._add([job for job, _ in batch]))
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
