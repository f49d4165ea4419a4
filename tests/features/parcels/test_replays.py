"""Dead letters of groups whose record, jobs and letters are in different slots of a cluster."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.features.parcels.shop import Shop
from tests.helpers import wait_until
from toril import DeadLetterOptions, Queue
from toril.errors import DeadLetterNotFoundError, InvalidGroupStateError
from toril.protocol import replaying
from toril.protocol.dead_letters import DeadLetterProgress

OWNER = 0
PLACES = [(2, 1), (2, 0), (2, 2), (0, 1)]
"""Where the job was, and where its letter is: elsewhere, with the owner, with the job; or the job
is with the owner."""


async def letters_at(shop: Shop, number: int) -> Queue:
    """A queue for dead letters in the slot of one of the shop's queues."""
    name = f"{shop.names[number]}letters"
    shop.others.append(name)
    return Queue(name, **shop.slots.options)


async def block(shop: Shop, source: int, letters: Queue, **options: Any) -> str:
    """A group that waits for a person: the job behind its pivot has become a letter."""
    shop.refused = {"c"}
    group_id = await shop.add(
        shop.member("b", 1, pivot=True, undo=None),
        shop.member("c", source, after=["b"], undo=None),
        queue_name=shop.names[OWNER],
    )
    await _run_until(shop, group_id, "BLOCKED", letters, **options)
    return group_id


async def break_off(shop: Shop, source: int, letters: Queue) -> str:
    """A group that could not be undone: the job that undoes has become a letter."""
    shop.refused = {"a", "undo-b"}
    group_id = await shop.add(
        shop.member("b", source), shop.member("a", 1, after=["b"]), queue_name=shop.names[OWNER]
    )
    await _run_until(shop, group_id, "FAILED_COMPENSATION", letters)
    return group_id


async def _run_until(
    shop: Shop, group_id: str, state: str, letters: Queue, *, keep_source: bool = False
) -> None:
    target = DeadLetterOptions(letters.name, keep_source=keep_source)
    async with shop.open(dead_letter_queue=target):
        await shop.until(group_id, state)
        await wait_until(shop.is_quiet)
    shop.refused = set()


async def of_job(letters: Queue, name: str) -> Any:
    return next(one for one in await letters.get_dead_letter_jobs(0, -1) if one.name == name)


@pytest.mark.parametrize("in_bulk", [False, True])
@pytest.mark.parametrize(("source", "place"), PLACES)
async def test_a_member_comes_back_to_its_group(shop, source, place, in_bulk):
    async with await letters_at(shop, place) as letters:
        group_id = await block(shop, source, letters)
        (_, member) = await shop.queues[OWNER].get_group_jobs(group_id)
        letter = await of_job(letters, "c")
        if in_bulk:
            assert await letters.replay_all_dead_letters(dry_run=True) == 1
            assert await letters.replay_all_dead_letters() == 1
        else:
            assert await letters.replay_dead_letter(letter.id) == member.job_id
        await shop.carry()

        assert await letters.get_dead_letter_count() == 0
        assert await shop.state(group_id) == "ACTIVE"
        assert await shop.queues[source].get_waiting_count() == 1
        async with shop.open():
            await shop.until(group_id, "COMPLETED")
        assert shop.ran == {"b": 1, "c": 2}
        await shop.check()


@pytest.mark.parametrize("in_bulk", [False, True])
@pytest.mark.parametrize(("source", "place"), PLACES)
async def test_a_compensation_comes_back_to_its_group(shop, source, place, in_bulk):
    async with await letters_at(shop, place) as letters:
        group_id = await break_off(shop, source, letters)
        letter = await of_job(letters, "undo-b")
        if in_bulk:
            assert await letters.replay_all_dead_letters() == 1
        else:
            new_id = await letters.replay_dead_letter(letter.id)
            undoing = shop.queues[0].keys.sibling(f"{shop.names[source]}:compensation")
            async with Queue(undoing.name, **shop.slots.options) as queue:
                assert await queue.get_state(new_id) == "waiting"
        await shop.carry()

        assert await shop.state(group_id) == "COMPENSATING"
        async with shop.open():
            await shop.until(group_id, "FAILED")
        assert (shop.ran["b"], shop.ran["undo-b"]) == (1, 2)
        await shop.check()


