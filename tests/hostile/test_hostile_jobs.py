"""A queue outlives any job: whatever a hash holds, its neighbours run and the workers go on."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import io
from typing import Any

import pytest
import redis.asyncio

from tests.helpers import wait_until
from tests.hostile import hashes
from tests.hostile.hashes import Hostile
from tests.proving import amount
from toril import Queue, TorilError, UnrecoverableError, Worker
from toril.cli.main import run as run_command
from toril.protocol import glancing

PER_QUEUE = 100
GOOD = 12
ROUNDS = amount(4, 100)
UNFINISHED = ("wait", "active", "prioritized")
STATES = ["waiting", "active", "delayed", "prioritized", "waiting_children", "completed", "failed"]


@pytest.mark.no_audit("the jobs are damaged on purpose")
@pytest.mark.parametrize("number", range(ROUNDS))
async def test_a_queue_outlives_any_job(number: int, url: str, prefix: str) -> None:
    raw = redis.asyncio.Redis.from_url(url)
    async with raw, Queue("q", connection=url, prefix=prefix) as queue:
        siege = Siege(raw, queue, url, number)
        try:
            await siege.begin()
            await siege.look_at_everything()
            if number % 10 == 1:  # it takes its time, to see what stays
                await siege.command("doctor")
            await siege.survive()
            await siege.look_at_everything()
            await siege.change_everything()
        finally:
            await siege.tidy_up()


class Siege:
    """A hundred hostile jobs and a few good ones in one queue, in all of its places."""

    def __init__(self, raw: Any, queue: Queue, url: str, number: int) -> None:
        self.raw = raw
        self.queue = queue
        self.url = url
        self.number = number
        self.base = queue.keys.base.encode()
        first = number * PER_QUEUE
        self.hostile = [hashes.draw(seed) for seed in range(first, first + PER_QUEUE)]
        self.burial = "q-dlq" if number % 2 else None
        self.ran: collections.Counter[str] = collections.Counter()

    async def begin(self) -> None:
        self.good = {
            job.id
            for n in range(GOOD)
            for job in [
                await self.queue.add(
                    "good",
                    lane=f"lane{n % 3}" if n % 3 == 0 else None,
                    priority=5 if n % 3 == 1 else None,
                )
            ]
        }
        pipeline = self.raw.pipeline(transaction=False)
        for job in self.hostile:
            await hashes.write(pipeline, self.base, job)
        if self.number % 4 == 3:
            pipeline.hset(self.base + b":meta", "paused", "1")
        await pipeline.execute()

    async def survive(self) -> None:
        """Workers take, run and settle all that can be run, and go on."""
        await self.queue.resume()
        worker = Worker(
            "q",
            self.handle,
            connection=self.url,
            prefix=self.queue.keys.prefix,
            concurrency=4,
            stalled_interval=100,
            lock_duration=5_000,
            drain_delay=200,
            remove_on_fail=1000,
            dead_letter_queue=self.burial,
            metrics_points=10,
        )
        failures: list[object] = []
        worker.on("error", failures.append)
        async with worker:
            await wait_until(lambda: self.good <= set(self.ran), message=f"good jobs run {self}")
            try:
                await wait_until(self.is_drained, message=f"nothing is left {self}")
            except BaseException:
                print(await self.leftovers())
                raise
            last = await self.queue.add("good")
            await wait_until(lambda: last.id in self.ran, message="the worker takes on")
            await wait_until(lambda: worker._parts.pump.running == 0, message="no slot is leaked")
            assert not worker._parts.locks.all()
            assert worker._parts.lease._thread.is_alive()
            assert worker._parts.fate.cause is None
            assert all(not service.done() for service in worker._life.services)
            assert worker.is_running
        assert await self.raw.llen(self.base + b":active") == 0
        await self.find_the_lost()

    async def handle(self, job: Any) -> Any:
        self.ran[job.id] += 1
        if job.name == "good":
            return None
        _ = job.timestamp, job.priority, job.stacktrace, job.idempotency_key, job.parent_key
        if self.ran[job.id] > 10:
            raise UnrecoverableError("some ask for attempts without end")
        how = (len(job.id) + self.ran[job.id]) % 4
        if how == 0 or self.ran[job.id] > 4:
            return {"fine": True}
        if how == 1:
            await job.log("a row")
            await job.progress(50)
        _ = job.data
        raise ValueError("no")

    async def is_drained(self) -> bool:
        """A lane may wait for a job that tries again in ten years; nothing else may be left."""
        kinds = [await self.raw.type(self.base + b":" + name.encode()) for name in UNFINISHED]
        if kinds != [b"none"] * len(UNFINISHED):
            return False
        held = await self.raw.hgetall(self.base + b":lanes:held")
        put_off = {lane_and_id(member) for member in await self.members("lanes:delayed")}
        waiting = {lane_and_id(member)[0] for member in await self.members("lanes:waiting")}
        return all(
            (lane, job_id) in put_off
            for lane in waiting
            for job_id in held.get(lane, b"\n-").split(b"\n")[1:]
        )

    async def members(self, name: str) -> list[bytes]:
        return await self.raw.zrange(self.base + b":" + name.encode(), 0, -1)

    async def leftovers(self) -> str:
        """What keeps a queue from being drained, for whoever looks into a failure."""
        active = set(await self.raw.lrange(self.base + b":active", 0, -1))
        waiting = set(await self.raw.lrange(self.base + b":wait", 0, -1))
        waiting |= set(await self.raw.zrange(self.base + b":prioritized", 0, -1))
        lanes = {lane_and_id(member)[1] for member in await self.members("lanes:waiting")}
        held = await self.raw.hgetall(self.base + b":lanes:held")
        jobs = [str(job) for job in self.hostile if job.id in active | waiting | lanes]
        return f"active {active}\nwaiting {waiting}\nlanes {lanes}\nheld {held}\n" + "\n".join(jobs)

    async def find_the_lost(self) -> None:
        """Every job that could run is in a place, or an event tells how it ended."""
        told = set()
        for _, event in await self.raw.xrange(self.base + b":events"):
            if event[b"event"] in (b"completed", b"failed"):
                told.add(event[b"jobId"])
        for place in ("wait", "active"):
            told |= set(await self.raw.lrange(self.base + b":" + place.encode(), 0, -1))
        for place in ("prioritized", "completed", "failed", "delayed", "waiting-children"):
            told |= set(await self.members(place))
        for place in ("lanes:delayed", "lanes:waiting"):
            told |= {lane_and_id(member)[1] for member in await self.members(place)}
        lost = [
            job
            for job in self.hostile
            if job.place in hashes.RUNNABLE and job.id not in told and b"name" in job.fields
        ]
        assert not lost, "\n".join(map(str, lost))

    async def look_at_everything(self) -> None:
        for state in STATES:
            for job in await self.queue.get_jobs(state):
                _ = repr(job), job.opts.raw, job.failed_reason, job.stacktrace
        await self.queue.get_job_counts()
        for job in self.hostile:
            job_id = await self.known_id(job)
            for look in (
                self.queue.get_job,
                self.queue.get_state,
                self.queue.explain,
                self.queue.get_job_logs,
                self.queue.get_dependencies,
                self.queue.get_children_values,
            ):
                await self.may_refuse(look(job_id), job)
        connection = self.queue._connection
        await connection.run(glancing.look(self.queue.keys))
        await connection.run(glancing.active(self.queue.keys, most=50))
        await connection.run(glancing.lanes_at_work(self.queue.keys, most=50))
        await self.queue.get_lanes()
        for command in COMMANDS:
            await self.command(*command)
        for job in self.hostile[:: PER_QUEUE // 4]:
            await self.command("job", "--queue", "q", "--", await self.known_id(job))

    async def command(self, *words: str) -> None:
        """Run a command of ``toril``; it may refuse, and must not crash."""
        arguments = ["--url", self.url, "--prefix", self.queue.keys.prefix, *words]

        def run() -> int:
            with (
                contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")),
                contextlib.redirect_stderr(io.TextIOWrapper(io.BytesIO(), "utf-8")),
            ):
                return run_command(arguments)

        # 2 is an id that no job can have, and what the doctor found; 3 a key of a wrong kind.
        allowed = {"doctor": (0, 1, 2), "job": (0, 1, 2, 3)}.get(words[0], (0, 1))
        assert await asyncio.to_thread(run) in allowed, words

    async def change_everything(self) -> None:
        for job in self.hostile[::3]:
            job_id = await self.known_id(job)
            for change in (
                self.queue.retry,
                self.queue.promote,
                self.queue.cancel,
                self.queue.remove,
            ):
                await self.may_refuse(change(job_id), job)
        if self.burial:
            keys = self.queue.keys
            async with Queue(self.burial, connection=self.url, prefix=keys.prefix) as letters:
                await letters.get_dead_letter_summary()
                for letter in await letters.get_dead_letter_jobs():
                    _ = repr(letter), letter.opts.raw
                await letters.replay_all_dead_letters()
        await self.queue.retry_all()
        await self.queue.promote_all()
        await self.queue.clean("completed")
        await self.queue.clean("failed")
        await self.queue.drain(delayed=True)
        await self.queue.pause()
        await self.queue.obliterate(force=True)
        for name in (
            *UNFINISHED,
            "lanes:waiting",
            "completed",
            "failed",
            "delayed",
            "waiting-children",
        ):
            assert not await self.raw.exists(self.base + b":" + name.encode()), name

    async def tidy_up(self) -> None:
        """The fixture knows only keys that are text."""
        if keys := [key async for key in self.raw.scan_iter(f"{self.queue.keys.prefix}:*")]:
            await self.raw.unlink(*keys)

    async def known_id(self, job: Hostile) -> str:
        return job.id.decode("utf-8", "surrogateescape")

    async def may_refuse(self, call: Any, job: Hostile) -> None:
        try:
            await call
        except TorilError:
            return
        except Exception as error:
            raise AssertionError(f"{call.__qualname__} of {job}") from error

    def __str__(self) -> str:
        return f"(round {self.number})"


def lane_and_id(member: bytes) -> tuple[bytes, bytes]:
    lane, _, rest = member.partition(b" ")
    return lane, rest[33:]


COMMANDS = [
    ("queues",),
    ("queues", "q"),
    *(("jobs", "q", "--state", state) for state in ("waiting", "failed", "completed")),
    ("jobs", "q", "--json"),
    ("lanes", "list", "q"),
    ("groups", "list", "q"),
    ("schedulers", "list", "q"),
    ("dlq", "list", "q-dlq"),
    ("dlq", "summary", "q-dlq"),
]
