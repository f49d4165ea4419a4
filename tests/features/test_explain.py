"""explain(job_id) says in a sentence why a job is not running."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

import pytest

from tests.features.lanes import lose_lock
from tests.helpers import wait_until
from toril import FlowJob, FlowProducer, NewJob, Queue, RateLimit, Worker
from toril.errors import InvalidNameError


@pytest.fixture
def hand(hand):
    return hand()


async def test_a_lane_that_is_held_paused_or_halted(queue, hand):
    first, second = await queue.add_bulk(
        [NewJob("x", n, lane="user:42", attempts=1, on_exhausted="halt") for n in range(2)]
    )
    (job,) = await hand.take(1)

    said = await queue.explain(second.id)
    assert f"waits in lane 'user:42', which is held by job {first.id!r} since 20" in said
    assert (await queue.explain(first.id)).startswith(f"job {first.id!r} is being run since 20")
    await hand.fail(job)
    assert "has failed: ValueError: no" in await queue.explain(first.id)
    assert f"the failure of job {first.id!r} halted" in await queue.explain(second.id)
    await queue.resume_lane("user:42")
    await queue.pause_lane("user:42")
    assert "which is paused; resume_lane" in await queue.explain(second.id)
    await queue.resume_lane("user:42")


async def test_a_job_behind_others_or_behind_a_rate_limit(queue, hand):
    jobs = await queue.add_bulk([NewJob("x", n, lane="a") for n in range(3)])
    assert "waits in lane 'a' behind 2 jobs" in await queue.explain(jobs[2].id)

    await queue.set_lane_rate_limit("a", RateLimit(1, 60_000))
    (job,) = await hand.take(1)
    await hand.complete(job)

    assert "whose rate limit is reached until 20" in await queue.explain(jobs[1].id)
    await queue.obliterate(force=True)


async def test_delayed_jobs_and_parents(queue, url, prefix):
    later = await queue.add("x", delay=60_000)
    in_lane = await queue.add("x", delay=60_000, lane="a")
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        child = FlowJob("child", queue_name="q", job_id="the-child", delay=1000)
        parent = await flow.add(FlowJob("parent", queue_name="q", children=[child]))

    assert "is delayed until 20" in await queue.explain(later.id)
    assert "of lane 'a' is delayed until 20" in await queue.explain(in_lane.id)
    said = await queue.explain(parent.job.id)
    assert f"waits for its child '{prefix}:q:the-child'" in said


async def test_a_parent_of_several_children(queue, url, prefix):
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        children = [FlowJob("child", queue_name="q", delay=1000) for _ in range(2)]
        parent = await flow.add(FlowJob("parent", queue_name="q", children=children))

    assert "waits for 2 children, among them '" in await queue.explain(parent.job.id)


async def test_a_lane_that_several_may_hold(queue, hand):
    """Held is a lane that takes no more, and not one with a place left."""
    jobs = await queue.add_bulk([NewJob("x", n, lane="a") for n in range(4)])
    await queue.set_lane_concurrency("a", 2)
    await hand.take(1)
    assert "waits in lane 'a' behind 2 jobs" in await queue.explain(jobs[3].id)
    assert "no worker of queue 'q'" in await queue.explain(jobs[1].id)

    await hand.take(1)

    said = await queue.explain(jobs[3].id)
    assert f"held by 2 jobs, as many as it may; among them job {jobs[0].id!r} since 20" in said
    await queue.obliterate(force=True)


async def test_a_lane_that_waits_for_a_retry(queue, hand):
    first, second = await queue.add_bulk([NewJob("x", lane="a", backoff=60_000) for _ in range(2)])
    (job,) = await hand.take(1)
    await hand.fail(job)

    assert "of lane 'a' is delayed until 20" in await queue.explain(first.id)
    said = await queue.explain(second.id)
    assert f"which is held by job {first.id!r} until its next attempt at 20" in said


async def test_the_queue_holds_it_up(queue, hand):
    plain, _ = await queue.add_bulk([NewJob("x"), NewJob("x")])
    assert "no worker of queue 'q' is connected" in await queue.explain(plain.id)

    await queue.pause()
    assert "queue 'q' is paused" in await queue.explain(plain.id)
    await queue.resume()
    await queue.set_global_concurrency(1)
    (job,) = await hand.take(5)
    other = next(item.id for item in await queue.get_waiting())
    assert "runs 1 job, as many as it may" in await queue.explain(other)
    await queue.remove_global_concurrency()
    await queue.rate_limit(60_000)
    assert "waits for the rate limit of queue 'q'" in await queue.explain(other)
    await queue.remove_rate_limit()
    await hand.complete(job)
    assert "has completed" in await queue.explain(job.id)


async def test_ready_jobs_silent_workers_and_no_job(queue, hand, client, url, prefix):
    done = asyncio.Event()
    worker = Worker("q", lambda job: done.wait(), connection=url, prefix=prefix)
    async with worker:
        await wait_until(queue.get_workers)
        await queue.add("busy")
        await wait_until(lambda: worker.is_processing)
        job = await queue.add("x", lane="a")
        plain = await queue.add("x")
        assert "is ready and will be taken in its turn" in await queue.explain(job.id)
        assert "is ready; about 1 job waits in the same place" in await queue.explain(plain.id)
        await queue.pause()
        done.set()
    await queue.resume()
    taken = await hand.take(2)
    await lose_lock(client, queue.keys, taken[0].id)

    assert "fell silent" in await queue.explain(taken[0].id)
    assert await queue.explain("nobody") == "job 'nobody' does not exist in queue 'q'"
    assert job.id in {item.id for item in taken}
    with pytest.raises(InvalidNameError):
        await queue.explain("meta")


@pytest.mark.no_audit
async def test_a_job_that_another_program_dropped_from_its_list(queue, client, prefix):
    dropped, kept = await queue.add_bulk([NewJob("x"), NewJob("x")])
    await client.lrem(f"{prefix}:q:wait", 1, dropped.id)

    assert await queue.get_state(dropped.id) == "unknown"
    assert "is in no list, so nobody will run it" in await queue.explain(dropped.id)
    assert await queue.get_state(kept.id) == "waiting"
    assert await queue.remove(dropped.id)


async def test_a_job_in_the_paused_list_of_a_running_queue(queue, client, prefix):
    job = await queue.add("x")
    await client.rename(f"{prefix}:q:wait", f"{prefix}:q:paused")

    assert await queue.get_state(job.id) == "waiting"
    assert "in the list of paused jobs of queue 'q', which is not" in await queue.explain(job.id)
    await queue.resume()
    assert "no worker of queue 'q' is connected" in await queue.explain(job.id)


async def test_a_job_whose_worker_was_killed(url, prefix, queue):
    """Until its lock ends the job is active: by whom, and for how long that one is silent."""
    job = await queue.add("x")
    program = [sys.executable, "-c", ENDLESS, url, prefix]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as worker:
        await asyncio.to_thread(worker.stdout.readline)
        running = await queue.explain(job.id)
        worker.kill()
    await wait_until(lambda: _nobody_works(queue))
    await wait_until(lambda: _is_silent(queue, job.id))

    killed = await queue.explain(job.id)

    assert f"job {job.id!r} is being run by worker 'anna' since 20" in running
    assert "not connected" not in running
    assert re.search(
        r"worker 'anna' since \S+; this worker is not connected any more, it was last heard"
        r" of [1-9]\d* s ago; when its lock ends, in \d+ s, a worker brings the job back",
        killed,
    ), killed
    async with Worker("q", print, connection=url, prefix=prefix, worker_name="berta"):
        assert "is not connected any more" in await queue.explain(job.id), "another one is"
    await queue.obliterate(force=True)


ENDLESS = """
import asyncio, sys
from toril import Worker

