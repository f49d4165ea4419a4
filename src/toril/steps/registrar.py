"""Many consumers as one service."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from toril.checking import checked
from toril.errors import InvalidOptionError
from toril.logs import get_logger
from toril.options import Duration
from toril.steps.consumer import BaseConsumer
from toril.steps.queues import close_all_queues
from toril.worker.running import run

logger = get_logger("toril.steps")

C = TypeVar("C", bound=BaseConsumer[Any])


@checked
class ConsumerRegistrar:
    """Starts and closes a group of consumers together."""

    def __init__(self) -> None:
        self.consumers: list[BaseConsumer[Any]] = []

    def register(self, consumer: C) -> C:
        """Add a consumer to the group, and return it."""
        if any(known is consumer for known in self.consumers):
            raise InvalidOptionError(f"{consumer!r} is already registered")
        self.consumers.append(consumer)
        return consumer

    async def start_all(self) -> None:
        """Start every consumer, or none: if one cannot be started, the others are closed."""
        try:
            for consumer in self.consumers:
                await consumer.start()
        except BaseException:
            await self.close_all(timeout=0)
            raise

    async def close_all(self, timeout: Duration | None = None) -> None:
        """Close every consumer at the same time; one that fails does not stop the others."""
        results = await asyncio.gather(
            *(consumer.close(timeout) for consumer in self.consumers), return_exceptions=True
        )
        for consumer, result in zip(self.consumers, results, strict=True):
            if isinstance(result, BaseException):
                logger.error("%r could not be closed: %s", consumer, result, exc_info=result)

    def run(self, timeout: Duration | None = 25_000) -> None:
        """Run the consumers as a program until SIGTERM or SIGINT; blocks.

        Running steps may finish within ``timeout``, the rest is handed back; at the end the queues
        of ``get_queue`` are closed as well.
        """
        if not self.consumers:
            raise InvalidOptionError("nothing to run; register a consumer first")
        run(_Program(self), timeout=timeout)


class _Program:
    """A registrar as ``toril.run`` sees it: one service that starts and closes as a whole."""

    def __init__(self, registrar: ConsumerRegistrar) -> None:
        self._registrar = registrar

    async def run(self) -> None:
        await asyncio.gather(*(consumer.run() for consumer in self._registrar.consumers))

    async def close(self, timeout: Duration | None = None) -> None:
        await self._registrar.close_all(timeout)
        await close_all_queues()
