"""Schedulers advanced by both sides in turn (wire-format section 10, items 22 to 24)."""

from __future__ import annotations

import time

import pytest

from tests.helpers import assert_no_gap, let_pass, wait_until
from tests.interop.peer import NodeError
from tests.interop.scenario import NodeDriver
from tests.interop.support import FAR, events_of, forget_all, wait_for_finished, wait_for_state
from toril import NewJob, Queue
from toril.errors import InvalidOptionError, SchedulerOwnsJobError


def now_ms() -> int:
    return int(time.time() * 1000)


async def iterations(client, prefix, scheduler="s") -> list[int]:
    """The times of all iterations that were ever added, in order."""
    rows = await events_of(client, prefix, "q", "added")
    return [int(row["jobId"].rsplit(":", 1)[1]) for row in rows if f":{scheduler}:" in row["jobId"]]


async def added_at(client, prefix, at: int, scheduler: str) -> int:
    """When the iteration of this time was added."""
    rows = await client.xrange(f"{prefix}:q:events")
    found = [
        entry
        for entry, row in rows
        if row["event"] == "added" and row["jobId"].endswith(f":{scheduler}:{at}")
    ]
    return int(found[0].partition("-")[0])


async def work_in_turns(peer, toril, client, prefix, count: int) -> list[str]:
    """Let one side run a job, then the other, until ``count`` are done; returns who ran each."""
    order = []
    for number in range(count):
        if number % 2:
            worker = await peer.work("q")
            stop = peer.stop_working
        else:
            worker = await toril.start_worker("q")
            stop = toril.stop_worker
        await wait_for_finished(client, prefix, "q", number + 1)
        await stop(worker)
        order.append("bullmq" if number % 2 else "toril")
    return order


@pytest.mark.parametrize("maker", ["bullmq", "toril"])
async def test_item_22_both_advance_one_schedule_in_turn(maker, peer, toril, client, prefix):
    """At least twenty iterations, none missing, none twice, none off the grid."""
    every = 200
    driver = NodeDriver(peer) if maker == "bullmq" else toril
    await driver.upsert_scheduler("q", "s", {"every": every, "limit": 22}, {"data": {"n": 1}})

    # A job lasts longer than an interval, so who runs one cannot take the next.
    behaviours = {"*": [["sleep", 1.25 * every], ["echo"]]}
    ours = await toril.start_worker("q", behaviours, concurrency=1)
    theirs = await peer.work("q", behaviours, concurrency=1)
    await wait_for_finished(client, prefix, "q", 22)
    await let_pass(2 * every / 1000, "two more ticks would fit in")

    times = await iterations(client, prefix)
    assert len(times) == len(set(times)) == 22
    await assert_no_gap(client, f"{prefix}:q", every)
    assert await client.hget(f"{prefix}:q:repeat:s", "ic") == "22"
    counts = [(await peer.job("q", f"repeat:s:{at}"))["opts"]["repeat"]["count"] for at in times]
    assert counts == list(range(1, 23))
    seen = await peer.seen(theirs)
    assert len(ours.handler.seen) + len(seen) == 22
    assert ours.handler.seen
    assert seen


@pytest.mark.parametrize("maker", ["bullmq", "toril"])
async def test_item_22_strictly_in_turns(maker, peer, toril, client, prefix):
    """Each iteration is taken by the side that did not take the one before."""
    driver = NodeDriver(peer) if maker == "bullmq" else toril
    await driver.upsert_scheduler("q", "s", {"every": 100}, {})

    await work_in_turns(peer, toril, client, prefix, 10)

    times = await iterations(client, prefix)
    assert len(set(times)) == len(times)
    assert all((at - times[0]) % 100 == 0 for at in times)
    assert int(await client.hget(f"{prefix}:q:repeat:s", "ic")) == len(times)


@pytest.mark.parametrize("maker", ["bullmq", "toril"])
async def test_item_22_a_pattern_advanced_by_both(maker, peer, toril, client, prefix):
    driver = NodeDriver(peer) if maker == "bullmq" else toril
    schedule = {"cron": "* * * * * *", "tz": "Europe/Berlin", "end": now_ms() + FAR}
    await driver.upsert_scheduler("q", "s", schedule, {"data": {"n": 1}})

    await work_in_turns(peer, toril, client, prefix, 3)

    times = await iterations(client, prefix)
    assert all(at % 1000 == 0 for at in times)
    assert len(set(times)) == len(times)
    job = await peer.job("q", f"repeat:s:{times[-1]}")
    assert job["opts"]["prevMillis"] == times[-1]
    assert job["data"] == {"n": 1}