async def handle(job):
    print("running", flush=True)
    await asyncio.sleep(600)

async def main():
    url, prefix = sys.argv[1:]
    async with Worker("q", handle, connection=url, prefix=prefix, worker_name="anna"):
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def _nobody_works(queue):
    return not await queue.get_workers()


async def _is_silent(queue, job_id):
    return " 0 s ago" not in await queue.explain(job_id)


async def test_a_parent_says_that_its_child_failed(queue, hand, url, prefix):
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        stuck = await flow.add(
            FlowJob(
                "parent",
                queue_name="parents",
                children=[
                    FlowJob("child", queue_name="q", job_id="the-child"),
                    FlowJob("child", queue_name="q", delay=60_000),
                ],
            )
        )
        (child,) = await hand.take(1)
        await hand.fail(child)
        doomed = await flow.add(
            FlowJob(
                "parent",
                queue_name="parents",
                children=[FlowJob("child", queue_name="q", fail_parent_on_failure=True)],
            )
        )
        (child,) = await hand.take(1)
        await hand.fail(child)

    async with Queue("parents", connection=url, prefix=prefix) as parents:
        said = await parents.explain(stuck.job.id)
        assert f"waits for its child '{prefix}:q:the-child', which has failed for good" in said
        assert "(and for 1 more); retry or remove the child" in said
        said = await parents.explain(doomed.job.id)
        assert f"fails when a worker takes it, because child {prefix}:q:{child.id} failed" in said
