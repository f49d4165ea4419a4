"""A worker that is closed while its line breaks leaves nothing behind that nobody looks at."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from tests.helpers import wait_until
from toril.errors import ServerError
from toril.worker.pulse import Pulse
from toril.worker.watch import Watch


class BreakingLine:
    """A pump that waits at the server; when it is told to stop, its line breaks instead."""

    next_due_ms = 0
    is_waiting = False

    async def until_idle(self) -> None:
        return

    async def wait_and_take(self, block_ms: int) -> None:
        self.is_waiting = True
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ServerError("the line broke") from None


async def test_what_broke_once_when_a_worker_closed():
    """Regression: the exception of a wait that broke while it was ended was never retrieved."""
    unseen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    line = BreakingLine()
    pump: Any = line
    watch = Watch(pump, Pulse(), drain_delay_ms=5000, introduce=line.until_idle)
    watching = asyncio.create_task(watch.run())
    await wait_until(lambda: line.is_waiting)

    watching.cancel()
    await asyncio.wait([watching])
    del watching, watch
    gc.collect()

    assert unseen == []
