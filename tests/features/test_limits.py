"""Limits: how many jobs start in a time, how many run at once, and holding a queue by hand."""

from __future__ import annotations

import asyncio

import pytest

from tests.helpers import wait_until
from toril import NewJob, RateLimit
from toril.errors import DelayedError, InvalidOptionError, RateLimitError
from toril.sync import Queue as BlockingQueue


class Recorder:
    """A handler that notes when jobs were taken, by the server's clock, and how many run."""

    def __init__(self, takes_s: float = 0.0, until: asyncio.Event | None = None) -> None:
        self.starts: list[int] = []
        self.running = self.most = 0
        self.takes_s = takes_s
        self.end = until

    async def __call__(self, job):
        self.starts.append(job.processed_on)
        self.running += 1
        self.most = max(self.most, self.running)
        await (asyncio.sleep(self.takes_s) if self.end is None else self.end.wait())
        self.running -= 1

    async def until(self, count: int) -> list[int]:
        """The milliseconds from the first start to each. Idle workers ask again after a minute, so
        whoever is not woken is not in time."""
        await wait_until(lambda: len(self.starts) == count)
        return sorted(start - min(self.starts) for start in self.starts)


async def server_ms(client):
    seconds, micros = await client.time()
    return seconds * 1000 + micros // 1000


async def add(queue, count):
    for n in range(count):
        await queue.add("x", n)


@pytest.mark.parametrize("source", ["worker", "queue"])
async def test_a_rate_limit_lets_max_jobs_start_in_a_window(source, queue, work):
    """RULES-11: limiter {max, duration}, of a worker or of the whole queue."""
    recorder = Recorder()
    await add(queue, 7)
    limiter = RateLimit(max=3, duration=200) if source == "worker" else None
    if source == "queue":
        await queue.set_global_rate_limit(RateLimit(3, 200))

    async with work(recorder, concurrency=10, limiter=limiter):
        starts = await recorder.until(7)

    assert starts[3] >= 200
    assert starts[6] - starts[3] >= 200


async def test_a_global_rate_limit_holds_over_several_workers(queue, work):
    recorder = Recorder()
    await queue.set_global_rate_limit(RateLimit(2, 150))
    await add(queue, 6)

    async with work(recorder, concurrency=5), work(recorder, concurrency=5):
        starts = await recorder.until(6)

    assert starts[2] >= 150
    assert starts[4] - starts[2] >= 150


async def test_a_queue_can_be_held_although_nobody_has_a_limit(queue, work, client):
    recorder = Recorder()
    held_at = await server_ms(client)
    await queue.rate_limit(500)
    left_ms = await queue.get_rate_limit_ttl()
    assert left_ms <= 500
    assert left_ms > 0 or await server_ms(client) - held_at >= 500
    await add(queue, 2)

    async with work(recorder, concurrency=5):
        await recorder.until(2)
        assert recorder.starts[0] - held_at >= 500

    assert await queue.get_rate_limit_ttl() == 0
    assert not await client.hexists(queue.keys.meta, "x.held")


async def test_a_hold_can_be_ended_before_its_time(queue, work):
    recorder = Recorder()
    await queue.rate_limit(60_000)
    await add(queue, 1)

    await queue.remove_rate_limit()

    async with work(recorder):
        await recorder.until(1)


async def test_a_handler_can_put_its_job_back_and_hold_the_queue(queue, work):
    runs = []

    async def handler(job):
        is_first = job.name == "limited" and "limited" not in [name for name, _ in runs]
        runs.append((job.name, job.processed_on))
        if is_first:
            raise RateLimitError(250)

    limited = await queue.add("limited", attempts=1)
    await queue.add("second")
    async with work(handler), work(handler):
        await wait_until(lambda: len(runs) >= 3)
        await wait_until(lambda: _is_completed(queue, limited.id))

    # The other worker may have begun its job before the first one said so.
    assert sorted(name for name, _ in runs) == ["limited", "limited", "second"]
    first, again = [at for name, at in runs if name == "limited"]
    assert again - first >= 250
    job = await queue.get_job(limited.id)
    assert (job.attempts_made, job.attempts_started) == (1, 2)
    assert job.failed_reason is None


async def test_a_second_429_does_not_shorten_the_first(queue, work, client):
    """Nor does it end a window of the limiter: whoever asks for the longest pause gets it."""
    waits = {"long": 60_000, "short": 20}
    met = asyncio.Barrier(2)

    async def handler(job):
        await met.wait()
        if job.name == "short":
            await wait_until(lambda: client.exists(queue.keys.limiter))
        raise RateLimitError(waits[job.name])

    jobs = {name: await queue.add(name) for name in waits}
    async with work(handler, concurrency=2):
        for name, job in jobs.items():
            await wait_until(lambda job=job: _is_back(queue, job.id), message=name)

    assert await queue.get_rate_limit_ttl() > 20
    await queue.rate_limit(20)
    assert await queue.get_rate_limit_ttl() <= 20


