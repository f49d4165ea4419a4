"""``toril.testing``: what users test their own tasks with."""

from __future__ import annotations

import asyncio
import importlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import wait_until
from toril import (
    App,
    ArgumentsError,
    Backoff,
    Context,
    InvalidInputError,
    JobFailedError,
    JobNotInStateError,
    PayloadError,
    every,
)
from toril.errors import NoHandlerError, PayloadTooLargeError
from toril.testing import make_context, running, server_url

app = App()
"""At the top of a module, as users write it; each test borrows it."""

ran: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    ran.clear()


@app.task(queue="payments", attempts=2)
async def charge(ctx: Context, order: int, note: str = "none") -> str:
    ran.append(("charge", order))
    await ctx.report(50)
    if order < 0:
        raise ValueError("a negative order")
    await mail.enqueue(f"order {order}")
    return f"receipt {order}"


@app.task
def mail(text: str) -> None:
    ran.append(("mail", text))


@app.task(queue="clock", schedule=every(days=1))
async def daily() -> None:
    ran.append("daily")


class TestMakeContext:
    async def test_it_records_what_the_handler_says(self):
        async def handler(ctx: Context) -> int:
            await ctx.report(10)
            rows = await ctx.log("hello")
            await ctx.update_data({"order": 2})
            return int(rows) + ctx.data["order"]

        ctx = make_context("charge", {"order": 1}, attempts_made=2, attempts=5, state={"x": 1})

        assert await handler(ctx) == 3
        assert (ctx.reports, ctx.logs, ctx.updates) == ([10], ["hello"], [{"order": 2}])
        assert (ctx.name, ctx.attempts_made, ctx.attempts_started, ctx.opts.attempts) == (
            "charge",
            2,
            3,
            5,
        )
        assert ctx.state == {"x": 1}
        assert ctx.idempotency_key

    def test_a_plain_handler_need_not_await(self):
        def handler(ctx: Context) -> None:
            ctx.report(1)
            ctx.log("row")

        ctx = make_context()
        handler(ctx)

        assert (ctx.reports, ctx.logs) == ([1], ["row"])

    def test_it_satisfies_the_protocol(self):
        assert isinstance(make_context(), Context)

    async def test_a_task_is_called_like_the_function_it_is(self, monkeypatch: pytest.MonkeyPatch):
        ctx = make_context("charge", {"order": 1})
        with app.eager():
            assert await charge(ctx, 1) == "receipt 1"
        assert ctx.reports == [50]


class TestEager:
    async def test_enqueue_runs_at_once_without_a_server(self):
        with app.eager():
            handle = await charge.enqueue(7)

        assert await handle.result() == "receipt 7"
        assert await handle.state() == "completed"
        assert ran == [("charge", 7), ("mail", "order 7")]
        with pytest.raises(JobNotInStateError):
            await handle.cancel()

    def test_blocking_code_too(self):
        with app.eager():
            assert charge.sync.enqueue(8).result() == "receipt 8"
            assert mail.sync.enqueue("x").state() == "completed"

    async def test_a_failure_is_raised_or_kept(self):
        with app.eager(), pytest.raises(ValueError, match="negative"):
            await charge.enqueue(-1)
        with app.eager(raise_failures=False):
            handle = await charge.enqueue(-1)
        with pytest.raises(JobFailedError, match="ValueError: a negative order"):
            await handle.result()

    async def test_what_a_queue_would_refuse_is_refused(self):
        with app.eager():
            with pytest.raises(InvalidInputError, match="job id"):
                await mail.using(job_id="17").enqueue("a")
            with pytest.raises(PayloadTooLargeError):
                await mail.using(size_limit=10).enqueue("a" * 10)

    async def test_a_job_is_called_what_it_was_called(self):
        with app.eager():
            handle = await charge.using(job_id="charge-1", idempotency_key="order-1").enqueue(1)

        assert (handle.id, handle.context.id) == ("charge-1", "charge-1")
        assert handle.context.idempotency_key == "order-1"

    async def test_a_result_comes_back_as_from_a_server(self):
        """Regression: what only the same process can return passed, and failed in production."""
        other = App()
        results: list[Any] = [(1, {2: "two"}), object()]

        @other.task
        def give():  # type: ignore[no-untyped-def]
            return results.pop(0)

        with other.eager():
            assert await (await give.enqueue()).result() == [1, {"2": "two"}]
            with pytest.raises(PayloadError, match="object"):
                await give.enqueue()

    async def test_arguments_are_checked_as_ever(self):
        with app.eager(), pytest.raises(ArgumentsError):
            await charge.enqueue("x")  # type: ignore[arg-type]


