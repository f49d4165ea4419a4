"""The courier: delivers what a worker's calls leave for other slots of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from functools import partial

from toril.client.connection import Connection
from toril.errors import TorilError
from toril.logs import get_logger
from toril.protocol import parceling
from toril.protocol.keys import Keys, keys_at
from toril.protocol.parceling import Handed, Parcel

logger = get_logger("toril.worker")

LOOK_S = 5.0
"""How often it looks for parcels that dead processes left or that could not be delivered."""
AGAIN_S = 0.5
"""How soon it looks again if some could not be delivered; the server postpones each of them."""
COLLECT_S = 0.3
"""How long it waits for a call of the queue that can name what was delivered. Parcels are due again
a second after they were handed over."""
MOST_WATCHED = 100
"""How many queues in other slots it looks at."""
MOST_HELD = 1_000
MOST_BYTES_HELD = 5_000_000
"""How much it keeps of what replies bring; the server has the rest too, and it is due later."""


class Courier:
    """Delivers parcels as soon as it gets them or hears of them, and looks for parcels that nobody
    delivers.

    It looks at its queue, and at queues that may have no worker: its dead letters, and the owners
    of groups in other slots.
    """

    def __init__(self, connection: Connection, queues: Sequence[Keys]) -> None:
        self._connection = connection
        self._queues = {keys.base: keys for keys in queues}
        self._watched: dict[str, Keys] = {}
        self._held: dict[str, list[Parcel]] = {}
        self._held_count = self._held_bytes = 0
        self._heard: set[str] = set()
        self._delivered_at: set[str] = set()
        """Queues with delivered parcels that are not collected yet."""
        self._look_at = 0.0
        self._collect_at = 0.0
        self._has_news = asyncio.Event()
        self._round: asyncio.Task[None] | None = None

    def hear(self, base: str) -> None:
        """A call of this queue left parcels that have to be fetched."""
        self._heard.add(base)
        self._has_news.set()

    def take(self, base: str, parcels: Sequence[Parcel]) -> None:
        """A call of this queue left these parcels."""
        for parcel in parcels:
            if self._held_count == MOST_HELD or self._held_bytes > MOST_BYTES_HELD:
                self._look_again()
                break
            self._held.setdefault(base, []).append(parcel)
            self._held_count += 1
            self._held_bytes += len(parcel.body)
        self._has_news.set()

    def watch(self, keys: Keys) -> None:
        """Look at another queue too, which may have no worker; the latest are watched."""
        self._watched.pop(keys.base, None)
        self._watched[keys.base] = keys
        while len(self._watched) > MOST_WATCHED:
            del self._watched[next(iter(self._watched))]

    async def run(self) -> None:
        while True:
            wake_at = self._look_at
            if self._delivered_at:
                wake_at = min(wake_at, self._collect_at)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wake_at - time.monotonic())):
                    await self._has_news.wait()
            if self._connection.is_cluster:
                self._round = asyncio.create_task(self.carry())
                await asyncio.shield(self._round)
            else:
                self._look_at = time.monotonic() + LOOK_S

    async def finish(self) -> None:
        """Deliver the parcels it has heard of but not delivered, once the service has ended."""
        if self._round is not None:
            await self._round
        if self._has_news.is_set():
            await self.carry()
        await self._collect()

    async def carry(self) -> None:
        """Deliver what it has and what is due, and collect what no other call has collected."""
        held, heard = self._held, self._heard
        self._held, self._heard = {}, set()
        self._held_count = self._held_bytes = 0
        self._has_news.clear()
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S * random.uniform(1.0, 1.05)
            heard = {*heard, *self._queues, *self._watched}
        for base in {**dict.fromkeys(held), **dict.fromkeys(heard)}:
            await self._carry(base, Handed(tuple(held.get(base, ())), base in heard))
        if self._delivered_at and time.monotonic() >= self._collect_at:
            await self._collect()

    async def _carry(self, base: str, handed: Handed) -> None:
        try:
            keys = self._queues.get(base) or keys_at(base)
            plan = parceling.carry(keys, handed, partial(self._collect_later, base))
            carried = await self._connection.follow(plan)
        except TorilError as error:
            self._look_again()
            logger.warning("cannot look for parcels of %s: %s", base, error)
        except Exception:
            self._look_again()
            logger.exception("cannot look for parcels of %s", base)
        else:
            if carried.left:
                self._look_again()
            if carried.error is not None:
                logger.warning("parcels of %s cannot be delivered yet: %s", base, carried.error)
            if carried.refused:
                logger.error(
                    "%d parcels of %s were refused; toril doctor says why", carried.refused, base
                )

    def _look_again(self) -> None:
        """Some could not be delivered."""
        again_at = time.monotonic() + AGAIN_S * random.uniform(1.0, 1.05)
        self._look_at = min(self._look_at, again_at)

    def _collect_later(self, base: str, ids: Sequence[str]) -> None:
        if not self._delivered_at:
            self._collect_at = time.monotonic() + COLLECT_S
        self._delivered_at.add(base)
        self._connection.note_delivered(base, ids)

    async def _collect(self) -> None:
        """Collect what was delivered and no call of its queue has named; if that fails, the parcels
        are delivered again."""
        bases, self._delivered_at = self._delivered_at, set()
        for base in bases:
            with contextlib.suppress(TorilError):
                while ids := self._connection.take_delivered(base):
                    keys = self._queues.get(base) or keys_at(base)
                    await self._connection.run(parceling.collect(keys, ids))
