"""Bulk operations on the dead letters of a queue with partitions: one run through all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.features.dead_letters.forging import forge
from toril import Queue
from toril.client import growing
from toril.errors import InvalidOptionError, NotDeadLettersError
from toril.protocol.partitioning import home_of

PER_PART = 20
INTERRUPTED_AT = 25
"""In the second of three partitions."""
IN_FIVES = 50
"""The rate at which a slice has five letters."""


@pytest.fixture
async def letters(make_queue, client, prefix):
    queue = make_queue("{mail}-dlq", partitions=3)
    await queue.get_dead_letter_count()
    await fill(client, prefix, queue, 0, 1, 2)
    return queue


async def fill(client: Any, prefix: str, letters: Queue, *numbers: int) -> None:
    for number in numbers:
        part = letters.partitions[number]
        await forge(client, prefix, part.name, PER_PART, source=f"{{mail-{number}}}")


async def left(letters: Queue) -> list[int]:
    return [await part.get_dead_letter_count() for part in letters.partitions]


async def interrupt(letters: Queue, **options: Any) -> str:
    """The name of a run that was interrupted in the second partition."""
    names = set()

    def stop(now: Any) -> None:
        names.add(now.run)
        if now.done >= INTERRUPTED_AT:
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        await letters.replay_all_dead_letters(on_progress=stop, rate=IN_FIVES, **options)
    (name,) = names
    first, second, third = await left(letters)
    assert (first, 0 < second < PER_PART, third) == (0, True, PER_PART)
    return name


@pytest.mark.parametrize("filters", [{}, {"name": "charge"}])
@pytest.mark.parametrize("resume", [lambda name: name, lambda name: True])
async def test_a_replay_is_resumed_in_the_partition_where_it_stopped(
    letters, client, prefix, filters, resume: Callable[[str], bool | str]
):
    """What has come back into those before it is not of this run."""
    name = await interrupt(letters, **filters)
    await fill(client, prefix, letters, 0)
    before = PER_PART - (await left(letters))[1]
    told = []

    again = resume(name)
    done = await letters.replay_all_dead_letters(
        resume=again, on_progress=told.append, **({} if again is name else filters)
    )

    assert await left(letters) == [PER_PART, 0, 0]
    assert done == told[-1].done == 2 * PER_PART  # the first had gone before
    assert {now.resumed for now in told} == {before}
    assert told[-1].left == PER_PART


async def test_a_resumed_run_that_is_interrupted_is_resumed_again(letters):
    name = await interrupt(letters)
    told = []

    def stop(now: Any) -> None:
        told.append(now)
        if now.done > PER_PART:  # in the last partition
            raise RuntimeError("again")

    with pytest.raises(RuntimeError, match="again"):
        await letters.replay_all_dead_letters(resume=name, on_progress=stop, rate=IN_FIVES)
    assert [count > 0 for count in await left(letters)] == [False, False, True]
    await letters.replay_all_dead_letters(resume=told[-1].run)

    assert await left(letters) == [0, 0, 0]


@pytest.mark.parametrize("verb", ["replay_all_dead_letters", "purge_dead_letters"])
async def test_what_is_told_is_of_the_whole(letters, verb):
    told = []

    done = await getattr(letters, verb)(on_progress=told.append)

    assert done == told[-1].done == told[-1].examined == 3 * PER_PART
    assert told[-1].left == 0
    assert [now.done for now in told] == sorted(now.done for now in told)
    assert len({now.run for now in told}) == 1


async def test_what_cannot_be_resumed_is_refused(letters):
    name = await interrupt(letters)

    with pytest.raises(InvalidOptionError, match="dlq' has no interrupted replay 'jx'"):
        await letters.replay_all_dead_letters(resume="jx")
    with pytest.raises(InvalidOptionError, match="has its own filters"):
        await letters.replay_all_dead_letters(resume=name, name="charge")
    with pytest.raises(InvalidOptionError, match="resume"):
        await letters.purge_dead_letters(resume=5)
    left_to_do = 3 * PER_PART - INTERRUPTED_AT
    assert await letters.replay_all_dead_letters(resume=name, dry_run=True) == left_to_do
    assert await letters.purge_dead_letters(resume=True) == left_to_do  # no purge was interrupted


@pytest.mark.parametrize("name", ["purge_dead_letters", "replay_all_dead_letters"])
async def test_a_bulk_that_one_partition_refuses_has_changed_none(letters, name):
    """Those before it were emptied when it said that it has no letters."""
    last = letters.partitions[-1]
    await last.drain()
    await last.add("send", {"to": "ann"})
    before = await left(letters)

    with pytest.raises(NotDeadLettersError, match=r"'\{mail-2\}-dlq' is no dead letter queue"):
        await getattr(letters, name)()

    assert await left(letters) == before
    assert await getattr(letters, name)(force=True) >= 2 * PER_PART


async def test_a_run_that_was_resumed_and_finished_is_not_resumed_once_more(
    letters, client, prefix
):
    """It went past the partitions before the one where the first run had stopped."""
    await interrupt(letters)
    await letters.replay_all_dead_letters(resume=True)
    assert await left(letters) == [0, 0, 0]
    await fill(client, prefix, letters, 0)

    assert await letters.replay_all_dead_letters(resume=True) == PER_PART
    assert await left(letters) == [0, 0, 0]


async def test_the_name_of_a_queue_with_partitions_is_no_place_to_go_to(letters, make_queue):
    """What went there waited in the plain queue of that name, which no worker serves."""
    mail, plain_letters = make_queue("mail", partitions=3), letters.partitions[1]
    await mail.get_job_counts()
    await mail.add("send")

    for call in (
        lambda: letters.replay_all_dead_letters(queue_name="mail"),
        lambda: letters.replay_all_dead_letters(queue_name="mail", dry_run=True),
        lambda: plain_letters.replay_all_dead_letters(queue_name="mail"),
        lambda: plain_letters.replay_dead_letter("1", queue_name="mail"),
    ):
        with pytest.raises(InvalidOptionError, match=r"'mail' has 3 partitions.*'\{mail-0\}'"):
            await call()
    assert await left(letters) == [PER_PART] * 3

    await plain_letters.replay_dead_letter("1", queue_name="{mail-2}")
    assert await mail.partitions[2].get_waiting_count() >= 1


LANE = next(
    name for name in map(str, range(99)) if len({home_of(name, count) for count in (2, 3, 4)}) == 3
)
"""A lane that every number of partitions puts elsewhere."""


async def laned(client: Any, letters: Queue) -> None:
    """Let the letters of this queue be of one lane."""
    for letter_id in range(1, PER_PART + 1):
        key = letters.keys.job(str(letter_id))
        note = json.loads(await client.hget(key, "x.letter"))
        await client.hset(key, "x.letter", json.dumps({**note, "lane": LANE}))


@pytest.mark.parametrize("transform", [None, lambda data, letter: data])
async def test_jobs_of_a_lane_come_back_to_where_it_is_since_the_queue_has_grown(
    make_queue, client, prefix, transform
):
    """Two jobs of one lane ran at once, each in a partition of its own."""
    mail = make_queue("mail", partitions=2)
    await mail.add("send", lane="another")
    await mail.drain()
    old = make_queue(f"{{mail-{home_of(LANE, 2)}}}-dlq")
    await forge(client, prefix, old.name, PER_PART, source=f"{{mail-{home_of(LANE, 2)}}}")
    await laned(client, old)
    await growing.grow(mail._connection, mail.keys, 4, patience_s=0, grace_s=0)

    await old.replay_dead_letter("1")
    assert await old.replay_all_dead_letters(transform=transform) == PER_PART - 1

    grown = make_queue("mail", partitions=4)
    assert [await part.get_lanes() for part in grown.partitions] == [
        [LANE] if number == home_of(LANE, 4) else [] for number in range(4)
    ]
    assert len(await grown.get_lane_jobs(LANE, 0, -1)) == PER_PART


async def test_jobs_that_get_another_lane_go_where_it_is(letters, make_queue):
    mail = make_queue("mail", partitions=3)
    await mail.add("send", delay=3_600_000)

    assert await letters.partitions[0].replay_dead_letter("1", lane=LANE)
    assert await letters.replay_all_dead_letters(lane=LANE) == 3 * PER_PART - 1

    assert len(await mail.get_lane_jobs(LANE, 0, -1)) == 3 * PER_PART
    assert [await part.get_lane_count() for part in mail.partitions].count(0) == 2


async def test_members_of_groups_come_back_to_the_partition_that_their_group_knows(
    make_queue, client, prefix
):
    mail = make_queue("mail", partitions=3)
    await mail.add("send", delay=3_600_000)
    source = f"{{mail-{(home_of(LANE, 3) + 1) % 3}}}"
    dead = make_queue("dead")
    await forge(client, prefix, dead.name, 1, source=source)
    await client.hset(dead.keys.job("1"), "x.member", f"{prefix}:{source}:nothing")

    await dead.replay_dead_letter("1", lane=LANE)

    assert await make_queue(source).get_lane_count() == 1
