"""Diverted lanes: what waits behind a job that failed for good goes to the dead letters too."""

from __future__ import annotations

import msgspec
import pytest

from tests.helpers import wait_until
from toril import NewJob, Queue, UnrecoverableError
from toril.protocol import lanes


@pytest.fixture
async def dlq(url, prefix):
    async with Queue("q-dlq", connection=url, prefix=prefix) as queue:
        yield queue


def jobs(count, lane="a", **options):
    return [
        NewJob("x", {"n": n}, lane=lane, order_ms=n, on_exhausted="divert", **options)
        for n in range(count)
    ]


class Handler:
    """Fails for the numbers it is told, and notes the others."""

    def __init__(self, *failing):
        self.failing = set(failing)
        self.ran = []

    async def __call__(self, job):
        if job.data["n"] in self.failing:
            raise UnrecoverableError("no")
        self.ran.append(job.data["n"])


async def numbers(dlq):
    """What is among the dead letters, the oldest first."""
    return [job.data["n"] for job in await dlq.get_waiting()]


async def test_a_lane_is_diverted_in_order_and_replayed_in_order(queue, dlq, work):
    """FIFO-08, C-20: 250 jobs behind the head go in order, in slices, and come back in order."""
    await queue.add_bulk(jobs(253))
    await queue.add_bulk([NewJob("x", {"n": n}, lane="other") for n in (1000, 1001)])
    handler = Handler(2)
    async with work(handler, dead_letter_queue="q-dlq"):
        await wait_until(dlq_has(dlq, 251))
        assert await queue.wait_until_empty(60_000)

    assert sorted(handler.ran) == [0, 1, 1000, 1001]
    assert await numbers(dlq) == list(range(2, 253))
    letters = await dlq.get_dead_letter_jobs(0, 300)
    causes = {letter.data["n"]: letter.dead_letter.cause for letter in letters}
    assert (causes[2], causes[3]) == ("unrecoverable", "diverted")
    assert "its lane was diverted" in letters[0].dead_letter.failed_reason
    assert await queue.get_lanes() == []

    assert {letter.dead_letter.attempts_made for letter in letters} == {0, 1}
    again = Handler()
    assert await dlq.replay_all_dead_letters() == 251
    async with work(again, concurrency=10):
        assert await queue.wait_until_empty(60_000)
    assert again.ran == list(range(2, 253))


async def test_what_comes_after_the_failure_runs(queue, dlq, work, client):
    """FIFO-08: only what waited then is diverted; the lane goes on with what is new."""
    await queue.add_bulk(jobs(3))
    handler = Handler(0)

    async with work(handler, dead_letter_queue="q-dlq"):
        await wait_until(dlq_has(dlq, 3))
        await queue.add("x", {"n": 99}, lane="a")
        await wait_until(lambda: handler.ran == [99])
        await queue.wait_until_empty(60_000)

    assert await numbers(dlq) == [0, 1, 2]


async def test_a_sweep_goes_on_with_a_diversion_that_broke_off(queue, dlq, work, client):
    """FIFO-12: the lane stands still until somebody has sent the rest away."""
    keys = queue.keys
    await queue.add_bulk(jobs(4))
    await queue.pause_lane("a")
    await client.hset(
        keys.lanes_diverting, "a", '{"job":"gone","queue":"q-dlq","until_seq":1000000}'
    )
    await client.hset(keys.lanes_settings, "a", '{"halted":"gone","since":1}')
    await client.hset(keys.lanes_held, "nobody", "1\nnobody")
    handler = Handler()

    async with work(handler, stalled_interval=100):
        await wait_until(dlq_has(dlq, 4))

    assert handler.ran == []
    assert await queue.get_lane("a") is None


async def test_without_dead_letters_a_diverted_lane_halts(queue, work):
    """FIFO-08: nothing is lost when the worker has no queue for dead letters."""
    first, *_ = await queue.add_bulk(jobs(3))
    async with work(Handler(0)):
        await wait_until(lambda: is_halted(queue))

    lane = await queue.get_lane("a")
    assert (lane.halted_by, lane.depth) == (first.id, 2)
    await queue.resume_lane("a")


async def is_halted(queue):
    lane = await queue.get_lane("a")
    return lane is not None and lane.halted_by is not None


def dlq_has(dlq, count):
    async def check():
        return await dlq.get_dead_letter_count() == count

    return check


async def test_a_slice_of_a_diversion_is_bounded_in_bytes(queue, dlq, work, monkeypatch):
    """Large jobs go a few at a time, or one by one, so that no script takes long."""
    monkeypatch.setattr(lanes, "DIVERTED_BYTES", 25_000)
    sent = []
    read_slice = lanes._divert

    def noted(*args):
        command = read_slice(*args)

        def parse(reply):
            sent.append(reply[1])
            return tuple(reply)

        return msgspec.structs.replace(command, parse=parse)

    monkeypatch.setattr(lanes, "_divert", noted)
    padding = "x" * 10_000
    sizes = [1, 1, 1, 1, 1, 1, 6]
    await queue.add_bulk(
        [
            NewJob("x", {"n": n, "p": padding * size}, lane="a", order_ms=n, on_exhausted="divert")
            for n, size in enumerate(sizes)
        ]
    )

    async with work(Handler(0), dead_letter_queue="q-dlq"):

        async def all_are_there():
            return await dlq.get_waiting_count() == len(sizes)

        await wait_until(all_are_there)
        # The head of the lane went with the call that buried it.
        await wait_until(lambda: sum(sent) == len(sizes) - 1, message="the last reply arrived")

    assert await numbers(dlq) == list(range(len(sizes)))
    # A sweep and the worker may both be at it, so the replies come in any order.
    assert sorted(count for count in sent if count) == [1, 1, 2, 2]
