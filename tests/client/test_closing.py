"""Closing a queue while calls are in flight: each is finished, or said to be uncertain."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.helpers import until_blocked, wait_until
from tests.servers import Server
from toril import Connection, Job, NewJob, Queue
from toril.client.transport import MOST_SOCKETS
from toril.errors import AmbiguousResultError, ServerUnavailableError
from toril.protocol.command import plain


def is_sent(connection: Connection) -> Any:
    """Has a call left that has no answer yet? Borrowing a socket that is open and sending on it
    are one turn of the loop."""
    return connection._transport.sockets.here().in_use


async def sent_together(server: Server) -> tuple[Queue, list[asyncio.Task[Job]]]:
    """Adds that are on their way in one call, to a server that does not answer."""
    queue = Queue("mail", connection=server.unix_url)
    await queue.add("opens a socket")
    server.freeze()
    line = queue.adder._batcher._lines.here()
    line.is_away = True  # as if an add before them were still away
    adds = [asyncio.create_task(queue.add("x", n, job_id=f"x{n}")) for n in range(3)]
    await wait_until(lambda: len(line.waiting) == 3)
    line.sender = asyncio.create_task(queue.adder._batcher._send_waiting(line))
    await wait_until(lambda: is_sent(queue._connection))
    return queue, adds


async def test_closing_finishes_the_adds_that_wait(make_queue):
    """The one that is sent alone as well as those that wait for it."""
    queue = make_queue()
    await queue.add("opens a socket")
    adds = [asyncio.create_task(queue.add("x", n, job_id=f"x{n}")) for n in range(3)]
    await asyncio.sleep(0)  # they begin

    await queue.close()

    assert [job.id for job in await asyncio.gather(*adds)] == ["x0", "x1", "x2"]


async def adding_at_a_frozen_server(start_server, name):
    """A server that stands still, a queue there, and an add that is on its way to it."""
    server = start_server()
    queue = Queue("mail", connection=server.unix_url)
    await queue.add("opens a socket")
    server.freeze()
    add = asyncio.create_task(queue.add(name))
    await wait_until(lambda: is_sent(queue._connection))
    return server, queue, add


async def test_closing_lets_an_add_go_that_is_given_up(make_queue, start_server):
    """Nobody is left to wait for."""
    _, queue, add = await adding_at_a_frozen_server(start_server, "x")
    closing = asyncio.create_task(queue.close())
    await wait_until(lambda: queue.adder._batcher._lines.here().closing)

    add.cancel()

    async with asyncio.timeout(60):
        await closing


async def test_an_add_that_is_given_up_before_it_is_sent_is_not_sent(start_server):
    """Regression: it was sent with the next ones, and ran though its caller had been told no."""
    server, queue, under_way = await adding_at_a_frozen_server(start_server, "under way")
    names = ["given up", "waits", "given up", "given up"]
    waiting = [asyncio.create_task(queue.add(name)) for name in names]
    await wait_until(lambda: len(queue.adder._batcher._lines.here().waiting) == 4)
    for task, name in zip(waiting, names, strict=True):
        if name == "given up":
            task.cancel()
    server.thaw()

    async with asyncio.timeout(60):
        await asyncio.gather(under_way, waiting[1])
        names = sorted(job.name for job in await queue.get_waiting())
        await queue.close()
    assert names == ["opens a socket", "under way", "waits"]


async def test_a_close_that_is_given_up_leaves_the_adds_alone(start_server):
    server = start_server()
    queue, adds = await sent_together(server)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await queue.close()
    server.thaw()

    async with asyncio.timeout(60):
        added = await asyncio.gather(*adds)
        await queue.close()
    assert [job.id for job in added] == ["x0", "x1", "x2"]


async def test_adds_are_not_left_waiting_when_their_sender_is_cancelled(start_server):
    """As at the end of a loop, which cancels every task."""
    server = start_server()
    queue, adds = await sent_together(server)

    queue.adder._batcher._lines.here().sender.cancel()

    async with asyncio.timeout(60):
        answers = await asyncio.gather(*adds, return_exceptions=True)
        await queue.close()
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)


async def test_a_bulk_that_closing_cuts_off_is_uncertain(start_server):
    """Its bytes are with the server, which does what they say."""
    server = start_server()
    queue = Queue("mail", connection=server.unix_url)
    await queue.add("opens a socket")
    server.freeze()
    adding = asyncio.create_task(queue.add_bulk([NewJob("x", n) for n in range(1500)]))
    await wait_until(lambda: is_sent(queue._connection))

    await queue.close()
    with pytest.raises(AmbiguousResultError, match="may have been done"):
        await adding
    server.thaw()

    async with Queue("mail", connection=server.unix_url) as again:

        async def has_some() -> bool:
            return await again.get_waiting_count() > 1

        await wait_until(has_some)


async def test_closing_keeps_the_answers_that_have_come(url, prefix, client):
    connection = Connection(url)
    block = plain("BLPOP", f"{prefix}:nothing", 0, parse=bytes, block_ms=60_000)
    running = asyncio.create_task(connection.run_each([plain("PING", parse=bytes), block]))
    await until_blocked(client)
    await client.ping()  # what came before its answer has been read too

    await connection.close()

    answer, refusal = await running
    assert answer == b"PONG"
    assert isinstance(refusal, ServerUnavailableError)


async def test_closing_ends_the_calls_that_wait_for_a_socket(start_server):
    """However many there are: most of them have no socket yet that could be closed."""
    server = start_server()
    queue = Queue("mail", connection=server.unix_url)
    await queue.add("opens a socket")
    server.freeze()
    calls = [asyncio.create_task(queue.get_job(f"{n}")) for n in range(100)]
    await wait_until(lambda: len(is_sent(queue._connection)) == MOST_SOCKETS)

    await queue.close()

    async with asyncio.timeout(60):
        answers = await asyncio.gather(*calls, return_exceptions=True)
    server.thaw()
    assert {type(answer) for answer in answers} == {ServerUnavailableError}
