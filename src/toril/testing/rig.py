"""A rig for an app: a real server, the test's own prefix, and jobs that run on request."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from operator import itemgetter
from typing import Any, TypeVar

import msgspec

from toril.client.connection import Connection
from toril.client.queue import Queue
from toril.errors import RunningLoopError
from toril.options import Duration, milliseconds
from toril.protocol import codec
from toril.protocol.command import plain, skew
from toril.protocol.job import Job, StoredJob
from toril.protocol.reading import ids_in_lanes
from toril.tasks.app import AnyTask, App
from toril.tasks.calls import Call
from toril.testing.server import server_url
from toril.worker.worker import Worker

T = TypeVar("T")
Due = tuple[int, str]
"""When a job is due, and its id."""
Read = Callable[[Queue, int, int], Awaitable[list[Due]]]

PATIENCE_MS = 30_000
_LOOK_S = 0.005
_KEYS_PER_SCAN = 500
_ROWS = 100


class Enqueued(msgspec.Struct, frozen=True):
    """A call that this process enqueued while the rig was active."""

    id: str
    name: str
    queue_name: str
    arguments: dict[str, Any]
    """As the task's function receives them, including defaults."""
    call: Call[Any]


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A job that ended while ``drain`` ran, and how."""

    id: str
    name: str
    queue_name: str
    data: Any
    state: str
    """"completed" or "failed"."""
    result: Any = None
    error: BaseException | None = None
    attempts: int = 1


class Rig:
    """What ``running`` yields."""

    def __init__(self, app: App, url: str, prefix: str) -> None:
        self.app = app
        self.url = url
        self.prefix = prefix
        self._enqueued: list[Enqueued] = []
        self._ran: list[Ran] = []
        self._begun = 0
        self._connection = Connection(url)
        self.sync = BlockingRig(self)
        """The same for blocking tests: ``rig.sync.drain()``, ``rig.sync.advance(…)``."""

    # ------------------------------------------------------------------ what was enqueued

    def enqueued(self, task: AnyTask | None = None) -> list[Enqueued]:
        """The calls this process has enqueued, of one task or of all, in order; not a coroutine."""
        return [one for one in self._enqueued if task is None or one.name == task.name]

    def assert_enqueued(
        self, task: AnyTask, count: int | None = None, **arguments: Any
    ) -> Enqueued:
        """Fail unless a call of ``task`` with these arguments was enqueued (``count`` times)."""
        calls = self.enqueued(task)
        found = [one for one in calls if _has(one.arguments, arguments)]
        if found and count in (None, len(found)):
            return found[-1]
        told = ", ".join(repr(one.arguments) for one in calls) or "none"
        times = "" if count is None else f" {count} times, but {len(found)} times"
        raise AssertionError(
            f"task {task.name!r} was not enqueued with {arguments!r}{times}; its calls: {told}"
        )

    def note(self, call: Call[Any], job: Job) -> None:
        """Called by the app for everything that it enqueues."""
        arguments = call.signature.with_defaults(call.signature.read(_text(call)))
        self._enqueued.append(Enqueued(job.id, call.name, call.queue_name, arguments, call))

    # ------------------------------------------------------------------ running

    async def drain(
        self,
        *,
        with_delayed: bool = False,
        raise_failures: bool = True,
        timeout: Duration = PATIENCE_MS,
    ) -> list[Ran]:
        """Run all jobs in this process until none is left; returns those that ended, in order.

        ``with_delayed`` also runs jobs that are due later, in order of time.  If a job fails for
        good, its error is raised (several as an exception group), unless ``raise_failures`` is
        False.
        """
        self._ran = []
        workers = self.app.make_workers(drain_delay=50)
        for worker in workers:
            self._listen(worker)
        patience_ms = milliseconds(timeout, "timeout")
        async with self.app.lifespan:
            for worker in workers:
                await worker.start()
            try:
                async with asyncio.timeout(patience_ms / 1000) as patience:
                    await self._until_idle(workers)
                    while with_delayed and await self._promote_next():
                        await self._until_idle(workers)
            except TimeoutError as error:
                if not patience.expired():
                    raise
                raise TimeoutError(
                    f"rig.drain() did not end within {patience_ms} ms; left: {await self._left()}"
                ) from error
            finally:
                await asyncio.gather(*(worker.close(timeout=1000) for worker in workers))
        errors = [ran.error for ran in self._ran if ran.error is not None]
        if errors and raise_failures:
            _raise(errors)
        return list(self._ran)

    async def _left(self) -> str:
        """What has not run, for an error."""
        found = []
        for name in sorted(self.app.queue_names):
            queue = self._queue(name)
            counts = await queue.get_job_counts("waiting", "prioritized", "active", "delayed")
            told = [f"{count} {state}" for state, count in counts.items() if count]
            if await queue.is_paused():
                told.append("paused")
            found += [f"queue {name!r}: {', '.join(told)}"] if told else []
        return "; ".join(found) or "nothing"

    def _listen(self, worker: Worker) -> None:
        def completed(job: StoredJob, value: Any) -> None:
            self._ran.append(_ran(job, "completed", result=value))

        def failed(job: StoredJob, error: BaseException) -> None:
            self._ran.append(_ran(job, "failed", error=error))

        def begun(job: StoredJob) -> None:
            self._begun += 1

        worker.on("active", begun)
        worker.on("completed", completed)
        worker.on("failed", failed)

    async def _until_idle(self, workers: Sequence[Worker]) -> None:
        """Return when nothing was found in two looks, and no job began since the first.

        The queues are asked one after another: during a look, a job that ends may add one to a
        queue that was asked before.
        """
        while True:
            begun = self._begun
            are_idle = await self._is_idle(workers) and await self._is_idle(workers)
            if are_idle and begun == self._begun:
                return
            await asyncio.sleep(_LOOK_S)

    async def _is_idle(self, workers: Sequence[Worker]) -> bool:
        """Whether no job was seen that could run now; delayed jobs do not count."""
        if any(worker.is_processing for worker in workers):
            return False
        now_ms = await self._now_ms()
        for name in self.app.queue_names:
            # First what is delayed: a job that a worker lets in meanwhile is found by the counts.
            if await self._is_due(name, now_ms):
                return False
            counts = await self._queue(name).get_job_counts("waiting", "prioritized", "active")
            waiting = counts.pop("waiting")
            if any(counts.values()) or (waiting and waiting > await self._behind_retries(name)):
                return False
        return True

    async def _behind_retries(self, name: str) -> int:
        """How many jobs wait in lanes whose holder waits for the time of its next attempt."""
        count = 0
        for part in self._queue(name).partitions:
            for one in await part.get_lanes():
                lane = await part.get_lane(one)
                if lane is None or lane.is_paused or lane.halted_by or lane.is_ready:
                    continue
                count += lane.depth if lane.holders and lane.delayed else 0
        return count

    async def _is_due(self, name: str, now_ms: int) -> bool:
        """Whether a delayed job is due, including those of schedulers."""
        for part in self._queue(name).partitions:
            rows = await self._delayed(part, 0, 0) + await self._aside(part, 0, 0)
            if any(at <= now_ms for at, _ in rows):
                return True
        return False

    async def _promote_next(self) -> bool:
        """Promote the delayed job that is due next; False if there is none."""
        times = [
            (at, part.name, job_id, part)
            for name in self.app.queue_names
            for part in self._queue(name).partitions
            if (due := await self._earliest(part)) is not None
            for at, job_id in [due]
        ]
        if not times:
            return False
        _, _, job_id, part = min(times, key=itemgetter(0, 1, 2))
        await part.promote(job_id)
        return True

    async def _earliest(self, queue: Queue) -> Due | None:
        """The next delayed job of a queue, and when it is due.

        The jobs of schedulers do not count, because there is always a next one.
        """
        found = [await self._first(read, queue) for read in (self._delayed, self._aside)]
        return min((due for due in found if due is not None), default=None)

    async def _first(self, read: Read, queue: Queue) -> Due | None:
        start = 0
        while rows := await read(queue, start, start + _ROWS - 1):
            for due in rows:
                if not due[1].startswith("repeat:"):
                    return due
            start += _ROWS
        return None

    async def _delayed(self, queue: Queue, start: int, end: int) -> list[Due]:
        """The due times and ids of delayed jobs without a lane, earliest first."""
        rows = await self._rows(queue.keys.delayed, start, end)
        return [(int(score) // 4096, member.decode()) for member, score in rows]

    async def _aside(self, queue: Queue, start: int, end: int) -> list[Due]:
        """The same of lanes."""
        rows = await self._rows(queue.keys.lanes_delayed, start, end)
        ids = ids_in_lanes([member for member, _ in rows])
        return [(int(score), job_id) for (_, score), job_id in zip(rows, ids, strict=True)]

    async def _rows(self, key: str, start: int, end: int) -> list[tuple[bytes, float]]:
        rows = await self._connection.run(
            plain("ZRANGE", key, start, end, "WITHSCORES", parse=list)
        )
        return [(member, float(score)) for member, score in zip(rows[::2], rows[1::2], strict=True)]

    # ------------------------------------------------------------------ time

    async def advance(self, by: timedelta | int) -> None:
        """Behave as if that much time had passed: delays, schedules, deadlines, locks and limits.

        Jobs that have become due run at the next ``drain``.
        """
        ms = milliseconds(by, "by")
        skew.ms += ms
        async for key in self._keys():
            left = await self._connection.run(plain("PTTL", key, parse=int))
            if 0 <= left <= ms:
                await self._connection.run(plain("UNLINK", key, parse=int))
            elif left > 0:
                await self._connection.run(plain("PEXPIRE", key, left - ms, parse=int))

    async def _now_ms(self) -> int:
        seconds, micros = await self._connection.run(plain("TIME", parse=list))
        return int(seconds) * 1000 + int(micros) // 1000 + skew.ms

    # ------------------------------------------------------------------ the end

    async def close(self) -> None:
        """Remove everything that the test has left on the server."""
        skew.ms = 0
        async for key in self._keys():
            await self._connection.run(plain("UNLINK", key, parse=int))
        await self._connection.close()

    async def _keys(self) -> AsyncIterator[bytes]:
        cursor = "0"
        while True:
            found, keys = await self._connection.run(
                plain(
                    "SCAN", cursor, "MATCH", f"{self.prefix}:*", "COUNT", _KEYS_PER_SCAN, parse=list
                )
            )
            for key in keys:
                yield key
            cursor = found.decode()
            if cursor == "0":
                return

    def _queue(self, name: str) -> Queue:
        return self.app.queue(name)


class BlockingRig:
    """Drains and advances a rig from a blocking test; its loop runs only inside these calls."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._loop: asyncio.AbstractEventLoop | None = None

    def drain(
        self,
        *,
        with_delayed: bool = False,
        raise_failures: bool = True,
        timeout: Duration = PATIENCE_MS,
    ) -> list[Ran]:
        """``Rig.drain``, blocking."""
        return self.run(
            self._rig.drain(
                with_delayed=with_delayed, raise_failures=raise_failures, timeout=timeout
            )
        )

    def advance(self, by: timedelta | int) -> None:
        """``Rig.advance``, blocking."""
        self.run(self._rig.advance(by))

    def run(self, program: Coroutine[Any, Any, T]) -> T:
        """Run any awaitable, such as ``rig.app.queue("mail").get_job_counts()``."""
        if asyncio._get_running_loop() is not None:
            program.close()
            raise RunningLoopError(
                "rig.sync is for blocking tests, and an event loop is running; use the rig itself:"
                " `await rig.drain()`"
            )
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(program)

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return
        loop.run_until_complete(_end_tasks())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


