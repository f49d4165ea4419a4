"""What may be a lane, an order and a payload, and what is refused."""

from __future__ import annotations

import pytest

from tests.keyspace import lasting_keys
from toril import NewJob, Queue
from toril.errors import InvalidOptionError, LaneFullError
from toril.sync import Queue as BlockingQueue

LANES = [
    "user:42", "lock", "a:lock", "x b", "x", "tab\there", "100%", "%20", " ", "ünï-çødé ✓", "{tag}",
    "a\x00b", "*", "[a-z]?", "meta", "waiting", "\n", "!", "x!", "x ", "0", "-", "|||", "a" * 1024,
]  # fmt: skip


async def test_any_text_is_a_lane(queue, hand):
    """FIFO-01: any text, none mixed up with another."""
    for lane in LANES:
        await queue.add_bulk([NewJob("x", [lane, n], lane=lane) for n in range(2)])
    assert sorted(await queue.get_lanes()) == sorted(LANES)
    one = hand()

    first = await one.take(100)
    assert sorted(job.data for job in first) == sorted([lane, 0] for lane in LANES)
    for job in first:
        assert (await queue.get_lane(job.lane)).holder == job.id
        await one.complete(job)
    assert sorted(job.data for job in await one.take(100)) == sorted([lane, 1] for lane in LANES)


async def test_payloads_survive_whatever_is_in_them(queue, hand):
    """FIFO-29: no delimiter means anything."""
    data = {"a|||b": ["|||", "\x00", "\n", "{}", "%s", 9007199254740993, [], {}]}
    await queue.add("x", data, lane="a|||b")

    (job,) = await hand().take(1)

    assert job.data == data


@pytest.mark.parametrize(
    "options",
    [
        {"lane": ""},
        {"lane": 5},
        {"lane": "x" * 1025},
        {"lane": "\ud800"},
        {"lane": "a", "priority": 1},
        {"lane": "a", "lifo": True},
        {"lane": "a", "order_ms": -1},
        {"lane": "a", "order_ms": 2**53},
        {"lane": "a", "order_ms": 1.5},
        {"lane": "a", "ordering_delay": -1},
        {"lane": "a", "on_retry": "maybe"},
        {"lane": "a", "on_exhausted": "explode"},
        {"lane": "a", "max_lane_size": 0},
        {"order_ms": 5},
        {"on_retry": "maybe"},
        {"max_lane_size": 0},
    ],
)
async def test_bad_options_are_refused_before_anything_is_written(options, queue, client, prefix):
    """FIFO-01: an order without a lane is a mistake as well."""
    with pytest.raises(InvalidOptionError):
        await queue.add("x", **options)

    assert await lasting_keys(client, prefix) == []


async def test_queues_with_other_prefixes_have_other_lanes(url, prefix):
    """FIFO-09: every key of a lane is under the prefix and the name of its queue."""
    async with (
        Queue("q", connection=url, prefix=f"{prefix}:one") as one,
        Queue("q", connection=url, prefix=f"{prefix}:two") as two,
    ):
        await one.add("x", lane="a")

        assert await one.get_lanes() == ["a"]
        assert await two.get_lanes() == []
        await one.obliterate(force=True)


async def test_a_queue_may_give_its_jobs_lane_options_by_default(url, prefix):
    """FIFO-10: ordering delay 0 and everything else can be set for a queue."""
    options = {"on_exhausted": "halt", "max_lane_size": 1}
    async with Queue("q", connection=url, prefix=prefix, default_job_options=options) as queue:
        job = await queue.add("x", lane="a")
        await queue.add("plain")

        assert (job.lane, job.opts.on_exhausted) == ("a", "halt")
        with pytest.raises(LaneFullError):
            await queue.add("x", lane="a")


def test_lanes_from_blocking_code(url, prefix):
    """FIFO-22: the same methods, without await."""
    with BlockingQueue("q", connection=url, prefix=prefix) as queue:
        queue.add("x", lane="a")
        queue.pause_lane("a")

        assert (queue.get_lanes(), queue.get_lane_count()) == (["a"], 1)
        assert queue.get_lane("a").is_paused
        assert queue.resume_lane("a")
