"""The library of functions on a real server: loaded when it is missing, or done without."""

from __future__ import annotations

import asyncio
import logging

import pytest

import toril.sync
from tests.helpers import wait_until
from toril import Queue, Worker
from toril.client.connection import Connection
from toril.protocol import scripts

OFTEN = 5


def calls_of(client, *names: str) -> dict[str, int]:
    stats = client.info("commandstats")
    return {name: stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names}


def words_of(entry: list) -> dict:
    return dict(zip(entry[::2], entry[1::2], strict=True))


async def run_jobs(url: str, count: int) -> list[int]:
    """What ran of that many jobs, added and worked on with a connection of their own."""
    ran: list[int] = []

    async def handler(job):
        ran.append(job.data["n"])

    async with Queue("q", connection=url) as queue, Worker("q", handler, connection=url):
        for n in range(count):
            await queue.add("x", {"n": n})
        await wait_until(lambda: len(ran) == count)
    return ran


async def test_the_first_call_loads_the_library_and_no_other_does(start_server):
    server = start_server(tcp=True)
    async with Queue("q", connection=server.url) as queue:
        for _ in range(OFTEN):
            await queue.add("x")
        with server.client() as client:
            counts = calls_of(client, "fcall", "function|load", "eval", "evalsha")
            libraries = client.function_list(library="toril_*")

    assert counts == {"fcall": OFTEN + 1, "function|load": 1, "eval": 0, "evalsha": 0}
    assert len(libraries) == 1


def test_blocking_code_loads_it_as_well(start_server):
    server = start_server(tcp=True)
    with toril.sync.Queue("q", connection=server.url) as queue:
        queue.add("x")
        with server.client() as client:
            assert calls_of(client, "fcall", "function|load") == {"fcall": 2, "function|load": 1}


async def test_many_that_come_at_once_to_an_empty_server_all_succeed(start_server):
    server = start_server(tcp=True)
    queues = [Queue("q", connection=Connection(server.url)) for _ in range(8)]

    jobs = await asyncio.gather(*(queue.add("x") for queue in queues))

    assert len({job.id for job in jobs}) == len(queues)
    assert await queues[0].get_job_counts() == await queues[1].get_job_counts()
    assert len(await queues[0].get_waiting()) == len(queues)
    for queue in queues:
        await queue.close()


@pytest.mark.parametrize(
    "rules",
    [
        ("-function|load",),
        ("-function",),
        ("-fcall", "-fcall_ro", "-function"),
    ],
)
async def test_a_user_without_the_right_goes_on_with_scripts_and_is_told_once(
    start_server, rules, caplog
):
    server = start_server(tcp=True)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "small", "on", ">x", "~*", "&*", "+@all", *rules)
    url = server.url.replace("redis://", "redis://small:x@")

    with caplog.at_level(logging.WARNING, "toril"):
        ran = await run_jobs(url, OFTEN)

    assert sorted(ran) == list(range(OFTEN))
    told = [record.getMessage() for record in caplog.records if "scripts" in record.getMessage()]
    assert told
    assert len(told) == len(set(told)) or len(told) <= 4, "once for each connection"
    with server.client() as client:
        assert calls_of(client, "evalsha")["evalsha"] >= OFTEN
        assert client.function_list(library="toril_*") == []


async def test_a_user_who_may_not_load_uses_what_another_loaded(start_server, caplog):
    server = start_server(tcp=True)
    with server.client() as client:
        client.execute_command(
            *("ACL", "SETUSER", "small", "on", ">x", "~*", "&*", "+@all", "-function|load")
        )
    async with Queue("other", connection=server.url) as queue:
        await queue.add("x")

    ran = await run_jobs(server.url.replace("redis://", "redis://small:x@"), OFTEN)

    assert sorted(ran) == list(range(OFTEN))
    assert "scripts" not in caplog.text
    with server.client() as client:
        assert calls_of(client, "evalsha", "eval") == {"evalsha": 0, "eval": 0}


async def test_a_server_without_functions_serves_all_the_same(start_server):
    server = start_server({"rename-command FCALL": ""}, tcp=True)

    assert sorted(await run_jobs(server.url, OFTEN)) == list(range(OFTEN))


async def test_a_full_server_without_the_library_still_lets_workers_drain(start_server):
    """A server that was flushed while it is full: loading needs memory, and settling must not."""
    server = start_server(tcp=True)
    ran: list[int] = []

    async def handler(job):
        ran.append(job.data["n"])

    async with Queue("q", connection=server.url) as queue:
        for n in range(OFTEN):
            await queue.add("x", {"n": n})
        with server.client() as client:
            client.function_flush()
            client.config_set("maxmemory", "1mb")
            client.config_set("maxmemory-policy", "noeviction")
        async with Worker("q", handler, connection=server.url):
            await wait_until(lambda: len(ran) == OFTEN)
        with server.client() as client:
            client.config_set("maxmemory", "0")

    assert sorted(ran) == list(range(OFTEN))


async def test_a_library_of_another_version_stays_beside_ours(start_server):
    server = start_server(tcp=True)
    library = scripts.library()
    other = library.with_texts({"rooms/clock": library.rooms["clock"] + "clock.OTHER = 1\n"})
    with server.client() as client:
        client.function_load(other.source)

    assert sorted(await run_jobs(server.url, OFTEN)) == list(range(OFTEN))

    with server.client() as client:
        names = {words_of(entry)["library_name"] for entry in client.function_list()}
    assert names == {library.name, other.name}