@contextmanager
def running_sync(app: App, *, url: str | None = None) -> Iterator[Rig]:
    """``running`` for blocking tests.

    ::

        with running_sync(app) as rig:
            charge.sync.enqueue(order=1)
            rig.sync.drain()
    """
    rig = Rig(app, server_url() if url is None else url, _new_prefix())
    move = app.moved_to(rig.url, rig.prefix, rig.note)
    try:
        rig.sync.run(move.__aenter__())
        try:
            yield rig
        finally:
            rig.sync.run(rig.close())
            rig.sync.run(move.__aexit__(None, None, None))
    finally:
        rig.sync.close()


@asynccontextmanager
async def running(app: App, *, url: str | None = None) -> AsyncIterator[Rig]:
    """A rig for ``app``: inside the block its jobs go to the test's own server and prefix.

    ::

        async with running(app) as rig:
            await checkout(order=1)
            rig.assert_enqueued(charge, order=1)
            await rig.drain()
    """
    if url is None:
        url = await asyncio.to_thread(server_url)
    rig = Rig(app, url, _new_prefix())
    async with app.moved_to(url, rig.prefix, rig.note):
        try:
            yield rig
        finally:
            await rig.close()


async def _end_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _new_prefix() -> str:
    return f"test-{secrets.token_hex(6)}"


def _ran(
    job: StoredJob, state: str, *, result: Any = None, error: BaseException | None = None
) -> Ran:
    return Ran(
        id=job.id,
        name=job.name,
        queue_name=job.queue_name,
        data=job.data,
        state=state,
        result=result,
        error=error,
        attempts=job.attempts_made + 1,
    )


def _has(arguments: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return all(name in arguments and arguments[name] == value for name, value in wanted.items())


def _text(call: Call[Any]) -> bytes:
    return codec.encode(call.data, f"the arguments of task {call.name!r}")


def _raise(errors: list[BaseException]) -> None:
    if len(errors) == 1:
        raise errors[0]
    raise BaseExceptionGroup(f"{len(errors)} jobs failed", errors)
