"""The trace of a request goes through the outbox to its job."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import MetaData, create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from tests.helpers import wait_until
from toril import FlowJob, GroupJob, NewJob, Worker
from toril.contrib.opentelemetry import TracedOutbox, trace_jobs
from toril.outbox import Outbox, Relay


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_trace_of_the_request_reaches_the_job(is_async, tmp_path, url, prefix):
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    metadata = MetaData()
    outbox = Outbox(metadata)
    traced = TracedOutbox(outbox, tracer_provider=provider)
    plain = create_engine(f"sqlite:///{tmp_path}/x.db")
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/x.db") if is_async else plain
    metadata.create_all(plain)
    jobs = [NewJob("charge", {"n": 2})]
    call = FlowJob("charge", {"n": 3}, queue_name="payments")
    child = FlowJob("charge", {"n": 4}, queue_name="payments")
    flow = FlowJob("charge", {"n": 5}, queue_name="payments", children=[child])
    members = [GroupJob("charge", {"n": 6}, queue_name="payments")]
    with provider.get_tracer("shop").start_as_current_span("request") as request:
        if is_async:
            async with engine.begin() as connection:
                await traced.add(connection, "payments", "charge", {"n": 1})
                await traced.add_bulk(connection, "payments", jobs)
                await traced.add(connection, call)
                await traced.add_flow(connection, flow)
                await traced.add_group(connection, "g", members)
        else:
            with engine.begin() as connection:
                traced.add(connection, "payments", "charge", {"n": 1})
                traced.add_bulk(connection, "payments", jobs)
                traced.add(connection, call)
                traced.add_flow(connection, flow)
                traced.add_group(connection, "g", members)
    ran = []

    async def handler(job):
        ran.append(job.data["n"])

    async with Relay(engine, outbox, connection=url, prefix=prefix) as relay:
        await relay.drain()
    async with Worker(
        "payments",
        handler,
        connection=url,
        prefix=prefix,
        middleware=[trace_jobs(tracer_provider=provider)],
    ):
        await wait_until(lambda: len(ran) == 6)

    runs = [span for span in spans.get_finished_spans() if span.name == "process payments"]
    trace_id = request.get_span_context().trace_id
    assert [span.context.trace_id for span in runs] == [trace_id] * 6
    if is_async:
        await engine.dispose()
    plain.dispose()
