"""Where a scenario happens: its queues, handlers that keep a ledger, and what came of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import redis
import redis.asyncio

from tests.helpers import until_renewed
from tests.keyspace import BlockingReader, audit, keys_under, reader_of
from toril import FlowProducer, ManualWorker, Queue, Worker

QUIET_TIMEOUT_S = 60.0
LOCK_MS = 30_000
RENEWAL_S = 0.2
"""A busy machine loses no lock by being slow: those of the dead are taken away by hand."""
_BUSY_LISTS = ("wait", "paused", "active")
_BUSY_SETS = ("prioritized", "delayed", "waiting-children")
_LANES = ("lanes:waiting", "lanes:delayed", "lanes:held")
_OUTCOME_FIELDS = ("returnvalue", "failedReason", "priority", "delay", "progress")


class World:
    """One run of a scenario.

    ``line`` is the URL of those whose operations are broken, ``url`` that of everybody else.
    """

    def __init__(
        self,
        url: str,
        line: str,
        prefix: str,
        *,
        queues: tuple[str, ...] = ("q",),
    ) -> None:
        self.url = url
        self.line = line
        self.prefix = prefix
        self.queues = queues
        self.client = redis.asyncio.Redis.from_url(
            url, decode_responses=True, encoding_errors="backslashreplace"
        )
        self.memory: dict[str, Any] = {}
        self._open: list[Any] = []
        self._queues: dict[str, Queue] = {}

    def clean(self, name: str = "q") -> Queue:
        """A queue whose line is never broken."""
        return self._opened(Queue(name, connection=self.url, prefix=self.prefix))

    def queue(self, name: str = "q") -> Queue:
        """A queue whose line may break; the same one whenever asked."""
        if name not in self._queues:
            self._queues[name] = Queue(name, connection=self.line, prefix=self.prefix)
            self._open.append(self._queues[name])
        return self._queues[name]

    def flow(self, *, is_clean: bool = False) -> FlowProducer:
        url = self.url if is_clean else self.line
        return self._opened(FlowProducer(connection=url, prefix=self.prefix))

    def worker(self, name: str = "q", *, is_clean: bool = False, **options: Any) -> Worker:
        defaults: dict[str, Any] = {
            "connection": self.url if is_clean else self.line,
            "prefix": self.prefix,
            "lock_duration": LOCK_MS,
            "stalled_interval": 60,
            "drain_delay": 1000,
            "max_stalled_count": 10,
        }
        if not name.endswith(("-dlq", ":compensation")):
            defaults["dead_letter_queue"] = f"{name}-dlq" if f"{name}-dlq" in self.queues else None
        handler = options.pop("handler", self.handle)
        worker = Worker(name, handler, **{**defaults, **options})
        worker._parts.lease._interval_s = RENEWAL_S
        return worker

    def taker(self) -> ManualWorker:
        """Takes the jobs of queue "q" by hand; its line may break."""
        times = {"lock_duration": LOCK_MS, "stalled_interval": 60, "max_stalled_count": 10}
        return ManualWorker("q", connection=self.line, prefix=self.prefix, **times)

    def expire_locks(self) -> None:
        """Let the time of every lock be over."""
        with redis.Redis.from_url(self.url) as client:
            if locks := list(client.scan_iter(f"{self.prefix}:*:lock", count=1000)):
                client.delete(*locks)

    async def work(self, *names: str, timeout_s: float = 60.0, **options: Any) -> None:
        """Let workers whose lines may break do what there is to do."""
        workers = [self.worker(name, **options) for name in names or ("q",)]
        async with AsyncExitStack() as stack:
            for worker in workers:
                await stack.enter_async_context(worker)
            deadline = time.monotonic() + timeout_s
            while not await self.is_quiet() and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            for worker in workers:
                await worker.close(timeout=60_000)

    async def recover(self) -> None:
        """Fresh workers, one for each queue, until nothing is left to do."""
        names = [name for name in self.queues if not name.endswith("-dlq")]
        workers = [self.worker(name, is_clean=True, concurrency=4) for name in names]
        for worker in workers:
            await worker.start()
        try:
            deadline = time.monotonic() + QUIET_TIMEOUT_S
            while not await self.is_quiet():
                if time.monotonic() > deadline:
                    raise AssertionError(f"not quiet in time: {await self.outcome()}")
                await asyncio.sleep(0.02)
        finally:
            for worker in workers:
                await worker.close(timeout=60_000)

    async def is_quiet(self) -> bool:
        """Is there nothing that a worker could do, now or later?"""
        async with self.client.pipeline(transaction=True) as ask:
            for name in self.queues:
                base = f"{self.prefix}:{name}"
                if not name.endswith("-dlq"):
                    ask.exists(
                        *(f"{base}:{place}" for place in (*_BUSY_LISTS, *_BUSY_SETS, *_LANES))
                    )
                ask.zcard(f"{base}:toril:groups-open")
            return not any(await ask.execute())

    async def handle(self, job: Any) -> Any:
        """What every job does: says in the ledger that it ran, and then as its name says."""
        label = str((job.data or {}).get("n", job.name))
        await self.client.rpush(self._ledger, label)
        match job.name:
            case "bad":
                raise ValueError(f"{label} is bad")
            case "flaky" if job.attempts_made == 0:
                raise ValueError(f"{label} fails once")
            case "slow":
                await asyncio.sleep(0.12)
            case "outlives renewals":
                for _ in range(2):
                    await until_renewed(self.client, f"{self.prefix}:q:{job.id}:lock")
            case "writes":
                await job.report(50)
                await job.log("half")
                await job.update_data({"n": label, "written": True})
                await job.report(100)
            case "parent":
                values = await job.children_values()
                return sorted(values.values())
        return label

    def handle_in_thread(self, job: Any) -> str:
        """The same for plain jobs, in a thread of the worker's."""
        label = str(job.data["n"])
        with redis.Redis.from_url(self.url) as client:
            client.rpush(self._ledger, label)
        return label

    async def runs(self) -> Counter[str]:
        return Counter(await self.client.lrange(self._ledger, 0, -1))

    async def outcome(self) -> dict[str, Any]:
        """What a user can see of the queues, without ids and times."""
        result: dict[str, Any] = {}
        client = self._reader.client
        for name in self.queues:
            base = f"{self.prefix}:{name}"
            places = await self._places(base)
            jobs = []
            for job_id, place in places.items():
                stored = client.hgetall(f"{base}:{job_id}")
                seen = {key: stored[key] for key in _OUTCOME_FIELDS if key in stored}
                data = json.loads(stored.get("data", "{}"))
                logs = client.lrange(f"{base}:{job_id}:logs", 0, -1)
                label = data.get("n") or data.get("compensationData", {}).get("n")
                jobs.append((str(label), stored.get("name"), place, sorted(seen.items()), logs))
            meta = client.hgetall(f"{base}:meta")
            settings = {key: meta[key] for key in ("paused", "concurrency", "max") if key in meta}
            groups = []
            for group_id in client.zrange(f"{base}:groups", 0, -1):
                group = client.hgetall(f"{base}:groups:{group_id}")
                counts = ("completedCount", "failedCount", "cancelledCount")
                groups.append((group["state"], *(group[count] for count in counts)))
            result[name] = {"jobs": sorted(jobs), "meta": settings, "groups": sorted(groups)}
        return result

    async def problems(self) -> list[str]:
        """What the audit of the keyspace says."""
        return await audit(self._reader, self.prefix)

    async def close(self) -> None:
        for one in self._open:
            await one.close()
        self._reader.delete([*await keys_under(self._reader, self.prefix), self._ledger])
        await self.client.aclose()

    async def leave(self) -> None:
        """Close without deleting anything."""
        for one in self._open:
            await one.close()
        await self.client.aclose()

    @property
    def _ledger(self) -> str:
        return f"ledger-{self.prefix}"

    @property
    def _reader(self) -> BlockingReader:
        """What came of a scenario is read when it is over, so nobody is held up."""
        return reader_of(self.url)

    async def _places(self, base: str) -> dict[str, str]:
        lists, sets = _BUSY_LISTS, (*_BUSY_SETS, "completed", "failed")
        ids = await self._reader.ask(
            [("LRANGE", f"{base}:{place}", "0", "-1") for place in lists]
            + [("ZRANGE", f"{base}:{place}", "0", "-1") for place in sets]
        )
        return {
            job_id: place
            for place, there in zip((*lists, *sets), ids, strict=True)
            for job_id in there
        }

    def _opened(self, one: Any) -> Any:
        self._open.append(one)
        return one


@asynccontextmanager
async def open_world(url: str, line: str, prefix: str, **options: Any) -> AsyncIterator[World]:
    world = World(url, line, prefix, **options)
    try:
        yield world
    finally:
        await world.close()
