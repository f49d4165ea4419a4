"""Handlers of every kind, and everything that a handler may do to itself."""

from __future__ import annotations

import asyncio
import contextvars
import json
import threading
import time
from functools import partial

import msgspec
import pytest

from tests import counting
from tests.helpers import PATIENCE_S, not_run, wait_until
from tests.worker.conftest import Inside, StartWorker
from toril import NewJob, Router, UnrecoverableError
from toril.errors import DelayedError, InvalidOptionError, LockLostError, RateLimitError
from toril.protocol import settling
from toril.worker import executors


async def test_an_async_handler_runs_on_the_loop(queue, start_worker, inside: Inside):
    threads = []

    async def handler(job):
        threads.append(threading.current_thread())
        return {"doubled": job.data["n"] * 2}

    job = await queue.add("double", {"n": 21})
    await start_worker(handler)
    await inside.until_finished(1)

    assert json.loads((await inside.job(job.id))["returnvalue"]) == {"doubled": 42}
    assert threads == [threading.current_thread()]


async def test_a_plain_handler_runs_in_a_thread_with_the_same_job(queue, start_worker, inside):
    def handler(job):
        job.report(50)
        assert job.log("a row") == 1
        job.update_data({"n": 2})
        job.extend_lock(60_000)
        assert threading.current_thread() is not threading.main_thread()
        assert (job.fence, job.is_cancelled, job.is_lost) == (1, False, False)
        return job.data

    job = await queue.add("plain", {"n": 1})
    await start_worker(handler)
    await inside.until_finished(1)

    stored = await inside.job(job.id)
    assert (stored["returnvalue"], stored["data"]) == ('{"n":2}', '{"n":2}')
    assert stored["progress"] == "50"
    assert await inside.logs(job.id) == ["a row"]


async def test_plain_handlers_run_side_by_side_up_to_the_concurrency(queue, start_worker, inside):
    lock, running, most = threading.Lock(), 0, 0
    together = threading.Barrier(3, timeout=60)

    def handler(job):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1

    for n in range(9):
        await queue.add(f"{n}")
    await start_worker(handler, concurrency=3)
    await inside.until_finished(9)

    assert most == 3
    assert len(await inside.ids("completed")) == 9


VISITOR = contextvars.ContextVar("VISITOR", default="nobody")


async def test_middleware_wraps_both_kinds_of_handlers(queue, start_worker, inside):
    seen = []
    router = Router()

    @router.on("async")
    async def on_loop(job):
        seen.append(("async", VISITOR.get()))

    @router.on("plain")
    def in_thread(job):
        seen.append(("plain", VISITOR.get()))

    def named(name):
        def middleware(handler):
            async def handle(job):
                seen.append((name, "before"))
                VISITOR.set(name)
                result = await handler(job)
                seen.append((name, "after"))
                return result

            return handle

        return middleware

    router.use(named("outer"))
    router.use(named("inner"))
    for name in ("async", "plain"):
        await queue.add(name)
        await start_worker(router) if name == "async" else None
        await inside.until_finished(1 if name == "async" else 2)

    before = [("outer", "before"), ("inner", "before")]
    after = [("inner", "after"), ("outer", "after")]
    assert seen == [*before, ("async", "inner"), *after, *before, ("plain", "inner"), *after]


async def test_a_worker_has_middleware_of_its_own(queue, start_worker, inside):
    def shout(handler):
        async def handle(job):
            return f"{await handler(job)}!"

        return handle

    job = await queue.add("plain")
    await start_worker(lambda job: "done", middleware=[shout, shout])
    await inside.until_finished(1)

    assert (await inside.job(job.id))["returnvalue"] == '"done!!"'


async def add_two(number, job):
    await asyncio.sleep(0)
    return job.data + number


class Adder:
    async def __call__(self, job):
        return job.data + 2


@pytest.mark.parametrize(
    "handler",
    [partial(add_two, 2), lambda job: add_two(2, job), Adder()],
    ids=["partial", "lambda", "object"],
)
async def test_whatever_gives_something_to_await_is_awaited(handler, queue, start_worker, inside):
    job = await queue.add("sum", 40)
    await start_worker(handler)
    await inside.until_finished(1)

    assert (await inside.job(job.id))["returnvalue"] == "42"


