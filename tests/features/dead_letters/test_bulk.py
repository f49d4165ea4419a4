"""Many dead letters at once (DLQ-23 to DLQ-26, DLQ-29, DLQ-30)."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from tests.features.dead_letters.conftest import DLQ, refuse
from tests.features.dead_letters.forging import forge
from tests.helpers import wait_until
from tests.proving import amount
from toril import FlowJob, FlowProducer, Queue
from toril.errors import InvalidOptionError, UnknownOptionError
from toril.protocol import dead_letters, replaying
from toril.sync import Queue as BlockingQueue


async def say(side, *reasons: str, name: str = "charge") -> None:
    """Bury a job for each of these reasons."""
    before = await side.dlq.get_dead_letter_count()
    for reason in reasons:
        await side.orders.add(name, {"reason": reason})
    async with side.failing():
        await side.letters(before + len(reasons))


async def left(side) -> list[str]:
    """The reasons that are still there, the oldest first."""
    jobs = await side.dlq.get_dead_letter_jobs(0, -1, newest_first=False)
    return [job.dead_letter.failed_reason for job in jobs]


async def test_forged_letters_are_like_real_ones(side):
    """What the tests of many letters rest on."""
    await side.bury("charge")
    await forge(side.client, side.prefix, DLQ, 1)
    real, forged = [await side.hash(letter_id, DLQ) for letter_id in ("1", "2")]

    assert real.keys() == forged.keys()
    told = [list(json.loads(letter["data"])["_dlqMeta"]) for letter in (real, forged)]
    assert told[0] == told[1]
    for letter in (real, forged):
        size = json.loads(letter["x.letter"])["size"]
        data = letter["data"]
        assert json.loads(data[-1 - size : -1]) == json.loads(data)["_dlqMeta"]
        assert data[: -1 - size] + data[-1:] == '{"n":0,"_dlqMeta":}'
    notes = [json.loads(letter["x.letter"]) for letter in (real, forged)]
    assert notes[0].keys() == notes[1].keys()


async def test_all_are_replayed_each_to_its_own_source(side, url, prefix):
    """DLQ-23."""
    await side.bury("charge", "charge")
    refunds = Queue("refunds", connection=url, prefix=prefix)
    await refunds.add("refund", {"n": 3})
    async with side.worker(refuse, "refunds"):
        await side.letters(3)

    assert await side.dlq.replay_all_dead_letters() == 3

    assert await side.dlq.get_dead_letter_count() == 0
    assert (await side.orders.get_job_counts())["waiting"] == 2
    assert (await refunds.get_job_counts())["waiting"] == 1
    assert await side.dlq.replay_all_dead_letters() == 0
    await refunds.close()


async def test_the_oldest_come_back_first(side):
    await side.bury(*["charge"] * 5)

    await side.dlq.replay_all_dead_letters()

    waiting = await side.client.lrange(f"{side.prefix}:orders:wait", 0, -1)
    jobs = [await side.orders.get_job(job_id) for job_id in reversed(waiting)]
    assert [job.data["n"] for job in jobs] == [0, 1, 2, 3, 4]


async def test_the_filter_by_name_is_exact(side):
    """DLQ-24."""
    await side.bury("send-email", "charge-card", "send-email", "send-email-now")

    assert await side.dlq.replay_all_dead_letters(name="send-email") == 2

    jobs = await side.dlq.get_dead_letter_jobs(0, -1)
    assert sorted(job.name for job in jobs) == ["charge-card", "send-email-now"]


async def test_the_filter_by_reason_is_any_part_whatever_the_case(side):
    """DLQ-24."""
    reasons = ["ETIMEDOUT", "ECONNREFUSED", "was etimedout again", "Überlauf in STRASSE"]
    await say(side, *reasons)

    assert await side.dlq.replay_all_dead_letters(failed_reason="etimedOUT") == 2
    assert await left(side) == ["ECONNREFUSED", "Überlauf in STRASSE"]
    assert await side.dlq.replay_all_dead_letters(failed_reason="ÜBERLAUF IN straße") == 1
    assert await side.dlq.replay_all_dead_letters(failed_reason=".*") == 0
    assert await left(side) == ["ECONNREFUSED"]


async def test_filters_must_all_hold(side):
    """DLQ-24."""
    await say(side, "timeout", name="a")
    await say(side, "timeout", "refused", name="b")

    assert await side.dlq.replay_all_dead_letters(name="b", failed_reason="time") == 1

    jobs = await side.dlq.get_dead_letter_jobs(0, -1, newest_first=False)
    assert [(job.name, job.dead_letter.failed_reason) for job in jobs] == [
        ("a", "timeout"),
        ("b", "refused"),
    ]


async def test_purging_removes_all_or_what_the_filter_names(side):
    """DLQ-25, DLQ-26."""
    await side.bury("send-email", "charge-card", "send-email", "charge-card", "other")

    assert await side.dlq.purge_dead_letters(name="send-email") == 2
    assert await side.dlq.purge_dead_letters(name="charge-card", failed_reason="REFUSED") == 2
    assert await side.dlq.get_dead_letter_count() == 1
    assert await side.dlq.purge_dead_letters() == 1
    assert await side.dlq.purge_dead_letters() == 0
    keys = [key async for key in side.client.scan_iter(match=f"{side.prefix}:{DLQ}:[0-9]*")]
    assert keys == []


async def test_filters_by_fingerprint_source_and_time(side, url, prefix):
    async def other_trouble(job):
        raise KeyError("amount")

    await side.bury("charge")
    await side.bury("charge", handler=other_trouble)
    refunds = Queue("refunds", connection=url, prefix=prefix)
    await refunds.add("refund", {})
    async with side.worker(refuse, "refunds"):
        await side.letters(3)
    first, second, _third = await side.dlq.get_dead_letter_jobs(0, -1, newest_first=False)
    split = second.dead_letter.dead_lettered_at
    count = side.dlq.replay_all_dead_letters

    assert await count(dry_run=True, fingerprint=first.dead_letter.fingerprint) == 2
    assert await count(dry_run=True, source_queue="refunds") == 1
    assert await count(dry_run=True, since=split, until=split + 1) == 1
    assert await count(dry_run=True, until=datetime.fromtimestamp(split / 1000, UTC)) == 1
    assert await count(dry_run=True, since=split) == 2
    assert await count(fingerprint=second.dead_letter.fingerprint, source_queue="orders") == 1
    assert second.dead_letter.fingerprint.startswith("KeyError@test_bulk.py:")
    await refunds.close()


async def without_fingerprints(client, prefix: str, queue: str) -> None:
    """Four letters: one with a fingerprint, one whose note has none, two of another program."""
    await forge(client, prefix, queue, 2, names=("known", "noted"))
    note = json.loads(await client.hget(f"{prefix}:{queue}:2", "x.letter"))
    del note["fp"]
    await client.hset(f"{prefix}:{queue}:2", "x.letter", json.dumps(note))
    meta = {"sourceQueue": "orders", "originalJobId": "1", "failedReason": "no"}
    for letter_id, more in (("3", {}), ("4", {"fingerprint": "theirs"})):
        data = json.dumps({"_dlqMeta": {**meta, **more}})
        fields = {"name": f"stranger-{letter_id}", "data": data, "timestamp": 1, "opts": "{}"}
        await client.hset(f"{prefix}:{queue}:{letter_id}", mapping=fields)
        await client.lpush(f"{prefix}:{queue}:wait", letter_id)


@pytest.mark.parametrize("verb", ["purge_dead_letters", "replay_all_dead_letters"])
async def test_letters_without_a_fingerprint_are_a_group_of_their_own(verb, side):
    """One whose note has none ended the summary with an error of the script."""
    await without_fingerprints(side.client, side.prefix, DLQ)

    counted = {group.fingerprint: group.count for group in await side.dlq.get_dead_letter_summary()}
    assert counted == {"ConnectionError@bank.py:call": 1, "": 2, "theirs": 1}
    (only,) = await side.dlq.get_dead_letter_summary(fingerprint="")
    assert only.count == 2
    assert await getattr(side.dlq, verb)(fingerprint="", dry_run=True) == 2
    assert await getattr(side.dlq, verb)(fingerprint="") == 2

    jobs = await side.dlq.get_dead_letter_jobs(0, -1, newest_first=False)
    assert [job.name for job in jobs] == ["known", "stranger-4"]


async def test_letters_without_a_fingerprint_are_found_in_every_partition(client, url, prefix):
    async with Queue("many-dlq", connection=url, prefix=prefix, partitions=2) as dlq:
        await dlq.resume()  # so that the server knows how many partitions there are
        for part in dlq.partitions:
            await without_fingerprints(client, prefix, part.name)
        (group,) = await dlq.get_dead_letter_summary(fingerprint="")
        assert group.count == 4

    def purge() -> list[int]:
        with BlockingQueue("many-dlq", connection=url, prefix=prefix, partitions=2) as dlq:
            with pytest.raises(InvalidOptionError, match="failed_reason"):
                dlq.purge_dead_letters(failed_reason="")
            return [dlq.purge_dead_letters(fingerprint=""), dlq.get_dead_letter_count()]

    assert await asyncio.to_thread(purge) == [4, 4]


@pytest.mark.parametrize("option", ["name", "failed_reason", "source_queue"])
async def test_an_empty_filter_changes_nothing(option, side):
    """It was that of a variable that was not set, and an empty reason chose all letters."""
    await forge(side.client, side.prefix, DLQ, 3)
    dlq = side.dlq

    for call in (
        dlq.purge_dead_letters,
        dlq.replay_all_dead_letters,
        dlq.get_dead_letter_summary,
        dlq.dead_letters.purge,
    ):
        with pytest.raises(InvalidOptionError, match=f"{option}='' is empty"):
            await call(**{option: ""})

    assert await dlq.get_dead_letter_count() == 3


async def test_a_run_that_began_with_an_empty_filter_is_resumed(side, monkeypatch):
    """Versions before took an empty text, and remember it with their runs."""
    await forge(side.client, side.prefix, DLQ, 4)
    monkeypatch.setattr(dead_letters, "PURGES_PER_SLICE", 1)
    wanted = dead_letters.Filter(failed_reason="")
    run = dead_letters.Run("purge", "before", wanted)
    command = dead_letters.purge_slice(side.dlq.keys, dead_letters.Walk(), wanted, run=run)
    await side.dlq._connection.run(command)
    assert await side.dlq.get_dead_letter_count() == 3

    assert await side.dlq.purge_dead_letters(resume="before") == 4

    assert await side.dlq.get_dead_letter_count() == 0


async def test_the_summary_groups_by_fingerprint(side):
    async def other_trouble(job):
        raise KeyError("amount")

    await side.bury(*["charge"] * 3)
    await side.bury("refund", handler=other_trouble)

    refused, missing = await side.dlq.get_dead_letter_summary()

    assert (refused.count, missing.count) == (3, 1)
    assert refused.fingerprint == "ConnectionError@conftest.py:refuse"
    assert refused.first_seen <= refused.last_seen <= missing.first_seen
    assert refused.example_id == "3"
    assert missing.example.name == "refund"
    (only,) = await side.dlq.get_dead_letter_summary(name="refund")
    assert only.count == 1


async def test_a_dry_run_changes_nothing(side):
    await side.bury("a", "b", "b")

    assert await side.dlq.replay_all_dead_letters(dry_run=True) == 3
    assert await side.dlq.replay_all_dead_letters(name="b", dry_run=True) == 2
    assert await side.dlq.purge_dead_letters(dry_run=True) == 3
    assert await side.dlq.purge_dead_letters(name="b", dry_run=True) == 2

    assert await side.dlq.get_dead_letter_count() == 3
    assert (await side.orders.get_job_counts())["waiting"] == 0


async def test_a_paced_replay_takes_its_time_and_tells_how_far_it_is(side):
    """rate=, progress=: 30 jobs at 100 per second are not sent at once."""
    await side.bury(*["charge"] * 30)
    loop = asyncio.get_running_loop()
    seen = []

    async def progress(now):
        seen.append(now)

    began = loop.time()
    assert await side.dlq.replay_all_dead_letters(rate=100, on_progress=progress) == 30

    assert loop.time() - began >= 0.19
    done = [now.done for now in seen]
    assert done == sorted(done)
    assert done[-1] == 30
    assert max(b - a for a, b in pairwise(done)) <= 10
    assert seen[0].left == 20


async def test_options_that_cannot_be_are_refused(side):
    with pytest.raises(UnknownOptionError, match="failed_reason"):
        await side.dlq.replay_all_dead_letters(failedReason="x")
    with pytest.raises(InvalidOptionError, match="rate"):
        await side.dlq.replay_all_dead_letters(rate=0)
    with pytest.raises(InvalidOptionError, match="name"):
        await side.dlq.purge_dead_letters(name=7)
    with pytest.raises(InvalidOptionError, match="time zone"):
        await side.dlq.purge_dead_letters(since=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidOptionError, match="max_replays"):
        await side.dlq.replay_all_dead_letters(max_replays=-1)


async def test_jobs_that_fail_again_meanwhile_do_not_circle(side):
    """A worker fails what comes back at once: one pass replays each letter once."""
    await forge(side.client, side.prefix, DLQ, 500)

    async with side.failing(concurrency=20) as worker:

        async def until_all_are_back(now):
            assert now.done <= 500
            await wait_until(lambda: worker.dead_lettered >= now.done)

        assert await side.dlq.replay_all_dead_letters(on_progress=until_all_are_back) == 500
        await side.letters(500)

    jobs = await side.dlq.get_dead_letter_jobs(0, -1)
    assert {job.dead_letter.replays for job in jobs} == {1}


async def test_letters_of_another_program_are_filtered_by_their_data(side):
    meta = {"sourceQueue": "orders", "originalOpts": {"attempts": 2}}
    for reason in ("ETIMEDOUT", "other", "etimedout"):
        await side.dlq.add("charge", {"r": reason, "_dlqMeta": {**meta, "failedReason": reason}})
    await side.dlq.add("charge", {"no": "letter"})
    await side.bury("charge")

    assert await side.dlq.purge_dead_letters(failed_reason="other", dry_run=True) == 1
    assert await side.dlq.purge_dead_letters(failed_reason="other") == 1
    assert await side.dlq.replay_all_dead_letters(failed_reason="etimedout", dry_run=True) == 2
    assert await side.dlq.replay_all_dead_letters(failed_reason="etimedout") == 2
    assert await side.dlq.replay_all_dead_letters() == 1

    (stranger,) = await side.dlq.get_dead_letter_jobs(0, -1)
    assert stranger.data == {"no": "letter"}
    assert (await side.orders.get_job_counts())["waiting"] == 3


async def test_purging_a_child_lets_its_parent_go(side, url, prefix):
    """DLQ-20: what is purged may be any job, with the ties that any job has."""
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        node = await flow.add(
            FlowJob(
                "parent", queue_name="parents", children=[FlowJob("child", queue_name="orders")]
            )
        )

    assert await side.orders.purge_dead_letters(force=True) == 1

    waiting = await side.client.lrange(f"{prefix}:parents:wait", 0, -1)
    assert waiting == [node.job.id]


async def test_a_changed_letter_in_a_bulk_is_taken_apart(side):
    await side.bury("charge", "charge", "charge")
    key = f"{side.prefix}:{DLQ}:2"
    changed = (await side.client.hget(key, "data")).replace('"n":1', '"n":1111')
    await side.client.hset(key, "data", changed)

    assert await side.dlq.replay_all_dead_letters() == 3

    waiting = await side.client.lrange(f"{side.prefix}:orders:wait", 0, -1)
    jobs = [await side.orders.get_job(job_id) for job_id in waiting]
    assert sorted(job.data["n"] for job in jobs) == [0, 2, 1111]


async def test_what_waits_in_a_queue_that_bullmq_5_paused_is_found(side):
    """It keeps waiting jobs in another list."""
    await side.bury("a", "b")
    base = f"{side.prefix}:{DLQ}"
    await side.client.rename(f"{base}:wait", f"{base}:paused")
    await side.client.hset(f"{base}:meta", mapping={"paused": 1, "version": "bullmq:5.81.0"})

    assert await side.dlq.get_dead_letter_count() == 2
    assert [job.name for job in await side.dlq.get_dead_letter_jobs(0, 9)] == ["b", "a"]
    assert await side.dlq.replay_all_dead_letters(name="a") == 1
    assert await side.dlq.purge_dead_letters() == 1


async def test_others_may_take_letters_out_while_a_bulk_walks(side, monkeypatch):
    """The place is found again by the last letter that was left there."""
    await forge(side.client, side.prefix, DLQ, 300, names=("keep", "send"))
    monkeypatch.setattr(dead_letters, "LETTERS_PER_LOOK", 20)
    wait = f"{side.prefix}:{DLQ}:wait"

    async def meddle(now):
        for letter_id in await side.client.rpop(wait, 3) or []:
            await side.client.delete(f"{side.prefix}:{DLQ}:{letter_id}")
        middle = await side.client.lindex(wait, 10)
        if middle:
            await side.client.lrem(wait, 1, middle)
            await side.client.delete(f"{side.prefix}:{DLQ}:{middle}")

    await side.dlq.purge_dead_letters(name="send", on_progress=meddle)

    jobs = await side.dlq.get_dead_letter_jobs(0, -1)
    assert {job.name for job in jobs} <= {"keep"}


async def test_the_blocking_queue_has_the_same_methods(side, url, prefix):
    await side.bury("a", "a", "b")

    def operate() -> None:
        with BlockingQueue(DLQ, connection=url, prefix=prefix) as dlq:
            told = []
            assert dlq.get_dead_letter_count() == 3
            assert [job.name for job in dlq.get_dead_letter_jobs(0, 9)] == ["b", "a", "a"]
            assert dlq.get_dead_letter_summary()[0].count == 3
            assert isinstance(dlq.replay_dead_letter("1"), str)
            assert dlq.replay_all_dead_letters(name="a", rate=1000, on_progress=told.append) == 1
            assert told[-1].done == 1
            assert dlq.purge_dead_letters() == 1

    await asyncio.to_thread(operate)


async def test_a_slice_asked_for_again_is_answered_as_before(side):
    """A lost reply: the second sending does nothing and says the same."""
    await side.bury(*["charge"] * 4)
    wanted = dead_letters.Filter()
    run = dead_letters.Run("replay", "r", wanted)
    command = replaying.replay_slice(
        side.dlq.keys, dead_letters.Walk(), wanted, ["new-1", "new-2"], run=run
    )

    first = await side.dlq._connection.run(command)
    second = await side.dlq._connection.run(command)

    assert first == second
    assert first.count == 2
    assert (await side.orders.get_job_counts())["waiting"] == 2


BULK = """
import asyncio, sys
from toril import FlowJob, FlowProducer, Queue

