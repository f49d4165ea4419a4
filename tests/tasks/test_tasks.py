"""Tasks, from the call to the result, on a real server."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

import toril
from tests.helpers import wait_until
from toril import (
    App,
    ArgumentsError,
    Backoff,
    Call,
    Compensation,
    Context,
    Deduplication,
    FlowJob,
    FlowProducer,
    GroupJob,
    Handle,
    InvalidInputError,
    JobFailedError,
    TaskMiddleware,
    Worker,
    cron,
    every,
)
from toril.errors import SchedulerConflictError
from toril.sync import Queue as BlockingQueue


@dataclass
class Receipt:
    order: int
    amount: Decimal


Running = Callable[..., Awaitable[None]]


@pytest.fixture
async def app(url: str, prefix: str) -> AsyncIterator[App]:
    app = App(connection=url, prefix=prefix)
    yield app
    await app.close()


@pytest.fixture
async def run(app: App) -> AsyncIterator[Callable[..., None]]:
    """Starts the app; it is closed after the test."""
    running: list[asyncio.Task[None]] = []

    def start(*args: Any, **options: Any) -> None:
        running.append(asyncio.create_task(app.run(*args, **options)))

    yield start
    if running:
        await asyncio.sleep(0)
        await app.close(timeout=1000)
        await asyncio.gather(*running)


async def test_a_result_comes_back_as_the_type_of_the_annotation(app: App, run: Running):
    @app.task
    async def charge(order: int, amount: Decimal) -> Receipt:
        return Receipt(order, amount * 2)

    run()
    handle = await charge.enqueue(1, Decimal("9.99"))

    assert await handle.result(timeout=60_000) == Receipt(1, Decimal("19.98"))
    assert await handle.state() == "completed"
    job = await handle.job()
    assert job is not None
    assert job.data == {"order": 1, "amount": "9.99"}
    assert job.name == "charge"
    assert handle.queue_name == "default"


async def test_a_task_is_still_a_function(app: App):
    @app.task(queue="sums")
    def add(a: int, b: int = 2) -> int:
        "Adds."
        return a + b

    assert add(1) == 3
    assert add.__doc__ == "Adds."
    assert add.__name__ == "add"
    assert app.queue_names == ["sums"]


async def test_a_plain_function_runs_in_a_thread_with_its_context(app: App, run: Running):
    @app.task
    def work(ctx: Context) -> str:
        ctx.report(40)
        ctx.log("half way")
        return threading.current_thread().name

    run()
    handle = await work.enqueue()

    assert (await handle.result(60_000)).startswith("toril-handler")
    job = await handle.job()
    assert job is not None
    assert job.progress == 40


async def test_a_call_that_does_not_fit_adds_nothing(
    app: App, client: redis.asyncio.Redis, prefix: str
):
    @app.task
    async def charge(order: int) -> None: ...

    with pytest.raises(ArgumentsError, match=r"\$.order"):
        await charge.enqueue("one")  # type: ignore[arg-type]

    assert not [key async for key in client.scan_iter(f"{prefix}:*")]


async def test_a_job_whose_data_does_not_fit_fails_for_good_and_says_where(app: App, run: Running):
    @app.task(attempts=5)
    async def charge(order: int) -> None: ...

    run()
    queue = app.queue("default")
    job = await queue.add("charge", {"order": "one"}, attempts=5)

    with pytest.raises(JobFailedError, match=r"Expected `int`, got `str` - at `\$.order`"):
        await queue.wait_for(job.id, 60_000)
    found = await queue.get_job(job.id)
    assert found is not None
    assert found.attempts_made == 1


async def test_a_result_that_does_not_fit_fails_the_job_at_once(app: App, run: Running):
    runs: list[int] = []

    @app.task(attempts=3)
    async def count() -> int:
        runs.append(1)
        return "three"  # type: ignore[return-value]

    run()
    handle = await count.enqueue()

    with pytest.raises(JobFailedError, match="does not fit its annotation"):
        await handle.result(60_000)
    assert runs == [1]


async def test_options_of_the_function_are_those_of_its_jobs_and_using_overrides(app: App):
    @app.task(attempts=5, backoff=Backoff.exponential(1000), timeout=30_000, priority=3)
    async def charge(order: int) -> None: ...

    first = await (await charge.enqueue(1)).job()
    other = await (await charge.using(attempts=1, delay=60_000, job_id="order-2").enqueue(2)).job()

    assert first is not None
    assert other is not None
    assert (first.opts.attempts, first.opts.timeout, first.priority) == (5, 30_000, 3)
    assert first.opts.backoff == Backoff.exponential(1000)
    assert (other.opts.attempts, other.id, other.delay) == (1, "order-2", 60_000)


async def test_options_may_follow_from_the_arguments(app: App):
    @app.task(
        lane=lambda order, **_: f"order:{order}",
        job_id=lambda order, note, **_: f"charge-{order}-{note}",
    )
    async def charge(order: int, note: str = "x") -> None: ...

    @app.task(deduplication=lambda order: Deduplication(f"o-{order}"))
    async def index(order: int) -> None: ...

    charged = await (await charge.enqueue(7)).job()
    first, second = await index.enqueue(1), await index.enqueue(1)

    assert charged is not None
    assert (charged.id, charged.lane) == ("charge-7-x", "order:7")
    assert second.duplicated
    assert second.id == first.id


async def test_only_errors_worth_it_are_tried_again(app: App, run: Running):
    runs: list[str] = []

    @app.task(attempts=3, retry_on=ConnectionError)
    async def fetch(fails_with: str) -> None:
        runs.append(fails_with)
        raise {"lost": ConnectionResetError, "bug": ValueError}[fails_with]

    @app.task(attempts=3, give_up_on=(LookupError,))
    async def find(fails_with: str) -> None:
        runs.append(fails_with)
        raise {"missing": KeyError, "busy": OSError}[fails_with]

    run()
    for task, word in ((fetch, "lost"), (fetch, "bug"), (find, "missing"), (find, "busy")):
        with pytest.raises(JobFailedError):
            await (await task.enqueue(word)).result(60_000)

    assert runs == ["lost"] * 3 + ["bug", "missing"] + ["busy"] * 3


async def test_a_job_that_nobody_started_in_time_is_never_run(
    app: App, run: Running, client: redis.asyncio.Redis, prefix: str
):
    runs: list[int] = []

    @app.task(expires=60_000, attempts=3)
    async def greet(number: int) -> None:
        runs.append(number)

    old, fresh = await greet.enqueue(1), await greet.enqueue(2)
    key = f"{prefix}:default:{old.id}"
    await client.hset(key, "timestamp", int(await client.hget(key, "timestamp")) - 61_000)  # type: ignore[arg-type]
    run()

    await fresh.result(60_000)
    with pytest.raises(JobFailedError, match="not started within 60000 ms"):
        await old.result(60_000)
    assert runs == [2]


async def test_many_calls_go_out_in_bulk_and_their_handles_keep_the_order(app: App, run: Running):
    @app.task(queue="a")
    async def double(number: int) -> int:
        return number * 2

    @app.task(queue="b")
    async def negate(number: int) -> int:
        return -number

    run()
    calls = [(double if n % 2 else negate).call(n) for n in range(10)]
    handles = await app.enqueue_many(calls)

    results = await asyncio.gather(*(handle.result(60_000) for handle in handles))
    assert results == [n * 2 if n % 2 else -n for n in range(10)]


async def test_a_call_goes_wherever_a_job_is_described(app: App, url: str, prefix: str):
    @app.task(queue="mail", attempts=4)
    async def send(to: str) -> None: ...

    call = send.call("ada")
    queue = app.queue("mail")
    [job] = await queue.add_bulk([call])
    ticked = await queue.upsert_job_scheduler("often", every=60_000, template=send.call("bob"))
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        node = await flow.add(FlowJob("parent", queue_name="mail", children=[send.call("child")]))

    assert isinstance(call, Call)
    assert (call.name, call.queue_name, call.data, call.attempts) == (
        "send",
        "mail",
        {"to": "ada"},
        4,
    )
    assert (job.name, job.data, job.opts.attempts) == ("send", {"to": "ada"}, 4)
    assert ticked.data == {"to": "bob"}
    assert node.children[0].job.data == {"to": "child"}


async def test_blocking_code_enqueues_and_waits(app: App, run: Running):
    @app.task
    async def double(number: int) -> Decimal:
        return Decimal(number) * 2

    run()

    def blocking() -> Any:
        handle = double.sync.enqueue(21)
        return handle.result(60_000), handle.state(), handle.job()

    result, state, job = await asyncio.to_thread(blocking)

    assert result == Decimal(42)
    assert state == "completed"
    assert job.data == {"number": 21}


async def test_a_handle_cancels_its_job(app: App, run: Running):
    started = asyncio.Event()

    @app.task
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    run()
    handle = await wait.enqueue()
    await asyncio.wait_for(started.wait(), 60)

    await handle.cancel("no longer needed")

    with pytest.raises(JobFailedError, match="no longer needed"):
        await handle.result(60_000)


async def test_routes_decide_for_tasks_that_name_no_queue(url: str):
    app = App(connection=url, queue="rest", routes={"report_*": "reports"}, attempts=7)

    @app.task
    async def report_sales() -> None: ...
    @app.task(queue="own")
    async def report_own() -> None: ...
    @app.task(attempts=2)
    async def other() -> None: ...

    assert [t.queue_name for t in (report_sales, report_own, other)] == ["reports", "own", "rest"]
    assert (report_sales.call().attempts, other.call().attempts) == (7, 2)


async def test_the_lifespan_is_entered_once_and_its_state_is_in_the_context(url: str, prefix: str):
    story: list[str] = []

    @asynccontextmanager
    async def pools(app: App) -> AsyncIterator[dict[str, str]]:
        story.append("open")
        yield {"bank": "here"}
        story.append("closed")

    app = App(connection=url, prefix=prefix, lifespan=pools)

    @app.task(queue="a")
    async def one(ctx: Context) -> str:
        story.append("ran")
        return str(ctx.state["bank"])

    @app.task(queue="b")
    def two(ctx: Context) -> str:
        story.append("ran")
        return str(ctx.state["bank"])

    running = asyncio.create_task(app.run())
    assert [
        await (await one.enqueue()).result(60_000),
        await (await two.enqueue()).result(60_000),
    ] == ["here", "here"]
    await app.close()
    await running

    assert story == ["open", "ran", "ran", "closed"]


async def test_middleware_sees_both_sides(url: str, prefix: str):
    seen: list[Any] = []

    class Tenants(TaskMiddleware):
        async def on_enqueue(self, call: Call[Any], next: Any) -> Handle[Any]:  # noqa: A002
            seen.append(("enqueue", call.name))
            return await next(call)  # type: ignore[no-any-return]

        async def on_run(self, ctx: Any, next: Any) -> Any:  # noqa: A002
            seen.append(("run", ctx.name, ctx.data))
            return await next(ctx) + 1

    app = App(connection=url, prefix=prefix, middleware=[Tenants()])

    @app.task
    def one(a: int) -> int:
        return a

    running = asyncio.create_task(app.run())
    handle = await one.enqueue(4)
    [other] = await app.enqueue_many([one.call(5)])

    assert [await handle.result(60_000), await other.result(60_000)] == [5, 6]
    await app.close()
    await running
    assert seen[0] == ("enqueue", "one")
    assert ("run", "one", {"a": 4}) in seen
    assert len(seen) == 4


async def test_schedules_of_the_code_are_declared_once_and_pruned_when_gone(app: App):
    @app.task(schedule=every(minutes=5))
    async def often() -> None: ...
    @app.task(schedule=cron("0 3 * * *", tz="Europe/Berlin"), attempts=3)
    async def nightly() -> None: ...

    queue = app.queue("default")
    await queue.upsert_job_scheduler("by-hand", every=60_000)
    changed = await app.declare_schedules()
    stored = await queue.get_job_scheduler("task.nightly")
    again = await app.declare_schedules()

    assert sorted(one.id for one in changed) == ["task.nightly", "task.often"]
    assert again == []
    assert stored is not None
    assert (stored.cron, stored.tz, stored.opts.attempts) == ("0 3 * * *", "Europe/Berlin", 3)

    other = App(connection=app.connection, prefix=app.prefix)

    @other.task(schedule=every(minutes=10), name="often")
    async def slower() -> None: ...

    gone = await other.prune_schedules()
    changed = await other.declare_schedules()

    assert [one.id for one in gone] == ["task.nightly"]
    assert [one.id for one in changed] == ["task.often"]
    assert sorted(s.id for s in await queue.get_job_schedulers()) == ["by-hand", "task.often"]
    await other.close()


async def test_a_scheduler_whose_data_cannot_be_read_keeps_no_schedule_away(
    app: App, client: Any, prefix: str
):
    """Another program wrote it: the schedules of the code were given up with a traceback."""

    @app.task(schedule=every(minutes=5))
    async def often() -> None: ...

    queue = app.queue("default")
    await queue.upsert_job_scheduler("theirs", every=60_000)
    await client.hset(f"{prefix}:default:repeat:theirs", "data", b"no json \xff")

    assert [one.id for one in await app.declare_schedules()] == ["task.often"]
    found = await queue.get_job_scheduler("theirs")
    assert found is not None
    assert found.data == "no json \ufffd"


async def test_a_schedule_that_is_refused_keeps_no_other_away(app: App):
    """Regression: those behind it were not declared, by any worker at any start."""
    past = datetime(2020, 1, 1, tzinfo=UTC)

    @app.task(schedule=every(minutes=5, end=past))
    async def over() -> None: ...

    @app.task(schedule=every(days=1))
    async def taken() -> None: ...

    @app.task(schedule=every(hours=1))
    async def wanted() -> None: ...

    refused = SchedulerConflictError("the jobs of its next times exist")
    store = app._store

    async def refuse(schedule: Any, task: Any, stored: Any) -> None:
        if task.name == "taken":
            raise refused
        await store(schedule, task, stored)

    app._store = refuse  # type: ignore[method-assign]
    with pytest.raises(SchedulerConflictError) as found:
        await app.declare_schedules()

    assert found.value is refused
    stored = await app.queue("default").get_job_schedulers()
    assert [one.id for one in stored] == ["task.wanted"]


async def test_a_schedule_whose_end_moved_into_the_past_is_no_secret(app: App):
    """The server goes on with the one that it has."""

    @app.task(schedule=every(minutes=5))
    async def often() -> None: ...

    await app.declare_schedules()
    often.schedule = every(minutes=5, end=datetime(2020, 1, 1, tzinfo=UTC))

    with pytest.raises(InvalidInputError, match="is in the past"):
        await app.declare_schedules()


async def test_a_task_with_a_schedule_must_need_no_arguments(app: App):
    with pytest.raises(ArgumentsError, match="missing required field `order`"):

        @app.task(schedule=every(minutes=5))
        async def nightly(order: int) -> None: ...


async def test_dead_letters_of_undoing_have_a_queue_that_can_be_named(
    url: str, prefix: str
) -> None:
    options = {"dead_letter_queue": "{queue}-dlq"}
    app = App(connection=url, prefix=prefix, worker_options=options)

    @app.task(queue="payments")
    async def charge(order: int) -> None: ...

    @charge.undo
    async def refund(order: int) -> None: ...

    app.on_worker(lambda worker: letters.add(worker.dead_letter_queue))
    letters: set[str | None] = set()
    running = asyncio.create_task(app.run())
    await wait_until(lambda: len(letters) == 2 or running.done())
    await app.close()
    await running

    assert letters == {"payments-dlq", "payments-compensation-dlq"}


async def test_an_undo_is_given_the_arguments_and_the_result(app: App, run: Running, url: str):
    undone: list[Any] = []

    @app.task(queue="payments")
    async def charge(order: int, amount: Decimal) -> Receipt:
        return Receipt(order, amount)

    @charge.undo
    async def refund(order: int, amount: Decimal, *, result: Receipt | None, ctx: Context) -> None:
        undone.append((order, amount, result, ctx.queue_name))

    @app.task(queue="payments")
    async def ship(order: int) -> None:
        raise RuntimeError("no lorry")

    assert charge.undoing is not None
    run()
    call = charge.call(1, Decimal("5"))
    async with FlowProducer(connection=url, prefix=app.prefix) as flow:
        await flow.add_group(
            name="order",
            jobs=[
                GroupJob("charge", queue_name="payments", data=call.data),
                GroupJob("ship", queue_name="payments", data={"order": 1}, delay=100),
            ],
            compensation={"charge": Compensation("refund", data=call.data)},
        )
    await wait_until(lambda: undone)

    assert undone == [(1, Decimal(5), Receipt(1, Decimal(5)), "payments:compensation")]


async def test_mistakes_in_declarations_are_told_at_once(app: App):
    @app.task
    async def charge() -> None: ...

    with pytest.raises(InvalidInputError, match="already has a task 'charge'"):

        @app.task(name="charge")
        async def other() -> None: ...

    with pytest.raises(InvalidInputError, match="did you mean 'attempts'"):

        @app.task(atempts=3)  # type: ignore[call-overload]
        async def misspelt() -> None: ...

    with pytest.raises(InvalidInputError, match="class of exceptions"):

        @app.task(retry_on=ValueError("x"))  # type: ignore[call-overload]
        async def wrong() -> None: ...

    with pytest.raises(InvalidInputError, match="no task of the app goes to queue 'typo'"):
        app.make_workers(["typo"])

    with pytest.raises(InvalidInputError, match="has no task"):
        App().make_workers()


async def test_an_app_survives_being_run_twice_one_after_the_other(app: App):
    @app.task
    async def one() -> int:
        return 1

    for _ in range(2):
        running = asyncio.create_task(app.run())
        assert await (await one.enqueue()).result(60_000) == 1
        await app.close()
        await running


async def test_a_plain_workers_job_and_a_task_share_a_queue(app: App, url: str, prefix: str):
    """What a task enqueues is a job like any other; Node's or a plain worker's handler runs it."""

    @app.task(queue="shared")
    async def charge(order: int) -> int:
        return order

    async def handler(job: Any) -> Any:
        return job.data["order"] + 1

    async with Worker("shared", handler, connection=url, prefix=prefix):
        assert await (await charge.enqueue(1)).result(60_000) == 2


async def test_in_processes_the_lifespan_is_entered_and_left_in_each(
    url: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    journal = tmp_path / "journal"
    monkeypatch.setenv("TORIL_TEST_JOURNAL", str(journal))
    monkeypatch.setenv("TORIL_TEST_URL", url)
    monkeypatch.setenv("TORIL_TEST_PREFIX", prefix)
    programs = importlib.reload(importlib.import_module("tests.tasks.programs"))
    app: App = programs.app

    running = asyncio.create_task(app.run(concurrency=1))
    pid, opened_by = await (await programs.where.enqueue()).result(60_000)
    other = await (await programs.where_async.enqueue()).result(60_000)
    with pytest.raises(JobFailedError, match="KeyError"):
        await (await programs.broken.enqueue()).result(60_000)
    await app.close()
    await running

    assert pid == opened_by
    assert other == [pid, pid]
    story = journal.read_text().splitlines()
    assert story.count(f"open {pid}") == 1
    assert story.count(f"close {pid}") == 1


def test_an_app_runs_as_a_program(url: str, prefix: str):
    """``toril.run(app)`` takes it like a worker."""
    app = App(connection=url, prefix=prefix)
    done: list[int] = []

    @app.task
    async def stop() -> None:
        done.append(1)
        asyncio.get_running_loop().call_soon(asyncio.ensure_future, app.close())

    with BlockingQueue("default", connection=url, prefix=prefix) as queue:
        queue.add("stop", {})
        toril.run(app)

    assert done == [1]
