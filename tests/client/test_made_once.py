"""Calls that add are made once, however often they arrive: what the server remembers of them."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec
import pytest
import redis.asyncio

import toril.sync
from toril import AmbiguousResultError, Deduplication, FlowJob, FlowProducer, NewJob, Queue
from toril.client.connection import Connection
from toril.errors import ServerRefusalError
from toril.options import Schedule
from toril.protocol import adding, flows, numbering, scheduling
from toril.protocol.command import Command, Resend, Way


@pytest.fixture
async def connection(url):
    connection = Connection(url)
    yield connection
    await connection.close()


@pytest.fixture
async def queue(connection, prefix):
    return Queue("q", connection=connection, prefix=prefix)


def numbered(command: Command[Any], number: int, **more: Any) -> Command[Any]:
    """The command as it is sent when it is the n-th call of its flight."""
    args = {**command.args, "flight": "f", "request": f"{number:016d}", **more}
    return msgspec.structs.replace(command, args=args, resend=Resend.NEVER)


def adds(queue: Queue, *jobs: NewJob) -> Command[Any]:
    prepared = [adding.prepare(job, f"j{index}") for index, job in enumerate(jobs)]
    return adding.add(queue.keys, prepared)


async def all_keys(client, prefix) -> dict[str, Any]:
    """Everything under the prefix, as bytes."""
    return {key: await client.dump(key) async for key in client.scan_iter(f"{prefix}:*")}


@pytest.fixture
async def client(url):
    """Not the decoding one: what is remembered is no text."""
    async with redis.asyncio.Redis.from_url(url) as client:
        yield client


@pytest.fixture(params=["all added", "some not", "all or nothing", "refused", "a schedule"])
async def call(request, queue, connection) -> Command[Any]:
    """Calls with every kind of reply."""
    match request.param:
        case "all added":
            return adds(queue, NewJob("a"), NewJob("b", delay=600_000), NewJob("c", lane="l"))
        case "some not":
            await queue.add("there", job_id="there", deduplication=Deduplication("d"))
            await queue.add("first", lane="l")
            return adds(
                queue,
                NewJob("a"),
                NewJob("b", job_id="there"),
                NewJob("c", deduplication=Deduplication("d")),
                NewJob("d", lane="l", max_lane_size=1),
            )
        case "all or nothing":
            tree = FlowJob("p", queue_name="q", children=[FlowJob("c", queue_name="q")])
            ids = iter(("p", "c"))
            return flows.add(flows.prepare([tree], queue.keys.prefix, lambda: next(ids)))
        case "refused":
            await queue.add("first", lane="l")
            tree = FlowJob("p", queue_name="q", lane="l", max_lane_size=1)
            return flows.add(flows.prepare([tree], queue.keys.prefix, lambda: "p"))
        case _:
            schedule = Schedule(every=600_000)
            plan = scheduling.upsert(queue.keys, "tick", schedule, NewJob("t"))
            return plan.send(await connection.run(next(plan)))


async def test_the_same_number_gets_the_same_reply_and_changes_nothing(
    call, connection, client, prefix
):
    """I4: also when what was added has gone since."""
    raw = numbered(msgspec.structs.replace(call, parse=lambda reply: reply), 1)
    first = await connection.run(raw)
    before = await all_keys(client, prefix)

    again = await connection.run(raw)

    assert again == first
    assert await all_keys(client, prefix) == before


async def test_a_smaller_number_is_a_ghost(call, queue, connection, client, prefix):
    await connection.run(numbered(adds(queue, NewJob("x", job_id="x")), 2))
    before = await all_keys(client, prefix)

    with pytest.raises(redis.exceptions.ResponseError, match="GHOST"):
        await client.execute_command(*numbered(call, 1).request(way=Way.SOURCE))

    assert await all_keys(client, prefix) == before


async def test_whoever_asks_too_late_hears_what_is_remembered_or_that_nothing_is(
    queue, connection, client, prefix
):
    call = adds(queue, NewJob("x"))
    with pytest.raises(ServerRefusalError, match="FORGOTTEN"):
        await connection.run(numbered(call, 1, is_late=True))
    assert not await client.exists(f"{prefix}:q:wait", f"{prefix}:q:toril:adds:f")

    (added,) = await connection.run(numbered(call, 1))
    assert await connection.run(numbered(call, 1, is_late=True)) == [added]


async def test_a_call_that_broke_in_the_middle_is_not_said_to_have_been_made(
    queue, connection, client, prefix
):
    """Somebody damaged a key: the call says so every time."""
    await client.set(f"{prefix}:q:prioritized", "damaged")
    call = numbered(adds(queue, NewJob("a"), NewJob("b", priority=1)), 1)

    for _ in range(2):
        with pytest.raises(ServerRefusalError, match="WRONGTYPE"):
            await connection.run(call)

    await client.delete(f"{prefix}:q:prioritized")
    there, added = await connection.run(call)
    assert (there.is_duplicate, added.is_duplicate) == (True, False)


async def test_the_memory_ends_by_itself_and_outlives_every_resend(queue, client, prefix):
    await queue.add("x")
    (key,) = [key async for key in client.scan_iter(f"{prefix}:q:toril:adds:*")]

    left_s = await client.pttl(key) / 1000

    assert 4 * numbering.RESEND_WITHIN_S < left_s <= 300


async def test_producers_that_come_and_go_leave_one_key(url, client, prefix):
    """A web request that makes a queue of its own, again and again."""
    for number in range(20):
        async with Queue("q", connection=url, prefix=prefix) as queue:
            await queue.add("x", {"n": number})
    with toril.sync.Queue("q", connection=url, prefix=prefix) as blocking:
        blocking.add("x")
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        await flow.add(FlowJob("x", queue_name="q"))

    keys = [key async for key in client.scan_iter(f"{prefix}:q:toril:adds:*")]

    assert len(keys) == 1
    assert await client.memory_usage(keys[0]) < 250


async def test_a_bulk_needs_as_many_flights_as_it_has_calls_under_way(queue, client, prefix):
    await queue.add_bulk([NewJob("x") for _ in range(4000)])

    keys = [key async for key in client.scan_iter(f"{prefix}:q:toril:adds:*")]

    assert len(keys) <= 4


async def test_what_an_add_costs_the_server(start_server):
    """One command more than the job itself, however many jobs there are."""
    server = start_server(tcp=True)
    async with Queue("q", connection=server.url) as queue:
        await queue.add("first")
        with server.client() as raw:
            raw.config_resetstat()
            await queue.add_bulk([NewJob("x") for _ in range(200)])
            stats = raw.info("commandstats")

    assert stats["cmdstat_fcall"]["calls"] == 1
    assert stats["cmdstat_set"]["calls"] == 1
    assert "cmdstat_get" not in stats
    assert "cmdstat_xrevrange" not in stats


async def test_a_loop_that_was_blocked_for_minutes_does_not_add_again(
    url, prefix, client, monkeypatch
):
    """The server has forgotten the call by then, so the caller is told that the result is open."""
    real = Connection(url)
    queue = Queue("q", connection=real, prefix=prefix)
    exchange, is_lost = real._transport.exchange, False

    async def losing(sending, timeout_s):
        nonlocal is_lost
        if is_lost:
            return await exchange(sending, timeout_s)
        is_lost = True
        await exchange(sending, timeout_s)
        async for key in client.scan_iter(f"{prefix}:q:toril:adds:*"):
            await client.delete(key)  # its time is over
        monkeypatch.setattr(sending, "_first_left_s", sending._first_left_s - 100)
        raise ConnectionResetError("lost")

    monkeypatch.setattr(real._transport, "exchange", losing)
    with pytest.raises(AmbiguousResultError, match="FORGOTTEN"):
        await queue.add("x")

    assert await client.llen(f"{prefix}:q:wait") == 1
    await real.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_uses_no_flight_of_its_parent(url, prefix):
    """Else the two would answer each other's calls."""
    with toril.sync.Queue("q", connection=url, prefix=prefix) as queue:
        queue.add("parent")
        pid = os.fork()
        if not pid:
            try:
                queue.add("child")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        queue.add("parent")

        assert queue.get_job_counts()["waiting"] == 3


async def test_cancelled_adds_do_not_pile_up(queue, client, prefix):
    for _ in range(20):
        task = asyncio.create_task(queue.add("x"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await queue.add("x", job_id="last")

    keys = [key async for key in client.scan_iter(f"{prefix}:q:toril:adds:*")]

    assert len(keys) == 1