async def main(url, prefix):
    async with Queue("orders-dlq", connection=url, prefix=prefix) as dlq:
        print("begin", flush=True)
        await dlq.replay_all_dead_letters(name="send", rate=200)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_kill_9_in_the_middle_of_a_bulk_replay_loses_and_doubles_nothing(side, url, prefix):
    """DLQ-29: and a resumed walk goes on where it was, and counts it all."""
    total = 4000
    await forge(side.client, prefix, DLQ, total, names=("send", "keep"))
    wait, orders = f"{prefix}:{DLQ}:wait", f"{prefix}:orders:wait"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BULK, url, prefix, cwd=Path(__file__).parents[3]
    )

    async def is_in_the_middle() -> bool:
        return await side.client.llen(orders) > 200

    await wait_until(is_in_the_middle, 60)
    child.send_signal(signal.SIGKILL)
    await child.wait()
    replayed = await side.client.llen(orders)
    assert 200 < replayed < total // 2
    assert await side.client.llen(wait) == total - replayed

    assert await side.dlq.replay_all_dead_letters(name="send", resume=True) == total // 2

    keys = [f"{prefix}:orders:{job_id}" for job_id in await side.client.lrange(orders, 0, -1)]
    numbers = [json.loads(await side.client.hget(key, "data"))["n"] for key in keys]
    assert sorted(numbers) == list(range(0, total, 2))
    assert await side.client.llen(wait) == total // 2


@pytest.mark.parametrize("verb", ["replay", "purge"])
async def test_slices_are_bounded_among_many_letters(verb, side):
    """DLQ-30: filtered or not; what stays keeps its order. The benchmark takes the time."""
    half = amount(5_000, 25_000)
    await forge(side.client, side.prefix, DLQ, 2 * half, names=("send", "keep"))
    act = side.dlq.purge_dead_letters if verb == "purge" else side.dlq.replay_all_dead_letters
    told = []

    assert await act(name="send", on_progress=told.append) == half
    ids = await side.client.lrange(f"{side.prefix}:{DLQ}:wait", 0, -1)
    assert ids == sorted(ids, key=int, reverse=True)
    assert len(ids) == half
    assert await act(on_progress=told.append) == half

    assert await side.dlq.get_dead_letter_count() == 0
    steps = [(b.done - a.done, b.examined - a.examined) for a, b in pairwise(told)]
    assert max(done for done, _ in steps) <= dead_letters.PURGES_PER_SLICE
    assert max(examined for _, examined in steps) <= 500
    # Kept out of the audit: it would read every one of them.
    await side.client.unlink(*[key async for key in side.client.scan_iter(count=5000)])
