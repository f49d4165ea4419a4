"""A scheduler of a queue with partitions that moves: it is never lost, and never runs twice."""

from __future__ import annotations

import asyncio

import pytest

from tests.crash.test_cancellation import CancelledAt
from toril import NewJob, Queue
from toril.errors import InvalidOptionError
from toril.protocol.partitioning import home_of

HOUR_MS = 3_600_000
COUNT = 4
HERE, THERE = 0, 3


def lane_of(partition: int) -> str:
    return next(f"l{n}" for n in range(99) if home_of(f"l{n}", COUNT) == partition)


def template(partition: int) -> NewJob:
    return NewJob("report", lane=lane_of(partition))


@pytest.fixture
async def mail(make_queue):
    return make_queue("mail", partitions=COUNT)


async def places(mail: Queue, scheduler_id: str) -> dict[int, bool]:
    """The partitions that have a scheduler, and whether it runs there."""
    found = [await part.get_job_scheduler(scheduler_id) for part in mail.partitions]
    return {number: not one.is_paused for number, one in enumerate(found) if one is not None}


@pytest.mark.parametrize(
    "schedule",
    [{"cron": "61 * * * *"}, {"every": HOUR_MS, "cron": "1 * * * *"}, {}, {"every": 5, "end": 7}],
)
@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_refused_change_leaves_a_scheduler_as_it_was(mail, schedule, is_paused):
    await mail.upsert_job_scheduler("nightly", every=HOUR_MS, template=template(HERE))
    if is_paused:
        await mail.schedulers.pause("nightly")

    with pytest.raises(InvalidOptionError):
        await mail.upsert_job_scheduler("nightly", template=template(THERE), **schedule)

    assert await places(mail, "nightly") == {HERE: not is_paused}
    assert await mail.get_delayed_count() + await mail.get_waiting_count() == (not is_paused)


async def test_a_scheduler_moves_with_its_lane(mail):
    await mail.upsert_job_scheduler("nightly", every=HOUR_MS, template=template(HERE))

    job = await mail.upsert_job_scheduler("nightly", every=HOUR_MS, template=template(THERE))

    assert await places(mail, "nightly") == {THERE: True}
    assert job.lane == lane_of(THERE)
    assert await mail.get_delayed_count() + await mail.get_waiting_count() == 1


@pytest.fixture
async def twice(mail):
    """A queue whose scheduler is in two partitions, as two versions of a program leave it."""
    for number in (HERE, THERE):
        part = mail.partitions[number]
        await part.upsert_job_scheduler("nightly", every=HOUR_MS, template=template(number))
    return mail


@pytest.mark.parametrize("home", [HERE, 1, THERE])
async def test_a_scheduler_in_two_partitions_is_healed(twice, home):
    await twice.upsert_job_scheduler("nightly", every=HOUR_MS, template=template(home))

    assert await places(twice, "nightly") == {home: True}


async def test_a_scheduler_in_two_partitions_is_paused_and_removed_in_both(twice):
    assert await twice.schedulers.pause("nightly")
    assert await places(twice, "nightly") == {HERE: False, THERE: False}

    assert await twice.schedulers.resume("nightly")
    assert (await twice.get_job_scheduler("nightly")).is_paused is False
    assert sum((await places(twice, "nightly")).values()) == 1

    assert await twice.schedulers.remove("nightly")
    assert await places(twice, "nightly") == {}


async def test_a_move_that_is_cancelled_loses_no_scheduler(mail):
    """At whatever await: it is somewhere, runs once at most, and the same call puts it right."""
    at = 0
    while True:
        name = f"s{at}"
        await mail.upsert_job_scheduler(name, every=HOUR_MS, template=template(HERE))
        moving = CancelledAt(
            mail.upsert_job_scheduler(name, every=HOUR_MS, template=template(THERE)), at
        )

        async def move(call: CancelledAt = moving) -> None:
            await call

        (outcome,) = await asyncio.gather(asyncio.create_task(move()), return_exceptions=True)
        found = await places(mail, name)
        assert found, f"lost when cancelled at await {at}"
        assert sum(found.values()) <= 1

        await mail.upsert_job_scheduler(name, every=HOUR_MS, template=template(THERE))
        assert await places(mail, name) == {THERE: True}
        if outcome is None:
            break
        at += 1
    assert at > 6
