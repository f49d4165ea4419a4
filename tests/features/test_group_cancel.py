"""Cancelling a group by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.features.group_support import World
from tests.helpers import wait_until
from tests.proving import amount
from toril import GroupNotFoundError, InvalidGroupStateError, Worker
from toril.protocol import groups


async def test_cancelling_undoes_what_is_done_and_removes_what_waits(world: World):
    """SAGA-35: the event says that nobody failed."""
    node = await world.order(c={"delay": 60_000})
    await world.complete("a")

    await world.queue("a").cancel_group(node.group_id)

    assert await world.statuses(node) == {"a": "completed", "b": "cancelled", "c": "cancelled"}
    assert await world.place_of("b", node.jobs[1].id) is None
    assert await world.place_of("c", node.jobs[2].id) is None
    assert len(await world.queue("a:compensation").get_waiting()) == 1
    info = await world.queue("a").get_group_state(node.group_id)
    assert info is not None
    assert (info.state, info.cancelled_count) == ("COMPENSATING", 2)
    event = (await world.events())[0]
    assert (event["event"], event["failedJobId"], event["reason"]) == (
        "group:compensating",
        "",
        "cancelled",
    )


async def test_cancelling_with_nothing_done_fails_the_group(world: World):
    """SAGA-36."""
    node = await world.order()

    await world.queue("a").cancel_group(node.group_id)

    assert await world.state(node) == "FAILED"
    assert await world.statuses(node) == dict.fromkeys("abc", "cancelled")
    for name in "abc":
        counts = await world.queue(name).get_job_counts()
        assert sum(counts.values()) == 0
        assert not await world.client.exists(f"{world.prefix}:{name}:compensation:meta")
    assert await world.event_names() == ["group:failed"]


async def test_cancelling_waits_for_what_runs(world: World):
    """SAGA-36, SAGA-44: a running member is not killed, and the group not over before it."""
    node = await world.order("ab", mapped="")
    job = await world.hand("a").take_one()

    await world.queue("a").cancel_group(node.group_id)

    assert await world.state(node) == "COMPENSATING"
    await world.hand("a").complete(job)
    assert await world.state(node) == "FAILED"


async def test_what_is_over_cannot_be_cancelled(world: World):
    """SAGA-15, SAGA-37: each state with its words, and nothing changes."""
    queue = world.queue("a")
    completed = await world.order()
    await world.complete("abc")
    compensating = await world.order()
    await world.complete("a")
    await world.fail("b")
    failed = await world.order()
    await queue.cancel_group(failed.group_id)
    before = [await world.record(node) for node in (completed, compensating, failed)]

    with pytest.raises(InvalidGroupStateError, match=r"^Cannot cancel a completed group$"):
        await queue.cancel_group(completed.group_id)
    with pytest.raises(InvalidGroupStateError, match=r"group in state COMPENSATING$"):
        await queue.cancel_group(compensating.group_id)
    with pytest.raises(InvalidGroupStateError, match=r"^Cannot cancel group in state FAILED$"):
        await queue.cancel_group(failed.group_id)
    await world.undo_all("a", failing="a")
    with pytest.raises(InvalidGroupStateError, match=r"in state FAILED_COMPENSATION$"):
        await queue.cancel_group(compensating.group_id)
    with pytest.raises(GroupNotFoundError, match=r"^Group nonexistent not found$"):
        await queue.cancel_group("nonexistent")

    after = [await world.record(node) for node in (completed, compensating, failed)]
    assert after[0] == before[0]
    assert after[2] == before[2]
    assert after[1]["state"] == "FAILED_COMPENSATION"


async def test_a_cancel_that_is_sent_again_is_no_error(world: World):
    """SAGA-37: the reply was lost; the same call says that it is done, another one refuses."""
    node = await world.order()
    command = groups.cancel(world.queue("a").keys, node.group_id, request="r1")

    await world.connection.run(command)
    await world.connection.run(command)

    assert await world.event_names() == ["group:failed"]
    with pytest.raises(InvalidGroupStateError):
        await world.queue("a").cancel_group(node.group_id)


async def test_cancel_against_completion(world: World):
    """SAGA-20, SAGA-37: many groups, each cancelled at the moment in which its last member ends;
    each ends in one way, and both ways are met."""
    count = amount(300, 1100)
    nodes = await asyncio.gather(*(world.order("abc") for _ in range(count)))
    place = {job.id: n for n, node in enumerate(nodes) for job in node.jobs}
    ran = Counter[int]()
    refused = Counter[str]()
    cancels: list[asyncio.Task[None]] = []

    async def cancel(n: int) -> None:
        # From at once to 36 ms, and for every fourth to 0.7 s: however fast or slow the machine is,
        # some results leave before, some after.
        slower = 20 if n % 4 == 3 else 1
        await asyncio.sleep(slower * (n % 20) ** 2 / 10_000)
        try:
            await world.queue("a").cancel_group(nodes[n].group_id)
        except InvalidGroupStateError as error:
            refused[str(error)] += 1

    async def handle(job: Any) -> str:
        n = place[job.id]
        ran[n] += 1
        if ran[n] == 3:
            cancels.append(asyncio.create_task(cancel(n)))
            await asyncio.sleep(n % 3 / 1000)
        return job.id

    handlers = [
        Worker(name, handler, connection=world.url, prefix=world.prefix, concurrency=20)
        for name, handler in [
            *((name, handle) for name in "abc"),
            *((f"{name}:compensation", _return_id) for name in "abc"),
        ]
    ]
    for worker in handlers:
        await worker.start()

    async def all_ended() -> bool:
        return await world.client.zcard(f"{world.prefix}:a:toril:groups-ended") == count

    await wait_until(lambda: len(cancels) == count, 60, every=0.05)
    await asyncio.gather(*cancels)
    await wait_until(all_ended, 60, every=0.05)
    for worker in handlers:
        await worker.close()

    states = Counter(str(info.state) for info in await world.queue("a").get_groups())
    assert states["COMPLETED"] == refused.total() == refused["Cannot cancel a completed group"]
    assert states["COMPLETED"] + states["FAILED"] == count
    assert min(states["COMPLETED"], states["FAILED"]) > count / 20, f"they did not race: {states}"
    told = Counter(row["event"] for row in await world.events())
    assert told["group:completed"] == states["COMPLETED"]
    assert told["group:failed"] == states["FAILED"]
    for node in nodes:
        statuses = await world.statuses(node)
        info = await world.queue("a").get_group_state(node.group_id)
        assert info is not None
        if info.state == "FAILED":
            for job in node.jobs:
                undone = await world.queue(f"{job.name}:compensation").get_state(
                    f"{node.group_id}-c{'abc'.index(job.name)}"
                )
                wanted = "completed" if statuses[job.name] == "completed" else None
                assert undone == wanted


async def _return_id(job: Any) -> str:
    return job.id
