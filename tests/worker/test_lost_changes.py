"""Changes of one job whose reply is lost: done once, and told apart from what was never done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from tests.helpers import let_pass, wait_until
from tests.keyspace import lasting_keys
from tests.proxy import Proxy, runs
from toril import Cancelled, FlowProducer, GroupJob, Queue
from toril.errors import JobNotFoundError, JobNotInStateError
from toril.protocol import cancelling


@pytest.fixture
async def proxy(server, prefix):
    """It is closed before the keys of the test are deleted."""
    async with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
async def far(proxy, prefix):
    """The queue as seen over the line that breaks."""
    async with Queue("q", connection=proxy.url, prefix=prefix) as queue:
        yield queue


def once(name: str, fault: str) -> Callable[[list[bytes]], str | None]:
    """A rule: break the first call of a script."""
    is_over = False

    def rule(words: list[bytes]) -> str | None:
        nonlocal is_over
        if is_over or not runs(words, name):
            return None
        is_over = True
        return fault

    return rule


CHANGES = {
    "retry": lambda queue, job_id: queue.retry(job_id),
    "promote": lambda queue, job_id: queue.promote(job_id),
    "changeDelay": lambda queue, job_id: queue.change_delay(job_id, 1),
    "changePriority": lambda queue, job_id: queue.change_priority(job_id, 3),
}


async def a_job_for(name: str, queue: Queue, start_worker, inside, **options) -> str:
    if name != "retry":
        return (await queue.add("job", delay=3_600_000, **options)).id
    job = await queue.add("job", **options)

    def fail(job):
        raise ValueError("the first time")

    worker = await start_worker(fail)
    await inside.until_finished(1)
    await worker.close()
    return job.id


@pytest.mark.parametrize("fault", ["lose", "cut", "double"])
@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_over_a_broken_line_is_made_once(
    name, fault, proxy, far, queue, start_worker, inside
):
    job_id = await a_job_for(name, queue, start_worker, inside)
    before = len(await inside.events())
    proxy.rule = once(name, fault)

    await CHANGES[name](far, job_id)

    assert proxy.broken == [(fault, b"FCALL")]
    told = [event for event, _ in (await inside.events())[before:]]
    wanted = {"retry": ["waiting"], "promote": ["waiting"], "changeDelay": ["delayed"]}
    assert told == wanted.get(name, [])
    await queue.drain(delayed=True)


@pytest.mark.parametrize("name", ["retry", "promote", "changeDelay"])
async def test_it_is_not_made_again_when_the_job_has_run_meanwhile(
    name, proxy, far, queue, start_worker, inside
):
    """A state alone could not tell: a job that failed once more looks like one to be retried."""
    job_id = await a_job_for(name, queue, start_worker, inside)
    ran: list[str] = []

    def fail_again(job):
        ran.append(job.id)
        raise ValueError("once more")

    proxy.rule = once(name, "lose")
    proxy.may_lose.clear()
    changing = asyncio.create_task(CHANGES[name](far, job_id))
    await wait_until(lambda: proxy.broken)
    await start_worker(fail_again)
    await wait_until(lambda: ran)
    await inside.until_finished(1)
    proxy.may_lose.set()
    await changing

    await let_pass(0.05, "a second run would begin at once")
    assert ran == [job_id]
    assert await inside.ids("failed") == [job_id]


async def test_data_of_a_retry_are_not_written_over_what_came_after_it(
    proxy, far, queue, start_worker, inside
):
    job_id = await a_job_for("retry", queue, start_worker, inside)
    proxy.rule = once("retry", "lose")
    proxy.may_lose.clear()
    changing = asyncio.create_task(far.retry(job_id, data="first"))
    await wait_until(lambda: proxy.broken)
    assert (await queue.get_job(job_id)).data == "first"
    await queue.update_data(job_id, "second")

    proxy.may_lose.set()
    await changing

    assert (await queue.get_job(job_id)).data == "second"
    await queue.drain()


@pytest.mark.parametrize("name", CHANGES)
async def test_it_succeeds_although_the_job_is_gone_meanwhile(
    name, proxy, far, queue, start_worker, inside
):
    job_id = await a_job_for(name, queue, start_worker, inside)
    proxy.rule = once(name, "lose")
    proxy.may_lose.clear()
    changing = asyncio.create_task(CHANGES[name](far, job_id))
    await wait_until(lambda: proxy.broken)
    await asyncio.sleep(0)
    await wait_until(lambda: _remove(queue, job_id))
    proxy.may_lose.set()

    await changing


async def _remove(queue: Queue, job_id: str) -> bool:
    return await queue.remove(job_id)


@pytest.mark.parametrize("fault", ["lose", "cut"])
@pytest.mark.parametrize("name", ["retry", "promote", "changeDelay"])
async def test_what_was_refused_is_refused_when_it_is_sent_again(name, fault, proxy, far, queue):
    job = await queue.add("waiting")
    proxy.rule = once(name, fault)

    with pytest.raises(JobNotInStateError):
        await CHANGES[name](far, job.id)

    proxy.rule = once(name, fault)
    with pytest.raises(JobNotFoundError):
        await CHANGES[name](far, "never-was")


@pytest.mark.parametrize("fault", ["lose", "cut", "double"])
async def test_a_cancel_that_leaves_no_job_has_succeeded_although_its_reply_was_lost(
    fault, proxy, far, queue, inside
):
    job = await queue.add("job", remove_on_fail=True)
    proxy.rule = once("cancel", fault)

    assert await far.cancel(job.id) is Cancelled.ENDED

    assert proxy.broken == [(fault, b"FCALL")]
    assert await queue.get_job(job.id) is None
    assert [event for event, _ in await inside.events()].count("failed") == 1


async def test_a_cancel_says_what_it_came_to_although_the_job_has_ended_meanwhile(
    proxy, far, queue, start_worker, inside, monkeypatch
):
    """It was only marked, as in a long list; its end is that of its turn."""
    monkeypatch.setattr(cancelling, "LONG_LIST", 0)
    job = await queue.add("job")
    proxy.rule = once("cancel", "lose")
    proxy.may_lose.clear()
    cancel = asyncio.create_task(far.cancel(job.id, "no longer wanted"))
    await wait_until(lambda: proxy.broken)
    await start_worker(lambda job: None)
    await inside.until_finished(1)
    proxy.may_lose.set()

    assert await cancel is Cancelled.MARKED
    assert await inside.ids("failed") == [job.id]


async def test_a_cancel_that_told_a_worker_says_so_although_its_job_has_completed(
    proxy, far, queue, start_worker, inside
):
    """A handler may finish all the same."""
    job = await queue.add("job")
    started = asyncio.Event()

    async def finish_when_stopped(job):
        started.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    await start_worker(finish_when_stopped)
    await started.wait()
    proxy.rule = once("cancel", "lose")
    proxy.may_lose.clear()
    cancel = asyncio.create_task(far.cancel(job.id))
    await wait_until(lambda: proxy.broken)
    await inside.until_finished(1)
    proxy.may_lose.set()

    assert await cancel is Cancelled.STOPPING
    assert await inside.ids("completed") == [job.id]


@pytest.mark.parametrize("fault", ["lose", "cut"])
async def test_a_cancel_that_was_refused_is_refused_when_it_is_sent_again(fault, proxy, far, queue):
    job = await queue.add("job")
    await queue.cancel(job.id)
    proxy.rule = once("cancel", fault)

    with pytest.raises(JobNotInStateError):
        await far.cancel(job.id)

    proxy.rule = once("cancel", fault)
    with pytest.raises(JobNotFoundError):
        await far.cancel("never-was")


async def test_a_change_is_remembered_for_a_minute_only(queue, inside):
    job = await queue.add("job", delay=3_600_000)

    await queue.promote(job.id)

    (key,) = [key for key in await lasting_keys(inside.client, inside.base) if ":toril:" in key]
    assert 0 < await inside.client.pttl(key) <= 60_000


async def delayed_jobs(queue: Queue, count: int, **options) -> list[str]:
    return [(await queue.add("job", delay=3_600_000, **options)).id for _ in range(count)]


async def waiting_jobs(queue: Queue, count: int, **options) -> list[str]:
    return [(await queue.add("job", **options)).id for _ in range(count)]


@pytest.mark.parametrize("fault", ["lose", "cut", "double"])
async def test_a_clean_over_a_broken_line_removes_no_more_than_its_limit(
    fault, proxy, far, queue, inside
):
    ids = await waiting_jobs(queue, 5)
    proxy.rule = once("clean", fault)

    assert await far.clean("waiting", limit=2) == ids[:2]

    await until_the_ghost_has_come(proxy, fault)
    assert sorted(await inside.ids("wait")) == sorted(ids[2:])
    await queue.drain()


@pytest.mark.parametrize("fault", ["lose", "cut", "double"])
async def test_what_a_broken_line_changes_in_bulk_is_counted(fault, proxy, far, queue):
    await waiting_jobs(queue, 3)
    proxy.rule = once("drain", fault)
    assert await far.drain() == 3

    await waiting_jobs(queue, 3, lane="lane")
    proxy.rule = once("drainLane", fault)
    assert await far.drain_lane("lane") == 3

    await delayed_jobs(queue, 3)
    proxy.rule = once("promoteAll", fault)
    assert await far.promote_all() == 3

    assert [kind for kind, _ in proxy.broken] == [fault] * 3
    await queue.drain()


async def test_what_failed_again_is_not_retried_because_a_reply_was_lost(
    proxy, far, queue, start_worker, inside
):
    """Up to when jobs are retried is decided by the first call, whose reply says so."""
    job_id = await a_job_for("retry", queue, start_worker, inside)
    ran: list[str] = []

    def fail_again(job):
        ran.append(job.id)
        raise ValueError("once more")

    proxy.rule = once("retryAll", "lose")
    proxy.may_lose.clear()
    retrying = asyncio.create_task(far.retry_all())
    await wait_until(lambda: proxy.broken)
    await start_worker(fail_again)
    await wait_until(lambda: ran)
    await inside.until_finished(1)
    proxy.may_lose.set()

    assert await retrying == 1
    await let_pass(0.05, "a second run would begin at once")
    assert ran == [job_id]


async def until_the_ghost_has_come(proxy: Proxy, fault: str) -> None:
    await wait_until(lambda: fault != "double" or proxy.ghosts)


async def test_no_more_groups_are_forgotten_than_was_asked_for(
    proxy, far, queue, start_worker, inside, url, prefix
):
    async with FlowProducer(connection=url, prefix=prefix) as producer:
        for _ in range(3):
            await producer.add_group("alone", [GroupJob("job", queue_name="q")])
    await start_worker(lambda job: None)
    await inside.until_finished(3)
    proxy.rule = once("cleanGroups", "lose")

    assert len(await far.clean_groups(limit=1)) == 1

    assert len(await queue.get_groups()) == 2


REMOVALS = {
    "remove": (
        lambda queue: queue.add("job", job_id="again"),
        lambda queue: queue.remove("again"),
        lambda queue: queue.get_job("again"),
    ),
    "removeScheduler": (
        lambda queue: queue.upsert_job_scheduler("s", every=3_600_000, start=2**42),
        lambda queue: queue.remove_job_scheduler("s"),
        lambda queue: queue.get_job_scheduler("s"),
    ),
    "freeDeduplication": (
        lambda queue: queue.add("job", deduplication="d"),
        lambda queue: queue.remove_deduplication_key("d"),
        lambda queue: queue.get_deduplication_job_id("d"),
    ),
}


@pytest.mark.parametrize("fault", ["lose", "double"])
@pytest.mark.parametrize("name", REMOVALS)
async def test_what_is_there_again_is_not_removed_because_a_reply_was_lost(
    name, fault, proxy, far, queue
):
    make, remove, look = REMOVALS[name]
    await make(queue)
    proxy.rule = once(name, fault)
    proxy.may_lose.clear()
    removing = asyncio.create_task(remove(far))

    async def is_gone() -> bool:
        return await look(queue) is None

    await wait_until(is_gone)
    await make(queue)
    proxy.may_lose.set()

    assert await removing is True
    await until_the_ghost_has_come(proxy, fault)
    assert await look(queue) is not None
    await remove(queue)
    await queue.drain()


@pytest.mark.parametrize("name", REMOVALS)
async def test_what_was_never_there_is_not_said_to_be_removed(name, proxy, far):
    proxy.rule = once(name, "cut")

    assert await REMOVALS[name][1](far) is False
