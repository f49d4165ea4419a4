"""A trace crosses from Node to Python and back, in the field that BullMQ's telemetry uses."""

from __future__ import annotations

import json

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

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
