"""What the tests of groups share: queues under a prefix, a worker steered by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import redis.asyncio

from toril import Compensation, FlowProducer, GroupJob, GroupNode, Queue
from toril.client.connection import Connection
from toril.protocol import settling
from toril.protocol.job import StoredJob, fields_of
from toril.protocol.keys import Keys
from toril.protocol.settling import Policy, Raised, Released, Returned, Settled, Take

LOCK_MS = 60_000


class Hand:
    """Takes and ends jobs one by one, with the commands of a worker and nobody's timing."""

    _numbers = count(1)

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys
        self._name = f"hand{next(self._numbers)}"
        self._request = 0

    async def take(self, how_many: int = 1) -> list[StoredJob]:
        reply, token = await self._call([], how_many)
        jobs = []
        for words in reply.jobs:
            job_id = words.pop().decode()
            job = StoredJob(self._keys.prefix, self._keys.name, job_id, fields_of(words))
            self.tokens[job_id] = token
            jobs.append(job)
        return jobs

    async def take_one(self, name: str | None = None) -> StoredJob:
        (job,) = await self.take()
        assert name is None or job.name == name
        return job

    async def complete(self, *jobs: StoredJob, value: Any = None) -> list[int]:
        return await self.settle([(job, Returned(value)) for job in jobs])

    async def fail(self, *jobs: StoredJob, reason: str = "no") -> list[int]:
        return await self.settle([(job, Raised(ValueError(reason))) for job in jobs])

    async def give_back(self, *jobs: StoredJob, is_begun: bool = False) -> list[int]:
        return await self.settle([(job, Released(is_begun)) for job in jobs])

    async def settle(self, endings: list[tuple[StoredJob, Any]]) -> list[int]:
        """End jobs in one call; the answer for each is 0 or a refusal."""
        settled = []
        for job, attempt in endings:
            outcome = settling.decide(job, attempt, Policy(), dice=0.0)
            settled.append(Settled(job.id, self.tokens[job.id], outcome, job))
        reply, _ = await self._call(settled, 0)
        return [int(code) for code in reply.results]

    async def lose(self, job: StoredJob) -> None:
        """Fall silent over a job: its lock expires."""
        await self._connection.run(_delete(f"{self._keys.job(job.id)}:lock"))

    async def _call(self, settled: list[Settled], how_many: int) -> tuple[Any, str]:
        self._request += 1
        token = f"{self._name}:{self._request}"
        take = Take(count=how_many, token=token, lock_ms=LOCK_MS)
        command = settling.settle(
            self._keys, settled, take, flight=self._name, request=self._request
        )
        return await self._connection.run(command), token

    tokens: dict[str, str]


def _delete(key: str) -> Any:
    from toril.protocol.command import plain

    return plain("DEL", key, parse=int)


class Meeting:
    """Lets the handlers of a group go on when all of those expected are running."""

    def __init__(self, nodes: list[Any], names: str) -> None:
        self._group = {job.id: node.group_id for node in nodes for job in node.jobs}
        self._expected = len(names)
        self._present = Counter[str]()
        self._is_full = {node.group_id: asyncio.Event() for node in nodes}

    async def wait(self, job: Any) -> None:
        group_id = self._group[job.id]
        self._present[group_id] += 1
        if self._present[group_id] == self._expected:
            self._is_full[group_id].set()
        await self._is_full[group_id].wait()


