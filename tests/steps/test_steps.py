"""Queues, producers, consumers and registrars against a real server (STEP-03 … STEP-13)."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from tests.helpers import wait_until
from toril import Backoff, Queue
from toril.errors import (
    DelayedError,
    HandlerTimeoutError,
    InvalidOptionError,
    JobCancelledError,
    ServerUnavailableError,
)
from toril.steps import (
    BaseConsumer,
    ClaimRefusedError,
    ConsumerRegistrar,
    EnqueueOptions,
    JobPayload,
    Producer,
    StepEvent,
    StepMetrics,
    close_all_queues,
    get_queue,
    log_for,
)
from toril.steps import registrar as registrars
from toril.steps import sync as blocking
from toril.sync.queue import Queue as BlockingQueue

STEP = JobPayload("w1", "fetch", {"n": 1})
ONCE = EnqueueOptions(attempts=1)


@dataclass
class Page:
    url: str


class Recorder(BaseConsumer[Any]):
    """Writes down which hooks ran, and fails where it is told to."""

    def __init__(self, *args: Any, fails_at: dict[str, BaseException] | None = None, **options):
        super().__init__(*args, **options)
        self.fails_at = fails_at or {}
        self.calls: list[str] = []
        self.seen: list[tuple[JobPayload[Any], Any]] = []
        self.errors: list[BaseException] = []
        self.claimed: list[bool] = []

    async def claim(self, payload, job):
        self.seen.append((payload, job))
        self._call("claim")

    async def handle(self, payload, job):
        self._call("handle")
        return "result"

    async def on_success(self, payload, job, result):
        assert result == "result"
        self._call("on_success")

    async def on_error(self, payload, job, error):
        self.errors.append(error)
        self._call("on_error")

    async def release(self, payload, job):
        self.claimed.append(self.has_claimed(job))
        self._call("release")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails_at:
            raise self.fails_at[name]


@pytest.fixture
def queue_name() -> str:
    return "imports"


@pytest.fixture
def options(url, prefix):
    return {"connection": url, "prefix": prefix}


async def run_one(consumer: BaseConsumer[Any], queue: Queue, **enqueue: Any) -> str:
    """Enqueue one step, run it to its end and say in which state it is."""
    job = await Producer(queue).enqueue(STEP, EnqueueOptions(**{"attempts": 1, **enqueue}))
    await consumer.start()
    try:

        async def ended() -> str | None:
            state = await queue.get_state(job.id)
            return state if state in ("completed", "failed") else None

        return await wait_until(ended)
    finally:
        await consumer.close()


# ---------------------------------------------------------------------- queues


async def test_one_queue_per_name_and_one_connection_per_server(url, prefix):
    """STEP-03, RULES-09."""
    defaults = {"attempts": 9}
    queue = get_queue("imports", connection=url, prefix=prefix, default_job_options=defaults)
    other = get_queue("exports", connection=url, prefix=prefix)
    try:
        assert get_queue("imports") is queue
        assert get_queue("imports", connection=url, prefix=prefix) is queue
        assert other is not queue
        assert other._connection is queue._connection
        with pytest.raises(InvalidOptionError, match="another prefix"):
            get_queue("imports", prefix="elsewhere")

        job = await Producer(queue).enqueue(STEP)

        assert job.opts.attempts == 9
        assert job.opts.remove_on_complete == 1000
    finally:
        await close_all_queues()


async def test_a_default_that_is_written_out_is_no_contradiction(url):
    """No key is written: a queue is only opened."""
    queue = get_queue("imports", connection=url)
    try:
        assert get_queue("imports", prefix="bull", replicas=0) is queue
        with pytest.raises(InvalidOptionError, match="another prefix"):
            get_queue("imports", prefix="elsewhere")
    finally:
        await close_all_queues()


async def test_close_all_closes_every_queue_and_empties_the_cache(url, prefix, monkeypatch):
    """STEP-04: also when one of them cannot be closed."""
    first = get_queue("a", connection=url, prefix=prefix)
    second = get_queue("b", connection=url, prefix=prefix)
    closed = []

    async def fail() -> None:
        raise OSError("no")

    async def note() -> None:
        closed.append("b")

    monkeypatch.setattr(first, "close", fail)
    monkeypatch.setattr(second, "close", note)

    await close_all_queues()

    assert closed == ["b"]
    again = get_queue("a", connection=url, prefix=prefix)
    assert again is not first
    await again.add("works", {})
    await close_all_queues()


async def test_a_queue_that_was_closed_with_all_is_closed(url, prefix):
    """STEP-04: whoever kept it is told, and the connection that they shared is closed."""
    queue = get_queue("a", connection=url, prefix=prefix)
    await queue.add("works", {})
    connection = queue._connection

    await close_all_queues()

    assert connection.is_closed
    with pytest.raises(ServerUnavailableError, match="closed"):
        await queue.add("too late", {})


# ---------------------------------------------------------------------- producers


async def test_two_steps_of_the_same_millisecond_are_two_jobs(queue):
    """STEP-05, STEP-06."""
    jobs = await Producer(queue).enqueue_many([STEP] * 50)

    assert len({job.id for job in jobs}) == 50
    assert {job.name for job in jobs} == {"step"}
    assert (await queue.get_job_counts("waiting"))["waiting"] == 50


async def test_the_same_idempotency_key_is_one_job_and_reported(queue):
    """STEP-13, RULES-12."""
    producer = Producer(queue)
    options = EnqueueOptions(idempotency_key="order:7")

    first = await producer.enqueue(STEP, options)
    second = await producer.enqueue(STEP, options)

    assert (first.duplicated, second.duplicated) == (False, True)
    assert first.id == second.id
    assert first.idempotency_key == second.idempotency_key == "order:7"


def test_the_blocking_producer_does_the_same(url, prefix):
    with BlockingQueue("imports", connection=url, prefix=prefix) as queue:
        producer = blocking.Producer(queue)
        job = producer.enqueue(STEP, EnqueueOptions(idempotency_key="k"))
        producer.enqueue_many([STEP, STEP])

        assert queue.get_job(job.id).data["workflowId"] == "w1"
        assert queue.get_job_counts("waiting")["waiting"] == 3
    defaults = {"attempts": 9}
    with BlockingQueue(
        "imports", connection=url, prefix=prefix, default_job_options=defaults
    ) as queue:
        assert blocking.Producer(queue).enqueue(STEP).opts.attempts == 9


# ---------------------------------------------------------------------- the pipeline


async def test_a_step_that_succeeds_is_claimed_handled_reported_and_released(queue, options):
    """STEP-08."""
    consumer = Recorder("imports", **options)

    state = await run_one(consumer, queue)

    assert state == "completed"
    assert consumer.calls == ["claim", "handle", "on_success", "release"]
    payload, _ = consumer.seen[0]
    assert (payload.workflow_id, payload.step_id, payload.data) == ("w1", "fetch", {"n": 1})
    assert payload.attempt == 1


@pytest.mark.parametrize(
    ("fails_at", "calls", "claimed"),
    [
        ("claim", ["claim", "on_error", "release"], False),
        ("handle", ["claim", "handle", "on_error", "release"], True),
        ("on_success", ["claim", "handle", "on_success", "on_error", "release"], True),
    ],
)
async def test_a_step_that_fails_is_reported_raised_again_and_released(
    fails_at, calls, claimed, queue, options
):
    """STEP-08, C-26: release runs last, also after a failed claim."""
    error = ValueError("no")
    consumer = Recorder("imports", fails_at={fails_at: error}, **options)

    state = await run_one(consumer, queue)

    assert state == "failed"
    assert consumer.calls == calls
    assert consumer.errors == [error]
    assert consumer.claimed == [claimed]
    assert not any(consumer.has_claimed(job) for _, job in consumer.seen), "a claim ends with it"


async def test_a_failing_on_success_can_be_swallowed(queue, options):
    """C-26."""
    consumer = Recorder("imports", swallow=True, fails_at={"on_success": ValueError()}, **options)

    assert await run_one(consumer, queue) == "completed"
    assert "on_error" not in consumer.calls


@pytest.mark.parametrize("also", ["on_error", "release"])
async def test_a_failing_hook_does_not_hide_the_error_of_the_step(also, queue, options):
    """C-26: what counts is the error of the work; hooks that fail are logged."""
    fails_at = {"handle": ValueError("the cause"), also: KeyError("in the way")}
    consumer = Recorder("imports", fails_at=fails_at, **options)

    assert await run_one(consumer, queue) == "failed"

    assert consumer.calls[-1] == "release"
    (job,) = await queue.get_failed()
    assert job.failed_reason == "ValueError: the cause"


async def test_a_failing_release_does_not_undo_the_work(queue, options):
    consumer = Recorder("imports", fails_at={"release": OSError("busy")}, **options)

    assert await run_one(consumer, queue) == "completed"


async def test_a_step_is_retried_with_its_attempt_and_the_same_key(queue, options):
    """STEP-08, STEP-13, RULES-01: the key is the same at every attempt."""

    class Flaky(Recorder):
        async def handle(self, payload, job):
            if payload.attempt < 3:
                raise ValueError("not yet")
            return "result"

    consumer = Flaky("imports", **options)

    state = await run_one(
        consumer, queue, attempts=3, backoff=Backoff.fixed(1), idempotency_key="order-1"
    )

    assert state == "completed"
    assert [payload.attempt for payload, _ in consumer.seen] == [1, 2, 3]
    assert {job.idempotency_key for _, job in consumer.seen} == {"order-1"}


async def test_a_refused_claim_burns_no_attempt(queue, options):
    """A claim that somebody else holds: the job waits, its single attempt is still there."""

    class Claiming(Recorder):
        async def claim(self, payload, job):
            await super().claim(payload, job)
            if len(self.seen) < 3:
                raise ClaimRefusedError("held", delay=5)

    metrics = StepMetrics()
    consumer = Claiming("imports", observers=[metrics], **options)

    state = await run_one(consumer, queue)

    assert state == "completed"
    assert consumer.calls == ["claim", "release"] * 2 + ["claim", "handle", "on_success", "release"]
    assert consumer.claimed == [False, False, True]
    assert consumer.errors == []
    (job,) = await queue.get_completed()
    assert job.attempts_made == 1
    assert metrics.get("w1", "fetch").refused == 2


async def test_a_step_may_put_itself_off_without_an_error(queue, options):
    class Patient(Recorder):
        async def handle(self, payload, job):
            if len(self.seen) == 1:
                raise DelayedError(1)
            return "result"

    metrics = StepMetrics()
    consumer = Patient("imports", observers=[metrics], **options)

    assert await run_one(consumer, queue) == "completed"
    assert consumer.errors == []
    assert metrics.get("w1", "fetch").deferred == 1


# ---------------------------------------------------------------------- stopping


class Endless(Recorder):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.is_inside = asyncio.Event()

    async def handle(self, payload, job):
        self.is_inside.set()
        await asyncio.Event().wait()


async def test_shutdown_goes_through_the_same_pipeline(queue, options):
    """A closing worker interrupts the step, which is reported, released and handed back."""
    events: list[StepEvent] = []
    consumer = Endless("imports", observers=[events.append], **options)
    job = await Producer(queue).enqueue(STEP, ONCE)
    await consumer.start()
    await asyncio.wait_for(consumer.is_inside.wait(), 60)

    await consumer.close(timeout=0)

    assert consumer.calls == ["claim", "on_error", "release"]
    assert isinstance(consumer.errors[0], asyncio.CancelledError)
    assert events[-1].kind == "interrupted"
    assert await queue.get_state(job.id) == "waiting"
    assert (await queue.get_job(job.id)).attempts_made == 0


async def test_cancellation_goes_through_the_same_pipeline(queue, options):
    consumer = Endless("imports", **options)
    job = await Producer(queue).enqueue(STEP, ONCE)
    await consumer.start()
    await asyncio.wait_for(consumer.is_inside.wait(), 60)

    await queue.cancel(job.id, "not wanted")
    await wait_until(lambda: "release" in consumer.calls)

    assert consumer.calls == ["claim", "on_error", "release"]
    assert isinstance(consumer.errors[0], JobCancelledError)
    await consumer.close()
    assert await queue.get_state(job.id) == "failed"


async def test_a_step_that_takes_too_long_goes_through_the_same_pipeline(url, prefix):
    """STEP-08: on_error is told of the time limit, not of the cancellation that enforced it."""
    async with Queue(
        "imports", connection=url, prefix=prefix, default_job_options={"timeout": 50}
    ) as queue:
        consumer = Endless("imports", connection=url, prefix=prefix)

        assert await run_one(consumer, queue) == "failed"

    assert consumer.calls == ["claim", "on_error", "release"]
    assert isinstance(consumer.errors[0], HandlerTimeoutError)


async def test_release_runs_to_its_end_although_it_is_cancelled_meanwhile(options):
    """Release always runs: a second cancellation does not cut it short."""
    went = []

    class Slow(Endless):
        async def release(self, payload, job):
            await asyncio.sleep(0.05)
            went.append("released")

    consumer = Slow("imports", **options)
    job = _FakeJob()
    task = asyncio.create_task(consumer.process(job))
    await asyncio.wait_for(consumer.is_inside.wait(), 60)

    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert went == ["released"]
    await consumer.close()


class _FakeJob:
    id, token, queue_name, attempts_made = "1", "t", "imports", 0
    is_released = is_cancelled = False
    data_text = b'{"workflowId":"w","stepId":"s","data":null}'

    class opts:  # noqa: N801
        timeout = None


# ---------------------------------------------------------------------- types


async def test_data_arrives_as_the_consumers_type(queue, options):
    class Fetch(BaseConsumer[Page]):
        async def handle(self, payload, job):
            return payload.data.url

    consumer = Fetch("imports", **options)
    await Producer(queue).enqueue(JobPayload("w", "s", Page("http://x")))
    await consumer.start()
    await wait_until(queue.get_completed_count)
    await consumer.close()

    (job,) = await queue.get_completed()
    assert job.return_value == "http://x"


async def test_data_that_does_not_fit_fails_for_good_at_once(queue, options, caplog):
    """RULES-06: no attempt is spent on bytes that will not change."""

    class Fetch(BaseConsumer[Page]):
        async def handle(self, payload, job):
            raise AssertionError("must not run")

    consumer = Fetch("imports", **options)
    await Producer(queue).enqueue(JobPayload("w", "s", {"uri": "typo"}), EnqueueOptions(attempts=5))
    await consumer.start()
    await wait_until(queue.get_failed_count)
    await consumer.close()

    (job,) = await queue.get_failed()
    assert "url" in job.failed_reason
    assert job.attempts_made == 1


async def test_data_that_does_not_fit_goes_to_the_dead_letters(queue, options):
    """RULES-07: and says there which field is wrong."""

    class Fetch(BaseConsumer[Page]):
        async def handle(self, payload, job):
            raise AssertionError("must not run")

    consumer = Fetch("imports", dead_letter_queue="imports-dlq", **options)
    await Producer(queue).enqueue(JobPayload("w", "s", {"uri": "typo"}), EnqueueOptions(attempts=5))
    async with Queue("imports-dlq", **options) as dead:
        await consumer.start()
        await wait_until(dead.get_dead_letter_count)
        await consumer.close()

        (letter,) = await dead.get_dead_letter_jobs()
        assert "url" in letter.dead_letter.failed_reason
        assert letter.dead_letter.attempts_made == 1
    assert await queue.get_failed_count() == 0


def test_handle_is_required_and_the_other_hooks_are_not(options):
    """STEP-09."""

    class Nothing(BaseConsumer[Any]):
        pass

    with pytest.raises(TypeError, match="handle"):
        Nothing("imports", **options)


def test_a_hook_that_is_not_async_is_refused_when_the_class_is_made():
    with pytest.raises(InvalidOptionError, match="handle must be an async def"):

        class Plain(BaseConsumer[Any]):
            def handle(self, payload, job):
                return 1


def test_concurrency_and_lock_duration_have_defaults_and_can_be_set(options):
    """STEP-10."""
    plain = Recorder("imports", **options)
    tuned = Recorder("imports", concurrency=4, lock_duration=60_000, **options)

    assert (plain.worker.options.concurrency, plain.worker.options.lock_duration) == (1, 30_000)
    assert (tuned.worker.options.concurrency, tuned.worker.options.lock_duration) == (4, 60_000)


# ---------------------------------------------------------------------- logs, history, metrics


async def test_failures_are_logged_by_one_logger_with_the_step(queue, options, caplog):
    """STEP-11."""

    class Failing(Recorder):
        async def handle(self, payload, job):
            log_for(payload, job).info("100% done")
            raise ValueError(f"attempt {payload.attempt}")

    consumer = Failing("imports", **options)
    with caplog.at_level(logging.INFO, "toril.steps"):
        await run_one(consumer, queue, attempts=2, backoff=Backoff.fixed(1))

    records = [record for record in caplog.records if record.name == "toril.steps"]
    levels = [record.levelname for record in records]
    assert levels == ["INFO", "WARNING", "INFO", "ERROR"]
    assert [record.attempt for record in records] == [1, 1, 2, 2]
    assert {(r.workflow_id, r.step_id, r.queue) for r in records} == {("w1", "fetch", "imports")}
    assert "workflow_id=w1 step_id=fetch attempt=2" in records[-1].getMessage()
    assert [str(record.exc_info[1]) for record in records if record.exc_info] == [
        "attempt 1",
        "attempt 2",
    ]


async def test_observers_get_the_history_and_one_that_fails_hurts_nobody(queue, options):
    history: list[StepEvent] = []
    metrics = StepMetrics()

    async def record(event: StepEvent) -> None:
        history.append(event)

    def broken(event: StepEvent) -> None:
        raise RuntimeError("a broken observer")

    class Flaky(Recorder):
        async def handle(self, payload, job):
            if payload.attempt == 1:
                raise ValueError("once")
            return "result"

    consumer = Flaky("imports", observers=[broken, record, metrics], **options)

    await run_one(consumer, queue, attempts=2, backoff=Backoff.fixed(1))

    assert [(event.kind, event.attempt) for event in history] == [
        ("started", 1),
        ("failed", 1),
        ("started", 2),
        ("succeeded", 2),
    ]
    assert {event.key for event in history} == {("w1", "fetch")}
    counts = metrics.get("w1", "fetch")
    assert (counts.started, counts.failed, counts.succeeded) == (2, 1, 1)
    assert counts.duration_ms > 0


def test_metrics_forget_the_steps_seen_longest_ago():
    metrics = StepMetrics(limit=2)
    for number in range(3):
        metrics(
            StepEvent(
                kind="started",
                queue="q",
                job_id="j",
                workflow_id=f"w{number}",
                step_id="s",
                attempt=1,
                at_ms=1,
            )
        )

    assert [workflow for workflow, _ in metrics.steps] == ["w1", "w2"]
    assert metrics.total.started == 3


# ---------------------------------------------------------------------- registrars


async def test_a_registrar_starts_and_closes_all_although_one_close_fails(
    queue, options, caplog, monkeypatch
):
    """STEP-12."""
    registrar = ConsumerRegistrar()
    first = registrar.register(Recorder("imports", **options))
    second = registrar.register(Recorder("exports", **options))
    with pytest.raises(InvalidOptionError, match="already"):
        registrar.register(first)
    await registrar.start_all()
    assert first.worker.is_running
    assert second.worker.is_running
    close = first.close

    async def fail(timeout: Any = None) -> None:
        await close(timeout)
        raise OSError("cannot close")

    monkeypatch.setattr(first, "close", fail)

    await registrar.close_all()

    assert not second.worker.is_running
    assert "cannot close" in caplog.text


async def test_when_one_consumer_cannot_start_the_others_are_closed(options, monkeypatch):
    registrar = ConsumerRegistrar()
    first = registrar.register(Recorder("imports", **options))
    second = registrar.register(Recorder("exports", **options))

    async def fail() -> None:
        raise OSError("cannot start")

    monkeypatch.setattr(second, "start", fail)

    with pytest.raises(OSError, match="cannot start"):
        await registrar.start_all()

    assert not first.worker.is_running


def test_a_registrar_without_consumers_has_nothing_to_run():
    with pytest.raises(InvalidOptionError, match="register a consumer"):
        ConsumerRegistrar().run()


def test_a_service_runs_until_its_time_limit_and_closes_its_queues(url, prefix, monkeypatch):
    """STEP-04, STEP-12: what `run` hands to the runner closes consumers and queues alike."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(
        registrars, "run", lambda program, timeout: given.update(program=program, timeout=timeout)
    )
    registrar = ConsumerRegistrar()
    registrar.register(Recorder("imports", connection=url, prefix=prefix))

    registrar.run(timeout=1234)

    assert given["timeout"] == 1234

    async def close() -> None:
        queue = get_queue("a", connection=url, prefix=prefix)
        await queue.add("n", {})
        await given["program"].close(timeout=0)
        with pytest.raises(ServerUnavailableError, match="closed"):
            await queue.add("n", {})

    asyncio.run(close())