@pytest.mark.parametrize("maker", ["bullmq", "toril"])
@pytest.mark.parametrize("runner", ["bullmq", "toril"])
async def test_item_22_start_offset_and_limit(maker, runner, peer, toril, client, prefix):
    driver = NodeDriver(peer) if maker == "bullmq" else toril
    # A start that has passed before it is heard of is none: a busy machine gets a later one.
    for name, ahead_ms in (("a", 1_000), ("later", 10_000), ("latest", 60_000)):
        start = now_ms() + ahead_ms
        await driver.upsert_scheduler("q", name, {"every": 100, "start": start, "limit": 3}, {})
        if now_ms() < start:
            break
        await forget_all(client, prefix)
    await driver.upsert_scheduler("q", "b", {"every": 200, "offset": 50, "limit": 3}, {})

    await (peer.work("q") if runner == "bullmq" else toril.start_worker("q"))
    await wait_for_finished(client, prefix, "q", 6, timeout=120)
    await let_pass(0.25, "a further tick of each would fit in")

    first = await iterations(client, prefix, name)
    assert len(first) == 3
    assert first[0] == start
    await assert_no_gap(client, f"{prefix}:q", 100, name)
    second = await iterations(client, prefix, "b")
    assert len(second) == 3
    assert {at % 200 for at in second} == {50}


@pytest.mark.parametrize("maker", ["bullmq", "toril"])
@pytest.mark.parametrize("runner", ["bullmq", "toril"])
async def test_item_22_an_end_ends_the_schedule(maker, runner, peer, toril, client, prefix):
    driver = NodeDriver(peer) if maker == "bullmq" else toril
    await (peer.work("q") if runner == "bullmq" else toril.start_worker("q"))
    every, end, finished = 150, 0, 0
    times: list[int] = []

    async def is_over() -> bool:
        # An iteration is taken in one call, and the next one is added in another.
        async with client.pipeline(transaction=True) as pipe:
            pipe.zcard(f"{prefix}:q:delayed")
            for place in ("wait", "active"):
                pipe.llen(f"{prefix}:q:{place}")
            unfinished = sum(await pipe.execute())
        return now_ms() > end + 2 * every and unfinished == 0

    # A schedule that a busy machine has no time for is followed by a longer one.
    for name, window in (("s", 700), ("longer", 7_000), ("longest", 40_000)):
        end = now_ms() + window
        try:
            await driver.upsert_scheduler("q", name, {"every": every, "end": end}, {})
        except (InvalidOptionError, NodeError):
            assert now_ms() >= end, "only an end that has passed is refused"
            continue
        await wait_until(is_over, 120, message="nothing is to come")
        times = await iterations(client, prefix, name)
        # The end is looked at when an iteration is taken: the one after it is there already. On a
        # busy machine that one is added when the end has passed, and comes later.
        late = [at for at in times if at > end + every]
        assert late in ([], times[-1:])
        assert all([await added_at(client, prefix, at, name) > end for at in late])
        finished += len(times)
        await wait_for_finished(client, prefix, "q", finished)
        if len(times) >= 2:
            break
    assert len(times) >= 2
    assert await client.zcard(f"{prefix}:q:completed") == finished


async def test_item_23_bullmq_shows_and_runs_a_scheduler_of_toril(peer, toril, client, prefix):
    queue = toril.queue("q")
    template = NewJob("digest", {"to": "all"}, attempts=2)
    await queue.upsert_job_scheduler("c", cron="0 9 * * 1-5", tz="Europe/Berlin", template=template)
    await queue.upsert_job_scheduler("e", every=FAR, limit=5, template=template)

    shown = {row["key"]: row for row in await peer.call("queue.getJobSchedulers", queue="q")}
    await peer.work("q")
    await wait_for_finished(client, prefix, "q", 1)

    assert (shown["c"]["pattern"], shown["c"]["tz"]) == ("0 9 * * 1-5", "Europe/Berlin")
    assert shown["c"]["template"] == {"data": {"to": "all"}, "opts": {"attempts": 2}}
    assert (shown["e"]["every"], shown["e"]["limit"]) == (FAR, 5)
    scheduler = await queue.get_job_scheduler("e")
    assert scheduler.iterations == 2
    assert scheduler.next_at == shown["e"]["next"] + FAR


async def test_item_23_toril_shows_a_scheduler_of_bullmq(peer, toril):
    await NodeDriver(peer).upsert_scheduler(
        "q",
        "s",
        {"cron": "*/5 * * * *", "tz": "UTC", "limit": 9},
        {"data": {"a": 1}, "attempts": 3},
    )

    (scheduler,) = await toril.queue("q").get_job_schedulers()

    assert (scheduler.id, scheduler.cron, scheduler.tz) == ("s", "*/5 * * * *", "UTC")
    assert (scheduler.limit, scheduler.iterations, scheduler.data) == (9, 1, {"a": 1})
    assert scheduler.opts.attempts == 3


