"""Calls as they were written before: each works for one more version, and warns."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import toril
import toril.sync
from toril import NewJob, RateLimit, errors
from toril.errors import DelayedError, InvalidInputError, RateLimitError
from toril.steps import ClaimRefusedError


async def test_the_lane_was_last(queue: Any):
    for old in (
        lambda: queue.set_lane_concurrency(3, "a"),
        lambda: queue.set_lane_concurrency(3, lane="a"),
        lambda: queue.set_lane_concurrency(4),
        lambda: queue.set_lane_concurrency(concurrency=4),
        lambda: queue.set_lane_rate_limit(RateLimit(1, 1000), "a"),
        lambda: queue.set_lane_rate_limit(None, "a"),
    ):
        with pytest.warns(DeprecationWarning, match=r"\(lane, "):
            await old()
    assert (await queue.get_lane("a")).concurrency == 3
    await queue.add("x", lane="b")
    assert (await queue.get_lane("b")).concurrency == 4

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await queue.set_lane_concurrency("a", 5)
        await queue.set_lane_concurrency(None, 6)
        await queue.set_lane_concurrency(lane=None, concurrency=2)
        await queue.set_lane_concurrency("c", concurrency=7)
        await queue.set_lane_rate_limit("a", RateLimit(1, 1000))
        await queue.set_lane_rate_limit("a", None)
    assert (await queue.get_lane("a")).concurrency == 5
    assert (await queue.get_lane("b")).concurrency == 2
    assert (await queue.get_lane("c")).concurrency == 7
    with pytest.raises(InvalidInputError, match="concurrency='a'"):
        await queue.set_lane_concurrency("a")
    await queue.obliterate(force=True)


async def test_a_rate_limit_was_two_numbers(queue: Any):
    for old in (
        lambda: queue.set_global_rate_limit(10, 1000),
        lambda: queue.set_global_rate_limit(max=10, duration=1000),
    ):
        await queue.set_global_rate_limit(RateLimit(1, 1))
        with pytest.warns(DeprecationWarning, match="RateLimit"):
            await old()
        assert await queue.get_global_rate_limit() == RateLimit(10, 1000)
    await queue.obliterate(force=True)


async def test_dead_letters_had_names_of_their_own(queue: Any, url: str, prefix: str):
    await queue.add_bulk([NewJob("a", {"_dlqMeta": {"sourceQueue": "s"}}) for _ in range(2)])
    with pytest.warns(DeprecationWarning, match="newest_first"):
        oldest = await queue.get_dead_letter_jobs(oldest_first=True, force=True)
    new = await queue.get_dead_letter_jobs(newest_first=False, force=True)
    assert [job.id for job in oldest] == [job.id for job in new]
    newest = await queue.get_dead_letter_jobs(force=True)
    assert [job.id for job in newest] == [job.id for job in reversed(new)]

    told: list[Any] = []
    with pytest.warns(DeprecationWarning, match="on_progress"):
        await queue.purge_dead_letters(progress=told.append, force=True)
    assert told
    with toril.sync.Queue("q", connection=url, prefix=prefix) as blocking:
        old: Callable[..., Awaitable[Any]] = blocking.get_dead_letter_jobs  # type: ignore[assignment]
        with pytest.warns(DeprecationWarning, match="newest_first"):
            assert old(oldest_first=True, force=True) == []


def test_the_warning_points_at_the_call(url: str, prefix: str):
    with (
        toril.sync.Queue("q", connection=url, prefix=prefix) as queue,
        pytest.warns(DeprecationWarning, match="lane") as caught,
    ):
        queue.set_lane_concurrency(3, "a")  # type: ignore[arg-type]
    told = [one.filename for one in caught if one.category is DeprecationWarning]
    assert told == [__file__]


def test_errors_moved_but_can_be_found():
    names = [name for name in toril.__all__ if name.endswith("Error")]
    assert len(names) < 25
    for name in toril._MOVED:
        assert name not in toril.__all__
        with pytest.warns(DeprecationWarning, match=rf"toril\.errors\.{name}"):
            assert getattr(toril, name) is getattr(errors, name)


def test_signals_take_a_timedelta():
    assert DelayedError(timedelta(seconds=1.5)).delay == 1500
    assert RateLimitError(timedelta(seconds=2), lane=True).duration == 2000
    assert ClaimRefusedError(delay=timedelta(seconds=3)).delay == 3000


async def test_views_are_the_same_methods_under_short_names(queue: Any):
    await queue.add("x", lane="a")
    await queue.lanes.pause("a")
    assert (await queue.lanes.get("a")).is_paused
    assert await queue.lanes.list() == ["a"]
    await queue.schedulers.upsert("s", every=60_000)
    assert (await queue.schedulers.get("s")).every == 60_000
    assert await queue.dead_letters.count() == 1
    assert await queue.groups.list() == []
    for view in (queue.lanes, queue.dead_letters, queue.groups, queue.schedulers):
        for name, method in vars(view).items():
            assert method.__self__ is queue, name
    await queue.obliterate(force=True)
