"""How many commands the server is sent: exact on any machine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.counting import counting
from tests.servers import Server
from toril import NewJob, Queue


@pytest.fixture
async def server_and_queue(start_server) -> AsyncIterator[tuple[Server, Queue]]:
    """A server that nobody else uses, and a queue on it whose scripts and socket are warm."""
    server = start_server(tcp=True)
    async with Queue("q", connection=server.url) as queue:
        await queue.add("first", job_id="first")
        await queue.get_job_counts()
        await queue.get_state("first")
        yield server, queue


async def test_an_add_is_one_round_trip(server_and_queue):
    server, queue = server_and_queue

    with counting(server) as counted:
        for number in range(10):
            await queue.add("x", {"n": number})

    assert counted.commands == {"FCALL": 10}


async def test_a_thousand_jobs_in_bulk_are_five_calls(server_and_queue):
    server, queue = server_and_queue

    with counting(server) as counted:
        await queue.add_bulk([NewJob("x", {"n": number}) for number in range(1000)])

    assert counted.commands == {"FCALL": 5}


async def test_adds_at_the_same_time_travel_together(server_and_queue):
    """The first goes at once; the others together when it is back."""
    server, queue = server_and_queue

    with counting(server) as counted:
        await asyncio.gather(*(queue.add("x", {"n": number}) for number in range(100)))

    assert counted.commands == {"FCALL": 2}


async def test_a_duplicate_costs_one_more_read(server_and_queue):
    server, queue = server_and_queue

    with counting(server) as counted:
        job = await queue.add("x", job_id="first")

    assert job.duplicated
    assert counted.commands.pop("FCALL") == 1
    assert sum(counted.commands.values()) == 1


async def test_counts_and_a_state_are_one_round_trip_each(server_and_queue):
    server, queue = server_and_queue

    with counting(server) as counted:
        await queue.get_job_counts()
        await queue.get_state("first")

    assert counted.commands == {"FCALL_RO": 2}


async def test_a_finished_job_is_waited_for_with_one_look(server_and_queue):
    server, queue = server_and_queue
    with server.client() as raw:
        raw.lrem("bull:q:wait", 0, "first")
        raw.zadd("bull:q:completed", {"first": 1})
        raw.hset("bull:q:first", "returnvalue", "41")

    with counting(server) as counted:
        assert await queue.wait_for("first", timeout=60_000) == 41

    assert counted.commands == {"FCALL_RO": 1}
