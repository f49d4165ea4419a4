"""What happens to the library, or to the right to use it, in the middle of a drain."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from tests.helpers import PATIENCE_S, let_pass, wait_until
from tests.proving import amount
from tests.servers import Server
from toril import Compensation, FlowProducer, GroupJob, NewJob, Queue, Worker
from toril.protocol import scripts

JOBS = 120
GROUPS = amount(8, 20)
"""While the library is flushed all the time, each call costs the server a loading of it."""
SCRIPTS = ("+eval", "+evalsha", "+script")
FUNCTIONS = ("+fcall", "+fcall_ro", "+function")


def without(rules: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(rule.replace("+", "-") for rule in rules)


class Drain:
    """A queue that is being drained: what ran, and what went wrong."""

    def __init__(self, server: Server, url: str) -> None:
        self.server, self.url = server, url
        self.ran: Counter[str] = Counter()
        self.errors: list[Exception] = []
        self.added: list[str] = []
        self.worker: Worker | None = None
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def until(self, count: int) -> None:
        await wait_until(lambda: sum(self.ran.values()) >= count)

    async def handle(self, job: Any) -> None:
        self.ran[job.id] += 1
        await asyncio.sleep(0.001)
        await self.may_end.wait()


@asynccontextmanager
async def draining(server: Server, user: str = ""):
    """Lets the block do its worst, and looks whether each job has run once."""
    url = server.url.replace("redis://", f"redis://{user}:x@") if user else server.url
    drain = Drain(server, url)
    async with Queue("q", connection=url) as queue:
        jobs = await queue.add_bulk([NewJob("x", {"n": n}) for n in range(JOBS)])
        drain.added = [job.id for job in jobs]
        async with Worker("q", drain.handle, connection=url, concurrency=2) as worker:
            drain.worker = worker
            worker.on("error", drain.errors.append)
            await drain.until(10)
            yield drain
            await wait_until(lambda: len(drain.ran) == JOBS)
            await wait_until(lambda: _count(queue, "completed", JOBS))
    assert drain.ran == Counter(drain.added)
    assert drain.errors == []


async def _count(queue: Queue, state: str, count: int) -> bool:
    return (await queue.get_job_counts(state))[state] == count


def allow(server: Server, *rules: str) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "u", "on", ">x", "~*", "&*", "+@all", *rules)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (without(SCRIPTS), without(FUNCTIONS)),
        (without(FUNCTIONS), without(SCRIPTS)),
    ],
    ids=["functions are forbidden", "scripts are forbidden"],
)
async def test_a_user_who_loses_one_right_and_gets_the_other(first, then, start_server):
    """As when the rules of a user that runs are replaced by the smallest ones."""
    server = start_server(tcp=True)
    allow(server, *first)

    async with draining(server, "u") as drain:
        allow(server, *SCRIPTS, *FUNCTIONS, *then)
        await drain.until(60)
        allow(server, *SCRIPTS, *FUNCTIONS, *first)


async def test_a_library_of_our_name_with_other_functions(start_server):
    """Nobody can load ours then, and calls go as scripts; not after many tries for each."""
    server = start_server(tcp=True)
    name = scripts.library().name
    other = f"#!lua name={name}\nredis.register_function('other', function() return 1 end)"

    async with draining(server) as drain:
        with server.client() as client:
            drain.may_end.clear()  # or most jobs have run before anything is counted
            client.function_load(other, replace=True)
            client.config_resetstat()
            before = sum(drain.ran.values())
            drain.may_end.set()
            await drain.until(before + 30)  # a call takes two at most
            stats = client.info("commandstats")

    assert stats["cmdstat_evalsha"]["calls"] > 10
    loads = stats.get("cmdstat_function|load", {"calls": 0})["calls"]
    assert loads <= 2 * stats["cmdstat_evalsha"]["calls"] + 4, "some calls are under way"


async def test_an_older_dump_that_is_restored(start_server):
    server = start_server(tcp=True)
    with server.client() as client:
        client.function_load("#!lua name=theirs\nredis.register_function('f', function() end)")
        dump = client.function_dump()

    async with draining(server) as drain:
        with server.client() as client:
            for count in (20, 50, 80):
                client.execute_command("FUNCTION", "RESTORE", dump, "FLUSH")
                await drain.until(count)


async def test_a_library_that_is_lost_while_the_server_is_busy(start_server):
    """Neither a call nor the loading is taken then; both are sent again."""
    server = start_server({"busy-reply-threshold": "20"}, tcp=True)

    async with draining(server) as drain:
        assert drain.worker is not None
        # A busy machine may end the script later than a call is sent again by default.
        drain.worker._parts.connection._patience_s = PATIENCE_S
        with server.client() as client, server.client() as other:
            drain.may_end.clear()  # or all jobs have run before the thread begins
            client.function_flush()
            looping = asyncio.create_task(
                asyncio.to_thread(other.execute_command, "EVAL", "while true do end", "0")
            )
            await wait_until(lambda: _is_busy(client))
            drain.may_end.set()
            before = sum(drain.ran.values())
            await let_pass(0.3, "calls are refused meanwhile")
            client.script_kill()
            with pytest.raises(redis.ResponseError):
                await looping
            await drain.until(before + 10)


def _is_busy(client: Any) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return "BUSY" in str(error) or "busy" in str(error).lower()
    return False


async def flush_until(server: Server, is_over: Callable[[], bool]) -> None:
    with server.client() as client:
        while not is_over():
            client.function_flush("ASYNC")
            await asyncio.sleep(0)


@pytest.mark.first
async def test_a_library_that_is_flushed_all_the_time(start_server):
    """Dead letters and groups are part of it: each is one call, made once."""
    server = start_server(tcp=True)
    options: dict[str, Any] = {"connection": server.url}
    runs: Counter[tuple[str, str]] = Counter()
    over = False

    async def handle(job: Any) -> None:
        runs[job.name, job.id] += 1
        if job.name in ("doomed", "second"):
            raise ValueError("no")

    flushing = asyncio.create_task(flush_until(server, lambda: over))
    async with Queue("q", **options) as queue, FlowProducer(**options) as flow:
        undo = {"first": Compensation("undo", attempts=1)}
        workers = [
            Worker(name, handle, dead_letter_queue="dead", concurrency=3, **options)
            for name in ("q", "q:compensation")
        ]
        async with workers[0], workers[1]:
            for n in range(GROUPS):
                await queue.add("doomed", {"n": n}, attempts=1)
                members = [
                    GroupJob("first", queue_name="q"),
                    GroupJob("second", queue_name="q", attempts=1, after=["first"]),
                ]
                await flow.add_group("g", members, undo, queue_name="q")
            await wait_until(lambda: _are_undone(queue, GROUPS))
        over = True
        await flushing
        async with Queue("dead", **options) as dead:
            letters = await dead.get_dead_letter_count()

    assert set(runs.values()) == {1}
    assert Counter(name for name, _ in runs) == dict.fromkeys(
        ("doomed", "first", "second", "undo"), GROUPS
    )
    assert letters == 2 * GROUPS


async def _are_undone(queue: Queue, count: int) -> bool:
    return [group.state.value for group in await queue.get_groups()] == ["FAILED"] * count
