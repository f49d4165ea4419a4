"""Random operations by both parties, then the invariants (wire-format section 10, item 32).

``make prove`` takes all 100,000; ``TORIL_FUZZ_OPERATIONS`` sets how many. A failure names the seed,
``TORIL_FUZZ_SEED`` repeats it.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

from tests.helpers import wait_until
from tests.interop.peer import NodeError, PeerView, SharedPeer
from tests.interop.scenario import NodeDriver
from tests.keyspace import audit
from tests.proving import amount
from toril.errors import RefusedError

OPERATIONS = int(os.environ.get("TORIL_FUZZ_OPERATIONS") or amount(1500, 100_000))
STREAMS = 4
BEHAVIOURS = {
    "fails": [["fail", "on purpose"]],
    "flaky": [["fail_on_start", 1, "the first time"], ["return", 1]],
    "busy": [["progress", 1], ["log", "row"], ["sleep", 2], ["echo"]],
    "dead": [["unrecoverable", "never"]],
}
POLICIES: tuple[dict[str, bool], ...] = (
    {},
    {"fail_parent_on_failure": True},
    {"continue_parent_on_failure": True},
    {"ignore_dependency_on_failure": True},
    {"remove_dependency_on_failure": True},
)
NAMES = ("plain", "plain", "fails", "flaky", "busy", "dead")


def options(dice: random.Random) -> dict[str, Any]:
    """The options of a random job, as scenarios write them."""
    chosen: dict[str, Any] = {}
    if dice.random() < 0.3:
        chosen["priority"] = dice.randint(1, 5)
    if dice.random() < 0.3:
        chosen["delay"] = dice.choice((1, 20, 200))
    if dice.random() < 0.4:
        chosen["attempts"] = dice.randint(1, 4)
        if dice.random() < 0.5:
            chosen["backoff"] = {"type": "fixed", "delay": 10}
    if dice.random() < 0.2:
        chosen["lifo"] = True
    if dice.random() < 0.2:
        chosen["remove_on_complete"] = dice.choice((True, 5, {"count": 3, "age": 60}))
    if dice.random() < 0.2:
        chosen["remove_on_fail"] = dice.choice((True, 5))
    if dice.random() < 0.1:
        chosen["job_id"] = f"custom-{dice.randint(1, 20)}"
    return chosen


def odd_options(dice: random.Random) -> dict[str, Any]:
    """What only Node programs write: numbers as text, -1, half a second, ids with colons."""
    chosen: dict[str, Any] = dict(
        dice.choice(
            (
                {"attempts": "2"},
                {"attempts": 1.5, "backoff": {"type": "exponential", "delay": "5"}},
                {"attempts": "3", "backoff": {"type": "fixed", "delay": "5"}},
                {"attempts": 3, "backoff": -1},
                {"remove_on_complete": -1},
                {"remove_on_complete": "yes", "remove_on_fail": {"age": "60"}},
                {"remove_on_complete": {"age": 0.5}, "timeout": 1},
            )
        )
    )
    if dice.random() < 0.5:
        chosen["job_id"] = f"odd:{dice.randint(1, 20)}:id"
    return chosen


def deduplication(dice: random.Random) -> dict[str, Any]:
    chosen: dict[str, Any] = {"id": f"d{dice.randint(1, 5)}"}
    match dice.randint(1, 4):
        case 1:
            chosen["ttl"] = dice.choice((20, 500))
        case 2:
            chosen |= {"ttl": 50, "extend": True, "replace": True}
        case 3:
            chosen["keep_last_if_active"] = True
    return chosen


def family(dice: random.Random) -> dict[str, Any]:
    """A parent with children, some of which fail, with every consequence for the parent."""

    def member() -> dict[str, Any]:
        chosen = {**options(dice), **dice.choice(POLICIES)}
        chosen.pop("job_id", None)
        return {"name": dice.choice(NAMES), "queue": "q", "data": {}, "options": chosen}

    children = [member() for _ in range(dice.randint(1, 3))]
    if dice.random() < 0.3:
        children[0]["children"] = [member()]
    parent = member()
    for policy in POLICIES:
        for name in policy:
            parent["options"].pop(name, None)
    return {**parent, "children": children}


async def meddle(side: Any, dice: random.Random, ids: list[str]) -> None:
    """One random operation; that it is refused, or that its job is gone, is part of the game."""
    job = dice.choice(ids) if ids else "nobody"
    roll = dice.random()
    if roll < 0.04:
        ids += (await side.flow(family(dice))).values()
    elif roll < 0.08:
        chosen = {**options(dice), "deduplication": deduplication(dice)}
        chosen.pop("job_id", None)
        ids.append(await side.add("q", dice.choice(NAMES), {"n": len(ids)}, **chosen))
    elif roll < 0.085:
        await side.remove_deduplication_key("q", f"d{dice.randint(1, 5)}")
    elif roll < 0.6 or not ids:
        chosen = options(dice)
        if isinstance(side, NodeDriver) and dice.random() < 0.2:
            chosen |= odd_options(dice)
        ids.append(await side.add("q", dice.choice(NAMES), {"n": len(ids)}, **chosen))
    elif roll < 0.65:
        new = [{"name": dice.choice(NAMES), "data": {}, **options(dice)} for _ in range(5)]
        ids += await side.add_bulk("q", new)
    elif roll < 0.70:
        await side.remove("q", job)
    elif roll < 0.75:
        await side.promote("q", job)
    elif roll < 0.80:
        await side.retry("q", job)
    elif roll < 0.84:
        await side.change_priority("q", job, dice.randint(0, 5), dice.random() < 0.3)
    elif roll < 0.88:
        await side.change_delay("q", job, dice.choice((1, 50)))
    elif roll < 0.91:
        await side.update_data("q", job, {"changed": True})
    elif roll < 0.94:
        await side.add_log("q", job, "row")
    elif roll < 0.955:
        await side.pause("q")
    elif roll < 0.98:
        await side.resume("q")
    elif roll < 0.985:
        await side.retry_all("q")
    elif roll < 0.99:
        await side.promote_all("q")
    else:
        await side.clean("q", dice.choice(("completed", "failed")), 0, 20)


async def visit(six: PeerView, client: Any, meta: str, dice: random.Random) -> None:
    """A program of another version opens the queue, which writes its version, or resumes it.

    BullMQ 6 keeps everything when it resumes.  Where BullMQ 5 resumes what BullMQ 6 has filled,
    jobs are lost without Toril as well (docs/internals/wire-format.md).
    """
    match dice.randrange(4):
        case 0:
            await six.call("queue.resume", queue="q")
        case 1:
            await client.hset(meta, "version", "bullmq:6.7.0")
        case 2:
            await client.hset(meta, "version", "bullmq:5.81.5")
        case 3:
            await client.hdel(meta, "version")


async def test_item_32_whatever_both_do_the_queue_stays_whole(
    peer: PeerView, toril: Any, client: Any, prefix: str, node_peers: dict[int, SharedPeer]
):
    seed = int(os.environ.get("TORIL_FUZZ_SEED", random.randrange(2**32)))
    sides = [NodeDriver(peer), toril]
    six = node_peers[6].at(prefix)
    ids: list[str] = []
    await peer.call("queue.open", queue="q")
    workers = [
        await toril.start_worker("q", BEHAVIOURS, concurrency=3, stalled_interval=200),
    ]
    await peer.work("q", BEHAVIOURS, concurrency=3, stalledInterval=150)

    async def stream(number: int) -> None:
        dice = random.Random(seed * STREAMS + number)
        for _ in range(OPERATIONS // STREAMS):
            try:
                await meddle(dice.choice(sides), dice, ids)
                if dice.random() < 0.03:
                    await visit(six, client, f"{prefix}:q:meta", dice)
            except (NodeError, RefusedError):
                continue

    crashes = (side.crash("q", {"*": [["hang"]]}, lock_duration=500) for side in sides)
    crashing = asyncio.gather(*crashes)
    await asyncio.gather(*(stream(number) for number in range(STREAMS)))

    async def have_crashed() -> bool:
        # Who starts so late that all is done or paused needs something to die with.
        if not crashing.done():
            await toril.resume("q")
            ids.extend(await toril.add_bulk("q", [{"name": "plain", "data": {}}] * 20))
        return crashing.done()

    await wait_until(have_crashed, every=0.05)
    await crashing
    await toril.resume("q")

    async def settled() -> bool:
        async with client.pipeline(transaction=True) as pipe:
            for name in ("wait", "paused", "active"):
                pipe.llen(f"{prefix}:q:{name}")
            for name in ("prioritized", "delayed"):
                pipe.zcard(f"{prefix}:q:{name}")
            return sum(await pipe.execute()) == 0

    await wait_until(settled, message=f"all jobs are done (TORIL_FUZZ_SEED={seed})")
    for worker in workers:
        await toril.stop_worker(worker)
    await peer.close_all()
    await six.close_all()

    assert await audit(client, prefix) == [], f"TORIL_FUZZ_SEED={seed}"
    assert await client.zcard(f"{prefix}:q:completed") > 0
    locks = [key async for key in client.scan_iter(match=f"{prefix}:q:*:lock")]
    assert locks == [], f"TORIL_FUZZ_SEED={seed}"
