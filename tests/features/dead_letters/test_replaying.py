"""Sending one dead letter back (DLQ-21, DLQ-22, DLQ-29; C-16, C-17)."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.features.dead_letters.conftest import DLQ
from tests.helpers import wait_until
from toril import Backoff, Deduplication, Queue, Worker
from toril.errors import (
    DeadLetterNotFoundError,
    DeadLetterSourceError,
    JobLockedError,
    TooManyReplaysError,
)


async def test_a_replay_is_a_new_job_with_the_old_data_and_options(side):
    """DLQ-21."""
    first = await side.orders.add(
        "charge", {"order": 7, "tags": []}, attempts=2, backoff=Backoff.exponential(1)
    )
    async with side.failing():
        await side.letters(1)

    new_id = await side.dlq.replay_dead_letter("1")

    job = await side.orders.get_job(new_id)
    assert new_id not in (first.id, "1")
    assert await side.orders.get_state(new_id) == "waiting"
    assert (job.name, job.data) == ("charge", {"order": 7, "tags": []})
    assert (job.attempts_made, job.attempts_started, job.stacktrace) == (0, 0, [])
    assert job.opts.attempts == 2
    assert job.opts.backoff == Backoff.exponential(1)
    assert await side.dlq.get_dead_letter_count() == 0
    assert await side.hash("1", DLQ) == {}


async def test_both_streams_tell_of_a_replay(side):
    """DLQ-21."""
    await side.bury("charge")

    new_id = await side.dlq.replay_dead_letter("1")

    told = [(event["event"], event.get("jobId")) for event in await side.events()]
    assert told[-2:] == [("added", new_id), ("waiting", new_id)]
    assert (await side.events(DLQ))[-1] == {
        "event": "removed",
        "jobId": "1",
        "prev": "waiting",
        "queue": "orders",
        "replayedAs": new_id,
    }


async def test_a_replayed_job_runs(side):
    """DLQ-21: the source's marker is set, and a worker takes it."""
    await side.bury("charge")
    seen = []

    async def handle(job):
        seen.append(job.data)

    async with side.worker(handle) as worker:
        await wait_until(lambda: worker.last_reply_age is not None)
        await side.dlq.replay_dead_letter("1")
        await wait_until(lambda: seen == [{"n": 0}])


async def test_an_unknown_id_is_an_error(side):
    """DLQ-22."""
    with pytest.raises(DeadLetterNotFoundError, match="nonexistent"):
        await side.dlq.replay_dead_letter("nonexistent")


async def test_a_job_that_does_not_say_whence_it_came_is_an_error(side):
    """DLQ-22."""
    plain = await side.dlq.add("x", {"n": 1})
    strange = await side.dlq.add("x", {"_dlqMeta": {"sourceQueue": "a:b:c"}})
    empty = await side.dlq.add("x", {"_dlqMeta": {"failedReason": "?"}})

    for job in (plain, strange, empty):
        with pytest.raises(DeadLetterSourceError, match="sourceQueue"):
            await side.dlq.replay_dead_letter(job.id)

    assert await side.dlq.get_dead_letter_count() == 3


async def test_priority_is_kept_and_the_delay_is_dropped(side):
    """C-16."""
    await side.orders.add("charge", {"n": 1}, priority=5, delay=1)
    async with side.failing():
        await side.letters(1)

    new_id = await side.dlq.replay_dead_letter("1")

    job = await side.orders.get_job(new_id)
    assert await side.orders.get_state(new_id) == "prioritized"
    assert (job.priority, job.opts.priority, job.delay, job.opts.delay) == (5, 5, 0, 0)


async def test_the_delay_is_kept_on_request(side):
    """C-16: keep_delay."""
    await side.orders.add("charge", {"n": 1}, delay=60_000)
    key = f"{side.prefix}:orders"
    (waiting,) = await side.client.zrange(f"{key}:delayed", 0, -1)
    await side.client.zadd(f"{key}:delayed", {waiting: 1})
    async with side.failing():
        await side.letters(1)

    new_id = await side.dlq.replay_dead_letter("1", keep_delay=True)

    assert await side.orders.get_state(new_id) == "delayed"
    assert (await side.orders.get_job(new_id)).delay == 60_000
    assert "1" in await side.client.zrange(f"{key}:marker", 0, -1)


