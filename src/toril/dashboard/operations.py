"""Changes to many jobs: each runs beside the pages, says how far it is, and can be stopped."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from toril.errors import TorilError
from toril.logs import get_logger

MOST_FINISHED = 20
log = get_logger(__name__)


@dataclass
class Operation:
    """One of them, under way or over."""

    queue: str
    what: str
    who: str
    total: int
    """About how many jobs it will touch."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    done: int = 0
    outcome: str = ""
    """Empty while it is under way."""

    @property
    def is_over(self) -> bool:
        return bool(self.outcome)


Work = Callable[[Operation], Awaitable[str]]
"""Does it, sets ``done`` on the way, and returns the result."""


class Operations:
    """All operations of this process."""

    def __init__(self) -> None:
        self._all: OrderedDict[str, Operation] = OrderedDict()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def of(self, queue: str | None = None) -> list[Operation]:
        """Those of one queue, or of all, the newest first."""
        return [one for one in reversed(self._all.values()) if queue in (None, one.queue)]

    def start(
        self, operation: Operation, work: Work, ended: Callable[[Operation], Awaitable[object]]
    ) -> None:
        """Begin; ``ended`` is called when it is over, however it ended."""
        self._all[operation.id] = operation
        finished = [one.id for one in self._all.values() if one.is_over]
        for one in finished[: max(len(finished) - MOST_FINISHED, 0)]:
            del self._all[one]
        task = asyncio.create_task(self._run(operation, work, ended))
        self._tasks[operation.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(operation.id, None))

    def stop(self, operation_id: str, queue: str) -> bool:
        """Stop one that is under way; what it has done stays done."""
        task, operation = self._tasks.get(operation_id), self._all.get(operation_id)
        if task is None or operation is None or operation.queue != queue:
            return False
        return task.cancel()

    async def wait(self, operation: Operation, seconds: float) -> None:
        """Give a short one the time to end, so that its page shows the outcome."""
        if task := self._tasks.get(operation.id):
            await asyncio.wait([task], timeout=seconds)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(
        self, operation: Operation, work: Work, ended: Callable[[Operation], Awaitable[object]]
    ) -> None:
        try:
            operation.outcome = await work(operation)
        except asyncio.CancelledError:
            operation.outcome = f"stopped after {operation.done:,}"
        except TorilError as error:
            operation.outcome = f"ended after {operation.done:,}: {error}"
        except Exception:
            log.exception("an operation of the dashboard ended by a mistake of its own")
            operation.outcome = f"ended after {operation.done:,} by an error; see the log"
        await ended(operation)