class TestRig:
    async def test_drain_runs_everything_and_says_what_ran(self):
        async with running(app) as rig:
            await charge.enqueue(1)

            done = await rig.drain()

            assert {(one.name, one.state, one.result) for one in done} == {
                ("charge", "completed", "receipt 1"),
                ("mail", "completed", None),
            }
            assert await rig.drain() == []

    async def test_it_tells_what_was_enqueued_without_asking_the_server(self):
        async with running(app) as rig:
            await charge.enqueue(1)
            await app.enqueue_many([mail.call("a"), mail.call("b")])
            await asyncio.to_thread(lambda: mail.sync.enqueue("c"))

            assert rig.assert_enqueued(charge, order=1).arguments == {"order": 1, "note": "none"}
            rig.assert_enqueued(mail, 3)
            assert [one.arguments["text"] for one in rig.enqueued(mail)] == ["a", "b", "c"]
            assert len(rig.enqueued()) == 4
            with pytest.raises(AssertionError, match=r"'charge' was not enqueued .*'order': 2"):
                rig.assert_enqueued(charge, order=2)
            with pytest.raises(AssertionError, match="2 times, but 3 times"):
                rig.assert_enqueued(mail, 2)

    async def test_failures_are_raised_unless_told_otherwise(self):
        async with running(app) as rig:
            await charge.enqueue(-1)
            with pytest.raises(ValueError, match="a negative order"):
                await rig.drain()
            await charge.enqueue(-2)
            [failed] = await rig.drain(raise_failures=False)
            assert (failed.state, failed.attempts) == ("failed", 2)
            await app.enqueue_many([charge.call(-3), charge.call(-4)])
            with pytest.raises(ExceptionGroup, match="2 jobs failed"):
                await rig.drain()

    async def test_what_is_due_later_runs_in_its_order_in_time(self):
        async with running(app) as rig:
            await mail.using(delay=7_200_000).enqueue("second")
            await mail.using(delay=3_600_000).enqueue("first")
            await mail.enqueue("now")

            assert [one.data["text"] for one in await rig.drain()] == ["now"]
            assert [one.data["text"] for one in await rig.drain(with_delayed=True)] == [
                "first",
                "second",
            ]

    async def test_what_is_due_later_in_a_lane_runs_too(self):
        """Delayed jobs of lanes are kept elsewhere than others."""
        async with running(app) as rig:
            await mail.using(delay=7_200_000).enqueue("third")
            await mail.using(delay=3_600_000, lane="a").enqueue("second")
            await mail.using(delay=60_000, lane="b").enqueue("first")

            assert await rig.drain() == []
            ended = await rig.drain(with_delayed=True)

            assert [one.data["text"] for one in ended] == ["first", "second", "third"]

    async def test_a_drain_does_not_end_before_what_is_due_in_a_lane_has_begun(self):
        async with running(app) as rig:
            await mail.using(delay=3_600_000, lane="a").enqueue("late")
            await rig.advance(timedelta(hours=1))

            assert await rig._is_due("default", await rig._now_ms())
            assert [one.data["text"] for one in await rig.drain()] == ["late"]

    async def test_time_goes_by_when_it_is_told_to(self):
        async with running(app) as rig:
            await mail.using(delay=timedelta(hours=3)).enqueue("later")
            await rig.advance(timedelta(hours=2, minutes=59))
            assert await rig.drain() == []

            await rig.advance(timedelta(minutes=1))

            assert [one.data["text"] for one in await rig.drain()] == ["later"]

    async def test_a_month_of_a_schedule_runs_in_a_moment(self):
        async with running(app) as rig:
            await app.declare_schedules()
            await rig.drain()
            ran.clear()

            for _ in range(30):
                await rig.advance(timedelta(days=1))
                await rig.drain()

            assert ran == ["daily"] * 30

    @pytest.mark.parametrize("with_delayed", [False, True])
    async def test_schedules_that_are_due_run_before_a_drain_ends(self, with_delayed):
        """Regression: a drain that looked before its workers did ended without them."""
        other = App()
        runs: list[str] = []
        for number in range(8):

            @other.task(name=f"s{number}", queue=f"q{number}", schedule=every(days=1))
            async def tick(ctx: Context) -> None:
                runs.append(ctx.name)

        async with running(other) as rig:
            await other.declare_schedules()
            await rig.drain()
            for _ in range(5):
                runs.clear()
                await rig.advance(timedelta(days=1))
                await rig.drain(with_delayed=with_delayed)

                assert sorted(runs) == [f"s{number}" for number in range(8)]

    async def test_a_delayed_job_behind_many_schedules_is_found(self):
        """Regression: only the first 100 that wait for their time were looked at."""
        async with running(app) as rig:
            queue = app.queue("default")
            for number in range(105):
                await queue.upsert_job_scheduler(
                    f"s{number}", cron="0 0 1 1 *", template=mail.call("new year")
                )
            await mail.using(delay=timedelta(days=800)).enqueue("late")

            done = await rig.drain(with_delayed=True)

            assert [one.data["text"] for one in done] == ["late"]

    async def test_a_drain_does_not_declare_schedules(self):
        async with running(app) as rig:
            await rig.drain()

            assert ran == []
            assert await app.queue("clock").get_job_schedulers() == []

    async def test_a_schedule_that_is_long_due_runs_once(self):
        async with running(app) as rig:
            await app.declare_schedules()
            await rig.drain()
            ran.clear()

            await rig.advance(timedelta(days=30))
            await rig.drain(with_delayed=True)

            assert ran == ["daily"]
            assert await app.queue("clock").get_delayed_count() == 1

    async def test_a_drain_leaves_what_is_not_due_and_what_is_elsewhere(self):
        async with running(app) as rig:
            await mail.using(delay=60_000).enqueue("not due")
            await app.queue("elsewhere").add("mail", {"text": "in a queue of nobody"})

            assert await rig.drain() == []

            assert ran == []
            assert await app.queue("default").get_delayed_count() == 1
            assert await app.queue("elsewhere").get_waiting_count() == 1

    async def test_a_job_that_no_task_takes_fails(self):
        async with running(app) as rig:
            await app.queue("default").add("mial", {"text": "x"})
            with pytest.raises(NoHandlerError, match="mial"):
                await rig.drain()

    async def test_a_drain_that_cannot_end_says_what_is_left(self):
        async with running(app) as rig:
            await app.queue("default").pause()
            await mail.enqueue("stuck")
            with pytest.raises(TimeoutError, match="queue 'default': 1 waiting, paused"):
                await rig.drain(timeout=200)
            await app.queue("default").resume()
            await rig.drain()

            await app.queue("default").pause_lane("held")
            await mail.using(lane="held").enqueue("stuck")
            with pytest.raises(TimeoutError, match="queue 'default': 1 waiting"):
                await rig.drain(timeout=200)

    async def test_retries_wait_and_come_when_their_time_has_come(self):
        other = App()
        tries: list[int] = []

        @other.task(attempts=3, backoff=Backoff.fixed(3_600_000))
        async def flaky() -> None:
            tries.append(1)
            if len(tries) < 3:
                raise ConnectionError

        async with running(other) as rig:
            await flaky.enqueue()
            await rig.drain()
            assert len(tries) == 1
            await rig.advance(timedelta(hours=1))
            await rig.drain()
            assert len(tries) == 2
            await rig.drain(with_delayed=True)
            assert len(tries) == 3

    async def test_what_waits_behind_a_retry_in_its_lane_is_not_due_either(self):
        other = App()
        tries: list[int] = []

        @other.task(lane="a", attempts=2, backoff=Backoff.fixed(3_600_000))
        async def flaky(number: int) -> None:
            tries.append(number)
            if tries == [1]:
                raise ConnectionError

        async with running(other) as rig:
            await other.enqueue_many([flaky.call(1), flaky.call(2)])
            assert await rig.drain() == []
            assert tries == [1]

            ended = await rig.drain(with_delayed=True)

            assert [one.data["number"] for one in ended] == [1, 2]
            assert tries == [1, 1, 2]

    async def test_a_job_that_is_let_in_during_a_look_is_seen(self, monkeypatch):
        """It had left `delayed` when that was read, and came to `active` after that was counted."""
        other = App()
        looked = asyncio.Event()

        @other.task
        async def first() -> None:
            await looked.wait()
            await last.enqueue()

        @other.task
        async def last() -> str:
            return "last"

        async with running(other) as rig:
            await first.using(delay=3_600_000).enqueue()
            queue, look = other.queue("default"), rig._is_due

            async def look_late(*args: Any) -> bool:
                if looked.is_set():
                    return await look(*args)
                await rig.advance(timedelta(hours=1))
                await wait_until(lambda: queue.get_active_count())
                is_due = await look(*args)
                looked.set()
                return is_due

            monkeypatch.setattr(rig, "_is_due", look_late)

            ended = await rig.drain()

            assert sorted(one.name for one in ended) == ["first", "last"]

    @pytest.mark.parametrize("way", ["advance", "with_delayed"])
    async def test_delayed_jobs_of_partitions_run(self, way):
        other = App(partitions={"mail": 4})

        @other.task(queue="mail")
        async def send(number: int) -> int:
            return number

        async with running(other) as rig:
            for number in range(8):
                await send.using(delay=60_000 * (8 - number)).enqueue(number)
            if way == "advance":
                await rig.advance(timedelta(hours=1))
                ended = await rig.drain()
                assert sorted(one.result for one in ended) == list(range(8))
            else:
                ended = await rig.drain(with_delayed=True)
                assert [one.result for one in ended] == list(reversed(range(8)))

    async def test_deduplication_ends_when_its_time_has_gone_by(self):
        from toril import Deduplication

        async with running(app) as rig:
            once = mail.using(deduplication=Deduplication("greeting", ttl=3_600_000))
            first, second = await once.enqueue("a"), await once.enqueue("b")
            await rig.advance(timedelta(minutes=61))
            third = await once.enqueue("c")

            assert [h.duplicated for h in (first, second, third)] == [False, True, False]
            await rig.drain()

    async def test_the_app_is_as_it_was_afterwards(self):
        home = app.connection, app.prefix

        async with running(app) as rig:
            assert (app.connection, app.prefix) == (rig.url, rig.prefix)

        assert (app.connection, app.prefix) == home

    async def test_two_tests_do_not_see_each_other(self):
        async with running(app):
            await mail.enqueue("left over")
        async with running(app) as rig:
            assert await rig.drain() == []

    @pytest.mark.parametrize("name", ["passes_on", "passes_on_async"])
    async def test_in_processes_tasks_enqueue_where_the_app_is(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """Regression: they imported the app anew, and enqueued where its module says."""
        url = server_url()
        monkeypatch.setenv("TORIL_TEST_JOURNAL", str(tmp_path / "journal"))
        monkeypatch.setenv("TORIL_TEST_URL", "redis://127.0.0.1:1")
        monkeypatch.setenv("TORIL_TEST_PREFIX", "elsewhere")
        programs = importlib.reload(importlib.import_module("tests.tasks.programs"))

        async with running(programs.app, url=url) as rig:
            await getattr(programs, name).enqueue()
            ran = {job.name: job for job in await rig.drain()}

        assert ran[name].result == ran["where"].id