async def test_what_tied_the_first_job_to_others_is_stripped(side):
    """C-16: jobId, deduplication, parent, repeat and group do not come back."""
    await side.orders.add(
        "charge", {"n": 1}, job_id="first", deduplication=Deduplication("one"), attempts=1
    )
    key = f"{side.prefix}:orders:first"
    opts = json.loads(await side.client.hget(key, "opts"))
    opts |= {"repeat": {"every": 5}, "group": {"id": "g"}, "parent": {"id": "p"}, "lane": "user-1"}
    await side.client.hset(key, mapping={"opts": json.dumps(opts), "rjk": "s1"})
    async with side.failing():
        await side.letters(1)

    new_id = await side.dlq.replay_dead_letter("1")

    job = await side.orders.get_job(new_id)
    assert set(job.opts.raw) == {"attempts", "lane", "idempotencyKey"}
    assert (job.deduplication_id, job.parent_key, job.scheduler_id) == (None, None, None)


async def test_the_idempotency_key_is_that_of_the_first_life(side):
    """A provider that saw the first attempt recognises the replay, however often it comes back."""
    first = await side.orders.add("charge", {"n": 1})
    chosen = await side.orders.add("charge", {"n": 2}, idempotency_key="order-2")
    keys = {first.id: first.idempotency_key, chosen.id: "order-2"}
    for _ in range(3):
        async with side.failing():
            await side.letters(2)
        for letter in await side.dlq.get_dead_letter_jobs(newest_first=False):
            original = letter.dead_letter.original_job_id
            new_id = await side.dlq.replay_dead_letter(letter.id)
            keys[new_id] = keys.pop(original)
            assert (await side.orders.get_job(new_id)).idempotency_key == keys[new_id]


async def test_a_dead_letter_has_the_key_of_the_job_that_it_was(side):
    """Whoever does the work of a letter is known by the key that the first attempts had."""
    first = await side.orders.add("charge", {"n": 1})
    chosen = await side.orders.add("charge", {"n": 2}, idempotency_key="order-2")
    async with side.failing():
        await side.letters(2)

    letters = await side.dlq.get_dead_letter_jobs(oldest_first=True)
    assert [one.idempotency_key for one in letters] == [first.idempotency_key, "order-2"]
    assert chosen.idempotency_key == "order-2"
    ran = []

    async def handle(job):
        ran.append(job.idempotency_key)

    async with Worker(DLQ, handle, connection=side.url, prefix=side.prefix):
        await wait_until(lambda: len(ran) == 2)
    assert sorted(ran) == sorted([first.idempotency_key, "order-2"])


async def test_data_alone_makes_nobody_a_dead_letter_with_another_key(side):
    """The data may come from anywhere: they must not pass for work that was done."""
    meta = {"sourceQueue": "orders", "originalJobId": "victim", "originalTimestamp": 1}

    job = await side.orders.add("charge", {"_dlqMeta": meta})

    assert job.idempotency_key == f"orders:{job.id}:{job.timestamp}"


@pytest.mark.parametrize("job_id", ["plain", 'quo"ted\\', "é-1", '","originalTimestamp"'])
async def test_keys_and_histories_know_any_id(job_id, side):
    """They are read in the metadata, where ids are written as JSON has them."""
    first = await side.orders.add("charge", {"n": 1}, job_id=job_id)
    async with side.failing():
        await side.letters(1)

    new_id = await side.dlq.replay_dead_letter("1")

    assert (await side.orders.get_job(new_id)).idempotency_key == first.idempotency_key
    (replay,) = json.loads(f"[{(await side.hash(new_id))['x.history']}]")
    assert replay["originalJobId"] == job_id


@pytest.mark.parametrize("repair", [{}, {"data": {"n": 5}}], ids=["as it is", "repaired"])
async def test_a_letter_that_somebody_changed_keeps_its_key(repair, side):
    first = await side.orders.add("charge", {"n": 1})
    async with side.failing():
        await side.letters(1)
    key = f"{side.prefix}:{DLQ}:1"
    data = json.loads(await side.client.hget(key, "data"))
    await side.client.hset(key, "data", json.dumps({**data, "more": 1}))

    new_id = await side.dlq.replay_dead_letter("1", **repair)

    job = await side.orders.get_job(new_id)
    assert job.idempotency_key == first.idempotency_key
    assert job.data == repair.get("data", {"n": 1, "more": 1})
    (replay,) = json.loads(f"[{(await side.hash(new_id))['x.history']}]")
    assert replay["originalJobId"] == first.id