@pytest.mark.parametrize(("source", "place"), PLACES)
async def test_a_group_that_is_over_takes_nobody_back(shop, source, place):
    async with await letters_at(shop, place) as letters:
        group_id = await break_off(shop, source, letters)
        await shop.queues[OWNER].resolve_group(group_id, note="by hand")
        letter = await of_job(letters, "undo-b")

        for dry_run in (False, True):
            with pytest.raises(InvalidGroupStateError):
                await letters.replay_dead_letter(letter.id, dry_run=dry_run)
            assert await letters.replay_all_dead_letters(dry_run=dry_run) == 0
        told: list[DeadLetterProgress] = []
        await letters.replay_all_dead_letters(on_progress=told.append)
        count = await letters.get_dead_letter_count()
        assert (told[-1].held, told[-1].held_by_group, told[-1].left) == (count, count, count)
        assert (await of_job(letters, "undo-b")).id == letter.id

        await letters.replay_dead_letter(letter.id, force=True)
        await shop.carry()
        async with shop.open():
            await wait_until(lambda: shop.ran["undo-b"] == 2)
            await wait_until(shop.is_quiet)
        assert await shop.state(group_id) == "FAILED"
        await shop.check()


@pytest.mark.parametrize(("source", "place"), [(2, 1), (0, 1)])
async def test_a_letter_that_its_group_no_longer_takes_comes_back(shop, source, place, monkeypatch):
    """Somebody retries the group while the letter is on its way: the job runs once, not twice."""
    async with await letters_at(shop, place) as letters:
        group_id = await block(shop, source, letters)
        letter = await of_job(letters, "c")
        logs = shop.slots.key(letters.name, f"{letter.id}:logs")
        await shop.slots.client.rpush(logs, *map(str, range(1_005)))
        monkeypatch.setattr(letters._connection, "on_parcels", lambda _: None)
        await letters.replay_dead_letter(letter.id)
        assert await letters.get_state(letter.id) == "in_transit"

        assert await shop.queues[OWNER].retry_group(group_id) == 1
        await shop.carry()

        again = await of_job(letters, "c")
        assert (again.id, again.data) == (letter.id, letter.data)
        assert again.dead_letter == letter.dead_letter
        assert await letters.get_job_logs(letter.id) == [str(n) for n in range(5, 1_005)]
        assert await shop.queues[source].get_waiting_count() == 1
        async with shop.open():
            await shop.until(group_id, "COMPLETED")
        assert shop.ran == {"b": 1, "c": 2}
        with pytest.raises(InvalidGroupStateError):
            await letters.replay_dead_letter(letter.id)
        await shop.check()


async def test_a_letter_whose_job_was_kept_replaces_it(shop):
    async with await letters_at(shop, 1) as letters:
        group_id = await block(shop, 2, letters, keep_source=True)
        assert await shop.queues[2].get_failed_count() == 1

        await letters.replay_dead_letter((await of_job(letters, "c")).id)
        await shop.carry()

        assert await shop.queues[2].get_job_counts("failed", "waiting") == {
            "failed": 0,
            "waiting": 1,
        }
        async with shop.open():
            await shop.until(group_id, "COMPLETED")
        assert shop.ran == {"b": 1, "c": 2}
        await shop.check()


@pytest.mark.parametrize(("source", "place"), PLACES)
async def test_a_replay_that_is_sent_again_says_the_same(shop, source, place):
    async with await letters_at(shop, place) as letters:
        group_id = await block(shop, source, letters)
        letter = await of_job(letters, "c")
        first = replaying.replay(letters.keys, letter.id, "new-1", shop.names[source])
        again = msgspec.structs.replace(first, args={**first.args, "resend": True})

        answers = [await letters._connection.run(one) for one in (first, again)]

        assert answers[0] == answers[1]
        with pytest.raises(DeadLetterNotFoundError):
            await letters._connection.run(first)
        await shop.carry()
        async with shop.open():
            await shop.until(group_id, "COMPLETED")
        assert shop.ran == {"b": 1, "c": 2}
        await shop.check()
