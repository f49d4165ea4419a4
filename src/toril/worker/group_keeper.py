"""The group keeper: settles what workers other than Toril's leave open."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence

from toril.client.connection import Connection
from toril.errors import TorilError
from toril.logs import get_logger
from toril.protocol import groups
from toril.protocol.keys import COMPENSATION_SUFFIX, Keys

logger = get_logger("toril.worker")

LOOK_FOR_GROUPS_S = 15.0
"""How often it looks for the open groups of its queues, whether any are due or not."""
LOOK_FOR_DUE_S = 5.0
"""How often a worker that knows of no open groups asks whether some are due.  If a new group has a
time limit that is due sooner, two workers are told (``stages.ring``)."""
LOOK_AT_GROUPS_S = 1.5
"""How long it waits at most while groups are open: one with a short time limit may come."""
MET_S = 0.5
"""How long it waits after it took a job of a group: there may be more."""
JITTER = 1.05
"""How much longer it may wait, at random, so that workers do not all ask at once."""


class GroupKeeper:
    """Checks regularly that the groups a worker is responsible for are settled.

    These are the groups that its queue owns, and those with a time limit that have members there.
    If such a group is in another slot of a cluster, its parcels are watched too: the queue that
    owns it may have no worker.
    It settles members that a BullMQ worker ran, and cancels groups whose time is up.
    """

    def __init__(
        self,
        connection: Connection,
        owners: Sequence[Keys],
        watch: Callable[[Keys], None] = lambda _: None,
    ) -> None:
        self._connection = connection
        self._watch = watch
        self._owners = owners
        self._has_met_one = asyncio.Event()

    def meet(self) -> None:
        """A job of a group was taken, or one is due soon: its group may be new to us."""
        self._has_met_one.set()

    async def run(self) -> None:
        # What became due while nobody ran is found soon.
        pause_s = min(LOOK_FOR_DUE_S, LOOK_AT_GROUPS_S)
        looked_at = time.monotonic()
        while True:
            await self._rest(pause_s * random.uniform(1.0, JITTER))
            pause_s = LOOK_FOR_DUE_S
            looks_at_all = time.monotonic() - looked_at >= LOOK_FOR_GROUPS_S
            if looks_at_all:
                looked_at = time.monotonic()
            for keys in self._owners:
                with _told(keys):
                    if looks_at_all:
                        await self.keep(keys)
                    pause_s = min(pause_s, await self._keep_due(keys))

    async def _rest(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._has_met_one.wait()
            await asyncio.sleep(min(pause_s, MET_S))
        self._has_met_one.clear()

    async def _keep_due(self, keys: Keys) -> float:
        """Settle what is due in the queues this worker covers; returns when to look again."""
        due = await self._connection.run(groups.due(keys))
        for owner in due.owners:
            with _told(owner):
                await self.keep(owner)
        waits_ms = [due.wait_ms]
        for owner in due.away:
            with _told(owner):
                self._watch(owner)
                there = await self._connection.run(groups.due(owner))
                if any(one.base == owner.base for one in there.owners):
                    await self.keep(owner)
                waits_ms.append(there.wait_ms)
        wait_ms = min((one for one in waits_ms if one is not None), default=None)
        if wait_ms is None:
            return LOOK_FOR_DUE_S
        return min(wait_ms / 1000, LOOK_AT_GROUPS_S) if wait_ms else LOOK_AT_GROUPS_S

    async def keep(self, keys: Keys) -> None:
        """Settle the groups of one queue that are due now."""
        while (await self._connection.run(groups.reconcile(keys))).wait_ms == 0:
            pass


@contextlib.contextmanager
def _told(keys: Keys) -> Iterator[None]:
    """A problem with the groups of one queue must not affect the others."""
    try:
        yield
    except TorilError as error:
        logger.warning("cannot check open groups of %s: %s", keys.name, error)
    except Exception:
        logger.exception("cannot check open groups of %s", keys.name)


def owners_of(keys: Keys) -> list[Keys]:
    """The queues whose groups a worker of this queue covers: its own, and the one it undoes."""
    undone = keys.name.removesuffix(COMPENSATION_SUFFIX)
    return [keys] if undone == keys.name else [keys, keys.sibling(undone)]
