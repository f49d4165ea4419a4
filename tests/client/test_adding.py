"""Adding: what travels together is answered one by one, and a time is kept."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.client.support import working
from tests.helpers import wait_until
from toril import NewJob, Parent, PayloadError
from toril.errors import ParentNotFoundError


async def test_each_of_many_concurrent_adds_has_its_own_answer_or_its_own_error(queue, client):
    """The first goes alone, the others share a call; a refusal is for the one that caused it."""
    await queue.add("known", job_id="known")
    orphan = {"parent": Parent("nobody", "elsewhere")}

    answers = await asyncio.gather(
        queue.add("first"),
        queue.add("plain", {"n": 1}),
        queue.add("orphan", **orphan),
        queue.add("again", job_id="known"),
        queue.add("no json", float("nan")),
        queue.add("last", {"n": 2}),
        return_exceptions=True,
    )

    first, plain, refused, again, unwritable, last = answers
    assert isinstance(refused, ParentNotFoundError)
    assert isinstance(unwritable, PayloadError)
    assert (again.id, again.name, again.duplicated) == ("known", "known", True)
    waiting = await client.lrange(queue.keys.wait, 0, -1)
    assert waiting == [last.id, plain.id, first.id, "known"]


async def test_a_refusal_in_bulk_is_raised_when_the_others_are_added(queue, client):
    with pytest.raises(ParentNotFoundError):
        await queue.add_bulk(
            [NewJob("one"), NewJob("orphan", parent=Parent("nobody", "elsewhere")), NewJob("two")]
        )

    names = [
        await client.hget(queue.keys.job(job_id), "name")
        for job_id in await client.lrange(queue.keys.wait, 0, -1)
    ]
    assert names == ["two", "one"]


@pytest.mark.parametrize("form", ["datetime", "ms"])
async def test_a_job_runs_at_its_time_and_not_before(form, queue, url, client):
    times = [datetime.now(UTC) + timedelta(milliseconds=ms) for ms in (800, 3_600_000)]
    times_ms = [int(at.timestamp() * 1000) for at in times]
    soon, late = [
        await queue.add("later", run_at=at) for at in (times if form == "datetime" else times_ms)
    ]
    # A busy machine may come late for the first one.
    assert await queue.get_state(late.id) == "delayed"

    async with working(queue, url, lambda job: None):
        await wait_until(lambda: _is_done(queue, soon.id))

    assert 0 <= (await queue.get_job(soon.id)).processed_on - times_ms[0] < 60_000
    assert await queue.get_state(late.id) == "delayed"


async def _is_done(queue, job_id) -> bool:
    return await queue.get_state(job_id) == "completed"


async def test_a_time_that_is_past_means_now(queue):
    job = await queue.add("late", run_at=datetime(2020, 1, 1, tzinfo=UTC))

    assert await queue.get_state(job.id) == "waiting"