class World:
    """The queues of a test, what creates groups in them, and a hand for each queue."""

    def __init__(self, url: str, prefix: str, client: redis.asyncio.Redis) -> None:
        self.url = url
        self.prefix = prefix
        self.client = client
        self.connection = Connection(url)
        self.flow = FlowProducer(connection=self.connection, prefix=prefix)
        self._queues: dict[str, Queue] = {}
        self._hands: dict[str, Hand] = {}

    def queue(self, name: str) -> Queue:
        if name not in self._queues:
            self._queues[name] = Queue(name, connection=self.connection, prefix=self.prefix)
        return self._queues[name]

    def hand(self, name: str) -> Hand:
        if name not in self._hands:
            hand = Hand(self.connection, Keys(self.prefix, name))
            hand.tokens = {}
            self._hands[name] = hand
        return self._hands[name]

    async def order(self, names: str = "abc", *, mapped: str | None = None, **options: Any) -> Any:
        """A group "order" whose jobs a, b, c are in queues of the same names; ``mapped`` ones,
        all unless given, are undone by undo-a, undo-b, undo-c."""
        own = {name: options.pop(name, {}) for name in names}
        jobs = [
            GroupJob(name, {"n": name}, queue_name=own[name].pop("queue_name", name), **own[name])
            for name in names
        ]
        mapped = names if mapped is None else mapped
        compensation = options.pop("compensation", None)
        if compensation is None:
            compensation = {
                name: Compensation(f"undo-{name}", {"of": name}, attempts=1, backoff=None)
                for name in mapped
            }
        return await self.flow.add_group("order", jobs, compensation, **options)

    async def record(self, node: GroupNode, owner: str = "a") -> dict[str, str]:
        return await self.client.hgetall(f"{self.prefix}:{owner}:groups:{node.group_id}")

    async def statuses(self, node: GroupNode, owner: str = "a") -> dict[str, str]:
        """The stored status of each member, by its name."""
        stored = await self.client.hgetall(f"{self.prefix}:{owner}:groups:{node.group_id}:jobs")
        names = {f"{self.prefix}:{job.queue_name}:{job.id}": job.name for job in node.jobs}
        return {names[key]: status for key, status in stored.items()}

    async def state(self, node: GroupNode, owner: str = "a") -> str | None:
        info = await self.queue(owner).get_group_state(node.group_id)
        return None if info is None else str(info.state)

    async def events(self, owner: str = "a") -> list[dict[str, str]]:
        """What the owner's stream tells of groups, oldest first."""
        rows = [row for _, row in await self.client.xrange(f"{self.prefix}:{owner}:events")]
        return [row for row in rows if row["event"].startswith("group:")]

    async def event_names(self, owner: str = "a") -> list[str]:
        return [row["event"] for row in await self.events(owner)]

    async def place_of(self, queue: str, job_id: str) -> str | None:
        return await self.queue(queue).get_state(job_id)

    async def undo_all(self, names: str, *, failing: str = "") -> None:
        """Run the compensation jobs of these members, in this order."""
        for name in names:
            hand = self.hand(f"{name}:compensation")
            job = await hand.take_one(f"undo-{name}")
            if name in failing:
                await hand.fail(job)
            else:
                await hand.complete(job)

    async def complete(self, names: str, values: Mapping[str, Any] | None = None) -> None:
        """Complete the waiting members of these names, in this order."""
        for name in names:
            job = await self.hand(name).take_one(name)
            value = (values or {}).get(name)
            assert await self.hand(name).complete(job, value=value) == [0]

    async def fail(self, names: str, reason: str = "no") -> None:
        for name in names:
            job = await self.hand(name).take_one(name)
            assert await self.hand(name).fail(job, reason=reason) == [0]


@asynccontextmanager
async def open_world(url: str, prefix: str, client: Any) -> AsyncIterator[World]:
    world = World(url, prefix, client)
    try:
        yield world
    finally:
        await world.connection.close()


def job(name: str, *after: str, **options: Any) -> GroupJob:
    """A member in a queue of its name."""
    options.setdefault("queue_name", name)
    return GroupJob(name, options.pop("data", {"n": name}), after=after, **options)


def undone(*names: str) -> dict[str, Compensation]:
    return {name: Compensation(f"undo-{name}", {"of": name}, attempts=1) for name in names}


async def start(world: World, *members: Any, undo: str = "", **options: Any) -> Any:
    """A group of these members, which is "g" in queue "a"."""
    options.setdefault("group_id", "g")
    return await world.flow.add_group("order", members, undone(*undo), queue_name="a", **options)


async def state(world: World) -> str:
    """The state of the group "g"."""
    info = await world.queue("a").get_group_state("g")
    assert info is not None
    return str(info.state)
