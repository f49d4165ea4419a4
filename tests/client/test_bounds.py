"""How much is under way at once, and what is left when it is over."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from redis.exceptions import ResponseError

from tests.helpers import wait_until
from tests.proxy import Proxy
from toril import Connection, NewJob, Queue
from toril.errors import ServerError, TorilError
from toril.protocol.adding import MOST_JOBS_PER_CALL
from toril.protocol.command import plain


async def reaches_and_keeps(look, most: int) -> bool:
    """Does it come to so many, and to no more a moment later?"""

    async def is_there() -> bool:
        return await look() >= most

    await wait_until(is_there)
    await asyncio.sleep(0.1)
    return await look() == most


async def test_a_connection_opens_sixteen_sockets_at_most(url, prefix, client):
    connection = Connection(url, client_name=prefix)
    nobody = f"{prefix}:q:toril:nobody"
    waits = [
        asyncio.create_task(connection.run(plain("BLPOP", nobody, 60, parse=bool, block_ms=60_000)))
        for _ in range(24)
    ]

    async def blocked() -> int:
        return sum(
            row["name"] == prefix and row["cmd"] == "blpop" for row in await client.client_list()
        )

    try:
        assert await reaches_and_keeps(blocked, 16)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await connection.close()


async def test_sixty_four_commands_are_sent_ahead_of_their_replies(server, prefix, client):
    """More would make the server hold more replies than anybody reads."""
    key = f"{prefix}:q:toril:count"
    async with Proxy(server.port) as proxy:
        connection = Connection(proxy.url, reply_timeout_s=60.0)
        await connection.run(plain("PING", parse=bool))
        proxy.rule = lambda words: "swallow"
        sending = asyncio.create_task(connection.run_all([plain("INCR", key, parse=int)] * 200))

        async def counted() -> int:
            return int(await client.get(key) or 0)

        try:
            assert await reaches_and_keeps(counted, 64)
        finally:
            await end(sending)
            await connection.close()


async def test_four_slices_of_a_bulk_are_sent_ahead_of_their_answers(server, prefix, client):
    """Others want to add something, too."""
    async with (
        Proxy(server.port) as proxy,
        Queue("q", connection=proxy.url, prefix=prefix) as queue,
    ):
        await queue.add("first")
        proxy.rule = lambda words: "swallow"
        jobs = [NewJob("n") for _ in range(10 * MOST_JOBS_PER_CALL)]
        sending = asyncio.create_task(queue.add_bulk(jobs))

        async def added() -> int:
            return int(await client.llen(queue.keys.wait)) - 1

        try:
            assert await reaches_and_keeps(added, 4 * MOST_JOBS_PER_CALL)
        finally:
            await end(sending)


async def end(task):
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_blocking_call_has_two_seconds_more_than_it_asked_for(url):
    """Then its line is given up."""
    connection = Connection(url)

    assert connection._timeout_s(1500) == 3.5
    await connection.close()


async def test_a_closed_connection_has_no_line_left(url, prefix, client):
    connection = Connection(url, client_name=prefix)
    await connection.run_all([plain("PING", parse=bool)] * 3)

    async def lines() -> int:
        return sum(row["name"] == prefix for row in await client.client_list())

    assert await lines() == 1
    await connection.close()
    await wait_until(lambda: no(lines))


async def test_a_connection_that_waits_for_nothing_is_closed_all_the_same(url):
    connection = Connection(url)
    sockets = connection._transport.sockets.here()
    assert sockets.watch is None

    await connection.close()

    assert connection.is_closed


async def no(lines) -> bool:
    return await lines() == 0


async def test_each_error_of_a_pipeline_says_what_it_comes_from(url, prefix, client):
    await client.set(f"{prefix}:q:toril:text", "text")
    connection = Connection(url)
    wrong = plain("LLEN", f"{prefix}:q:toril:text", parse=int)

    first, pong, second = await connection.run_each([wrong, plain("PING", parse=bool), wrong])

    assert pong is True
    for error in (first, second):
        assert isinstance(error, TorilError)
        assert isinstance(error.__cause__, ResponseError)
    await connection.close()
    await client.delete(f"{prefix}:q:toril:text")


async def test_whoever_waits_for_others_to_be_added_hears_that_the_server_is_gone(url, prefix):
    connection = Connection(url, patience_s=0.0)
    queue = Queue("q", connection=connection, prefix=prefix)
    await queue.add("first")
    adds = [asyncio.create_task(queue.add("n")) for _ in range(3)]
    await asyncio.sleep(0)
    connection.interrupt()

    answers = await asyncio.wait_for(asyncio.gather(*adds, return_exceptions=True), 60)

    assert all(isinstance(answer, ServerError) for answer in answers)
    await queue.close()
    await connection.close()


async def test_whoever_leaves_does_not_take_the_answers_of_others_along(make_queue):
    queue = make_queue()
    await queue.add("first")
    adds = [asyncio.create_task(queue.add(f"{number}")) for number in range(4)]
    await asyncio.sleep(0)
    adds[1].cancel()

    first, gone, *others = await asyncio.wait_for(asyncio.gather(*adds, return_exceptions=True), 60)

    assert isinstance(gone, asyncio.CancelledError)
    assert [job.name for job in (first, *others)] == ["0", "2", "3"]
