"""A shop with queues in three slots of a cluster."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

from tests.helpers import wait_until
from toril import Compensation, FlowProducer, GroupJob, Queue, Worker
from toril.doctor.keyspace import audit
from toril.doctor.reader import ConnectionReader
from toril.errors import UnrecoverableError
from toril.protocol import parceling


class Shop:
    """Three queues, each on a node of its own, and what ran in them."""

    def __init__(self, slots: Any) -> None:
        self.slots = slots
        self.names = [slots.name(node) for node in range(3)]
        self.others: list[str] = []
        self.queues = [Queue(name, **slots.options) for name in self.names]
        self.flow = FlowProducer(**slots.options)
        self.ran: Counter[str] = Counter()
        self.order: list[str] = []
        self.told: dict[str, Any] = {}
        self.refused: set[str] = set()

    async def handle(self, job: Any) -> Any:
        self.ran[job.name] += 1
        self.order.append(job.name)
        self.told[job.name] = job.data
        if job.name in self.refused:
            raise UnrecoverableError(f"{job.name} refused")
        return f"did {job.name}"

    @contextlib.asynccontextmanager
    async def open(self, *numbers: int, undoing: bool = True, **options: Any):
        """Workers of these queues, or of all, and of the queues that undo."""
        async with contextlib.AsyncExitStack() as stack:
            for number in numbers or range(3):
                for name in [self.names[number]] + [f"{self.names[number]}:compensation"] * undoing:
                    worker = Worker(name, self.handle, **options, **self.slots.options)
                    await stack.enter_async_context(worker)
            yield

    def member(self, name: str, number: int, **options: Any) -> GroupJob:
        undo = options.pop("undo", Compensation(f"undo-{name}", attempts=1))
        return GroupJob(
            name, {"n": name}, queue_name=self.names[number], compensation=undo, **options
        )

    async def add(self, *members: Any, **options: Any) -> str:
        if not members:
            members = tuple(self.member(name, n) for n, name in enumerate("abc"))
        return (await self.flow.add_group("order", members, **options)).group_id

    async def state(self, group_id: str) -> str:
        info = await self.queues[0].get_group_state(group_id)
        assert info is not None
        return str(info.state)

    async def until(self, group_id: str, state: str) -> None:
        async def is_there() -> bool:
            return await self.state(group_id) == state

        await wait_until(is_there)

    async def statuses(self, group_id: str) -> dict[str, str]:
        return {one.name: one.status for one in await self.queues[0].get_group_jobs(group_id)}

    async def carry(self) -> None:
        """Deliver what there is, and what that leaves."""
        (queue, *_) = self.queues
        for _ in range(3):
            for name in self._all():
                await queue._connection.follow(parceling.carry(queue.keys.sibling(name)))

    async def is_quiet(self) -> bool:
        """Is no parcel left, and everything in order?"""
        for name in self._all():
            if await self.slots.leftovers(name):
                return False
        return True

    def _all(self) -> list[str]:
        return [*self.names, *(f"{name}:compensation" for name in self.names), *self.others]

    async def check(self) -> None:
        await wait_until(self.is_quiet)
        reader = await ConnectionReader.open(self.queues[0]._connection)
        assert await audit(reader, self.slots.prefix) == []

    async def close(self) -> None:
        for queue in self.queues:
            await queue.close()
        await self.flow.close()