async def _is_back(queue, job_id):
    job = await queue.get_job(job_id)
    return job.attempts_started == 1 and await queue.get_state(job_id) == "waiting"


async def _is_completed(queue, job_id):
    return await queue.get_state(job_id) == "completed"


async def test_a_rate_limited_job_is_the_next_to_run(queue, work):
    runs = []

    async def handler(job):
        runs.append(job.name)
        if len(runs) == 1:
            raise RateLimitError(30)

    for name in ("first", "second", "third"):
        await queue.add(name)
    async with work(handler):
        await wait_until(lambda: len(runs) == 4)

    assert runs == ["first", "first", "second", "third"]


async def test_a_handler_can_put_its_job_off(queue, work):
    runs = []

    async def handler(job):
        runs.append(job.processed_on)
        if len(runs) == 1:
            raise DelayedError(200)
        return "done"

    job = await queue.add("x", attempts=1)
    async with work(handler):
        await wait_until(lambda: _is_completed(queue, job.id))

    assert runs[1] - runs[0] >= 200
    job = await queue.get_job(job.id)
    assert (job.attempts_made, job.attempts_started, job.return_value) == (1, 2, "done")


async def test_a_global_concurrency_is_kept_and_freed_slots_are_refilled_at_once(queue, work):
    recorder = Recorder(takes_s=0.02)
    await queue.set_global_concurrency(3)
    await add(queue, 30)

    async with work(recorder, concurrency=10), work(recorder, concurrency=10):
        # Ten rounds of 20 ms; a slot that waits for a worker's next look would cost a minute.
        await recorder.until(30)
        assert recorder.most == 3


async def test_a_slot_freed_by_a_worker_that_takes_no_more_goes_to_another(queue, work):
    first, second = Recorder(takes_s=0.2), Recorder()
    await queue.set_global_concurrency(1)
    await add(queue, 2)
    leaving, waiting = work(first), work(second)
    await leaving.start()
    await first.until(1)
    await waiting.start()
    leaving.pause()

    await second.until(1)

    assert len(first.starts) == 1
    await leaving.close()
    await waiting.close()


@pytest.mark.parametrize("change", ["raised", "removed"])
async def test_workers_notice_a_wider_limit_at_once(change, queue, work):
    done = asyncio.Event()
    recorder = Recorder(until=done)
    await queue.set_global_concurrency(1)
    await add(queue, 2)
    async with work(recorder, concurrency=2):
        await recorder.until(1)
        assert await queue.is_maxed()
        if change == "raised":
            await queue.set_global_concurrency(2)
        else:
            await queue.remove_global_concurrency()

        await recorder.until(2)
        assert recorder.running == 2
        done.set()


async def test_limits_can_be_read_and_removed(queue):
    assert await queue.get_global_concurrency() is None
    assert await queue.get_global_rate_limit() is None
    assert not await queue.is_maxed()

    await queue.set_global_concurrency(7)
    await queue.set_global_rate_limit(RateLimit(10, 1000))
    assert await queue.get_global_concurrency() == 7
    assert await queue.get_global_rate_limit() == RateLimit(10, 1000)

    await queue.remove_global_concurrency()
    await queue.remove_global_rate_limit()
    assert await queue.get_global_concurrency() is None
    assert await queue.get_global_rate_limit() is None


async def test_the_time_left_is_told_only_when_the_limit_is_reached(queue, client):
    await client.set(queue.keys.limiter, 3, px=60_000)

    assert await queue.get_rate_limit_ttl(max=4) == 0
    assert 0 < await queue.get_rate_limit_ttl(max=3) <= 60_000
    assert 0 < await queue.get_rate_limit_ttl() <= 60_000
    await queue.set_global_rate_limit(RateLimit(4, 1000))
    assert await queue.get_rate_limit_ttl() == 0


async def test_limits_that_make_no_sense_are_refused(queue):
    for call in (
        lambda: queue.set_global_concurrency(0),
        lambda: queue.set_global_rate_limit(RateLimit(0, 1000)),
        lambda: queue.set_global_rate_limit(RateLimit(1, 0)),
        lambda: queue.rate_limit(0),
    ):
        with pytest.raises(InvalidOptionError):
            await call()


