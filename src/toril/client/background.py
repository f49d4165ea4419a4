"""What the client does in the background: on the loop here, in threads in the blocking twin."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from toril.client.connection import Connection
from toril.logs import get_logger

logger = get_logger("toril.client")


class Background:
    """Runs ``work`` in the background until it returns or is stopped."""

    def __init__(
        self, work: Callable[[], Awaitable[None]], connection: Connection, name: str
    ) -> None:
        self._work = work
        self._connection = connection
        self._name = name
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        task = self._task
        return task is not None and not task.done() and not task.get_loop().is_closed()

    def start(self) -> None:
        """Start, or do nothing if no loop is running yet."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._task = loop.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """Stop the work wherever it is, and close the connection it uses."""
        task = self._task
        try:
            if task is None or task is asyncio.current_task():
                pass
            elif task.get_loop() is asyncio.get_running_loop():
                task.cancel()
                # Whoever awaited the task could not tell its end from a cancellation of the caller.
                await asyncio.wait([task])
            else:
                with contextlib.suppress(RuntimeError):  # its loop is closed, and it ended with it
                    task.get_loop().call_soon_threadsafe(task.cancel)
        finally:
            await self._connection.close()

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception:
            logger.exception("%s ended with an error", self._name)


async def call(callback: Callable[..., Any], *args: Any) -> None:
    """Call a function, plain or async, and wait until it ends.

    One that looks at a cancelled task has failed, and must not cancel whoever calls it.
    """
    try:
        result = callback(*args)
        if inspect.isawaitable(result):
            await result
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("it raised CancelledError without being cancelled") from error


async def is_set_within(signal: asyncio.Event, timeout_s: float) -> bool:
    """Wait for ``signal``, but no longer than ``timeout_s``."""
    try:
        async with asyncio.timeout(timeout_s):
            return await signal.wait()
    except TimeoutError:
        return signal.is_set()
