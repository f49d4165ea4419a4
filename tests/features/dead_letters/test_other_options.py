"""Letters that go back with other options than their jobs had."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.features.dead_letters.conftest import DLQ
from tests.features.dead_letters.forging import forge
from toril import Backoff
from toril.errors import InvalidOptionError, UnknownOptionError
from toril.options import OPTION_NAMES, REPLAY_OPTION_NAMES
from toril.sync import Queue as BlockingQueue


async def test_a_letter_goes_back_with_other_options(side):
    (letter_id,) = await side.bury("a", attempts=2, backoff=10, priority=3, remove_on_complete=7)

    new_id = await side.dlq.replay_dead_letter(
        letter_id, attempts=5, backoff=Backoff.exponential(1000), timeout=2000, delay=60_000
    )

    job = await side.orders.get_job(new_id)
    assert await side.orders.get_state(new_id) == "delayed"
    assert (job.opts.attempts, job.opts.timeout, job.opts.backoff) == (
        5,
        2000,
        Backoff.exponential(1000),
    )
    stored = await side.hash(new_id)
    assert (stored["delay"], stored["priority"]) == ("60000", "3")
    assert json.loads(stored["opts"])["removeOnComplete"] == 7
    assert json.loads(stored["opts"])["idempotencyKey"], "that of the first life"
    assert stored["data"] == '{"n":0}'


async def test_all_go_back_with_other_options_changed_and_foreign_ones_too(side):
    ids = await side.bury("a", "b", "c", attempts=1)
    changed, foreign = f"{side.prefix}:{DLQ}:{ids[0]}", f"{side.prefix}:{DLQ}:{ids[1]}"
    text = await side.client.hget(changed, "data")
    await side.client.hset(changed, "data", text.replace('"n":0', '"n":  0'))
    await side.client.hdel(foreign, "x.letter")

    done = await side.dlq.replay_all_dead_letters(attempts=4, priority=2)

    assert done == 3
    found = await side.client.zrange(f"{side.prefix}:orders:prioritized", 0, -1)
    jobs = [await side.orders.get_job(job_id) for job_id in found]
    assert {job.name: (job.opts.attempts, job.priority) for job in jobs} == dict.fromkeys(
        "abc", (4, 2)
    )


async def test_the_data_go_back_byte_for_byte_with_other_options(side):
    await side.orders.add("a", {"n": 0})
    (job_id,) = await side.client.lrange(f"{side.prefix}:orders:wait", 0, -1)
    odd = '{"n": 1.00, "big": 123456789012345678901234567890}'
    await side.client.hset(f"{side.prefix}:orders:{job_id}", "data", odd)
    async with side.failing():
        await side.letters(1)
    (letter_id,) = await side.client.lrange(f"{side.prefix}:{DLQ}:wait", 0, -1)

    new_id = await side.dlq.replay_dead_letter(letter_id, attempts=3, lifo=True)

    assert (await side.hash(new_id))["data"] == odd


async def test_a_lane_is_given_or_kept(side):
    first, second = await side.bury("a", "b", lane="ana", attempts=1)
    (plain,) = await side.bury("c", priority=4)

    with pytest.raises(InvalidOptionError, match="lane 'ana'"):
        await side.dlq.replay_dead_letter(first, priority=1)
    kept = await side.dlq.replay_dead_letter(first, attempts=9)
    moved = await side.dlq.replay_dead_letter(second, lane="bob")
    given = await side.dlq.replay_dead_letter(plain, lane="bob", order_ms=1)

    assert [job.id for job in await side.orders.get_lane_jobs("ana")] == [kept]
    assert [job.id for job in await side.orders.get_lane_jobs("bob")] == [given, moved]
    assert (await side.orders.get_job(given)).priority == 0
    assert (await side.orders.get_job(kept)).opts.lane == "ana"


async def test_a_bulk_that_goes_against_a_lane_stops_with_words_and_loses_nothing(side):
    await side.bury("a", lane="ana", attempts=1)
    await side.bury("b")

    with pytest.raises(InvalidOptionError, match="lane 'ana'"):
        await side.dlq.replay_all_dead_letters(priority=1)
    await side.dlq.replay_all_dead_letters(attempts=2, resume=True)

    assert await side.dlq.get_dead_letter_count() == 0
    assert len(await side.orders.get_jobs(["waiting", "prioritized"])) == 2


async def test_the_idempotency_key_is_changed_for_one_letter_only(side):
    (letter_id,) = await side.bury("a", idempotency_key="first")

    with pytest.raises(InvalidOptionError, match="count as one"):
        await side.dlq.replay_all_dead_letters(idempotency_key="second")
    new_id = await side.dlq.replay_dead_letter(letter_id, idempotency_key="second")

    assert (await side.orders.get_job(new_id)).opts.idempotency_key == "second"


@pytest.mark.parametrize("option", sorted(OPTION_NAMES - REPLAY_OPTION_NAMES))
async def test_what_a_replay_cannot_change_is_refused(side, option):
    if option != "job_id":  # the one that says which letter is meant
        with pytest.raises(InvalidOptionError, match=f"cannot change '{option}'"):
            await side.dlq.replay_dead_letter("1", **{option: 1})
    with pytest.raises(InvalidOptionError, match=f"cannot change '{option}'"):
        await side.dlq.replay_all_dead_letters(**{option: 1})


async def test_options_are_checked_as_those_of_a_new_job(side):
    await forge(side.client, side.prefix, DLQ, 1)

    for options, words in (
        ({"attempts": -1}, "attempts"),
        ({"priority": 2**21}, "priority"),
        ({"delay": 5, "run_at": 5}, "both delay and run_at"),
        ({"delay": 5, "keep_delay": True}, "keep_delay"),
        ({"lane": "a", "priority": 1}, "lane"),
        ({"order_ms": 5}, "no lane"),
        ({"backoff": {"delay": 3}}, "backoff"),
    ):
        with pytest.raises(InvalidOptionError, match=words):
            await side.dlq.replay_dead_letter("1", **options)
        with pytest.raises(InvalidOptionError, match=words):
            await side.dlq.replay_all_dead_letters(**options, dry_run=True)
    with pytest.raises(UnknownOptionError, match="did you mean 'attempts'"):
        await side.dlq.replay_all_dead_letters(atempts=3)
    with pytest.raises(UnknownOptionError, match="did you mean 'failed_reason'"):
        await side.dlq.replay_all_dead_letters(faild_reason="x")
    assert await side.dlq.get_dead_letter_count() == 1


async def test_a_letter_that_dies_again_has_each_option_once(side):
    (letter_id,) = await side.bury("a", attempts=1)
    await side.dlq.replay_dead_letter(letter_id, attempts=2, backoff=1)
    async with side.failing():
        await side.letters(1)

    (letter,) = await side.dlq.get_dead_letter_jobs()
    assert letter.dead_letter.attempts_made == 2
    new_id = await side.dlq.replay_dead_letter(letter.id)
    assert (await side.hash(new_id))["opts"].count('"attempts"') == 1
    assert (await side.orders.get_job(new_id)).opts.attempts == 2


async def test_the_blocking_queue_changes_options_too(side):
    await forge(side.client, side.prefix, DLQ, 2)

    def act() -> None:
        with BlockingQueue(DLQ, connection=side.url, prefix=side.prefix) as dlq:
            dlq.replay_dead_letter("1", delay=60_000)
            assert dlq.replay_all_dead_letters(delay=60_000, transform=lambda data, _: data) == 1

    await asyncio.to_thread(act)

    assert await side.orders.get_delayed_count() == 2