def test_the_blocking_client_has_them_too(url, prefix):
    with BlockingQueue("q", connection=url, prefix=prefix) as queue:
        queue.set_global_concurrency(2)
        queue.rate_limit(60_000)
        assert queue.get_global_concurrency() == 2
        assert queue.get_rate_limit_ttl() > 0
        queue.remove_rate_limit()
        assert queue.get_rate_limit_ttl() == 0


async def test_a_handler_holds_its_lane_and_others_go_on(queue, work):
    """FIFO-16: the job is the next of its lane again, and the attempt does not count."""
    runs: list[tuple[str, int, int]] = []

    async def handler(job):
        runs.append((job.lane, job.data, job.attempts_made))
        if job.lane == "busy" and len(runs) == 1:
            raise RateLimitError(60_000, lane=True)

    await queue.add_bulk([NewJob("x", n, lane="busy") for n in range(2)])
    async with work(handler):
        await wait_until(lambda: _is_limited(queue, "busy"))
        await queue.add_bulk([NewJob("x", n, lane="free") for n in range(3)])
        await queue.add("x", 3, lane="busy")
        await wait_until(lambda: len(runs) == 4)

    lane = await queue.get_lane("busy")
    assert runs == [("busy", 0, 0), *(("free", n, 0) for n in range(3))]
    assert (lane.depth, lane.holders, lane.is_ready) == (3, (), False)
    (head, *_) = await queue.get_lane_jobs("busy")
    assert (head.data, head.attempts_made) == (0, 0)
    assert "limit" in await queue.explain(head.id)


async def test_a_lane_that_was_held_goes_on_by_itself(queue, work):
    """In order, when the time is over; an idle worker is woken for it."""
    runs: list[int] = []

    async def handler(job):
        runs.append(job.data)
        if len(runs) == 1:
            raise RateLimitError(50, lane=True)

    await queue.add_bulk([NewJob("x", n, lane="a") for n in range(3)])
    async with work(handler):
        await wait_until(lambda: len(runs) == 4)
        await queue.wait_until_empty(60_000)

    assert runs == [0, 0, 1, 2]


async def test_a_job_without_a_lane_waits_alone(queue, work):
    async def handler(job):
        if job.data == 0:
            raise RateLimitError(60_000, lane=True)

    first, second = await queue.add_bulk([NewJob("x", n) for n in range(2)])
    async with work(handler):
        await queue.wait_for(second.id, 60_000)
    assert await queue.get_state(first.id) == "delayed"
    assert (await queue.get_job(first.id)).attempts_made == 0


async def test_a_held_lane_stays_held_when_it_runs_empty_or_another_job_of_it_ends(queue, work):
    """L3: a new job of it waits as well; resume_lane takes the hold back."""
    runs: list[int] = []
    may_end = asyncio.Event()

    async def handler(job):
        runs.append(job.data)
        if job.data == 0 and len(runs) == 2:
            raise RateLimitError(60_000, lane=True)
        await may_end.wait()

    await queue.set_lane_concurrency("a", 2)
    await queue.add_bulk([NewJob("x", n, lane="a") for n in (1, 0, 2)])
    async with work(handler, concurrency=5):
        await wait_until(lambda: _is_limited(queue, "a"))
        may_end.set()
        await wait_until(lambda: _is_free(queue, "a"))
        assert await queue.drain_lane("a") == 2
        await queue.add("x", 3, lane="a")
        assert (await queue.get_lane("a")).limited_until is not None
        assert runs == [1, 0]

        assert await queue.resume_lane("a") is True
        await wait_until(lambda: runs == [1, 0, 3])
        assert await queue.resume_lane("a") is False


async def _is_free(queue, lane):
    return (await queue.get_lane(lane)).holders == ()


async def _is_limited(queue, lane):
    found = await queue.get_lane(lane)
    return found is not None and found.limited_until is not None


async def test_a_second_429_does_not_shorten_the_hold_of_a_lane(queue, work):
    """Two jobs of a lane that runs two at once: the longer wait counts."""
    waits = {"long": 60_000, "short": 20}
    met = asyncio.Barrier(2)

    async def handler(job):
        await met.wait()
        if job.name == "short":
            await wait_until(lambda: _is_limited(queue, "a"))
        raise RateLimitError(waits[job.name], lane=True)

    await queue.set_lane_concurrency("a", 2)
    jobs = [await queue.add(name, lane="a") for name in waits]
    async with work(handler, concurrency=2):
        for job in jobs:
            await wait_until(lambda job=job: _is_back(queue, job.id), message=job.name)

    lane = await queue.get_lane("a")
    began = (await queue.get_job(jobs[0].id)).processed_on
    assert lane.limited_until >= began + waits["long"]
