"""A trace crosses from Node to Python and back, in the field that BullMQ's telemetry uses."""

from __future__ import annotations

import json
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from tests.helpers import wait_until
from toril import Worker
from toril.contrib.opentelemetry import TracedQueue, trace_jobs

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_a_job_of_bullmq_is_run_in_its_trace(peer, toril, url, prefix):
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    metadata = json.dumps({"traceparent": f"00-{TRACE}-{SPAN}-01"})
    await peer.add("q", "a", telemetry={"metadata": metadata})

    async def handler(job):
        return None

    middleware = [trace_jobs(tracer_provider=provider)]
    async with Worker("q", handler, connection=url, prefix=prefix, middleware=middleware):
        await wait_until(spans.get_finished_spans)

    (span,) = spans.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == SPAN


async def test_bullmq_finds_the_trace_of_a_job_of_toril(peer, toril):
    provider = TracerProvider()
    queue = TracedQueue(toril.queue("q"), tracer_provider=provider)
    with provider.get_tracer("test").start_as_current_span("request") as request:
        job = await queue.add("a")

    options = (await peer.job("q", job.id))["opts"]

    context = json.loads(options["telemetry"]["metadata"])
    assert context["traceparent"].split("-")[1] == f"{request.get_span_context().trace_id:032x}"


async def test_a_trace_crosses_from_node_to_python_and_back(peer, toril, url, prefix):
    """BullMQ's own telemetry on both ends, and Toril's between: one trace, in which every span is
    the child of the one that caused it."""
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    onward = TracedQueue(toril.queue("onward"), tracer_provider=provider)

    async def handler(job):
        await onward.add("answer", {"to": job.id})

    request = await peer.call("telemetry.add", queue="q", args=["ask", {}])
    await peer.work("onward", telemetry=True)
    middleware = [trace_jobs(tracer_provider=provider)]
    async with Worker("q", handler, connection=url, prefix=prefix, middleware=middleware):
        await wait_until(lambda: len(spans.get_finished_spans()) == 2)

    async def theirs() -> dict[str, dict[str, Any]]:
        found = await peer.call("telemetry.spans", traceId=request["traceId"])
        by_name = {span["name"]: span for span in found}
        return by_name if "process onward" in by_name else {}

    node = await wait_until(theirs)
    ours = {span.kind: span for span in spans.get_finished_spans()}
    consumer, producer = ours[SpanKind.CONSUMER], ours[SpanKind.PRODUCER]
    assert {span.context.trace_id for span in ours.values()} == {int(request["traceId"], 16)}
    assert node["add q.ask"]["parentId"] == request["spanId"]
    assert f"{consumer.parent.span_id:016x}" == node["add q.ask"]["spanId"]
    assert producer.parent.span_id == consumer.context.span_id
    assert node["process onward"]["parentId"] == f"{producer.context.span_id:016x}"
