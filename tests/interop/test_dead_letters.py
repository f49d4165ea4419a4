"""Dead letters among BullMQ's tools: a Node worker, Node listeners and bull-board see them."""

from __future__ import annotations

import pytest

from tests.helpers import wait_until
from tests.interop.support import NODE_PATIENT, events_of, wait_for_state
from tests.interop.test_dashboards import Board

BAD = {"*": [["fail", "it broke"]]}
DLQ = "q-dlq"


async def bury(toril, client, prefix, count=1, **options) -> list[str]:
    """Let jobs of queue q fail into q-dlq; their ids there, the oldest first."""
    running = await toril.start_worker("q", BAD, dead_letter_queue=DLQ)
    for number in range(count):
        await toril.add("q", "charge", {"n": number, "tags": []}, **options)

    async def all_there() -> bool:
        return await client.llen(f"{prefix}:{DLQ}:wait") == count

    await wait_until(all_there)
    await toril.stop_worker(running)
    return (await client.lrange(f"{prefix}:{DLQ}:wait", 0, -1))[::-1]


async def test_a_node_worker_consumes_the_dead_letters(peer, toril, client, prefix):
    """It sees the data unchanged and the metadata beside them."""
    (letter_id,) = await bury(toril, client, prefix, attempts=2)

    worker = await peer.work(DLQ)
    await wait_for_state(client, prefix, DLQ, letter_id, "completed")

    (seen,) = await peer.seen(worker)
    meta = seen["data"].pop("_dlqMeta")
    assert seen["name"] == "charge"
    assert seen["data"] == {"n": 0, "tags": []}
    assert (meta["sourceQueue"], meta["attemptsMade"]) == ("q", 2)
    assert "it broke" in meta["failedReason"]
    assert len(meta["stacktrace"]) == 2


async def test_a_node_worker_waiting_there_is_woken(peer, toril, client, prefix):
    """DLQ-12: the marker."""
    worker = await peer.work(DLQ, **NODE_PATIENT)
    await toril.start_worker("q", BAD, dead_letter_queue=DLQ)

    await toril.add("q", "charge", {"n": 1})

    async def seen() -> bool:
        return len(await peer.seen(worker)) == 1

    await wait_until(seen, 60)


async def test_node_jobs_become_dead_letters_and_come_back(peer, toril, client, prefix):
    """Added by BullMQ, failed by Toril, replayed, and run by BullMQ."""
    await peer.add("q", "charge", {"order": 7, "list": []}, attempts=1, priority=2)
    running = await toril.start_worker("q", BAD, dead_letter_queue=DLQ)

    async def there() -> bool:
        return await toril.queue(DLQ).get_dead_letter_count() == 1

    await wait_until(there)
    await toril.stop_worker(running)
    (letter,) = await toril.queue(DLQ).get_dead_letter_jobs()
    new_id = await toril.queue(DLQ).replay_dead_letter(letter.id)
    worker = await peer.work("q")
    await wait_for_state(client, prefix, "q", new_id, "completed")

    (seen,) = await peer.seen(worker)
    assert seen["data"] == {"order": 7, "list": []}
    job = await peer.job("q", new_id)
    assert (job["attemptsMade"], job["opts"]["priority"], job["returnvalue"]) == (
        1,
        2,
        {"order": 7, "list": []},
    )


async def test_node_listeners_hear_of_it(peer, toril, client, prefix):
    """DLQ-11: a custom event does not disturb a stock listener."""
    await peer.listen("q")
    (letter_id,) = await bury(toril, client, prefix)

    async def heard() -> dict[str, str] | None:
        found = [e for e in await peer.recorded("q") if e["event"] == "deadLettered"]
        return found[0] if found else None

    event = await wait_until(heard)
    told = {name: event[name] for name in ("queue", "deadLetterQueue", "deadLetterJobId")}
    assert told == {"queue": "q", "deadLetterQueue": DLQ, "deadLetterJobId": letter_id}
    (failed,) = await events_of(client, prefix, "q", "failed")
    assert failed["failedReason"] == event["failedReason"]


@pytest.fixture
async def board(peer) -> Board:
    return Board((await peer.call("board.start", names=["q", DLQ]))["port"])


async def test_bull_board_shows_the_dead_letters(board, toril, client, prefix):
    ids = await bury(toril, client, prefix, 3)

    queue = await board.queue(DLQ, "waiting")

    assert queue["counts"]["waiting"] == 3
    assert sorted(job["id"] for job in queue["jobs"]) == ids
    details = (await board.get(f"/queues/{DLQ}/{ids[0]}"))["job"]
    assert details["name"] == "charge"
    assert details["data"]["_dlqMeta"]["sourceQueue"] == "q"
    assert (await board.queue("q", "failed"))["counts"]["failed"] == 0


async def test_bull_board_cleans_a_dead_letter(board, toril, client, prefix):
    """DLQ-28: removal is that of any queue."""
    ids = await bury(toril, client, prefix, 2)

    await board.put(f"/queues/{DLQ}/{ids[0]}/clean")

    assert await toril.queue(DLQ).get_dead_letter_count() == 1
    assert await toril.queue(DLQ).peek_dead_letter(ids[0]) is None
    assert await toril.queue(DLQ).replay_all_dead_letters() == 1


async def test_a_letter_that_node_changed_is_replayed_as_changed(peer, toril, client, prefix):
    (letter_id,) = await bury(toril, client, prefix)
    data = (await peer.job(DLQ, letter_id))["data"]
    changed = {**data, "n": 99}
    await peer.call("job.updateData", queue=DLQ, jobId=letter_id, args=[changed])

    new_id = await toril.queue(DLQ).replay_dead_letter(letter_id)

    assert (await peer.job("q", new_id))["data"] == {"n": 99, "tags": []}


async def test_a_letter_that_node_gave_a_priority_is_still_a_letter(peer, toril, client, prefix):
    """bull-board has a button for it; the job goes to another place of the queue."""
    ids = await bury(toril, client, prefix, 4)
    for letter_id in ids[:2]:
        await peer.call(
            "job.changePriority", queue=DLQ, jobId=letter_id, args=[{"priority": 3, "lifo": False}]
        )
    assert await client.zcard(f"{prefix}:{DLQ}:prioritized") == 2
    dlq = toril.queue(DLQ)

    assert await dlq.get_dead_letter_count() == 4
    assert sorted(job.id for job in await dlq.get_dead_letter_jobs()) == sorted(ids)
    assert (await dlq.get_dead_letter_summary())[0].count == 4
    await dlq.replay_dead_letter(ids[0])
    assert await dlq.replay_all_dead_letters(dry_run=True) == 3
    assert await dlq.replay_all_dead_letters() == 3

    assert await client.llen(f"{prefix}:q:wait") == 4
    assert await dlq.get_dead_letter_count() == 0
