"""The keeper of groups: settles what workers of another make leave open."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from toril.client.connection import Connection
from toril.errors import TorilError
from toril.logs import get_logger
from toril.protocol import groups
from toril.protocol.keys import COMPENSATION_SUFFIX, Keys

logger = get_logger("toril.worker")

LOOK_FOR_GROUPS_S = 15.0
"""How often a queue without open groups is asked whether it has any."""
LOOK_AT_GROUPS_S = 5.0
"""How long a worker waits at most while groups are open: one with a short time may come."""


class GroupKeeper:
    """Looks from time to time whether the groups that a queue owns are settled.

    Members that a worker of BullMQ ran are settled by this, and groups whose time is up cancelled.
    """

    def __init__(self, connection: Connection, owners: Sequence[Keys]) -> None:
        self._connection = connection
        self._owners = owners

    async def run(self) -> None:
        pause_s = LOOK_AT_GROUPS_S
        while True:
            await asyncio.sleep(pause_s * random.uniform(1.0, 1.05))
            pause_s = LOOK_FOR_GROUPS_S
            try:
                for keys in self._owners:
                    pause_s = min(pause_s, await self.keep(keys))
            except TorilError as error:
                logger.warning("open groups could not be looked at: %s", error)
            except Exception:
                logger.exception("open groups could not be looked at")

    async def keep(self, keys: Keys) -> float:
        """Settle what is due now; returns after how many seconds to look again."""
        while True:
            look = await self._connection.run(groups.reconcile(keys))
            if look.wait_ms is None:
                return LOOK_FOR_GROUPS_S
            if look.wait_ms > 0:
                return min(look.wait_ms / 1000, LOOK_AT_GROUPS_S)


def owners_of(keys: Keys) -> list[Keys]:
    """The queues whose groups a worker of this queue minds: its own, and the one it undoes."""
    undone = keys.name.removesuffix(COMPENSATION_SUFFIX)
    return [keys] if undone == keys.name else [keys, keys.sibling(undone)]
