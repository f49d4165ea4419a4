"""What people do with queues, each small enough to break every one of its network operations.

A scenario has a beginning that nobody disturbs (``given``) and an act that is disturbed. Afterwards
fresh workers do what is left (unless ``runs`` is False), and the outcome must be that of the
undisturbed run. Whoever died in the middle, or was told that the result is open, does it again;
``either`` marks acts that one cannot repeat: then the outcome may also be that of no act at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import toril.sync
from tests.crash.world import World
from toril import (
    Compensation,
    Deduplication,
    FlowJob,
    GroupJob,
    NewJob,
    Parent,
    RateLimit,
)

Act = Callable[[World], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    name: str
    act: Act
    given: Act | None = None
    queues: tuple[str, ...] = ("q",)
    runs: bool = True
    either: bool = False
    """A lost reply leaves the result open (the caller is told so)."""
    is_alike: Callable[[dict[str, Any], dict[str, Any]], bool] | None = None
    """After a death, or when a lock was lost, this need hold instead of equality."""
    most_extra: int = 1
    """How many jobs are under way at once: so many may run again after a death."""


SCENARIOS: dict[str, Scenario] = {}


def scenario(**options: Any) -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        name = act.__name__.replace("_", " ")
        SCENARIOS[name] = Scenario(name, act, **options)
        return act

    return register


# ---------------------------------------------------------------------------- beginnings


async def three_jobs(world: World) -> None:
    for label in "abc":
        await world.clean().add("work", {"n": label}, job_id=label)


async def many_jobs(world: World) -> None:
    await world.clean().add_bulk(
        [NewJob("work", {"n": f"j{n}"}, job_id=f"j{n}") for n in range(24)]
    )


async def a_failed_job(world: World) -> None:
    await world.clean().add("flaky", {"n": "a"}, job_id="a", attempts=1)
    await world.clean().add("flaky", {"n": "b"}, job_id="b", attempts=1)
    await world.recover()


async def delayed_jobs(world: World) -> None:
    for label in "abc":
        await world.clean().add("work", {"n": label}, job_id=label, delay=600_000)


async def prioritized_jobs(world: World) -> None:
    for priority, label in enumerate("abc", 1):
        await world.clean().add("work", {"n": label}, job_id=label, priority=priority)


async def finished_jobs(world: World) -> None:
    await three_jobs(world)
    await world.recover()


async def dead_letters(world: World) -> None:
    for label in "abc":
        await world.clean().add("bad", {"n": label}, job_id=label)
    await world.recover()
    for letter in await world.clean("q-dlq").get_dead_letter_jobs():
        world.memory[letter.data["n"]] = letter.id


async def a_parent(world: World) -> None:
    await world.flow(is_clean=True).add(
        FlowJob(
            "parent",
            {"n": "p"},
            queue_name="q",
            job_id="p",
            children=[FlowJob("work", {"n": "c0"}, queue_name="q", job_id="c0", delay=600_000)],
        )
    )


async def an_owner(world: World) -> None:
    await world.clean().add("work", {"n": "a"}, job_id="a", deduplication=Deduplication("d"))


async def _group(world: World, failing: str = "", *, is_clean: bool) -> None:
    await world.flow(is_clean=is_clean).add_group(
        "order",
        [
            GroupJob("bad" if label in failing else "work", {"n": label}, queue_name="q")
            for label in "abc"
        ],
        {"work": Compensation("undo", {"n": "undo"}, attempts=2, backoff=None)},
    )


async def _stages(world: World, failing: str = "", *, is_clean: bool) -> None:
    """Three members, each after the one before and with its result."""
    await world.flow(is_clean=is_clean).add_group(
        "order",
        [
            GroupJob(
                "bad" if label in failing else "work",
                {"n": label},
                queue_name="q",
                key=label,
                after=[before] if before else [],
                inputs={"before": before} if before else {},
            )
            for label, before in (("a", ""), ("b", "a"), ("c", "b"))
        ],
        {"work": Compensation("undo", {"n": "undo"}, attempts=2, backoff=None)},
        group_id="order-1",
    )


async def stages(world: World) -> None:
    await _stages(world, is_clean=True)


async def stages_that_fail(world: World) -> None:
    await _stages(world, "c", is_clean=True)


async def a_group(world: World) -> None:
    await _group(world, is_clean=True)


async def a_group_that_fails(world: World) -> None:
    await _group(world, "c", is_clean=True)


def is_undone(outcome: dict[str, Any], reference: dict[str, Any]) -> bool:
    """A member whose worker died while the group failed counts as failed, and may have done its
    work, so it is undone as well; every completed one is undone, once."""
    (group,) = outcome["q"]["groups"]
    completed = [job for job in outcome["q"]["jobs"] if job[2] == "completed"]
    undone = [job for job in outcome["q:compensation"]["jobs"] if job[2] == "completed"]
    return (
        group[0] == "FAILED"
        and int(group[1]) == len(completed) <= len(undone) <= 2
        and sum(map(int, group[1:])) == 3
    )


def has_same_jobs(outcome: dict[str, Any], reference: dict[str, Any]) -> bool:
    """A handler that ran again has logged again; all else is equal."""

    def without_logs(one: dict[str, Any]) -> list[Any]:
        return [[job[:4] for job in queue["jobs"]] for queue in one.values()]

    return without_logs(outcome) == without_logs(reference)


GROUP_QUEUES = ("q", "q:compensation")
LETTER_QUEUES = ("q", "q-dlq")


# ---------------------------------------------------------------------------- adding


@scenario()
async def add_a_job(world: World) -> None:
    await world.queue().add("work", {"n": "a"}, job_id="a")


@scenario(either=True)
async def add_a_job_without_an_id(world: World) -> None:
    await world.queue().add("work", {"n": "a"})


@scenario()
async def add_a_job_that_removes_itself(world: World) -> None:
    await world.queue().add("work", {"n": "a"}, job_id="a", remove_on_complete=True)


@scenario(most_extra=3)
async def add_while_jobs_run_and_vanish(world: World) -> None:
    """When an add is sent again, its job may have run and gone."""
    async with world.worker(is_clean=True, concurrency=4):
        for label in "ab":
            await world.queue().add("work", {"n": label}, job_id=label, remove_on_complete=True)
        jobs = [
            NewJob("work", {"n": f"j{n}"}, job_id=f"j{n}", remove_on_complete=True)
            for n in range(3)
        ]
        await world.queue().add_bulk(jobs)


@scenario(runs=False)
async def add_a_delayed_job(world: World) -> None:
    await world.queue().add("work", {"n": "a"}, job_id="a", delay=600_000)


@scenario()
async def add_a_prioritized_job(world: World) -> None:
    await world.queue().add("work", {"n": "a"}, job_id="a", priority=3)


@scenario()
async def add_jobs_in_front(world: World) -> None:
    for label in "ab":
        await world.queue().add("work", {"n": label}, job_id=label, lifo=True)


@scenario()
async def add_in_bulk(world: World) -> None:
    await world.queue().add_bulk(
        [NewJob("work", {"n": f"j{n}"}, job_id=f"j{n}") for n in range(450)]
    )


@scenario()
async def add_from_many_tasks(world: World) -> None:
    queue = world.queue()
    await asyncio.gather(*(queue.add("work", {"n": f"j{n}"}, job_id=f"j{n}") for n in range(30)))


@scenario(given=an_owner)
async def add_a_duplicate(world: World) -> None:
    await world.queue().add("work", {"n": "b"}, job_id="b", deduplication=Deduplication("d"))


@scenario(runs=False)
async def add_with_a_time_to_deduplicate(world: World) -> None:
    throttle = Deduplication("d", ttl=600_000)
    await world.queue().add("work", {"n": "a"}, job_id="a", deduplication=throttle)
    await world.queue().add("work", {"n": "b"}, job_id="b", deduplication=throttle)


@scenario(runs=False)
async def add_and_debounce(world: World) -> None:
    debounce = Deduplication("d", ttl=600_000, replace=True, extend=True)
    for label in "ab":
        await world.queue().add(
            "work", {"n": label}, job_id=label, delay=600_000, deduplication=debounce
        )


@scenario()
async def add_a_flow(world: World) -> None:
    children = [FlowJob("work", {"n": f"c{n}"}, queue_name="q", job_id=f"c{n}") for n in range(3)]
    await world.flow().add(
        FlowJob("parent", {"n": "p"}, queue_name="q", job_id="p", children=children)
    )


@scenario(given=a_parent, runs=False)
async def add_a_child(world: World) -> None:
    await world.queue().add(
        "work", {"n": "c1"}, job_id="c1", delay=600_000, parent=Parent("p", "q")
    )


@scenario(queues=GROUP_QUEUES, either=True)
async def add_a_group(world: World) -> None:
    await _group(world, is_clean=False)


@scenario(queues=GROUP_QUEUES, either=True)
async def add_stages(world: World) -> None:
    await _stages(world, is_clean=False)


@scenario()
async def add_with_blocking_code(world: World) -> None:
    def add() -> None:
        with toril.sync.Queue("q", connection=world.line, prefix=world.prefix) as queue:
            queue.add("work", {"n": "a"}, job_id="a")
            queue.add_bulk([NewJob("work", {"n": f"j{n}"}, job_id=f"j{n}") for n in range(300)])

    await asyncio.to_thread(add)


# ---------------------------------------------------------------------------- changing


@scenario(given=a_failed_job)
async def retry_a_failed_job(world: World) -> None:
    await world.queue().retry("a", reset_attempts=False)


@scenario(given=a_failed_job)
async def retry_all_failed_jobs(world: World) -> None:
    await world.queue().retry_all("failed")


@scenario(given=delayed_jobs, runs=False)
async def promote_a_job(world: World) -> None:
    await world.queue().promote("b")


@scenario(given=delayed_jobs)
async def promote_all_jobs(world: World) -> None:
    await world.queue().promote_all()


@scenario(given=delayed_jobs, runs=False)
async def cancel_a_delayed_job(world: World) -> None:
    await world.queue().cancel("b", "not wanted")


@scenario(given=three_jobs)
async def cancel_a_waiting_job(world: World) -> None:
    await world.queue().cancel("b", "not wanted")


@scenario(given=three_jobs)
async def remove_a_job(world: World) -> None:
    await world.queue().remove("b")


@scenario(given=a_parent, runs=False)
async def remove_a_family(world: World) -> None:
    await world.queue().remove("p")


@scenario(given=prioritized_jobs, runs=False)
async def change_a_priority(world: World) -> None:
    await world.queue().change_priority("c", 1)


@scenario(given=delayed_jobs, runs=False)
async def change_data_and_progress(world: World) -> None:
    await world.queue().update_data("a", {"n": "changed"})
    await world.queue().update_progress("a", 7)


@scenario(given=three_jobs, runs=False)
async def pause_a_queue(world: World) -> None:
    await world.queue().pause()


@scenario(given=three_jobs)
async def pause_and_resume(world: World) -> None:
    await world.queue().pause()
    await world.queue().resume()


@scenario(given=three_jobs)
async def drain_a_queue(world: World) -> None:
    await world.queue().drain()


@scenario(given=finished_jobs)
async def clean_a_queue(world: World) -> None:
    await world.queue().clean("completed", 0, 0)


@scenario(given=three_jobs)
async def obliterate_a_queue(world: World) -> None:
    await world.queue().obliterate(force=True)


@scenario(runs=False)
async def set_limits(world: World) -> None:
    await world.queue().set_global_concurrency(3)
    await world.queue().set_global_rate_limit(RateLimit(10, 1000))


@scenario(given=dead_letters, queues=LETTER_QUEUES, runs=False)
async def replay_a_dead_letter(world: World) -> None:
    await world.queue("q-dlq").replay_dead_letter(world.memory["b"])


@scenario(given=dead_letters, queues=LETTER_QUEUES, runs=False)
async def replay_all_dead_letters(world: World) -> None:
    await world.queue("q-dlq").replay_all_dead_letters()


@scenario(given=dead_letters, queues=LETTER_QUEUES, runs=False)
async def purge_dead_letters(world: World) -> None:
    await world.queue("q-dlq").purge_dead_letters()


@scenario(given=a_group, queues=GROUP_QUEUES)
async def cancel_a_group(world: World) -> None:
    (group,) = await world.clean().get_groups()
    await world.queue().cancel_group(group.id)


@scenario(given=finished_jobs)
async def wait_for_a_result(world: World) -> None:
    assert await world.queue().wait_for("b", timeout=60_000) == "b"


# ---------------------------------------------------------------------------- working


@scenario(given=three_jobs)
async def work_one_by_one(world: World) -> None:
    await world.work()


@scenario(given=many_jobs, most_extra=8)
async def work_on_many_at_once(world: World) -> None:
    await world.work(concurrency=8)


@scenario(given=many_jobs, most_extra=3)
async def work_under_a_rate_limit(world: World) -> None:
    await world.work(concurrency=3, limiter=RateLimit(max=10, duration=50))


async def flaky_jobs(world: World) -> None:
    await world.clean().add("flaky", {"n": "a"}, job_id="a", attempts=3)
    await world.clean().add("flaky", {"n": "b"}, job_id="b", attempts=3, backoff=20)
    await world.clean().add("bad", {"n": "c"}, job_id="c", attempts=2)


@scenario(given=flaky_jobs, most_extra=3)
async def work_with_retries(world: World) -> None:
    await world.work(concurrency=3)


@scenario(given=flaky_jobs, queues=LETTER_QUEUES)
async def work_with_dead_letters(world: World) -> None:
    await world.work()


async def jobs_of_every_kind(world: World) -> None:
    queue = world.clean()
    await queue.add("work", {"n": "plain"}, job_id="plain")
    await queue.add("work", {"n": "soon"}, job_id="soon", delay=40)
    await queue.add("work", {"n": "first"}, job_id="first", priority=1)
    await queue.add("work", {"n": "gone"}, job_id="gone", remove_on_complete=True)
    await queue.add("slow", {"n": "slow"}, job_id="slow")


@scenario(given=jobs_of_every_kind, most_extra=2)
async def work_on_every_kind(world: World) -> None:
    await world.work(concurrency=2)


async def a_long_job(world: World) -> None:
    await world.clean().add("outlives renewals", {"n": "long"}, job_id="long")


@scenario(given=a_long_job)
async def work_while_locks_are_renewed(world: World) -> None:
    await world.work()


async def a_writing_job(world: World) -> None:
    await world.clean().add("writes", {"n": "w"}, job_id="w", attempts=3)


@scenario(given=a_writing_job, is_alike=has_same_jobs)
async def work_and_write(world: World) -> None:
    await world.work()


async def a_family(world: World) -> None:
    children = [FlowJob("work", {"n": f"c{n}"}, queue_name="q", job_id=f"c{n}") for n in range(3)]
    await world.flow(is_clean=True).add(
        FlowJob("parent", {"n": "p"}, queue_name="q", job_id="p", children=children)
    )


@scenario(given=a_family, most_extra=2)
async def work_on_a_family(world: World) -> None:
    await world.work(concurrency=2)


async def jobs_of_lanes(world: World) -> None:
    for label in ("a1", "b1", "a2", "b2", "a3"):
        name = "flaky" if label == "a2" else "work"
        await world.clean().add(name, {"n": label}, job_id=label, lane=label[0], attempts=2)


@scenario(given=jobs_of_lanes, most_extra=2)
async def work_on_lanes(world: World) -> None:
    await world.work(concurrency=2)


@scenario()
async def add_to_a_lane(world: World) -> None:
    for label in "ab":
        await world.queue().add("work", {"n": label}, job_id=label, lane="l")


@scenario(given=a_group, queues=GROUP_QUEUES, most_extra=2)
async def work_on_a_group(world: World) -> None:
    await world.work(*GROUP_QUEUES, concurrency=2)


@scenario(given=stages, queues=GROUP_QUEUES, most_extra=2)
async def work_on_stages(world: World) -> None:
    await world.work(*GROUP_QUEUES)


@scenario(given=stages_that_fail, queues=GROUP_QUEUES, is_alike=is_undone)
async def work_and_undo_stages(world: World) -> None:
    await world.work(*GROUP_QUEUES)


@scenario(given=a_group_that_fails, queues=GROUP_QUEUES, is_alike=is_undone)
async def work_and_undo_a_group(world: World) -> None:
    await world.work(*GROUP_QUEUES)


@scenario(given=three_jobs, most_extra=2)
async def work_in_threads(world: World) -> None:
    await world.work(concurrency=2, handler=world.handle_in_thread)


@scenario(given=three_jobs)
async def work_by_hand(world: World) -> None:
    async with world.taker() as taker:
        while job := await taker.get_next_job(timeout=0):
            await job.complete(await world.handle(job))


@scenario(given=flaky_jobs, is_alike=has_same_jobs, most_extra=3)
async def fail_by_hand(world: World) -> None:
    async with world.taker() as taker:
        while not await world.is_quiet():
            if job := await taker.get_next_job(timeout=500):
                try:
                    value = await world.handle(job)
                except ValueError as error:
                    await job.fail(error)
                else:
                    await job.complete(value)


@scenario(given=three_jobs)
async def close_while_working(world: World) -> None:
    async with world.worker() as worker:
        while not await world.runs():
            await asyncio.sleep(0.005)
        await worker.close(timeout=60_000)


@scenario(given=three_jobs)
async def leave_and_come_back(world: World) -> None:
    for _ in range(2):
        async with world.worker() as worker:
            worker.pause()
            await worker.close(timeout=500)
    await world.work()


@scenario()
async def work_for_what_comes(world: World) -> None:
    """The worker is idle, waits at the server, and is woken."""
    queue = world.clean()
    async with world.worker() as worker:
        for label in "abc":
            await asyncio.sleep(0.03)
            await queue.add("work", {"n": label}, job_id=label)
        deadline = time.monotonic() + 30
        while not await world.is_quiet() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        await worker.close(timeout=60_000)
