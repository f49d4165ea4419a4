"""Lines that break: no job is lost, none runs twice, none fails without having run."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

import toril.sync
from tests.helpers import PATIENCE_S, until_renewed, wait_until
from tests.proxy import Proxy, runs
from toril import FlowJob, FlowProducer, GroupJob, NewJob, Queue, Worker
from toril.client.connection import Connection
from toril.errors import StaleRequestError
from toril.protocol import leasing, scripts, settling
from toril.protocol.settling import Outcome, Settled, Take


@pytest.fixture
async def proxy(server, prefix):
    """It is closed before the keys of the test are deleted."""
    async with Proxy(server.port) as proxy:
        yield proxy


def every(number: int, name: str, fault: str):
    """A rule: break every n-th call of a script."""
    seen = 0

    def rule(words):
        nonlocal seen
        if not runs(words, name):
            return None
        seen += 1
        return fault if seen % number == 0 else None

    return rule


@pytest.mark.parametrize("concurrency", [1, 3, 50])
@pytest.mark.parametrize("fault", ["lose", "cut", "double"])
async def test_a_worker_whose_line_breaks_runs_every_job_once(
    fault, concurrency, proxy, queue, prefix, inside
):
    """reliability 2.2: a lost reply orphans no job and fails none."""
    ran = Counter()
    running = most = 0

    async def handler(job):
        nonlocal running, most
        ran[job.id] += 1
        running += 1
        most = max(most, running)
        await asyncio.sleep(random.random() * 0.002)
        running -= 1
        return job.name

    added = [job.id for job in await queue.add_bulk([NewJob(f"{n}") for n in range(60)])]
    proxy.rule = every(2, "settle", fault)
    worker = Worker("q", handler, connection=proxy.url, prefix=prefix, concurrency=concurrency)
    await worker.start()
    await inside.until_finished(60, 60)
    proxy.rule = lambda words: None
    await worker.close()

    assert len(proxy.broken) > 1
    assert ran == Counter(added)
    assert most <= concurrency
    assert set(await inside.ids("completed")) == set(added)
    finished = await inside.events("completed", "failed", "stalled")
    assert sorted(finished) == sorted(("completed", job_id) for job_id in added)
    for job_id in added:
        assert (await inside.job(job_id))["ats"] == "1"


async def test_a_half_open_line_is_given_up(proxy, queue, prefix, inside):
    """reliability 2.7: nobody answers and nothing is closed."""
    proxy.rule = every(3, "settle", "swallow")
    ran = Counter()

    async def handler(job):
        ran[job.id] += 1
        if len(proxy.broken) >= 1:
            proxy.rule = lambda words: None

    added = [job.id for job in await queue.add_bulk([NewJob(f"{n}") for n in range(10)])]
    worker = Worker("q", handler, connection=proxy.url, prefix=prefix)
    await worker.start()
    await wait_until(lambda: proxy.broken)
    proxy.rule = lambda words: None
    await inside.until_finished(10, 60)
    await worker.close()

    assert ran == Counter(added)


@pytest.mark.parametrize("fault", ["lose", "cut", "double"])
async def test_an_add_is_never_doubled(fault, proxy, prefix, inside):
    """I4: an add whose reply was lost is sent again, and the job is there once."""
    proxy.rule = every(2, "add", fault)
    # On a busy machine a call that breaks again and again is given up after three seconds.
    connection = Connection(proxy.url, patience_s=PATIENCE_S)
    async with Queue("q", connection=connection, prefix=prefix) as queue:
        one_by_one = [await queue.add("job", {"n": n}) for n in range(6)]
        together = await asyncio.gather(*(queue.add("job", {"n": n}) for n in range(50)))
        # Calls of a bulk travel together: when one breaks, the others are sent again with it.
        proxy.rule = every(5, "add", fault)
        in_bulk = await queue.add_bulk([NewJob("job", {"n": n}) for n in range(900)])
    await connection.close()

    assert len(proxy.broken) > 3
    jobs = [*one_by_one, *together, *in_bulk]
    waiting = await inside.ids("wait")
    assert Counter(waiting) == Counter(job.id for job in jobs)
    assert not any(job.duplicated for job in jobs)


async def add_one(url, prefix):
    async with Queue("q", connection=url, prefix=prefix) as queue:
        return [await queue.add("job", remove_on_complete=True)]


async def add_one_with_an_id(url, prefix):
    async with Queue("q", connection=url, prefix=prefix) as queue:
        return [await queue.add("job", job_id="mine", remove_on_complete=True)]


async def add_one_with_blocking_code(url, prefix):
    def add():
        with toril.sync.Queue("q", connection=url, prefix=prefix) as queue:
            return [queue.add("job", remove_on_complete=True)]

    return await asyncio.to_thread(add)


async def add_some_in_bulk(url, prefix):
    async with Queue("q", connection=url, prefix=prefix) as queue:
        return await queue.add_bulk([NewJob("job", remove_on_complete=True)] * 3)


async def add_a_flow(url, prefix):
    child = FlowJob("job", queue_name="q", remove_on_complete=True)
    root = FlowJob("job", queue_name="q", remove_on_complete=True, children=[child])
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        node = await flow.add(root)
    return [node.job, *(below.job for below in node.children)]


async def add_a_group(url, prefix):
    members = [GroupJob("job", queue_name="q", remove_on_complete=True) for _ in range(2)]
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        return (await flow.add_group("order", members, group_retention=True)).jobs


async def add_a_schedule(url, prefix):
    template = NewJob("job", remove_on_complete=True)
    async with Queue("q", connection=url, prefix=prefix) as queue:
        job = await queue.upsert_job_scheduler(
            "yearly", cron="0 0 1 1 *", immediately=True, template=template
        )
    return [job]


WAYS_IN = (
    ("add", add_one, 1),
    ("add", add_one_with_an_id, 1),
    ("add", add_one_with_blocking_code, 1),
    ("add", add_some_in_bulk, 3),
    ("addFlow", add_a_flow, 2),
    ("addGroup", add_a_group, 2),
    ("upsertScheduler", add_a_schedule, 1),
)


@pytest.mark.parametrize("fault", ["lose", "double"])
@pytest.mark.parametrize(("script", "add", "count"), WAYS_IN)
async def test_nothing_is_added_again_although_it_has_run_and_gone(
    script, add, count, fault, proxy, prefix, start_worker, inside
):
    """I4: the jobs have run, were removed and are out of the stream when the call comes again."""
    ran = []

    async def handler(job):
        ran.append(job.id)

    async def is_over():
        return not await inside.ids("wait") and not await inside.ids("active")

    async def is_over_after_all():
        return len(ran) == count and await is_over()

    await start_worker(handler)
    await inside.client.function_load(scripts.load(script).library, replace=True)
    proxy.rule = every(1, script, fault)
    proxy.may_lose.clear()
    adding = asyncio.create_task(add(proxy.url, prefix))
    await wait_until(is_over_after_all)
    await inside.client.xtrim(f"{inside.base}:events", maxlen=0)
    proxy.rule = lambda words: None
    proxy.may_lose.set()
    jobs = await adding

    await wait_until(lambda: fault == "lose" or proxy.ghosts)
    assert len(proxy.broken) == 1
    assert await is_over()
    assert sorted(ran) == sorted(job.id for job in jobs)
    assert not any(job.duplicated for job in jobs)


@pytest.mark.parametrize("fault", ["lose", "cut", "slow", "half-close", "partial", "torn"])
async def test_renewals_and_waits_survive_broken_lines(fault, proxy, queue, prefix, inside):
    """Every kind of request breaks now and then; locks are renewed all the same."""
    dice = random.Random(5)
    proxy.rule = lambda words: fault if dice.random() < 0.2 else None
    ran = Counter()

    async def handler(job):
        ran[job.id] += 1
        if job.name == "long":
            for _ in range(3):
                await until_renewed(inside.client, f"{inside.base}:{job.id}:lock")
        else:
            await asyncio.sleep(0.05)

    added = [(await queue.add("long")).id]
    added += [job.id for job in await queue.add_bulk([NewJob(f"{n}") for n in range(30)])]
    worker = Worker(
        "q",
        handler,
        connection=proxy.url,
        prefix=prefix,
        concurrency=4,
        stalled_interval=100,
    )
    worker._parts.lease._interval_s = 0.3
    await worker.start()
    await inside.until_finished(31, 60)
    proxy.rule = lambda words: None
    await worker.close()

    assert ran == Counter(added)
    assert await inside.events("failed", "stalled") == []


def taking(token: str, *, count: int = 1, lock_ms: int = 30_000) -> Take:
    return Take(count=count, token=token, lock_ms=lock_ms)


@pytest.fixture
async def connection(url):
    connection = Connection(url)
    yield connection
    await connection.close()


async def test_a_job_that_never_arrived_is_not_failed_for_it(
    connection, queue, start_worker, inside
):
    """reliability 2.2 (c): lost again and again on its way, and yet it runs."""
    job = await queue.add("job")
    for n in range(3):
        lost = taking(f"worker{n}:1", lock_ms=20)
        command = settling.settle(queue.keys, [], lost, flight=f"worker{n}-0", request=1)
        assert len((await connection.run(command)).jobs) == 1
        await wait_until(lambda: _is_unlocked(inside, job.id))
        for _ in range(2):  # the first sweep marks, the second brings back
            await inside.client.delete(f"{inside.base}:stalled-check")
            plan = leasing.sweep(queue.keys, interval_ms=1000, max_stalled=1)
            brought_back = await connection.follow(plan)
        assert brought_back == [job.id]

    await start_worker(lambda job: "ran")
    await inside.until_finished(1)

    stored = await inside.job(job.id)
    assert (stored["returnvalue"], stored.get("stc", "0"), stored.get("defa")) == (
        '"ran"',
        "0",
        None,
    )


async def lose_and_sweep(connection, queue, inside, job_id: str, flight: str, request: int) -> None:
    """Hand the job out in a reply that nobody hears, and bring it back."""
    take = taking(f"{flight}:{request}")
    command = settling.settle(queue.keys, [], take, flight=flight, request=request)
    assert len((await connection.run(command)).jobs) == 1
    await let_it_stall(connection, queue, inside, job_id)


async def let_it_stall(connection, queue, inside, job_id: str) -> None:
    await inside.client.delete(f"{inside.base}:{job_id}:lock")
    for _ in range(2):  # the first sweep marks, the second brings back
        await inside.client.delete(f"{inside.base}:stalled-check")
        plan = leasing.sweep(queue.keys, interval_ms=1000, max_stalled=1)
        brought_back = await connection.follow(plan)
    assert brought_back == [job_id]


async def test_a_job_that_kills_whoever_reads_it_is_given_up(connection, queue, inside):
    """It looks like one that never arrives, and that is forgiven three times only."""
    job = await queue.add("job")
    told = []
    for n in range(5):
        await lose_and_sweep(connection, queue, inside, job.id, f"worker{n}", 1)
        stored = await inside.job(job.id)
        told.append((stored.get("stc", "0"), "defa" in stored))

    assert told == [("0", False), ("0", False), ("0", False), ("1", False), ("2", True)]
    await queue.remove(job.id)


@pytest.mark.parametrize(("confirmed", "stalls"), [(1, "0"), (2, "1")])
async def test_a_confirmation_is_about_the_reply_with_its_number(
    confirmed, stalls, connection, queue, inside
):
    """A late word that the first reply arrived says nothing of the second."""
    job = await queue.add("job")
    nothing = taking("w:1", count=0)
    await connection.run(settling.settle(queue.keys, [], nothing, flight="w-0", request=1))
    take = settling.settle(queue.keys, [], taking("w:2"), flight="w-0", request=2)
    assert len((await connection.run(take)).jobs) == 1

    await connection.run(
        settling.settle(
            queue.keys, [], nothing, flight="w-1", request=1, confirmations=[("w-0", confirmed)]
        )
    )
    await let_it_stall(connection, queue, inside, job.id)

    assert (await inside.job(job.id)).get("stc", "0") == stalls
    await queue.remove(job.id)


async def _is_unlocked(inside, job_id) -> bool:
    return await inside.lock(job_id) is None


async def test_a_job_that_arrives_late_is_locked_anew(connection, queue, inside, client):
    """Its first renewal comes half a lock later; what is left of the old lock may be less."""
    job = await queue.add("late")
    command = settling.settle(queue.keys, [], taking("w:1"), flight="w-0", request=1)
    await connection.run(command)
    lock = f"{queue.keys.base}:{job.id}:lock"
    full_ms = await client.pttl(lock)
    await client.pexpire(lock, 20_000)

    again = await connection.run(command)

    assert [words[-1] for words in again.jobs] == [job.id.encode()]
    assert full_ms - 5000 < await client.pttl(lock) <= taking("w:1").lock_ms
    await client.delete(lock)
    assert (await connection.run(command)).jobs == []
    assert not await client.exists(lock)
    await queue.remove(job.id)


async def test_the_same_request_gives_the_same_answer(connection, queue, inside):
    """I5: settle and take, asked twice, are done once."""
    jobs = [await queue.add(f"{n}") for n in range(3)]
    first = settling.settle(queue.keys, [], taking("w:1"), flight="w-0", request=1)
    one, again = await connection.run(first), await connection.run(first)

    assert [words[-1] for words in one.jobs] == [words[-1] for words in again.jobs]
    assert await inside.ids("active") == [jobs[0].id]

    done = Outcome(kind="completed", payloads=(b"1",))
    item = Settled(jobs[0].id, "w:1", done, jobs[0])
    second = settling.settle(queue.keys, [item], taking("w:2"), flight="w-0", request=2)
    one, again = await connection.run(second), await connection.run(second)

    assert (one.results, again.results) == ([0], [0])
    assert await inside.ids("active") == [jobs[1].id]
    assert len(await inside.events("completed")) == 1
    await connection.run(settling.settle(
        queue.keys,
        [Settled(jobs[1].id, "w:2", Outcome(kind="returned"), jobs[1])],
        taking("w:3", count=0),
        flight="w-0",
        request=3,
    ))  # fmt: skip


async def test_a_ghost_of_an_older_request_is_refused(connection, queue, inside):
    """I5: a request that arrives after a newer one of its flight changes nothing."""
    for n in range(3):
        await queue.add(f"{n}")
    older = settling.settle(queue.keys, [], taking("w:1", count=0), flight="w-0", request=1)
    newer = settling.settle(queue.keys, [], taking("w:2", count=0), flight="w-0", request=2)
    ghost = settling.settle(queue.keys, [], taking("w:1", count=3), flight="w-0", request=1)
    await connection.run(older)
    await connection.run(newer)
    before = await inside.events()

    with pytest.raises(StaleRequestError):
        await connection.run(ghost)

    assert await inside.ids("active") == []
    assert await inside.events() == before
    await connection.run(settling.leave(queue.keys, ["w-0"]))
