"""The part of a queue that limits what all of its workers do together."""

from __future__ import annotations

from toril.checking import by_hand, shown
from toril.client.connection import Connection
from toril.deprecating import warn
from toril.errors import InvalidOptionError
from toril.options import Duration, RateLimit
from toril.protocol import limiting
from toril.protocol.keys import Keys


class QueueLimits:
    """Limits that hold for every worker of the queue, in any language."""

    keys: Keys
    _connection: Connection

    async def set_global_concurrency(self, concurrency: int) -> None:
        """Limit how many jobs run at once, over all workers."""
        await self._connection.run(limiting.set_concurrency(self.keys, concurrency))

    async def get_global_concurrency(self) -> int | None:
        """How many jobs may run at once, over all workers; None if there is no limit."""
        return await self._connection.run(limiting.concurrency(self.keys))

    async def remove_global_concurrency(self) -> None:
        """Remove the limit on jobs that run at once."""
        await self._connection.run(limiting.remove_concurrency(self.keys))

    async def is_maxed(self) -> bool:
        """Whether as many jobs are running as the global concurrency allows."""
        return await self._connection.follow(limiting.is_maxed(self.keys))

    @by_hand
    async def set_global_rate_limit(
        self,
        limit: RateLimit | int | None = None,
        duration: Duration | None = None,
        *,
        max: int | None = None,  # noqa: A002
    ) -> None:
        """Limit starts to ``limit.max`` jobs per ``limit.duration``, over all workers.

        Two numbers instead of a ``RateLimit`` are the old form.
        """
        if not isinstance(limit, RateLimit):
            number, length = limit if max is None else max, duration
            if number is None or length is None:
                raise InvalidOptionError(
                    f"set_global_rate_limit() got limit={shown(limit)}; write"
                    f" RateLimit(max=10, duration=1000)"
                )
            limit = RateLimit(number, length)
            warn("set_global_rate_limit(max, duration)", "set_global_rate_limit(RateLimit(…))")
        await self._connection.run(limiting.set_rate(self.keys, limit))

    async def get_global_rate_limit(self) -> RateLimit | None:
        """The rate limit over all workers, or None."""
        return await self._connection.run(limiting.rate(self.keys))

    async def remove_global_rate_limit(self) -> None:
        """Remove the rate limit over all workers."""
        await self._connection.run(limiting.remove_rate(self.keys))

    async def rate_limit(self, duration: Duration) -> None:
        """Hold the queue for ``duration``: no worker takes a job. For when a service answers 429.

        BullMQ workers on Node respect it only if they have a ``limiter``, or the queue has a global
        rate limit.
        """
        await self._connection.run(limiting.hold(self.keys, duration))

    async def remove_rate_limit(self) -> None:
        """Start a new window; a hold by ``rate_limit`` ends."""
        await self._connection.run(limiting.release(self.keys))

    async def get_rate_limit_ttl(self, max: int | None = None) -> int:  # noqa: A002
        """How many ms until the rate limit lets a job start again; 0 if one may start now.

        ``max`` is that of a worker's limiter; without it, the global rate limit is used.
        """
        return await self._connection.follow(limiting.wait_ms(self.keys, max))