async def test_what_a_plain_function_gives_to_await_awaits_the_calls_of_its_job(
    queue, start_worker, inside
):
    """Regression: the first of them blocked the loop of the worker for ever."""

    async def handle(job, times):
        await job.report({"half": True})
        await job.update_data({"n": times})
        await job.extend_lock(60_000)
        for n in range(times):
            rows = await job.log(f"{n}")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await job.signal.wait()
        return [rows, job.data, await job.children_values(), await job.failed_children()]

    job = await queue.add("job")
    await start_worker(lambda job: handle(job, 2))
    await inside.until_finished(1)

    stored = await inside.job(job.id)
    assert stored["returnvalue"] == '[2,{"n":2},{},{}]'
    assert (stored["data"], stored["progress"]) == ('{"n":2}', '{"half":true}')
    assert await inside.logs(job.id) == ["0", "1"]


async def test_a_name_without_a_handler_fails_for_good(queue, start_worker, inside):
    router = Router()
    router.on("welcome", lambda job: None)
    job = await queue.add("welcom", attempts=5)

    await start_worker(router)
    await inside.until_finished(1)

    stored = await inside.job(job.id)
    assert (
        "no handler is registered for jobs named 'welcom' (registered: welcome)"
        in (stored["failedReason"])
    )
    assert stored["atm"] == "1"


async def test_the_fallback_takes_names_that_nobody_else_takes(queue, start_worker, inside):
    router = Router()
    router.otherwise(lambda job: "rest")
    job = await queue.add("anything")

    await start_worker(router)
    await inside.until_finished(1)

    assert (await inside.job(job.id))["returnvalue"] == '"rest"'


def test_a_router_takes_the_name_of_the_function_when_it_is_given_no_other():
    router = Router()

    @router.on
    async def charge(job): ...

    assert router.names == ["charge"]
    assert router.find("charge") is charge
    with pytest.raises(InvalidOptionError, match="needs the name of the jobs"):
        router.on(42)


