"""Letters that are not where they were buried: with a priority or a delay."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.features.dead_letters.conftest import DLQ
from tests.features.dead_letters.forging import forge
from toril.protocol import dead_letters, replaying


@pytest.fixture
async def scattered(side: Any) -> Any:
    """Six letters: two wait, two have a priority, two are delayed."""
    ids = await side.bury(*["charge"] * 6)
    for job_id, priority in ((ids[0], 5), (ids[1], 3)):
        await side.dlq.change_priority(job_id, priority)
    base = f"{side.prefix}:{DLQ}"
    for number, job_id in enumerate(ids[4:]):
        await side.client.lrem(f"{base}:wait", 1, job_id)
        await side.client.zadd(f"{base}:delayed", {job_id: (4_000_000_000_000 + number) * 4096})
    return ids


async def test_they_are_counted_and_listed(side, scattered):
    everything = await side.dlq.get_dead_letter_jobs(0, -1)

    assert await side.dlq.get_dead_letter_count() == 6
    assert sorted(job.id for job in everything) == sorted(scattered)
    oldest_first = await side.dlq.get_dead_letter_jobs(0, -1, newest_first=False)
    assert [job.id for job in oldest_first] == [job.id for job in everything[::-1]]
    pages = [await side.dlq.get_dead_letter_jobs(at, at + 1) for at in (0, 2, 4, 6)]
    assert [job.id for page in pages for job in page] == [job.id for job in everything]
    (group,) = await side.dlq.get_dead_letter_summary()
    assert group.count == 6


async def test_they_are_replayed_and_tell_how_many_are_left(side, scattered):
    told = []

    assert await side.dlq.replay_all_dead_letters(dry_run=True) == 6
    assert await side.dlq.replay_all_dead_letters(rate=10_000, on_progress=told.append) == 6

    assert await side.dlq.get_dead_letter_count() == 0
    assert [now.left for now in told] == [4, 2, 0]
    waiting = await side.client.lrange(f"{side.prefix}:orders:wait", 0, -1)
    jobs = [await side.orders.get_job(job_id) for job_id in waiting]
    assert sorted(job.data["n"] for job in jobs) == [0, 1, 2, 3, 4, 5]
    events = [e for e in await side.events(DLQ) if e["event"] == "removed"]
    assert sorted(event["prev"] for event in events) == sorted(
        ["waiting", "prioritized", "delayed"] * 2
    )


async def test_they_are_purged(side, scattered):
    assert await side.dlq.purge_dead_letters(name="charge", dry_run=True) == 6
    assert await side.dlq.purge_dead_letters(name="charge") == 6
    assert await side.dlq.get_dead_letter_count() == 0
    keys = [key async for key in side.client.scan_iter(match=f"{side.prefix}:{DLQ}:[0-9]*")]
    assert keys == []


async def test_a_filter_leaves_others_in_their_places(side, monkeypatch):
    """Slices of a sorted set go on behind what the last one left."""
    monkeypatch.setattr(dead_letters, "LETTERS_PER_LOOK", 7)
    await forge(side.client, side.prefix, DLQ, 60, names=("send", "keep"))
    base = f"{side.prefix}:{DLQ}"
    ids = await side.client.lrange(f"{base}:wait", 0, -1)
    await side.client.delete(f"{base}:wait")
    await side.client.zadd(f"{base}:prioritized", {job_id: int(job_id) for job_id in ids})

    assert await side.dlq.purge_dead_letters(name="send") == 30

    left = await side.client.zrange(f"{base}:prioritized", 0, -1)
    assert left == [str(number) for number in range(2, 61, 2)]


LARGE = 200_000


async def large_letters(side: Any, count: int) -> None:
    await forge(side.client, side.prefix, DLQ, count)
    base = f"{side.prefix}:{DLQ}"
    for job_id in await side.client.lrange(f"{base}:wait", 0, -1):
        text = await side.client.hget(f"{base}:{job_id}", "data")
        padded = f'{{"text":"{"x" * LARGE}",{text[1:]}'
        await side.client.hset(f"{base}:{job_id}", "data", padded)


@pytest.mark.parametrize("verb", ["replay", "purge"])
async def test_slices_are_bounded_by_bytes(verb, side, monkeypatch):
    """However large the letters are, a slice moves no more than its budget, or one letter."""
    act, owner, budget = {
        "purge": (side.dlq.purge_dead_letters, dead_letters, "PURGED_BYTES_PER_SLICE"),
        "replay": (side.dlq.replay_all_dead_letters, replaying, "REPLAYED_BYTES_PER_SLICE"),
    }[verb]
    await large_letters(side, 12)
    monkeypatch.setattr(owner, budget, 5 * LARGE + 5000)
    told = []

    assert await act(on_progress=told.append) == 12

    assert [now.done for now in told] == [5, 10, 12]
    await large_letters(side, 3)
    monkeypatch.setattr(owner, budget, LARGE // 2)
    told.clear()
    assert await act(on_progress=told.append) == 3
    assert [now.done for now in told] == [1, 2, 3]
    await side.client.flushdb()


async def test_data_that_are_no_json_count_as_bytes_too(side, monkeypatch):
    await side.bury(*["charge"] * 3)
    base = f"{side.prefix}:{DLQ}"
    for job_id in await side.client.lrange(f"{base}:wait", 0, -1):
        await side.client.hset(f"{base}:{job_id}", "x.data", "not json" * 1000)
    monkeypatch.setattr(replaying, "REPLAYED_BYTES_PER_SLICE", 10_000)
    told = []

    assert await side.dlq.replay_all_dead_letters(on_progress=told.append) == 3

    assert [now.done for now in told] == [1, 2, 3]
    ids = await side.client.lrange(f"{side.prefix}:orders:wait", 0, -1)
    texts = {await side.client.hget(f"{side.prefix}:orders:{job_id}", "data") for job_id in ids}
    assert texts == {"not json" * 1000}
    assert json.dumps(told[-1].left) == "0"