async def test_a_replayed_job_is_in_its_lane_again(side):
    """C-16: and in its old place there, before what came later."""
    await side.orders.add("charge", {"n": 1}, lane="user 42", order_ms=5, attempts=1)
    async with side.failing():
        await side.letters(1)
    later = await side.orders.add("charge", {"n": 2}, lane="user 42", order_ms=9, attempts=1)
    ran = []

    async def handle(job):
        ran.append((job.lane, job.data["n"]))

    new_id = await side.dlq.replay_dead_letter("1")
    assert (await side.orders.get_job(new_id)).lane == "user 42"
    async with side.worker(handle, concurrency=5):
        await wait_until(lambda: len(ran) == 2)

    assert ran == [("user 42", 1), ("user 42", 2)]
    await wait_until(lambda: side.client.zscore(f"{side.prefix}:orders:completed", later.id))


async def test_lanes_are_released_when_their_job_goes_to_the_dead_letters(side):
    """DLQ-10: the next job of the lane gets its turn in the same call."""
    for number in range(4):
        await side.orders.add("charge", {"n": number}, lane="a", attempts=1)

    async with side.failing(concurrency=5):
        await side.letters(4)

    jobs = await side.dlq.get_dead_letter_jobs(newest_first=False)
    assert [job.data["n"] for job in jobs] == [0, 1, 2, 3]
    assert await side.dlq.replay_all_dead_letters() == 4
    async with side.failing(concurrency=5):
        await side.letters(4)
    jobs = await side.dlq.get_dead_letter_jobs(newest_first=False)
    assert [job.data["n"] for job in jobs] == [0, 1, 2, 3]


async def test_of_two_operators_one_replays_and_the_other_is_told(side, url, prefix):
    """DLQ-29: one new job, one clear error."""
    ids = await side.bury(*["charge"] * 20)
    other = Queue(DLQ, connection=url, prefix=prefix)

    for letter_id in ids:
        results = await asyncio.gather(
            side.dlq.replay_dead_letter(letter_id),
            other.replay_dead_letter(letter_id),
            return_exceptions=True,
        )
        refused = [result for result in results if isinstance(result, DeadLetterNotFoundError)]
        assert len(refused) == 1
        assert "replayed or purged" in str(refused[0])

    assert await side.client.llen(f"{prefix}:orders:wait") == 20
    await other.close()


async def test_a_letter_that_a_worker_holds_is_not_replayed(side):
    await side.bury("charge")
    release = asyncio.Event()

    async def hold(job):
        await release.wait()

    async with Worker(DLQ, hold, connection=side.url, prefix=side.prefix) as worker:
        await wait_until(lambda: worker.is_processing)
        with pytest.raises(JobLockedError, match="running"):
            await side.dlq.replay_dead_letter("1")
        release.set()
        await wait_until(lambda: not worker.is_processing)

    assert await side.client.llen(f"{side.prefix}:orders:wait") == 0


async def test_a_letter_that_its_own_worker_failed_can_be_replayed(side):
    """It is in the target's `failed`, and still knows whence it came."""
    await side.bury("charge")

    async def fail(job):
        raise ValueError("cannot repair this")

    async with Worker(DLQ, fail, connection=side.url, prefix=side.prefix):
        await wait_until(lambda: side.client.zscore(f"{side.prefix}:{DLQ}:failed", "1"))

    new_id = await side.dlq.replay_dead_letter("1")

    assert (await side.orders.get_job(new_id)).data == {"n": 0}
    assert await side.client.zcard(f"{side.prefix}:{DLQ}:failed") == 0


