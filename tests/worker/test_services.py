"""The parts of a worker: none may end without being seen, and health is what the server answers."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from tests.features.lanes import Hand
from tests.helpers import let_pass, wait_until
from tests.proxy import Proxy, runs
from toril import NewJob, Queue, Worker
from toril.protocol import leasing
from toril.protocol.keys import Keys
from toril.worker.group_keeper import GroupKeeper
from toril.worker.health import trouble_of
from toril.worker.lease import Berth, Lease
from toril.worker.locks import Locks
from toril.worker.pulse import Pulse


async def nothing(job):
    return None


@pytest.mark.parametrize("part", ["pump", "watch"])
async def test_a_worker_that_lost_a_vital_part_ends_and_says_why(part, url, prefix, caplog):
    """It would look healthy and take nothing: the loudest failure is the best."""
    worker = Worker("q", nothing, connection=url, prefix=prefix)
    errors: list[Exception] = []
    worker.on("error", errors.append)

    async def break_down() -> None:
        raise KeyError("a bug")

    getattr(worker._parts, part).run = break_down

    with pytest.raises(KeyError, match="a bug"):
        await asyncio.wait_for(worker.run(), 60)

    assert [str(error) for error in errors] == ["'a bug'"]
    assert "stopped" in caplog.text
    await worker.close(timeout=0)


async def test_a_reply_that_cannot_be_taken_in_ends_the_worker(url, prefix, caplog):
    """It is read in the middle of the event loop, where nobody waits for an exception."""
    worker = Worker("q", nothing, connection=url, prefix=prefix)
    running = asyncio.create_task(worker.run())
    await wait_until(lambda: worker.last_reply_age is not None)

    def break_down(number: int) -> None:
        raise KeyError("a bug")

    worker._parts.pulse.hear = break_down
    worker._parts.pump.look_again()

    with pytest.raises((KeyError, ExceptionGroup)):
        await asyncio.wait_for(running, 60)
    assert "KeyError: 'a bug'" in caplog.text
    assert "stopped" in caplog.text


@pytest.mark.parametrize("part", ["reply", "departure"])
async def test_a_pump_that_meets_a_bug_between_two_turns_ends_the_worker(
    part, queue, url, prefix, caplog
):
    """Replies are read and calls leave in the middle of the event loop, once a worker has worked:
    what is raised there would be logged by the loop, and the worker would stand still."""
    ran = asyncio.Event()

    async def handler(job):
        ran.set()

    worker = Worker("q", handler, connection=url, prefix=prefix)
    running = asyncio.create_task(worker.run())
    await queue.add("job")
    await asyncio.wait_for(ran.wait(), 60)
    await wait_until(queue.get_completed_count)

    def break_down(*words: object) -> None:
        raise KeyError("a bug")

    if part == "reply":
        worker._parts.pump._digest = break_down
    else:
        worker._parts.pump._should_depart = break_down
    worker._parts.pump.look_again()

    with pytest.raises((KeyError, ExceptionGroup)):
        await asyncio.wait_for(running, 60)
    assert "KeyError: 'a bug'" in caplog.text


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_lock_that_was_let_go_meanwhile_is_not_lost(is_held):
    """Its outcome was written between the request to renew it and the reply."""
    locks, lost = Locks(), []

    class Crew:
        def lose(self, job_id, token):
            lost.append((job_id, token))

    class Server:
        def run(self, command):
            if not is_held:
                locks.let_go("1", "t")
            return leasing.Renewal(lost=["1"], cancelled=[])

    locks.hold("1", "t")
    lease = Lease(Server, Berth(Keys("bull", "q"), "w", locks, Crew(), Pulse()), lock_ms=1000)
    lease._loop, lease._connection = asyncio.get_running_loop(), Server()

    lease._renew()
    await asyncio.sleep(0)

    assert lost == ([("1", "t")] if is_held else [])
    assert locks.all() == []


async def test_an_outcome_is_written_while_another_job_still_runs(queue, start_worker, inside):
    """It leaves with the turn of the loop in which it came, whoever else is busy."""
    may_end = {"slow": asyncio.Event(), "quick": asyncio.Event()}

    async def handler(job):
        await may_end[job.name].wait()

    worker = await start_worker(handler, concurrency=3, drain_delay=600_000)
    await queue.add_bulk([NewJob("slow"), NewJob("quick")])
    await wait_until(lambda: len(worker.current_jobs) == 2)
    await let_pass(0.1, "it has confirmed them, and waits at the server again")

    may_end["quick"].set()
    await inside.until_finished(1)
    assert len(await inside.ids("active")) == 1
    may_end["slow"].set()
    await inside.until_finished(2)


async def test_a_job_inherits_nothing_of_one_that_opened_a_line(queue, start_worker, inside):
    """Replies are read in the context of whoever opened the socket, and new jobs begin there."""
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    seen = []

    async def handler(job):
        seen.append(tenant.get())
        tenant.set(job.id)
        await asyncio.gather(*(job.log("a line of its own") for _ in range(4)))

    await start_worker(handler, concurrency=2)
    for _ in range(4):
        await queue.add_bulk([NewJob("job") for _ in range(5)])
    await inside.until_finished(20)

    assert seen == ["nobody"] * 20


async def test_a_job_inherits_nothing_of_a_callback(queue, start_worker, inside):
    """Regression: what a callback set, such as a scope of its error tracker, all later jobs had."""
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    seen = []

    async def handler(job):
        await job.report(1)
        seen.append(tenant.get())

    worker = await start_worker(handler)
    for event in ("active", "progress", "completed"):
        worker.on(event, lambda job, *_: tenant.set(job.id))
    for n in range(3):
        await queue.add("job")
        await inside.until_finished(n + 1)

    assert seen == ["nobody"] * 3


async def test_a_sweep_that_meets_a_bug_is_followed_by_the_next(url, prefix, caplog):
    worker = Worker("q", nothing, connection=url, prefix=prefix, stalled_interval=20)
    sweeps = 0

    async def trip() -> list[str]:
        nonlocal sweeps
        sweeps += 1
        raise KeyError("a bug")

    worker._parts.sweeper.sweep = trip
    async with worker:
        await wait_until(lambda: sweeps >= 3)

        assert worker.is_running
    assert "cannot search for stalled jobs" in caplog.text


async def test_a_job_that_cannot_be_begun_fails_instead_of_staying(queue, start_worker, inside):
    """Its lock would be renewed for ever, and nobody would run it."""
    job = await queue.add("job")
    worker = await start_worker(nothing)

    async def trip(job):
        raise KeyError("a bug")

    worker._parts.crew._perform = trip
    second = await queue.add("second")
    await inside.until_finished(2)

    assert set(await inside.ids("failed")) >= {second.id}
    assert (await inside.job(second.id))["failedReason"] == "KeyError: 'a bug'"
    assert job.id in {*await inside.ids("completed"), *await inside.ids("failed")}


@pytest.mark.parametrize("turns", range(5))
async def test_a_keeper_of_groups_ends_although_it_is_woken_while_it_is_cancelled(turns):
    """`asyncio.wait_for` of Python 3.11 forgets a cancellation that comes as its wait ends."""
    keeper = GroupKeeper(None, [])
    running = asyncio.create_task(keeper.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    keeper.meet()
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()

    done, _ = await asyncio.wait([running], timeout=30)
    assert done == {running}
    assert running.cancelled()


async def test_health_is_how_long_ago_the_server_answered(start_server):
    """reliability 2.7: neither a PING nor a running task tells that work is being done."""
    server = start_server()
    worker = Worker("q", nothing, connection=server.unix_url, drain_delay=100)
    assert worker.last_reply_age is None
    await worker.start()
    await wait_until(lambda: worker.last_reply_age is not None)
    await let_pass(0.5, "an answer of the start would be older")
    await wait_until(lambda: worker.last_reply_age < 0.3)  # it looks every 100 ms

    server.freeze()
    await wait_until(lambda: worker.last_reply_age > 1)
    assert worker.is_running
    server.thaw()
    await wait_until(lambda: worker.last_reply_age < 1, 30)
    await worker.close(timeout=0)


@pytest.mark.parametrize("why", ["full", "paused", "waiting"])
async def test_a_worker_that_asks_for_no_job_still_hears_from_its_server(why, queue, start_worker):
    """Its lease does: else a worker with long jobs would be taken out of service."""
    go_on = asyncio.Event()

    async def handler(job):
        await go_on.wait()

    worker = await start_worker(handler, lock_duration=900, drain_delay=600_000)
    await wait_until(lambda: worker.last_reply_age is not None)
    if why == "full":
        await queue.add("long")
        await wait_until(lambda: worker.current_jobs)
    elif why == "paused":
        worker.pause()
    pulse = worker._parts.pulse
    signs: set[float] = set()
    await wait_until(lambda: signs.add(pulse.last_sign_at) or len(signs - {pulse.heard_at}) > 3)
    assert trouble_of(worker) is None
    go_on.set()


async def test_an_idle_worker_whose_wait_is_never_answered_opens_another_line(server, prefix):
    """reliability 2.7: half-open, the most reported way in which workers stop for good."""
    ran = asyncio.Event()

    async def handler(job):
        ran.set()

    swallowed = 0

    def swallow_the_first_wait(words: list[bytes]) -> str | None:
        nonlocal swallowed
        if words[0] != b"BZPOPMIN" or swallowed:
            return None
        swallowed += 1
        return "swallow"

    async with Proxy(server.port) as proxy:
        proxy.rule = swallow_the_first_wait
        worker = Worker("q", handler, connection=proxy.url, prefix=prefix, drain_delay=200)
        async with worker, Queue("q", connection=server.url, prefix=prefix) as queue:
            await wait_until(lambda: swallowed)
            await queue.add("job")
            # The wait and two seconds, and the watch looks twice a second.
            await asyncio.wait_for(ran.wait(), 30)


async def test_jobs_that_come_together_wake_one_idle_worker_after_another(server, prefix, client):
    """A bulk sets one marker: whoever takes a job puts it back for the next."""
    holding: list[str] = []
    go_on = asyncio.Event()

    async def hold(job):
        holding.append(job.id)
        await go_on.wait()

    options = {"connection": server.url, "prefix": prefix}
    workers = [Worker("q", hold, **options, drain_delay=60_000) for _ in range(3)]
    for worker in workers:
        await worker.start()
    await wait_until(lambda: _blocked(client, 6))  # the wait and the mailbox of each
    async with Queue("q", **options) as queue:
        jobs = await queue.add_bulk([NewJob("job") for _ in range(3)])

        await wait_until(lambda: len(holding) == 3, 30)

    assert sorted(holding) == sorted(job.id for job in jobs)
    assert [len(worker.current_jobs) for worker in workers] == [1, 1, 1]
    go_on.set()
    for worker in workers:
        await worker.close()


class TornWait:
    """A rule: of the first wait of a worker only the half that pops the marker arrives."""

    def __init__(self) -> None:
        self.was_sent = False
        self._is_over = False

    def __call__(self, words: list[bytes]) -> str | None:
        if words[0] == b"BZPOPMIN" and not self.was_sent:
            self.was_sent = True
            return None
        if self.was_sent and not self._is_over and runs(words, "settle"):
            self._is_over = True
            return "hold"
        return None


@pytest.mark.parametrize("is_closing", [False, True], ids=["goes on", "closes"])
async def test_whoever_pops_the_marker_in_vain_sees_to_it_that_the_job_is_taken(
    is_closing, server, prefix, client
):
    """The line breaks between the wait and the take behind it: nobody else is woken for the job."""
    ran = asyncio.Event()

    async def handler(job):
        ran.set()

    rule = TornWait()
    options = {"prefix": prefix, "drain_delay": 60_000, "stalled_interval": 60_000}
    async with Proxy(server.port) as proxy:
        proxy.rule = rule
        worker = Worker("q", handler, connection=proxy.url, **options)
        other = Worker("q", handler, connection=server.url, **options)
        queue = Queue("q", connection=server.url, prefix=prefix)
        await worker.start()
        await wait_until(lambda: proxy.broken)
        if is_closing:
            await other.start()
            await wait_until(lambda: _blocked(client, 3))
        await queue.add("job")
        await wait_until(lambda: _is_popped(client, prefix))
        closing = asyncio.create_task(worker.close()) if is_closing else None
        proxy.may_cut.set()

        await asyncio.wait_for(ran.wait(), 30)

        if closing is not None:
            await closing
        for one in (worker, other, queue):
            await one.close()


@pytest.mark.parametrize("lane", [None, "a"], ids=["plain", "in a lane"])
async def test_a_delayed_job_is_on_time_although_the_worker_that_knew_of_it_died(
    lane, server, prefix, client
):
    """One worker is woken when the job is added, and dies when it has heard when the job is due."""
    ran = asyncio.Event()

    async def handler(job):
        ran.set()

    options = {"connection": server.url, "prefix": prefix}
    other = Worker("q", handler, drain_delay=600_000, stalled_interval=60_000, **options)
    async with Queue("q", **options) as queue:
        dying = Hand(queue._connection, queue.keys, "dying")
        woken = asyncio.create_task(client.bzpopmin(queue.keys.marker))
        await wait_until(lambda: _blocked(client, 1))
        async with other:
            await wait_until(lambda: _blocked(client, 3))
            # However slow the machine is, it is not due yet when the dying one looks.
            await queue.add("later", delay=4_000, lane=lane)
            await woken
            assert await dying.take() == []

            await asyncio.wait_for(ran.wait(), 30)


async def _blocked(client, count: int) -> bool:
    return (await client.info("clients"))["blocked_clients"] >= count


async def _is_popped(client, prefix: str) -> bool:
    return await client.exists(f"{prefix}:q:marker") == 0


async def test_a_closed_worker_has_ended_its_thread_and_its_lines(start_worker, client, prefix):
    async def has_a_line() -> bool:
        return any(row["name"].startswith(prefix) for row in await client.client_list())

    async def has_no_line() -> bool:
        return not await has_a_line()

    worker = await start_worker(print)
    thread = worker._parts.lease._thread
    assert thread.is_alive()
    await wait_until(has_a_line)

    await worker.close()

    assert not thread.is_alive()
    await wait_until(has_no_line)


async def test_locks_are_renewed_five_hundred_at_a_time(
    queue, start_worker, client, prefix, monkeypatch
):
    """A worker that holds many must not keep the server from everybody else."""
    sizes = []
    renew = leasing.renew

    def noted(keys, held, **options):
        sizes.append(len(held))
        return renew(keys, held, **options)

    worker = await start_worker(print)
    await worker.close()
    names = [f"{prefix}:q:{number}" for number in range(1001)]
    await client.mset({f"{name}:lock": "token" for name in names})
    (berth,) = worker._parts.lease._berths.values()
    for number in range(1001):
        berth.locks.hold(str(number), "token")
    monkeypatch.setattr(leasing, "renew", noted)
    worker._parts.lease._connection = worker._parts.lease._make_connection()
    await asyncio.to_thread(worker._parts.lease._renew)

    assert sizes == [500, 500, 1]
    assert await client.pttl(f"{names[-1]}:lock") > 0
    worker._parts.lease._connection.close()
    await client.delete(*(f"{name}:lock" for name in names))
