"""What a worker costs its server, counted in commands: exact on any machine."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.counting import counting
from tests.helpers import let_pass, wait_until
from toril import NewJob, Queue, Worker
from toril.protocol import settling
from toril.worker import group_keeper, pump


def looks(client: Any) -> int:
    """How often somebody looked for groups that are due."""
    return int(client.info("commandstats").get("cmdstat_fcall_ro", {"calls": 0})["calls"])


async def test_an_idle_worker_waits_and_does_nothing_else(start_server, monkeypatch):
    """No polling: one blocking call on each of two connections, for as long as nothing happens.

    Groups that are due are looked for when it starts, and then every five seconds; here less often,
    since a busy machine may take that long.
    """
    monkeypatch.setattr(group_keeper, "LOOK_FOR_DUE_S", 600.0)
    server = start_server()
    times = {"drain_delay": 60_000, "lock_duration": 300_000}
    worker = Worker("q", print, connection=server.unix_url, concurrency=10, **times)
    with server.client() as client:
        await worker.start()
        await wait_until(lambda: client.info("clients")["blocked_clients"] == 2)
        await wait_until(lambda: looks(client) >= 1)

        with counting(server) as counted:
            await let_pass(1, "who polls would be counted")

    assert counted.commands == {}
    await worker.close()


async def test_an_idle_worker_looks_for_due_groups_with_one_call(start_server, monkeypatch):
    """Every five seconds; here more often."""
    monkeypatch.setattr(group_keeper, "LOOK_FOR_DUE_S", 0.2)
    server = start_server()
    times = {"drain_delay": 60_000, "lock_duration": 300_000}
    worker = Worker("q", print, connection=server.unix_url, **times)
    keeper = worker._parts.keeper
    keep_due, looked = keeper._keep_due, 0

    async def noted(keys: Any) -> float:
        nonlocal looked
        pause_s = await keep_due(keys)
        looked += 1
        return pause_s

    keeper._keep_due = noted
    with server.client() as client:
        await worker.start()
        await wait_until(lambda: client.info("clients")["blocked_clients"] == 2)

        began = time.monotonic()
        with counting(server) as counted:
            before = looked
            await let_pass(1, "five looks are due in it")
            # The server may have stood still: the second one was counted for sure.
            await wait_until(lambda: looked > before + 1)
        most = (time.monotonic() - began) / 0.2 + 1

    assert set(counted.commands) == {"FCALL_RO"} or set(counted.commands) == {"FCALL"}
    assert sum(counted.commands.values()) <= most
    await worker.close()


async def test_an_idle_worker_looks_once_per_drain_delay(start_server, monkeypatch):
    """In a minute: twelve looks at the default of five seconds; here a tenth of both.

    Groups that are due are not looked for meanwhile, however long a busy machine takes.
    """
    monkeypatch.setattr(group_keeper, "LOOK_FOR_DUE_S", 600.0)
    server = start_server()
    worker = Worker("q", print, connection=server.unix_url, concurrency=10, drain_delay=500)
    with server.client() as client:
        await worker.start()
        await wait_until(lambda: client.info("clients")["blocked_clients"] == 2)
        await wait_until(lambda: looks(client) >= 1)

        began = time.monotonic()
        with counting(server) as counted:
            pump = worker._parts.pump
            before = pump._request
            await let_pass(2.2, "four looks are due in it")
            # The server may have stood still: when the second leaves, the first was counted.
            await wait_until(lambda: pump._request > before + 1)
        most = (time.monotonic() - began) / 0.5 + 1

    # A wait and the take behind it are one message.
    assert 1 <= counted.commands["BZPOPMIN"] <= most
    assert counted.commands["FCALL"] <= most
    assert set(counted.commands) <= {"BZPOPMIN", "FCALL"}
    await worker.close()


@pytest.mark.parametrize(
    ("concurrency", "most"), [(1, 206), (10, 120), (100, 20)], ids=["1", "10", "100"]
)
async def test_a_busy_drain_makes_one_call_per_batch(concurrency, most, start_server):
    """200 jobs one after another are 200 calls and the first; many at once are far fewer.

    A few more: the sweep, a confirmation, and each script's source when the server learns it.
    """

    async def handler(job):
        return None

    assert await calls_of_a_drain(start_server(), 200, handler, concurrency) <= most


async def test_a_job_costs_two_turns_of_the_event_loop(start_server):
    """One reads the reply and begins the job, one runs it and sends what became of it.

    A turn costs about as much as all that is done for a job. A busy machine makes a few more.
    """

    async def handler(job):
        return None

    loop = asyncio.get_running_loop()
    selector: Any = loop._selector  # type: ignore[attr-defined]
    turns, select = 0, selector.select

    def counted(timeout: float | None = None) -> Any:
        nonlocal turns
        turns += 1
        return select(timeout)

    selector.select = counted
    try:
        await calls_of_a_drain(start_server(), 400, handler, 1)
    finally:
        selector.select = select

    assert turns < 400 * 3


async def test_a_call_settles_one_batch_and_takes_the_next(start_server, monkeypatch):
    """While one call is away another one still asks for as many jobs as it settles, up to half of
    all; never do more than 100 handlers run.

    What each call asks for does not depend on the machine. How many there are does, within what
    the pump waits for: a call that leaves beside another one carries a quarter of all.
    """
    running = most = 0
    calls: list[tuple[int, int]] = []
    settle = settling.settle

    def noted(keys, settled, take, **options):
        calls.append((len(settled), take.count))
        return settle(keys, settled, take, **options)

    async def handler(job):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    monkeypatch.setattr(settling, "settle", noted)
    await calls_of_a_drain(start_server(), 2000, handler, 100)

    assert sum(settled for settled, _ in calls) == 2000
    assert all(asked >= min(settled, 50) for settled, asked in calls), calls
    assert len(calls) <= 2000 / 25 + 4
    assert most <= 100


async def calls_of_a_drain(server, jobs: int, handler, concurrency: int) -> int:
    """How many scripts a worker runs until that many jobs are completed."""
    done = asyncio.Event()
    finished = 0

    def count(job, result):
        nonlocal finished
        finished += 1
        if finished == jobs:
            done.set()

    worker = Worker("q", handler, connection=server.unix_url, concurrency=concurrency)
    worker.on("completed", count)
    async with Queue("q", connection=server.unix_url) as queue:
        await queue.add_bulk([NewJob(f"{n}") for n in range(jobs)])
        with counting(server) as counted:
            await worker.start()
            await asyncio.wait_for(done.wait(), 60)
        await worker.close()
    return counted.commands["FCALL"]


async def test_picking_up_a_job_is_one_message(start_server):
    """The take waits at the server behind the marker: no call is needed when a job comes."""
    server = start_server()
    ran = asyncio.Event()

    async def handler(job):
        ran.set()
        await asyncio.sleep(600)

    worker = Worker("q", handler, connection=server.unix_url, concurrency=2)
    async with Queue("q", connection=server.unix_url) as queue:
        await queue.add("warm", delay=60_000)
        await worker.start()
        with server.client() as client:
            await wait_until(lambda: client.info("clients")["blocked_clients"] == 2)
            with counting(server) as counted:
                await queue.add("job")
                await asyncio.wait_for(ran.wait(), 60)

    # The add, and the take that had been sent before.
    assert counted.commands.get("FCALL", 0) <= 3
    await worker.close(timeout=0)


async def test_an_idle_worker_makes_two_calls_for_a_job(start_server, monkeypatch):
    """It takes the job, and says how it ended; nothing was left to look for."""
    monkeypatch.setattr(pump, "CONFIRM_AFTER_S", 3600.0)  # a slow machine would need a third
    server = start_server()
    times = {"drain_delay": 600_000, "lock_duration": 300_000}
    worker = Worker("q", _nothing, connection=server.unix_url, concurrency=20, **times)
    async with Queue("q", connection=server.unix_url) as queue, worker:
        with server.client() as client:
            await wait_until(lambda: client.info("clients")["blocked_clients"] == 2)
            await wait_until(lambda: looks(client) >= 1)
            with counting(server) as counted:
                for count in range(1, 6):
                    await queue.add("job")
                    await wait_until(lambda count=count: _completed(queue, count))
                    await wait_until(lambda: client.info("clients")["blocked_clients"] == 2)

    assert counted.calls == {"add": 5, "settle": 10}


async def test_a_worker_that_found_less_than_it_has_room_for_knows_what_is_due(
    start_server, monkeypatch
):
    """Nobody else tells it while its job runs: the marker of the delayed job was popped before."""
    monkeypatch.setattr(pump, "CONFIRM_AFTER_S", 3600.0)
    server = start_server()
    has_come = asyncio.Event()

    async def handler(job):
        if job.name == "later":
            has_come.set()
        await has_come.wait()

    times = {"drain_delay": 600_000, "lock_duration": 300_000}
    worker = Worker("q", handler, connection=server.unix_url, concurrency=20, **times)
    async with Queue("q", connection=server.unix_url) as queue, worker:
        with server.client() as client:
            await queue.add("later", delay=2_000)
            await wait_until(lambda: not client.exists(queue.keys.marker))
            await queue.add("now")

            await asyncio.wait_for(has_come.wait(), 30)


async def test_two_of_many_idle_workers_hear_of_a_delayed_job(start_server):
    """Two, because one may die; nobody hands the marker to and fro until the job is due."""
    server = start_server()
    times = {"drain_delay": 600_000, "lock_duration": 300_000}
    workers = [Worker("q", _nothing, connection=server.unix_url, **times) for _ in range(4)]
    for worker in workers:
        await worker.start()
    async with Queue("q", connection=server.unix_url) as queue:
        with server.client() as client:
            await wait_until(lambda: client.info("clients")["blocked_clients"] == 8)
            before = _scripts_run(client)
            with counting(server) as counted:
                await queue.add("later", delay=3_600_000)
                await wait_until(lambda: _scripts_run(client) >= before + 3)
                await let_pass(0.3, "a third worker would be told at once")
    for worker in workers:
        await worker.close()

    assert counted.calls == {"add": 1, "settle": 2}


def _scripts_run(client: Any) -> int:
    return int(client.info("commandstats")["cmdstat_fcall"]["calls"])


async def _nothing(job):
    return None


async def _completed(queue: Queue, count: int) -> bool:
    return await queue.get_completed_count() == count
