"""Traces through the real OpenTelemetry SDK."""

from __future__ import annotations

import json

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.helpers import wait_until
from toril import (
    Compensation,
    DelayedError,
    FlowJob,
    FlowProducer,
    GroupJob,
    NewJob,
    UnrecoverableError,
    Worker,
)
from toril.contrib.opentelemetry import (
    BlockingTracedQueue,
    TracedFlowProducer,
    TracedQueue,
    context_of,
    trace_jobs,
)
from toril.sync import Queue as BlockingQueue


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider


def named(spans, name):
    return [span for span in spans.get_finished_spans() if span.name == name]


async def test_an_attempt_is_below_the_add(queue, spans, provider, url, prefix):
    seen = []

    async def handler(job):
        seen.append(trace.get_current_span().get_span_context().trace_id)
        return 1

    traced = TracedQueue(queue, tracer_provider=provider)
    with provider.get_tracer("test").start_as_current_span("request") as request:
        job = await traced.add("charge", {"n": 1})
    middleware = [trace_jobs(tracer_provider=provider)]
    async with Worker("q", handler, connection=url, prefix=prefix, middleware=middleware):
        await wait_until(lambda: named(spans, "process q"))

    (adding,), (running,) = named(spans, "add q"), named(spans, "process q")
    trace_id = request.get_span_context().trace_id
    assert {adding.context.trace_id, running.context.trace_id} == {trace_id}
    assert adding.parent.span_id == request.get_span_context().span_id
    assert running.parent.span_id == adding.context.span_id
    assert (adding.kind, running.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert running.attributes["messaging.message.id"] == job.id
    assert running.attributes["toril.job.name"] == "charge"
    assert seen == [trace_id]


async def test_a_failed_attempt_is_an_error_and_a_delay_is_not(queue, spans, provider, url, prefix):
    async def handler(job):
        if job.attempts_started == 1:
            raise DelayedError(1)
        raise ValueError("no")

    await TracedQueue(queue, tracer_provider=provider).add("x")
    middleware = [trace_jobs(tracer_provider=provider)]
    async with Worker("q", handler, connection=url, prefix=prefix, middleware=middleware):
        await wait_until(lambda: len(named(spans, "process q")) == 2)

    put_off, failed = named(spans, "process q")
    assert put_off.status.status_code is StatusCode.UNSET
    assert put_off.attributes["toril.job.put_back"] == "DelayedError"
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.events[0].attributes["exception.type"] == "ValueError"
    assert [span.attributes["toril.job.attempt"] for span in (put_off, failed)] == [1, 2]


async def test_an_error_that_cannot_say_what_it_is_stays_the_error_of_its_job(
    queue, spans, provider, url, prefix
):
    """Regression: that of its message took its place, and the job was retried."""

    class MuteError(UnrecoverableError):
        def __str__(self):
            raise AttributeError("no words")

    async def handler(job):
        raise MuteError

    job = await queue.add("x", attempts=3)
    middleware = [trace_jobs(tracer_provider=provider)]
    async with Worker("q", handler, connection=url, prefix=prefix, middleware=middleware):
        await queue.wait_until_empty(60_000)

    failed = await queue.get_job(job.id)
    assert (failed.attempts_made, failed.failed_reason) == (1, "its message cannot be shown")
    [span] = named(spans, "process q")
    assert span.status.status_code is StatusCode.ERROR


async def test_an_add_inside_a_handler_goes_on_with_the_trace(queue, spans, provider, url, prefix):
    traced = TracedQueue(queue, tracer_provider=provider)

    async def handler(job):
        if job.name == "first":
            await traced.add("second")

    await traced.add("first")
    middleware = [trace_jobs(tracer_provider=provider)]
    async with Worker("q", handler, connection=url, prefix=prefix, middleware=middleware):
        await wait_until(lambda: len(named(spans, "process q")) == 2)

    assert len({span.context.trace_id for span in spans.get_finished_spans()}) == 1


async def test_later_stages_and_compensations_are_below_the_span_that_started_the_group(
    spans, provider, url, prefix
):
    """A saga is one trace, however long it takes."""
    seen = {}

    async def handler(job):
        seen[job.name] = trace.get_current_span().get_span_context().trace_id
        if job.name == "c":
            raise UnrecoverableError("no")

    options = {"connection": url, "prefix": prefix}
    middleware = [trace_jobs(tracer_provider=provider)]
    async with FlowProducer(**options) as flow:
        traced = TracedFlowProducer(flow, tracer_provider=provider)
        with provider.get_tracer("test").start_as_current_span("request") as request:
            for _ in range(2):  # another trace does not make another group
                await traced.add_group(
                    "order",
                    [
                        GroupJob("a", queue_name="q", compensation=Compensation("undo-a")),
                        GroupJob("b", queue_name="q", after=["a"]),
                        GroupJob("c", queue_name="q", after=["b"]),
                    ],
                    {"b": Compensation("undo-b")},
                    group_id="g",
                    on_failed=GroupJob("sorry", queue_name="q"),
                )
    async with (
        Worker("q", handler, middleware=middleware, **options),
        Worker("q:compensation", handler, middleware=middleware, **options),
    ):
        await wait_until(lambda: "sorry" in seen)

    assert set(seen) == {"a", "b", "c", "undo-a", "undo-b", "sorry"}
    assert set(seen.values()) == {request.get_span_context().trace_id}


async def test_bulk_and_flows_carry_the_context(queue, spans, provider, url, prefix):
    traced = TracedQueue(queue, tracer_provider=provider)
    jobs = await traced.add_bulk([NewJob("a"), NewJob("b", telemetry="mine")])
    async with FlowProducer(connection=url, prefix=prefix) as producer:
        flow = TracedFlowProducer(producer, tracer_provider=provider)
        node = await flow.add(FlowJob("p", queue_name="q", children=[FlowJob("c", queue_name="q")]))
        await flow.add_bulk([FlowJob("x", queue_name="q")])
        assert (await flow.get_flow(node.job.id, "q")).job.name == "p"

    (bulk,), (added,) = named(spans, "add_bulk q")[:1], named(spans, "add q")
    trace_of = {job.name: json.loads(job.telemetry) for job in jobs if job.name != "b"}
    assert trace_of["a"]["traceparent"].split("-")[2] == f"{bulk.context.span_id:016x}"
    assert jobs[1].telemetry == "mine"
    assert bulk.attributes["messaging.batch.message_count"] == 2
    for job in (node.job, node.children[0].job):
        traceparent = json.loads(job.telemetry)["traceparent"]
        assert traceparent.split("-")[1] == f"{added.context.trace_id:032x}"


def test_the_blocking_client_is_traced_too(spans, provider, url, prefix):
    with BlockingQueue("q", connection=url, prefix=prefix) as queue:
        traced = BlockingTracedQueue(queue, tracer_provider=provider)
        job = traced.add("a")
        assert len(traced.add_bulk([NewJob("b")])) == 1
        assert traced.get_job_counts()["waiting"] == 2
    assert named(spans, "add q")[0].attributes["messaging.message.id"] == job.id


UNREADABLE = (
    *(None, "", "no json", "[1]", "{}", "[" * 100_000, "\ud83d"),
    *('{"traceparent":5}', '{"baggage":5}', '{"traceparent":{"a":1}}'),
)


@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: repr(text)[:20])
def test_what_cannot_be_read_begins_a_new_trace(text):
    context = context_of(text)
    assert context is None or not trace.get_current_span(context).get_span_context().is_valid


def test_of_headers_those_that_are_text_are_read():
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    context = context_of(json.dumps({"traceparent": parent, "tracestate": 5}))

    assert trace.get_current_span(context).get_span_context().is_valid


async def test_a_job_whose_trace_cannot_be_read_runs(queue, spans, provider, url, prefix):
    """Another program wrote it: every attempt failed before the handler was called."""
    ran = []

    async def handler(job):
        ran.append(job.name)

    await queue.add("charge", telemetry='{"traceparent":5}')
    middleware = [trace_jobs(tracer_provider=provider)]
    async with Worker("q", handler, connection=url, prefix=prefix, middleware=middleware):
        await wait_until(lambda: named(spans, "process q"))
        await queue.wait_until_empty(60_000)

    assert ran == ["charge"]
    assert await queue.get_failed_count() == 0
