"""Queues in different slots, on different nodes, of a real cluster."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest
import redis.asyncio.cluster

from tests.features.parcels.shop import Shop
from tests.servers import Cluster
from toril.worker.group_keeper import GroupKeeper


class Slots:
    """Names of queues, and what is in the keys of any slot."""

    def __init__(self, cluster: Cluster, client: redis.asyncio.cluster.RedisCluster) -> None:
        self.cluster = cluster
        self.client = client
        self.url = cluster.url.replace("redis://", "redis+cluster://", 1)
        self.prefix = f"t{secrets.token_hex(4)}"
        self.options = {"connection": self.url, "prefix": self.prefix}

    def name(self, node: int) -> str:
        """The name of a queue that this node serves."""
        while True:
            name = f"{{q{secrets.token_hex(4)}}}"
            slot = self.cluster.slot_of(f"{self.prefix}:{name}:wait")
            if self.cluster.owner(slot) is self.cluster.nodes[node]:
                return name

    def key(self, queue: str, rest: str) -> str:
        return f"{self.prefix}:{queue}:{rest}"

    async def parcels(self, queue: str) -> int:
        """How many parcels wait at a queue, those that were refused included."""
        return await self.client.hlen(self.key(queue, "toril:parcels"))

    async def refused(self, queue: str) -> dict[str, str]:
        return await self.client.hgetall(self.key(queue, "toril:refused"))

    async def leftovers(self, queue: str) -> dict[str, int]:
        """The keys of couriers that are still there, but for what is remembered for a day."""
        names = ("parcels", "parcels-due", "in-transit", "refused")
        keys = {name: self.key(queue, f"toril:{name}") for name in names}
        return {name: 1 for name, key in keys.items() if await self.client.exists(key)}


@pytest.fixture
async def slots(cluster: Cluster) -> AsyncIterator[Slots]:
    client = redis.asyncio.cluster.RedisCluster.from_url(cluster.url, decode_responses=True)
    async with client:
        yield Slots(cluster, client)


@pytest.fixture
async def watched(slots):
    """A shop whose workers look after groups."""
    one = Shop(slots)
    yield one
    await one.close()


@pytest.fixture
def shop(watched, monkeypatch):
    """A shop in which nobody looks for lost ends: they arrive by parcel, or not at all."""

    async def keep(keeper, keys):
        pass

    monkeypatch.setattr(GroupKeeper, "keep", keep)
    return watched
