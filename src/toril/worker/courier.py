"""The courier: delivers what a worker's calls leave for other slots of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence

from toril.client.connection import Connection
from toril.errors import TorilError
from toril.logs import get_logger
from toril.protocol import parceling
from toril.protocol.keys import Keys, keys_at

logger = get_logger("toril.worker")

LOOK_S = 5.0
"""How often it looks for parcels that dead processes left or that could not be delivered."""
AGAIN_S = 0.5
"""How soon it looks again if some could not be delivered; the server postpones each of them."""
MOST_WATCHED = 100
"""How many queues in other slots it looks at."""


class Courier:
    """Delivers parcels as soon as it hears of them, and looks for parcels that nobody delivers.

    It looks at its queue, and at queues that may have no worker: its dead letters, and the owners
    of groups in other slots.
    """

    def __init__(self, connection: Connection, queues: Sequence[Keys]) -> None:
        self._connection = connection
        self._queues = {keys.base: keys for keys in queues}
        self._watched: dict[str, Keys] = {}
        self._looked_at = 0.0
        self._heard: set[str] = set()
        self._has_news = asyncio.Event()
        self._round: asyncio.Task[bool] | None = None

    def hear(self, base: str) -> None:
        """A call of this queue left parcels."""
        self._heard.add(base)
        self._has_news.set()

    def watch(self, keys: Keys) -> None:
        """Look at another queue too, which may have no worker; the latest are watched."""
        self._watched.pop(keys.base, None)
        self._watched[keys.base] = keys
        while len(self._watched) > MOST_WATCHED:
            del self._watched[next(iter(self._watched))]

    async def run(self) -> None:
        pause_s = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s * random.uniform(1.0, 1.05)):
                    await self._has_news.wait()
            pause_s = LOOK_S
            if self._connection.is_cluster:
                self._round = asyncio.create_task(self.carry())
                if not await asyncio.shield(self._round):
                    pause_s = AGAIN_S

    async def finish(self) -> None:
        """Deliver the parcels it has heard of but not delivered, once the service has ended."""
        if self._round is not None:
            await self._round
        if self._has_news.is_set():
            await self.carry()

    async def carry(self) -> bool:
        """Deliver what is due; False if some of it could not be delivered."""
        is_looking = not self._has_news.is_set() or time.monotonic() - self._looked_at > LOOK_S
        bases, self._heard = self._heard, set()
        self._has_news.clear()
        if is_looking:
            self._looked_at = time.monotonic()
            bases = {*bases, *self._queues, *self._watched}
        is_done = True
        for base in bases:
            try:
                keys = self._queues.get(base) or keys_at(base)
                carried = await self._connection.follow(parceling.carry(keys))
                is_done = is_done and carried.left == 0
                if carried.error is not None:
                    logger.warning("parcels of %s cannot be delivered yet: %s", base, carried.error)
                if carried.refused:
                    logger.error(
                        "%d parcels of %s were refused; toril doctor says why",
                        carried.refused,
                        base,
                    )
            except TorilError as error:
                is_done = False
                logger.warning("cannot look for parcels of %s: %s", base, error)
            except Exception:
                is_done = False
                logger.exception("cannot look for parcels of %s", base)
        return is_done