@pytest.mark.parametrize("maker", ["bullmq", "toril"])
async def test_item_23_an_upsert_by_the_other_keeps_the_slot(maker, peer, toril, client, prefix):
    sides = (NodeDriver(peer), toril) if maker == "bullmq" else (toril, NodeDriver(peer))
    first = await sides[0].upsert_scheduler("q", "s", {"every": FAR, "offset": 70}, {"data": {}})

    second = await sides[1].upsert_scheduler(
        "q", "s", {"every": FAR, "offset": 70}, {"data": {"n": 2}}
    )

    assert second == first
    assert await client.zrange(f"{prefix}:q:delayed", 0, -1) == [first]
    assert await client.hget(f"{prefix}:q:{first}", "data") == '{"n":2}'


@pytest.mark.parametrize("maker", ["bullmq", "toril"])
async def test_item_23_removal_from_the_other_side(maker, peer, toril, client, prefix):
    sides = (NodeDriver(peer), toril) if maker == "bullmq" else (toril, NodeDriver(peer))
    job_id = await sides[0].upsert_scheduler("q", "s", {"every": FAR, "offset": 70}, {})
    with pytest.raises(NodeError):
        await peer.call("job.remove", queue="q", jobId=job_id)
    with pytest.raises(SchedulerOwnsJobError):
        await toril.remove("q", job_id)

    await sides[1].remove_scheduler("q", "s")

    assert not await client.exists(f"{prefix}:q:repeat", f"{prefix}:q:repeat:s")
    assert await client.zcard(f"{prefix}:q:delayed") == 0


@pytest.mark.parametrize("runner", ["bullmq", "toril"])
async def test_item_24_one_run_makes_up_for_all_that_was_missed(
    runner, peer, toril, client, prefix
):
    job_id = await (toril if runner == "bullmq" else NodeDriver(peer)).upsert_scheduler(
        "q", "s", {"every": 200}, {}
    )
    first = int(job_id.rsplit(":", 1)[1])
    await wait_until(lambda: now_ms() > first + 650)

    await (peer.work("q") if runner == "bullmq" else toril.start_worker("q"))
    await wait_for_state(client, prefix, "q", job_id, "completed")
    await wait_for_finished(client, prefix, "q", 3)

    times = await iterations(client, prefix)
    caught_up = int(await client.hget(f"{prefix}:q:{job_id}", "processedOn"))
    went_on = await added_at(client, prefix, times[1], "s")
    assert times[0] == first
    # Whatever the machine was busy with: the slot after the catch-up, and on the same grid. The
    # schedule goes on in a call of its own, which may come late.
    assert caught_up < times[1] <= went_on + 200
    assert {(at - first) % 200 for at in times} == {0}


@pytest.mark.parametrize("maker", ["bullmq", "toril"])
async def test_a_paused_schedule_is_neither_run_nor_lost_by_bullmq(
    maker, peer, toril, client, prefix, url
):
    """BullMQ lists it, its workers and lists leave it as it is, and a resume goes on with it."""
    driver = NodeDriver(peer) if maker == "bullmq" else toril
    await driver.upsert_scheduler("q", "s", {"every": 300, "limit": 50}, {"data": {"n": 1}})
    theirs = await peer.work("q")
    await wait_for_finished(client, prefix, "q", 1, timeout=30)
    async with Queue("q", connection=url, prefix=prefix) as queue:
        assert await queue.pause_job_scheduler("s")
        await wait_until(lambda: _is_idle(queue), timeout=30)
        before = await client.hgetall(f"{prefix}:q:repeat:s")
        done = await queue.get_completed_count()

        listed = await peer.call("queue.getJobSchedulers", queue="q")
        await let_pass(1, "three ticks would fit in")

        assert [one["key"] for one in listed] == ["s"]
        assert await client.hgetall(f"{prefix}:q:repeat:s") == before
        assert await queue.get_completed_count() == done
        assert (await queue.get_job_scheduler("s")).data == {"n": 1}

        assert await queue.resume_job_scheduler("s")
        await wait_for_finished(client, prefix, "q", done + 2, timeout=30)
        await queue.pause_job_scheduler("s")
    await peer.stop_working(theirs)

    times = await iterations(client, prefix)
    assert len(times) == len(set(times))
    assert len({at % 300 for at in times}) == 1


async def _is_idle(queue) -> bool:
    return await queue.get_active_count() == 0


async def test_an_upsert_of_bullmq_lets_a_paused_schedule_run_on_time(
    peer, toril, client, prefix, url
):
    """It knows no pause: it writes the record anew, and the next time is soon, not far away."""
    await toril.upsert_scheduler("q", "s", {"every": 200}, {})
    async with Queue("q", connection=url, prefix=prefix) as queue:
        await queue.pause_job_scheduler("s")
        await NodeDriver(peer).upsert_scheduler("q", "s", {"every": 200}, {})

        found = await queue.get_job_scheduler("s")
        assert not found.is_paused
        assert found.next_at <= now_ms() + 10_000
        worker = await peer.work("q")
        await wait_for_finished(client, prefix, "q", 2, timeout=30)
        await peer.stop_working(worker)
        await queue.pause_job_scheduler("s")
