"""Several people work on the same dead letters, and replies get lost meanwhile."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.features.dead_letters.conftest import DLQ
from tests.features.dead_letters.forging import forge
from toril import Queue
from toril.errors import InvalidOptionError
from toril.protocol import dead_letters, replaying


class StoppedError(Exception):
    """Somebody pressed Ctrl-C."""


async def stop(now: Any) -> None:
    raise StoppedError


def lose_reply(queue: Queue, script: str, meanwhile: Callable[[], Awaitable[Any]]) -> None:
    """Let the first reply to ``script`` get lost: something else happens, then it is sent again."""
    run, is_lost = queue._connection.run, False

    async def lossy(command: Any) -> Any:
        nonlocal is_lost
        reply = await run(command)
        if is_lost or command.script is None or command.script.name != script:
            return reply
        is_lost = True
        await meanwhile()
        return await run(command)

    queue._connection.run = lossy  # type: ignore[method-assign]


async def numbers_in(side: Any, queue: str = "orders") -> list[int]:
    """The numbers of the jobs that wait, in order of the numbers."""
    base = f"{side.prefix}:{queue}"
    ids = await side.client.lrange(f"{base}:wait", 0, -1)
    return sorted(
        [json.loads(await side.client.hget(f"{base}:{job_id}", "data"))["n"] for job_id in ids]
    )


async def test_two_operators_lose_no_letter_when_a_reply_gets_lost(side, url, prefix):
    """Each replay remembers its own slices, whatever another one with the same filter does."""
    await forge(side.client, prefix, DLQ, 200)

    async with Queue(DLQ, connection=url, prefix=prefix) as other:

        async def other_slice() -> None:
            with pytest.raises(StoppedError):
                await other.replay_all_dead_letters(on_progress=stop)

        lose_reply(side.dlq, "replayDeadLetters", other_slice)
        replayed = await side.dlq.replay_all_dead_letters()

    assert await numbers_in(side) == list(range(200))
    assert replayed == 200 - replaying.REPLAYS_PER_SLICE


async def test_two_operators_purge_no_letter_twice_when_a_reply_gets_lost(side, url, prefix):
    await forge(side.client, prefix, DLQ, 400, names=("send", "keep"))

    async with Queue(DLQ, connection=url, prefix=prefix) as other:

        async def other_slice() -> None:
            with pytest.raises(StoppedError):
                await other.purge_dead_letters(name="send", on_progress=stop)

        lose_reply(side.dlq, "purgeDeadLetters", other_slice)
        await side.dlq.purge_dead_letters(name="send")

    assert {job.name for job in await side.dlq.get_dead_letter_jobs(0, -1)} == {"keep"}
    assert await side.dlq._connection.run(dead_letters.total(side.dlq.keys, "purged")) == 200


async def test_a_slice_that_arrives_late_once_more_does_nothing(side):
    """A request that was held up on its way and overtaken by the next ones of its run."""
    await forge(side.client, side.prefix, DLQ, 120)
    run, sent = side.dlq._connection.run, []

    async def noting(command: Any) -> Any:
        sent.append(command)
        return await run(command)

    side.dlq._connection.run = noting
    with pytest.raises(StoppedError):
        await side.dlq.replay_all_dead_letters(
            on_progress=lambda now: (_ for _ in ()).throw(StoppedError()) if now.done > 50 else None
        )
    before = await numbers_in(side)
    (first, *_) = [c for c in sent if c.script and c.script.name == "replayDeadLetters"]

    await run(first)

    assert await numbers_in(side) == before


async def test_an_interrupted_run_is_resumed_by_its_name(side):
    """With its own filters and count, also when another run of the same filter came later."""
    await forge(side.client, side.prefix, DLQ, 300, names=("send", "keep"))
    told = []

    def stop_first(now: Any) -> None:
        told.append(now)
        raise StoppedError

    for _ in range(2):
        with pytest.raises(StoppedError):
            await side.dlq.replay_all_dead_letters(name="send", on_progress=stop_first)
    first, second = told
    assert first.run != second.run

    assert await side.dlq.replay_all_dead_letters(resume=first.run) == 100
    assert await numbers_in(side) == list(range(0, 300, 2))
    with pytest.raises(InvalidOptionError, match="no interrupted replay"):
        await side.dlq.replay_all_dead_letters(resume="nobody")
    with pytest.raises(InvalidOptionError, match="filters"):
        await side.dlq.replay_all_dead_letters(resume=second.run, name="keep")


async def test_a_run_with_a_relative_time_is_resumed_with_the_time_it_began_with(side):
    await side.bury("a", "b", "c")
    seen: list[Any] = []

    def stop_first(now: Any) -> None:
        seen.append(now)
        raise StoppedError

    hour = timedelta(hours=1)
    with pytest.raises(StoppedError):
        await side.dlq.replay_all_dead_letters(since=hour, rate=10, on_progress=stop_first)
    assert seen[0].done == 1
    assert await side.dlq.replay_all_dead_letters(until=hour, dry_run=True) == 0
    assert await side.dlq.replay_all_dead_letters(since=hour, dry_run=True) == 2

    again = {"resume": True, "progress": seen.append}
    assert await side.dlq.replay_all_dead_letters(since=hour, **again) == 3

    assert (seen[-1].resumed, seen[-1].left) == (1, 0)


async def test_the_record_of_a_run_expires(side):
    await forge(side.client, side.prefix, DLQ, 120)
    with pytest.raises(StoppedError):
        await side.dlq.replay_all_dead_letters(on_progress=stop)

    keys = [key async for key in side.client.scan_iter(match=f"{side.prefix}:{DLQ}:toril:*")]

    assert len(keys) == 2
    for key in keys:
        assert 0 < await side.client.pttl(key) <= 7 * 86_400_000
    await side.dlq.replay_all_dead_letters(resume=True)
    left = [key async for key in side.client.scan_iter(match=f"{side.prefix}:{DLQ}:toril:*")]
    assert all([await side.client.pttl(key) > 0 for key in left])


@pytest.mark.parametrize("verb", ["replay_all_dead_letters", "purge_dead_letters"])
@pytest.mark.parametrize("by_name", [False, True])
async def test_a_run_that_was_resumed_and_finished_is_not_resumed_once_more(side, verb, by_name):
    """It was, for a week, if the rest was one slice: nobody replayed what had died since."""
    await forge(side.client, side.prefix, DLQ, 200)
    bulk = getattr(side.dlq, verb)
    told = []

    def stop_late(now: Any) -> None:
        told.append(now)
        if now.done >= 150:
            raise StoppedError

    with pytest.raises(StoppedError):
        await bulk(name="charge", on_progress=stop_late)
    if by_name:
        assert await bulk(resume=told[0].run) == 200
    else:
        assert await bulk(resume=True, name="charge") == 200
    await side.orders.drain()
    await side.bury("charge", "charge")

    assert await bulk(resume=True, name="charge") == 2


async def test_a_run_that_repaired_letters_to_its_end_is_not_resumed(side):
    """Its last letters were repaired after the last slice, which stood for an unfinished run."""
    repair = {"transform": lambda data, letter: {**data, "new": True}}
    await side.bury("a", "b")
    assert await side.dlq.replay_all_dead_letters(**repair) == 2
    await side.orders.drain()
    await side.bury("c")

    assert await side.dlq.replay_all_dead_letters(resume=True, **repair) == 1


async def test_a_purge_that_asked_about_its_last_letters_is_not_resumed(side):
    """They were written by another program, and none of them was meant."""
    (letter_id,) = await side.bury("a")
    await side.client.hdel(f"{side.prefix}:{DLQ}:{letter_id}", "x.letter")
    assert await side.dlq.purge_dead_letters(failed_reason="account closed") == 0
    await side.orders.add("b", {"reason": "account closed"})
    async with side.failing():
        await side.letters(2)

    assert await side.dlq.purge_dead_letters(resume=True, failed_reason="account closed") == 1


async def test_letters_that_others_take_out_hide_none_from_a_repair(side):
    """It forgot by which letter it knew its place, and passed over as many as were taken out."""
    await forge(side.client, side.prefix, DLQ, 200, names=("send", "keep"))
    purged = []

    async def purge(now: Any) -> None:
        if not purged:
            purged.append(await side.dlq.purge_dead_letters(name="keep"))

    replayed = await side.dlq.replay_all_dead_letters(
        name="send", transform=lambda data, letter: data, on_progress=purge
    )

    assert (purged, replayed) == ([100], 100)
    assert await side.dlq.get_dead_letter_count() == 0


@pytest.mark.parametrize("verb", ["replay_all_dead_letters", "purge_dead_letters"])
@pytest.mark.parametrize("filters", [{}, {"name": "charge"}])
async def test_a_dry_run_counts_what_a_resumed_run_does(side, verb, filters):
    """It counted what had died since, too, and which a resumed run leaves alone."""
    await forge(side.client, side.prefix, DLQ, 400)
    bulk = getattr(side.dlq, verb)
    with pytest.raises(StoppedError):
        await bulk(on_progress=stop, **filters)
    left = await side.dlq.get_dead_letter_count()
    await side.orders.drain()
    await side.bury("charge", "charge")

    assert await bulk(dry_run=True, **filters) == left + 2
    assert await bulk(dry_run=True, resume=True, **filters) == left
    assert await bulk(resume=True, **filters) == 400
    assert await side.dlq.get_dead_letter_count() == 2


@pytest.mark.parametrize("dry_run", [False, True])
async def test_letters_are_counted_once_while_another_takes_some_out(side, url, prefix, dry_run):
    """A count that lost its place began anew, and added to what it had counted."""
    await forge(side.client, prefix, DLQ, 1800, names=("keep", "gone"))
    run, looks = side.dlq._connection.run, 0

    async def noting(command: Any) -> Any:
        nonlocal looks
        reply = await run(command)
        looks += command.script is not None and command.script.name == "surveyDeadLetters"
        if looks == 3:
            looks += 1
            async with Queue(DLQ, connection=url, prefix=prefix) as other:
                await other.purge_dead_letters(name="gone")
        return reply

    side.dlq._connection.run = noting
    if dry_run:
        counted = await side.dlq.replay_all_dead_letters(dry_run=True)
    else:
        (group,) = await side.dlq.get_dead_letter_summary()
        counted = group.count

    assert counted == await side.dlq.get_dead_letter_count() == 900