async def test_the_history_of_replays_is_kept_and_limits_them(side):
    """max_replays: a poison job cannot circle for ever."""
    await side.orders.add("poison", {"n": 1})
    for round_number in range(3):
        async with side.failing():
            await side.letters(1)
        (letter,) = await side.dlq.get_dead_letter_jobs()
        meta = letter.dead_letter
        assert meta.replays == len(meta.history) == round_number
        await side.dlq.replay_dead_letter(letter.id, by="ana", max_replays=3)
    async with side.failing():
        await side.letters(1)

    (letter,) = await side.dlq.get_dead_letter_jobs()
    with pytest.raises(TooManyReplaysError, match="max_replays"):
        await side.dlq.replay_dead_letter(letter.id, max_replays=3)

    history = letter.dead_letter.history
    assert [replay.dead_letter_job_id for replay in history] == ["1", "2", "3"]
    assert {replay.by for replay in history} == {"ana"}
    assert {replay.fingerprint for replay in history} == {letter.dead_letter.fingerprint}
    assert all(r.dead_lettered_at <= r.replayed_at for r in history)
    assert await side.dlq.replay_all_dead_letters(max_replays=3) == 0
    assert await side.dlq.replay_all_dead_letters(max_replays=3, dry_run=True) == 0
    assert await side.dlq.replay_all_dead_letters() == 1


async def test_a_payload_can_be_repaired_and_the_first_one_is_kept(side):
    """replay_dead_letter(data=…): who changed it, and what it was."""
    await side.orders.add("charge", {"amount": "12,50"})
    async with side.failing():
        await side.letters(1)

    new_id = await side.dlq.replay_dead_letter("1", data={"amount": 12.5}, by='ana "ops" \\ é')

    job = await side.orders.get_job(new_id)
    assert job.data == {"amount": 12.5}
    assert (await side.hash(new_id))["x.original"] == '{"amount":"12,50"}'
    async with side.failing():
        await side.letters(1)
    (letter,) = await side.dlq.get_dead_letter_jobs()
    assert letter.dead_letter.original_data == {"amount": "12,50"}
    assert letter.dead_letter.history[0].by == 'ana "ops" \\ é'
    assert letter.dead_letter.history[0].is_repaired
    again = await side.dlq.replay_dead_letter(letter.id, data=[1])
    assert (await side.orders.get_job(again)).data == [1]
    assert (await side.hash(again))["x.original"] == '{"amount":"12,50"}'


async def test_data_changed_among_the_dead_letters_are_replayed_as_changed(side):
    """The cut does not fit any more, so the client takes the letter apart."""
    await side.bury("charge")
    key = f"{side.prefix}:{DLQ}:1"
    data = json.loads(await side.client.hget(key, "data"))
    await side.client.hset(key, "data", json.dumps({**data, "n": 1000, "more": [1, {}]}))

    new_id = await side.dlq.replay_dead_letter("1")

    assert (await side.orders.get_job(new_id)).data == {"n": 1000, "more": [1, {}]}


async def test_metadata_changed_among_the_dead_letters_do_not_spoil_the_replay(side):
    """Somebody wrote a note into them, so the cut would be in the wrong place."""
    await side.bury("charge")
    key = f"{side.prefix}:{DLQ}:1"
    data = await side.client.hget(key, "data")
    noted = data.replace('"_dlqMeta":{', '"_dlqMeta":{"note":"ask the bank",', 1)
    await side.client.hset(key, "data", noted)

    new_id = await side.dlq.replay_dead_letter("1")

    assert (await side.orders.get_job(new_id)).data == {"n": 0}


async def test_a_letter_that_another_program_wrote_is_replayed(side):
    """The source's layout alone is enough: data with a _dlqMeta."""
    meta = {
        "sourceQueue": "orders",
        "originalJobId": "41",
        "failedReason": "ETIMEDOUT",
        "stacktrace": [],
        "attemptsMade": 3,
        "deadLetteredAt": 5,
        "originalTimestamp": 4,
        "originalOpts": {"attempts": 3, "priority": 2, "jobId": "41"},
    }
    letter = await side.dlq.add("charge", {"n": 1, "_dlqMeta": meta})

    new_id = await side.dlq.replay_dead_letter(letter.id)

    job = await side.orders.get_job(new_id)
    assert (job.name, job.data, job.priority) == ("charge", {"n": 1}, 2)
    assert job.opts.raw == {"attempts": 3, "priority": 2, "idempotencyKey": "orders:41:4"}
