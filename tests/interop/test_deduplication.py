"""One deduplication id, jobs from both sides (wire-format section 10, item 28)."""

from __future__ import annotations

import pytest

from tests.helpers import wait_until
from tests.interop.support import events_of, wait_for_finished, wait_for_state

FAR = 3_600_000


@pytest.fixture(params=["bullmq first", "toril first"])
def sides(request, peer, toril):
    return (peer, toril) if request.param == "bullmq first" else (toril, peer)


def options_for(side, peer, **options):
    """Names as the side has them."""
    if side is not peer:
        return {"deduplication": options}
    names = {"keep_last_if_active": "keepLastIfActive"}
    return {"deduplication": {names.get(key, key): value for key, value in options.items()}}


@pytest.mark.parametrize("mode", [{}, {"ttl": FAR}, {"ttl": FAR, "extend": True}])
async def test_item_28_a_duplicate_from_the_other_side_is_kept_out(
    mode, sides, peer, client, prefix
):
    first, second = sides
    owner = await first.add("q", "a", {}, **options_for(first, peer, id="d", **mode))
    if "extend" in mode:
        await client.pexpire(f"{prefix}:q:de:d", 60_000)

    answer = await second.add("q", "b", {}, **options_for(second, peer, id="d", **mode))

    assert answer == owner
    assert await client.lrange(f"{prefix}:q:wait", 0, -1) == [owner]
    assert await client.hget(f"{prefix}:q:{owner}", "deid") == "d"
    (event,) = await events_of(client, prefix, "q", "deduplicated")
    assert (event["jobId"], event["deduplicationId"]) == (owner, "d")
    ttl_ms = await client.pttl(f"{prefix}:q:de:d")
    assert (ttl_ms > 60_000) if mode else (ttl_ms == -1)


async def test_item_28_the_newer_one_replaces_the_delayed_one_of_the_other(
    sides, peer, client, prefix
):
    first, second = sides
    old = await first.add("q", "a", {}, delay=FAR, **options_for(first, peer, id="d", replace=True))

    new = await second.add(
        "q", "b", {}, delay=FAR, **options_for(second, peer, id="d", replace=True)
    )

    assert new != old
    assert await client.zrange(f"{prefix}:q:delayed", 0, -1) == [new]
    assert await client.get(f"{prefix}:q:de:d") == new
    (event,) = await events_of(client, prefix, "q", "deduplicated")
    assert (event["jobId"], event["deduplicatedJobId"]) == (new, old)


@pytest.mark.parametrize("runner", ["bullmq", "toril"])
async def test_item_28_the_last_one_runs_after_the_active_one(
    runner, sides, peer, toril, client, prefix
):
    first, second = sides
    keep = {"id": "d", "keep_last_if_active": True}
    owner = await first.add("q", "hang", {"n": 1}, **options_for(first, peer, **keep))
    behaviours = {"hang": [["hang"]]}
    if runner == "toril":
        running = await toril.start_worker("q", behaviours)
    else:
        await peer.work("q", behaviours)
    await wait_for_state(client, prefix, "q", owner, "active")

    assert await second.add("q", "b", {"n": 2}, **options_for(second, peer, **keep)) == owner
    assert await first.add("q", "c", {"n": 3}, **options_for(first, peer, **keep)) == owner
    if runner == "toril":
        await wait_until(lambda: owner in running.handler.holding)
        running.handler.release()
    else:
        await peer.call("worker.release", jobId=owner)
    await wait_for_finished(client, prefix, "q", 2)

    last = (await client.zrange(f"{prefix}:q:completed", 1, 1))[0]
    assert await client.hget(f"{prefix}:q:{last}", "data") == '{"n":3}'
    assert not await client.exists(f"{prefix}:q:de:d", f"{prefix}:q:dn:d")


async def test_item_28_removing_the_owner_frees_the_id(sides, peer, client, prefix):
    first, second = sides
    owner = await first.add("q", "a", {}, delay=FAR, **options_for(first, peer, id="d"))

    await peer.call("job.remove", queue="q", jobId=owner)

    assert await second.add("q", "b", {}, **options_for(second, peer, id="d")) != owner
