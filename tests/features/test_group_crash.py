"""A worker that is killed leaves no group behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from tests.features.group_support import World
from tests.helpers import wait_until
from tests.interop.toril_side import TorilSide
from tests.proving import amount
from toril import Compensation, GroupJob

KILLS = amount(3, 6)
GROUPS = 50 * KILLS


async def test_killed_workers_leave_no_group_unsettled(world: World):
    """SAGA-42, C-08: kill -9 again and again while groups complete, fail and are undone."""
    side = TorilSide(world.url, world.prefix)
    nodes = await asyncio.gather(*(_order(world, fails=n % 2 == 1) for n in range(GROUPS)))
    slowly = ["sleep", 20]
    behaviours = {"fail": [slowly, ["fail", "no"]], "*": [slowly, ["return", {"ok": 1}]]}
    options = {"lock_duration": 400, "stalled_interval": 100, "max_stalled_count": 1000}
    queues = ("a", "b", "a:compensation", "b:compensation")

    interrupted = 0
    async with side:
        for _ in range(KILLS):
            before = await _finished(world)
            workers = [
                await side.worker_process(queue, behaviours, concurrency=8, **options)
                for queue in queues
            ]

            async def has_moved(before: int = before) -> bool:
                return await _finished(world) > before + 20 or await _ended(world) == GROUPS

            await wait_until(has_moved)
            for worker in workers:
                await worker.kill()
            interrupted += await _ended(world) < GROUPS
        for queue in queues:
            await side.start_worker(queue, behaviours, concurrency=20, **options)

        async def all_ended() -> bool:
            return await _ended(world) == GROUPS

        await wait_until(all_ended, 60, every=0.05)

    assert interrupted >= KILLS // 2
    infos = {info.id: info for info in await world.queue("a").get_groups()}
    for n, node in enumerate(nodes):
        info = infos[node.group_id]
        assert info.state == ("FAILED" if n % 2 else "COMPLETED")
        assert info.unfinished_count == 0
        await _check_undone(world, node, info.state == "FAILED")
    told = Counter((row["event"], row["groupId"]) for row in await world.events())
    assert set(told.values()) == {1}


async def _order(world: World, *, fails: bool) -> Any:
    names = ("one", "fail" if fails else "two", "three")
    jobs = [GroupJob(name, queue_name="ab"[n % 2]) for n, name in enumerate(names)]
    undo = {name: Compensation(f"undo-{name}") for name in names}
    return await world.flow.add_group("order", jobs, undo)


async def _finished(world: World) -> int:
    counts = [await world.queue(name).get_job_counts("completed", "failed") for name in "ab"]
    return sum(sum(count.values()) for count in counts)


async def _ended(world: World) -> int:
    return await world.client.zcard(f"{world.prefix}:a:toril:groups-ended")


async def _check_undone(world: World, node: Any, has_failed: bool) -> None:
    members = await world.queue("a").get_group_jobs(node.group_id)
    for number, member in enumerate(members):
        queue = world.queue(f"{member.queue_name}:compensation")
        undo = await queue.get_job(f"{node.group_id}-c{number}")
        if has_failed and member.status == "completed":
            assert undo is not None
        if undo is not None:
            assert has_failed
            assert await queue.get_state(undo.id) == "completed"
            # One that was killed half-way is undone as well, and has no return value.
            known = {"ok": 1} if member.status == "completed" else None
            assert undo.data["originalReturnValue"] == known