def test_a_router_refuses_what_cannot_work():
    router = Router()
    router.on("one", print)

    with pytest.raises(InvalidOptionError, match="already registered"):
        router.on("one", print)
    with pytest.raises(InvalidOptionError, match="not callable"):
        router.on("two", 2)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no"), "ValueError: no"),
        (KeyError(), "KeyError"),
        (StopIteration("x"), "RuntimeError: the handler raised StopIteration"),
        (SystemExit(3), "RuntimeError: the handler called sys.exit(3)"),
        (Mute(), "Mute: its message cannot be shown"),
        (ExceptionGroup("many", [ValueError("a")]), "ExceptionGroup: many (1 sub-exception)"),
        (BaseExceptionGroup("all", [GeneratorExit()]), "BaseExceptionGroup: all (1 sub-exception)"),
        (asyncio.CancelledError(), "RuntimeError: the handler raised CancelledError without being"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_whatever_a_handler_raises_is_a_failure_of_that_job_alone(
    kind, error, reason, queue, start_worker, inside
):
    def plain(job):
        if job.name == "bad":
            raise error

    async def on_loop(job):
        plain(job)

    handler = on_loop if kind == "async" else plain
    if kind == "async" and isinstance(error, StopIteration):
        reason = "RuntimeError: coroutine raised StopIteration"
    job = await queue.add("bad")
    await queue.add("good")

    worker = await start_worker(handler)
    await inside.until_finished(2)

    stored = await inside.job(job.id)
    assert stored["failedReason"].startswith(reason)
    assert await inside.ids("failed") == [job.id]
    assert not worker.is_processing


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
async def test_a_thread_that_raises_what_ends_loops_fails_that_job_alone(
    error, queue, start_worker, inside
):
    """Regression: the worker's loop ended, and closing it took a whole core for ever."""

    def handler(job):
        if job.name == "bad":
            raise error

    job = await queue.add("bad")
    await queue.add("good")
    await start_worker(handler)
    await inside.until_finished(2)

    reason = f"RuntimeError: the handler raised {error.__name__}"
    assert (await inside.job(job.id))["failedReason"] == reason


@pytest.mark.parametrize(
    "value",
    [object(), float("nan"), {1, Mute}],
    ids=["object", "nan", "set"],
)
async def test_a_return_value_that_is_no_json_fails_that_job_alone(
    value, queue, start_worker, inside
):
    async def handler(job):
        return value if job.name == "bad" else "fine"

    bad = await queue.add("bad", attempts=3)
    good = await queue.add("good")
    await start_worker(handler)
    await inside.until_finished(2)

    stored = await inside.job(bad.id)
    assert f"the return value of job {bad.id!r}" in stored["failedReason"]
    assert (await inside.ids("failed"), await inside.ids("completed")) == ([bad.id], [good.id])


async def test_a_timeout_stops_an_async_handler(queue, start_worker, inside):
    stopped = []

    async def handler(job):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            stopped.append(job.id)
            raise

    job = await queue.add("slow", timeout=30)
    await start_worker(handler)
    await inside.until_finished(1)

    stored = await inside.job(job.id)
    assert stored["failedReason"] == f"job {job.id!r} ('slow') ran longer than its timeout of 30 ms"
    assert stopped == [job.id]


async def test_a_timeout_within_the_handler_is_an_ordinary_failure(queue, start_worker, inside):
    async def handler(job):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(5)

    job = await queue.add("slow", timeout=5000)
    await start_worker(handler)
    await inside.until_finished(1)

    assert (await inside.job(job.id))["failedReason"] == "TimeoutError"


async def test_a_thread_sees_its_timeout_and_may_end_by_itself(
    queue, start_worker, inside, monkeypatch
):
    # Its thread may be kept waiting for longer than it is waited for.
    monkeypatch.setattr(executors, "ABANDON_AFTER_S", PATIENCE_S)

    def handler(job):
        while not job.is_cancelled:
            time.sleep(0.005)
        raise RuntimeError("stopped half-way")

    job = await queue.add("slow", timeout=30)
    worker = await start_worker(handler)
    await inside.until_finished(1)

    assert "ran longer than its timeout of 30 ms" in (await inside.job(job.id))["failedReason"]
    assert worker.abandoned_threads == 0


@pytest.fixture
def short_patience(monkeypatch):
    monkeypatch.setattr(executors, "ABANDON_AFTER_S", 0.01)


async def test_a_thread_past_its_timeout_frees_its_slot(
    queue, start_worker, inside, short_patience, caplog
):
    """The job has failed, whatever its function still does; it can write nothing of the job."""
    may_end = threading.Event()
    errors: list[Exception] = []

    def handler(job):
        if job.name == "stuck":
            may_end.wait(60)
            try:
                job.log("too late")
            except LockLostError as error:
                errors.append(error)
        return "done"

    stuck = await queue.add("stuck", timeout=30, attempts=1)
    worker = await start_worker(handler)
    await wait_until(lambda: worker.abandoned_threads == 1)
    quick = await queue.add("quick")
    await inside.until_finished(2)

    assert "ran longer than its timeout" in (await inside.job(stuck.id))["failedReason"]
    assert (await inside.job(quick.id))["returnvalue"] == '"done"'
    assert "executor='process'" in caplog.text
    may_end.set()
    await wait_until(lambda: worker.abandoned_threads == 0)
    assert len(errors) == 1
    assert await inside.logs(stuck.id) == []


async def test_threads_that_are_stuck_do_not_pile_up(
    queue, start_worker, inside, short_patience, caplog
):
    """As many as there are slots; then a job holds its slot as long as its function runs."""
    may_end = threading.Event()
    begun: list[str] = []

    def handler(job):
        begun.append(job.id)
        may_end.wait(60)

    jobs = await queue.add_bulk([NewJob("stuck", timeout=30) for _ in range(7)])
    worker = await start_worker(handler, concurrency=2)
    await wait_until(lambda: caplog.text.count("holds its slot") == 2)
    await wait_until(lambda: len(begun) >= 4)  # a thread may begin after the timeout of its job

    assert (worker.abandoned_threads, len(begun), len(await inside.ids("active"))) == (2, 4, 2)
    may_end.set()
    await inside.until_finished(len(jobs))
    await wait_until(lambda: worker.abandoned_threads == 0)
    assert sorted(begun) == sorted(job.id for job in jobs)


def impatient(has_begun):
    """Middleware that gives up jobs called "stuck", as one with a time limit of its own does."""

    def wrap(handler):
        async def call(job):
            if job.name != "stuck":
                return await handler(job)
            running = asyncio.create_task(handler(job))
            await asyncio.wait([running], timeout=0.1)
            await wait_until(has_begun.is_set)
            running.cancel()
            await asyncio.wait([running])
            raise TimeoutError("it took too long")

        return call

    return wrap


def sticking(has_begun, may_end):
    """A plain handler that does not return from jobs called "stuck"."""

    def handler(job):
        if job.name == "stuck":
            has_begun.set()
            may_end.wait(600)

    return handler


async def test_a_function_that_middleware_gave_up_holds_up_no_other(queue, start_worker, inside):
    """Regression: it kept the thread of the next job, which waited for it as long as it ran."""
    has_begun, may_end = threading.Event(), threading.Event()
    handler = sticking(has_begun, may_end)

    stuck = await queue.add("stuck")
    worker = await start_worker(handler, middleware=[impatient(has_begun)])
    try:
        await inside.until_finished(1)
        assert worker.abandoned_threads == 1
        quick = await queue.add("quick")
        await inside.until_finished(2)

        assert await inside.ids("failed") == [stuck.id]
        assert await inside.ids("completed") == [quick.id]
    finally:
        may_end.set()
    await wait_until(lambda: worker.abandoned_threads == 0)


async def test_a_function_that_was_given_up_before_it_began_never_begins(
    queue, start_worker, inside
):
    """Regression: it began when a thread was free again, although its job had failed for good."""
    has_begun, may_end = threading.Event(), threading.Event()
    runs: list[str] = []

    def handler(job):
        runs.append(job.id)
        if job.name == "stuck":
            has_begun.set()
            may_end.wait(600)

    stuck = await queue.add("stuck", attempts=5)
    await start_worker(handler, middleware=[impatient(has_begun)])
    try:
        await inside.until_finished(1)
    finally:
        may_end.set()
    await queue.add_bulk([NewJob("quick") for _ in range(5)])
    await inside.until_finished(6)

    # One thread, and one more for the function that was given up first.
    assert runs.count(stuck.id) <= 2
    assert len(runs) - runs.count(stuck.id) == 5


async def test_a_cancelled_function_whose_job_is_lost_holds_up_no_other(
    queue, start_worker, inside
):
    """Regression: the slot was free again, and its thread was not."""
    has_begun, may_end = threading.Event(), threading.Event()
    handler = sticking(has_begun, may_end)

    stuck = await queue.add("stuck")
    worker = await start_worker(handler, lock_duration=3000)
    try:
        await wait_until(has_begun.is_set)
        (job,) = worker.current_jobs
        await queue.cancel(stuck.id)
        await wait_until(lambda: job.is_stopping)
        await inside.client.delete(f"{inside.base}:{stuck.id}:lock")
        await wait_until(lambda: not worker.is_processing)
        quick = await queue.add("quick")
        await inside.until_finished(1)

        assert await inside.ids("completed") == [quick.id]
        assert worker.abandoned_threads == 1
    finally:
        may_end.set()


async def test_a_worker_closes_although_a_thread_is_stuck(
    queue, start_worker, inside, short_patience
):
    may_end = threading.Event()
    await queue.add("stuck", timeout=30)
    worker = await start_worker(lambda job: may_end.wait(60))
    await inside.until_finished(1)

    await asyncio.wait_for(worker.close(), 60)

    may_end.set()


@pytest.mark.parametrize("kind", ["async", "plain", "stubborn"])
async def test_a_cancelled_job_stops_and_fails_for_good(kind, queue, start_worker, inside):
    async def on_loop(job):
        await asyncio.sleep(30)

    async def stubborn(job):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise ValueError("cleaning up") from None

    def in_thread(job):
        while not job.is_cancelled:
            time.sleep(0.005)
        raise RuntimeError("stopped half-way")

    job = await queue.add("long", attempts=5)
    worker = await start_worker({"async": on_loop, "plain": in_thread, "stubborn": stubborn}[kind])
    await wait_until(lambda: worker.is_processing)
    await queue.cancel(job.id)
    await inside.until_finished(1)

    stored = await inside.job(job.id)
    assert stored["failedReason"] == "cancelled"
    assert stored["atm"] == "1"


async def test_a_handler_may_finish_although_it_was_cancelled(queue, start_worker, inside):
    async def handler(job):
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            assert job.is_cancelled
            return "finished anyway"

    job = await queue.add("long")
    worker = await start_worker(handler)
    await wait_until(lambda: worker.is_processing)
    await queue.cancel(job.id)
    await inside.until_finished(1)

    assert (await inside.job(job.id))["returnvalue"] == '"finished anyway"'


async def test_signals_of_a_handler(queue, start_worker, inside):
    runs = []

    async def handler(job):
        runs.append((job.name, job.attempts_made, job.fence))
        if job.fence > 1:
            return "second time"
        if job.name == "later":
            raise DelayedError(20)
        if job.name == "limited":
            raise RateLimitError(40)
        raise UnrecoverableError("hopeless")

    jobs = {name: await queue.add(name, attempts=3) for name in ("later", "limited", "never")}
    await start_worker(handler)
    await inside.until_finished(3)

    assert (await inside.job(jobs["never"].id))["failedReason"] == "hopeless"
    assert (await inside.job(jobs["never"].id))["atm"] == "1"
    assert (await inside.job(jobs["later"].id))["atm"] == "1"
    assert (await inside.job(jobs["limited"].id))["atm"] == "1"
    assert sorted(runs) == [("later", 0, 1), ("later", 0, 2), ("limited", 0, 1), ("limited", 0, 2),
                            ("never", 0, 1)]  # fmt: skip


async def test_a_rate_limit_from_a_handler_holds_the_queue(queue, start_worker, inside, server):
    """The commands tell of the mark: whoever looks for it late finds that its time is over."""
    times = []

    async def handler(job):
        times.append(job.processed_on)
        if job.fence == 1:
            raise RateLimitError(400)

    await queue.add("limited")
    with counting.inside(server) as commands:
        await start_worker(handler)
        await inside.until_finished(1)

    assert f"SET {inside.base}:limiter 9007199254740991 PX 400" in commands
    assert times[1] - times[0] >= 400


@pytest.mark.parametrize("error", [DelayedError("soon"), DelayedError(-1), RateLimitError("x")])
async def test_a_signal_with_nonsense_fails_that_job_alone(error, queue, start_worker, inside):
    async def handler(job):
        if job.name == "bad":
            raise error

    bad, good = await queue.add("bad"), await queue.add("good")
    await start_worker(handler)
    await inside.until_finished(2)

    assert (await inside.ids("failed"), await inside.ids("completed")) == ([bad.id], [good.id])
    assert "is not a duration" in (reason := (await inside.job(bad.id))["failedReason"]) or (
        "out of range" in reason
    )


async def test_writes_after_the_end_of_a_run_are_refused(queue, start_worker: StartWorker, inside):
    kept = []

    async def handler(job):
        kept.append(job)

    await queue.add("once")
    await start_worker(handler)
    await inside.until_finished(1)

    for write in (kept[0].progress(1), kept[0].log("late"), kept[0].update_data({})):
        with pytest.raises(LockLostError):
            await write
    assert await inside.logs(kept[0].id) == []


async def test_is_processing_and_current_jobs(queue, start_worker, inside):
    go_on = asyncio.Event()

    async def handler(job):
        await go_on.wait()

    worker = await start_worker(handler, concurrency=5)
    assert (worker.is_processing, worker.current_jobs, worker.current_job()) == (False, [], None)
    added = {(await queue.add(f"{n}")).id for n in range(3)}
    await wait_until(lambda: len(worker.current_jobs) == 3)

    assert worker.is_processing
    assert {job.id for job in worker.current_jobs} == added
    oldest, age_ms = worker.current_job()
    assert oldest.id in added
    assert 0 <= age_ms < 60_000
    go_on.set()
    await inside.until_finished(3)
    await wait_until(lambda: not worker.is_processing)


async def test_an_outcome_that_cannot_be_written_down_fails_its_own_job_alone(
    queue, start_worker, inside, monkeypatch
):
    """Nothing that is known makes one; the others of the same call must not suffer from it."""
    decide = settling.decide

    def odd(job, *details, **options):
        outcome = decide(job, *details, **options)
        is_odd = job.name == "odd"
        return msgspec.structs.replace(outcome, payloads=("\ud800",)) if is_odd else outcome

    monkeypatch.setattr(settling, "decide", odd)
    jobs = [await queue.add(name) for name in ("good", "odd", "good")]
    await start_worker(lambda job: None, concurrency=3)
    await inside.until_finished(3)

    assert await inside.ids("failed") == [jobs[1].id]
    assert set(await inside.ids("completed")) == {jobs[0].id, jobs[2].id}


@pytest.fixture
async def eager_loop():
    """A loop that runs each task until its first await when it is created."""
    if not hasattr(asyncio, "eager_task_factory"):
        not_run("a loop starts its tasks at once from Python 3.12 on")
    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    yield
    loop.set_task_factory(None)


async def test_a_job_that_ends_as_it_is_started_is_not_taken_for_a_running_one(
    eager_loop, queue, start_worker, inside
):
    """Regression: all such jobs were kept, and one that was tried again was told to be lost."""
    lost = []

    async def handler(job):
        if job.attempts_started == 1:
            raise ValueError("not yet")

    worker = await start_worker(handler)
    worker.on("lost", lambda job, error: lost.append(job.id))
    job = await queue.add("x", attempts=2)
    await inside.until_finished(1)

    assert await inside.ids("completed") == [job.id]
    assert (lost, worker.current_jobs, worker.is_processing) == ([], [], False)


@pytest.mark.parametrize("who", ["handler", "callback"])
async def test_who_is_started_at_once_may_close_the_worker(
    who, eager_loop, queue, start_worker, inside
):
    """Regression: nobody knew yet for whom it was called, so it waited for its own end."""

    async def handler(job):
        if who == "handler":
            await worker.close()

    async def callback(job, value):
        await worker.close()

    worker = await start_worker(handler)
    if who == "callback":
        worker.on("completed", callback)
    job = await queue.add("x")
    await wait_until(lambda: not worker.is_running)

    assert await inside.ids("completed") == [job.id]
