"""Callers whose parcels of one queue wait at the same time share a delivery.

The first is served at once; those that come before it is done are served together afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from toril.protocol.parceling import Handed, together

Deliver = Callable[[str, Handed], Awaitable[None]]

is_carrying: ContextVar[bool] = ContextVar("is_carrying", default=False)
"""Is this a call of somebody who carries parcels? What it leaves cannot wait for the next round."""


class Rounds:
    """The deliveries of one event loop.

    They run in tasks of their own, so a caller that gives up takes nobody else's parcels along.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, list[tuple[Handed, asyncio.Future[None]]]] = {}
        """By queue, while a delivery of that queue is under way: who waits for the next one."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def carry(self, base: str, handed: Handed, deliver: Deliver) -> None:
        """Return when ``deliver`` has been called for these parcels, alone or with others."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        if base in self.waiting:
            self.waiting[base].append((handed, done))
        else:
            self.waiting[base] = [(handed, done)]
            task = loop.create_task(self._run(base, deliver))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await done

    async def _run(self, base: str, deliver: Deliver) -> None:
        is_carrying.set(True)
        try:
            while some := self.waiting[base]:
                self.waiting[base] = []
                try:
                    await deliver(base, together(handed for handed, _ in some))
                finally:
                    # The calls that left the parcels have succeeded, whatever became of this.
                    _release(some)
        finally:
            _release(self.waiting.pop(base))


def _release(some: list[tuple[Handed, asyncio.Future[None]]]) -> None:
    for _, done in some:
        if not done.done():
            done.set_result(None)
