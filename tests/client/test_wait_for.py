"""Waiting for what becomes of a job, and for a queue to be empty."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import timedelta
from typing import Any

import pytest

from tests.helpers import let_pass, wait_until
from toril import Connection, NewJob, Queue, Worker
from toril.client.listening import Waiter
from toril.client.waiting import LOOK_AGAIN_S
from toril.errors import JobFailedError, JobRemovedError, ServerUnavailableError, WaitTimeoutError
from toril.protocol import reading
from toril.protocol.events import Event

LATE_S = 50
"""When those look again who would have missed their time."""


async def handle(job) -> Any:
    if "wait" in (job.data or {}):
        await asyncio.sleep(job.data["wait"])
    if job.name == "bad":
        raise ValueError("it broke")
    return {"echo": job.data}


def worker(url: str, prefix: str, **options: Any) -> Worker:
    return Worker("q", handle, connection=url, prefix=prefix, concurrency=50, **options)


async def test_the_return_value_comes_back(queue, url, prefix):
    async with worker(url, prefix):
        job = await queue.add("good", {"n": 1})

        assert await queue.wait_for(job.id, timeout=60_000) == {"echo": {"n": 1}}


async def test_a_failure_is_raised_with_its_reason(queue, url, prefix):
    async with worker(url, prefix):
        job = await queue.add("bad")

        with pytest.raises(JobFailedError, match="it broke") as raised:
            await queue.wait_for(job.id, timeout=60_000)

    assert raised.value.job_id == job.id
    assert "it broke" in raised.value.reason
    assert not isinstance(raised.value, JobRemovedError)


@pytest.mark.parametrize("keep", [True, False])
async def test_what_has_finished_already_is_told_at_once(queue, url, prefix, keep):
    """Also of jobs that were removed when they finished: then the log of events knows."""
    options = {"remove_on_complete": not keep, "remove_on_fail": not keep}
    good, bad = await queue.add("good", **options), await queue.add("bad", **options)
    async with worker(url, prefix):
        assert await queue.wait_until_empty(60_000)

    assert (await queue.get_job(good.id) is not None) is keep
    assert await queue.wait_for(good.id, timeout=60_000) == {"echo": {}}
    with pytest.raises(JobFailedError, match="it broke"):
        await queue.wait_for(bad.id, timeout=60_000)


async def test_a_job_removed_on_completion_while_waited_for(queue, url, prefix):
    async with worker(url, prefix):
        job = await queue.add("good", {"wait": 0.1}, remove_on_complete=True)

        assert await queue.wait_for(job.id, timeout=60_000) == {"echo": {"wait": 0.1}}


async def test_a_job_that_ends_between_the_check_and_the_subscription(
    queue, url, prefix, monkeypatch
):
    """Whatever moment the job ends at, its end is seen: the check comes after the subscription."""
    job = await queue.add("good", remove_on_complete=True)
    listening = queue._listen()
    subscribe = listening.add

    async def end_the_job_then_subscribe(job_id):
        async with worker(url, prefix):

            async def is_gone() -> bool:
                return await queue.get_state(job.id) is None

            await wait_until(is_gone)
        return await subscribe(job_id)

    monkeypatch.setattr(listening, "add", end_the_job_then_subscribe)

    assert await queue.wait_for(job.id, timeout=60_000) == {"echo": {}}


async def test_completed_and_removed_at_once_is_still_completed(queue, client, prefix):
    job = await queue.add("x")
    waiting = asyncio.create_task(queue.wait_for(job.id, timeout=60_000))
    await wait_until(lambda: queue._listen().is_reading)

    key = f"{prefix}:q:events"
    async with client.pipeline() as both:
        both.xadd(key, {"event": "completed", "jobId": job.id, "returnvalue": "7"})
        both.xadd(key, {"event": "removed", "jobId": job.id})
        await both.execute()

    assert await waiting == 7


async def test_a_removed_job_is_not_waited_for(queue, client, prefix):
    job = await queue.add("x")
    waiting = asyncio.create_task(queue.wait_for(job.id, timeout=60_000))
    await wait_until(lambda: queue._listen().is_reading)

    await client.xadd(f"{prefix}:q:events", {"event": "removed", "jobId": job.id})

    with pytest.raises(JobRemovedError, match="does not exist"):
        await waiting


async def test_a_job_that_never_was(queue):
    with pytest.raises(JobRemovedError):
        await queue.wait_for("nobody", timeout=60_000)


async def test_an_end_without_an_event_is_found_by_looking_again(
    queue, client, prefix, monkeypatch
):
    monkeypatch.setattr("toril.client.waiting.LOOK_AGAIN_S", 0.05)
    job = await queue.add("x")
    waiting = asyncio.create_task(queue.wait_for(job.id))
    await wait_until(lambda: queue._listen().is_reading)

    await client.delete(f"{prefix}:q:{job.id}", f"{prefix}:q:wait")

    async with asyncio.timeout(60):
        with pytest.raises(JobRemovedError):
            await waiting


async def test_a_result_that_no_event_tells_is_found_while_waiting(
    queue, client, prefix, monkeypatch
):
    """The job ends in silence when its waiter has looked and sleeps: only another look finds it."""
    monkeypatch.setattr("toril.client.waiting.LOOK_AGAIN_S", 0.05)
    sleeps = asyncio.Event()
    wait = Waiter.wait

    def notice(waiter, timeout_s):
        sleeps.set()
        return wait(waiter, timeout_s)

    monkeypatch.setattr(Waiter, "wait", notice)
    job = await queue.add("x")
    waiting = asyncio.create_task(queue.wait_for(job.id))
    async with asyncio.timeout(60):
        await sleeps.wait()

    async with client.pipeline(transaction=True) as pipeline:
        pipeline.lrem(f"{prefix}:q:wait", 1, job.id)
        pipeline.zadd(f"{prefix}:q:completed", {job.id: 1})
        pipeline.hset(f"{prefix}:q:{job.id}", "returnvalue", "7")
        await pipeline.execute()

    async with asyncio.timeout(60):
        assert await waiting == 7


def test_waiting_looks_often_enough():
    assert LOOK_AGAIN_S <= 5


@pytest.mark.parametrize("timeout", [50, timedelta(milliseconds=50), 0])
async def test_what_takes_too_long_is_said_so(queue, timeout, monkeypatch):
    monkeypatch.setattr("toril.client.waiting.LOOK_AGAIN_S", LATE_S)
    job = await queue.add("x")
    start = time.monotonic()

    with pytest.raises(WaitTimeoutError, match=job.id):
        await queue.wait_for(job.id, timeout=timeout)

    assert time.monotonic() - start < LATE_S
    assert await queue.get_state(job.id) == "waiting"


async def test_many_who_wait_share_one_reader(queue, url, prefix, client):
    jobs = await queue.add_bulk([NewJob("good", {"n": n}) for n in range(300)])
    waiting = [asyncio.create_task(queue.wait_for(job.id, timeout=60_000)) for job in jobs]

    async def listeners() -> int:
        rows = await client.client_list()
        return len([row for row in rows if row["name"] == f"{prefix}:cQ==:qe"])

    await wait_until(lambda: queue._listen().is_reading)
    assert await listeners() == 1
    async with worker(url, prefix):
        results = await asyncio.gather(*waiting)

    assert [result["echo"]["n"] for result in results] == list(range(300))
    assert await listeners() == 1
    assert queue._listen()._waiters == {}


async def test_no_end_is_missed_whenever_the_waiting_begins(queue, url, prefix):
    dice = random.Random(20)

    async def add_and_wait(number: int) -> bool:
        gone = dice.random() < 0.5
        name = dice.choice(["good", "bad"])
        data = {"n": number, "wait": dice.random() / 50}
        job = await queue.add(name, data, remove_on_complete=gone, remove_on_fail=gone)
        await asyncio.sleep(dice.random() / 25)
        try:
            result = await queue.wait_for(job.id, timeout=60_000)
        except JobFailedError as error:
            return name == "bad" and "it broke" in error.reason
        return name == "good" and bool(result["echo"]["n"] == number)

    async with worker(url, prefix):
        results = await asyncio.gather(*(add_and_wait(number) for number in range(400)))

    assert all(results)


async def test_several_wait_for_the_same_job(queue, url, prefix):
    job = await queue.add("good")
    waiting = [asyncio.create_task(queue.wait_for(job.id, timeout=60_000)) for _ in range(5)]
    async with worker(url, prefix):
        assert await asyncio.gather(*waiting) == [{"echo": {}}] * 5


async def test_the_reader_survives_a_lost_connection(queue, url, prefix, client):
    job = await queue.add("good", remove_on_complete=True)
    waiting = asyncio.create_task(queue.wait_for(job.id, timeout=60_000))
    await wait_until(lambda: queue._listen().is_reading)
    for row in await client.client_list():
        if row["name"].endswith(":qe"):
            await client.client_kill_filter(_id=row["id"])

    async with worker(url, prefix):
        assert await waiting == {"echo": {}}


async def test_the_reader_rests_when_nobody_waits_and_wakes_again(
    queue, url, prefix, client, monkeypatch
):
    monkeypatch.setattr("toril.client.listening.LINGER_S", 0.0)
    async with worker(url, prefix):
        for _ in range(3):
            job = await queue.add("good", {"wait": 0.02})
            assert await queue.wait_for(job.id, timeout=60_000)
            await queue.add("wakes the reader")
            await wait_until(lambda: not queue._listen().is_reading)


async def test_closing_the_queue_ends_the_waiting(make_queue):
    queue = make_queue()
    job = await queue.add("x")
    waiting = asyncio.create_task(queue.wait_for(job.id))
    await wait_until(lambda: queue._listen().is_reading)

    await queue.close()

    async with asyncio.timeout(60):
        with pytest.raises(ServerUnavailableError):
            await waiting


async def test_fifo_19_wait_until_empty(queue, url, prefix):
    """FIFO-19: true when the queue is empty, and as soon as it is."""
    assert await queue.wait_until_empty(timeout=60_000) is True
    await queue.add_bulk([NewJob("good", delay=d, priority=d) for d in (0, 0, 1, 40)])

    async with worker(url, prefix):
        assert await queue.wait_until_empty(timeout=60_000) is True

    counts = await queue.get_job_counts()
    assert counts["completed"] == 4
    assert not any(counts[state] for state in reading.UNFINISHED)


@pytest.mark.parametrize("options", [{}, {"delay": 60_000}, {"priority": 1}])
async def test_fifo_19_not_empty_within_the_time(queue, options, monkeypatch):
    """FIFO-19: false after the timeout, in whatever state the job is."""
    monkeypatch.setattr("toril.client.waiting.LOOK_AGAIN_S", LATE_S)
    await queue.add("x", **options)
    start = time.monotonic()

    assert await queue.wait_until_empty(timeout=80) is False

    assert 0.08 <= time.monotonic() - start < LATE_S


async def test_fifo_19_a_running_job_counts(queue, url, prefix):
    """FIFO-19: a queue with a running job is not empty."""
    await queue.add("good")
    may_end = asyncio.Event()

    async def hold(job) -> None:
        await may_end.wait()

    async with Worker("q", hold, connection=url, prefix=prefix):

        async def is_active() -> bool:
            return await queue.get_active_count() == 1

        await wait_until(is_active)

        assert await queue.wait_until_empty(timeout=20) is False
        may_end.set()
        assert await queue.wait_until_empty(timeout=60_000) is True


async def test_fifo_19_waiting_is_no_polling(start_server, monkeypatch):
    """FIFO-14, FIFO-19: who waits is told, and does not ask again and again."""
    monkeypatch.setattr("toril.client.waiting.LOOK_AGAIN_S", LATE_S)
    sleeps = asyncio.Event()
    wait = Waiter.wait

    def notice(waiter, timeout_s):
        sleeps.set()
        return wait(waiter, timeout_s)

    monkeypatch.setattr(Waiter, "wait", notice)
    server = start_server(tcp=True)
    async with Queue("q", connection=server.url) as queue:
        await queue.add("x")
        waiting = asyncio.create_task(queue.wait_until_empty(timeout=60_000))
        async with asyncio.timeout(60):
            await sleeps.wait()
        await let_pass(0.4, "who polls would be counted")
        with server.client() as raw:
            asleep = raw.info("commandstats")
            raw.delete(queue.keys.wait)
            raw.xadd(queue.keys.events, {"event": "drained"})
            assert await waiting is True
            ended = raw.info("commandstats")

    # A look before and one after listening, and one at the end; the reader blocked until then.
    assert looks_in(asleep) == 2
    assert looks_in(ended) == 3
    assert asleep.get("cmdstat_xread", {"calls": 0})["calls"] <= 1


def looks_in(stats: dict[str, Any]) -> int:
    scripts: int = sum(stats[f"cmdstat_{name}"]["calls"] for name in ("fcall", "fcall_ro"))
    return scripts - len(("add", "add once more, with the library loaded"))


async def test_a_job_that_may_still_come_is_waited_for(queue, url, prefix):
    """A row of the outbox that the relay has not sent yet: the id is known, the job is not."""
    async with worker(url, prefix):
        waiting = asyncio.create_task(
            queue.wait_for("from-the-outbox", timeout=60_000, may_come=True)
        )
        await wait_until(lambda: queue._listen().is_reading)
        await queue.add("good", {"n": 1}, job_id="from-the-outbox", remove_on_complete=True)

        assert await waiting == {"echo": {"n": 1}}


async def test_one_that_never_comes_is_waited_for_until_the_timeout(queue):
    with pytest.raises(WaitTimeoutError, match="has not come"):
        await queue.wait_for("never", timeout=50, may_come=True)
    with pytest.raises(JobRemovedError):
        await queue.wait_for("never", timeout=50)


async def test_one_that_came_and_went_is_gone(queue, client, monkeypatch):
    """It was there when it was looked for, and then nobody knows how it ended."""
    monkeypatch.setattr("toril.client.waiting.LOOK_AGAIN_S", 0.02)
    job = await queue.add("good", job_id="from-the-outbox")
    looks = []
    look = queue._result
    monkeypatch.setattr(queue, "_result", lambda *of, **how: looks.append(of) or look(*of, **how))
    waiting = asyncio.create_task(queue.wait_for(job.id, timeout=60_000, may_come=True))
    await wait_until(lambda: queue._listen().is_reading and len(looks) > 2)
    await client.flushdb()

    with pytest.raises(JobRemovedError):
        await waiting


async def test_what_ended_before_is_told_at_once_although_more_may_come(queue, url, prefix):
    job = await queue.add("good", {"n": 1}, remove_on_complete=True)
    async with worker(url, prefix):
        assert await queue.wait_until_empty(60_000)

    assert await queue.wait_for(job.id, may_come=True) == {"echo": {"n": 1}}


async def test_closing_a_queue_ends_the_waits_although_its_connection_stays(url, prefix):
    """What it shares with others is not closed: nobody else would tell those who wait."""
    shared = Connection(url)
    queue = Queue("q", connection=shared, prefix=prefix)
    job = await queue.add("n")
    waits = [
        asyncio.create_task(queue.wait_for(job.id)),
        asyncio.create_task(queue.wait_until_empty()),
    ]
    await wait_until(lambda: len(queue._listen()._waiters) == 2)
    await queue.close()

    for wait in waits:
        with pytest.raises(ServerUnavailableError, match="was closed while waiting"):
            await asyncio.wait_for(wait, LOOK_AGAIN_S * 4)
    await shared.close()


async def test_what_has_finished_is_not_listened_for(url, prefix):
    async def handler(job):
        return "done"

    options = {"connection": url, "prefix": prefix}
    async with Queue("q", **options) as queue, Queue("q", **options) as late:
        job = await queue.add("n")
        async with Worker("q", handler, **options):
            assert await queue.wait_for(job.id) == "done"

        assert await late.wait_for(job.id) == "done"
        assert not late._listen().is_reading


@pytest.mark.parametrize(("exists", "pauses"), [(True, [1, 1, 1, 1]), (False, [1, 2, 4, 4])])
async def test_one_that_may_come_is_looked_for_less_and_less_often(
    exists, pauses, queue, monkeypatch
):
    """What is there may end without an event at any time; what is not there may never come."""
    monkeypatch.setattr("toril.client.waiting.LOOK_AGAIN_S", 1)
    monkeypatch.setattr("toril.client.waiting.LONGEST_LOOK_S", 4)
    asked: list[float] = []

    async def wait(waiter, timeout_s):
        asked.append(timeout_s)
        if len(asked) == 4:
            raise KeyError("enough")

    monkeypatch.setattr(Waiter, "wait", wait)
    if exists:
        await queue.add("x", job_id="a")

    with pytest.raises(KeyError):
        await queue.wait_for("a", may_come=True)

    assert asked == pauses


@pytest.mark.parametrize(("name", "is_put_off"), [("completed", True), ("drained", False)])
async def test_a_busy_queue_is_not_looked_at_for_every_event(name, is_put_off, queue, monkeypatch):
    """An event that says that nothing is left is followed at once."""
    monkeypatch.setattr("toril.client.waiting.SHORTEST_LOOK_S", 0.0123)
    naps: list[float] = []
    sleep = asyncio.sleep

    async def nap(seconds, *rest):
        naps.append(seconds)
        await sleep(0)

    async def wait(waiter, timeout_s):
        monkeypatch.setattr("toril.client.waiting.asyncio.sleep", nap)
        await queue._connection.run(reading.counts(queue.keys, ["waiting"]))
        await queue.drain()
        return Event(id="1-0", name=name, data={})

    monkeypatch.setattr(Waiter, "wait", wait)
    await queue.add("x")

    assert await queue.wait_until_empty() is True

    assert (0.0123 in naps) is is_put_off


async def test_who_waited_is_forgotten(queue):
    job = await queue.add("x")
    with pytest.raises(WaitTimeoutError):
        await queue.wait_for(job.id, timeout=20)
    assert await queue.wait_until_empty(timeout=20) is False

    assert queue._listen()._waiters == {}
