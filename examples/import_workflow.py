"""A three-step import workflow: fetch, parse, store; two consumers in one service.

    python examples/import_workflow.py demo     run one import to its end, and print it
    python examples/import_workflow.py serve    run the service until SIGTERM

The server is the one that TORIL_URL names, or redis://127.0.0.1:6379; TORIL_URL=embedded: starts
one.  Each step enqueues the next, under an idempotency key made of the workflow and the step, so
that a step that runs twice does not start the rest of the workflow twice.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from toril.steps import (
    BaseConsumer,
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

PREFIX = os.environ.get("IMPORT_PREFIX", "bull")

SOURCES = {"people.csv": "name,age\nAda,36\nGrace,85\n"}
STORED: dict[str, list[dict[str, str]]] = {}


@dataclass
class Fetch:
    source: str


@dataclass
class Rows:
    """What the second queue's steps need: the text to parse, or the rows to store."""

    text: str = ""
    rows: list[dict[str, str]] = field(default_factory=list)


async def enqueue_next(queue: str, payload: JobPayload[Any]) -> None:
    producer = Producer(get_queue(queue, prefix=PREFIX))
    key = f"{payload.workflow_id}/{payload.step_id}"
    await producer.enqueue(payload, EnqueueOptions(idempotency_key=key))


class Fetcher(BaseConsumer[Fetch]):
    async def handle(self, payload, job):
        text = SOURCES[payload.data.source]
        await enqueue_next("rows", JobPayload(payload.workflow_id, "parse", Rows(text=text)))
        return len(text)


class Importer(BaseConsumer[Rows]):
    """Both steps of the second queue; the step's id says which."""

    async def handle(self, payload, job):
        if payload.step_id == "parse":
            head, *lines = payload.data.text.splitlines()
            names = head.split(",")
            rows = [dict(zip(names, line.split(","), strict=True)) for line in lines]
            await enqueue_next("rows", JobPayload(payload.workflow_id, "store", Rows(rows=rows)))
            return len(rows)
        STORED[payload.workflow_id] = payload.data.rows
        return "stored"

    async def on_success(self, payload, job, result):
        log_for(payload, job).info("done: %s", result)


def make_service(metrics: StepMetrics) -> ConsumerRegistrar:
    registrar = ConsumerRegistrar()
    registrar.register(Fetcher("sources", prefix=PREFIX, observers=[metrics]))
    registrar.register(Importer("rows", prefix=PREFIX, concurrency=4, observers=[metrics]))
    return registrar


async def demo() -> None:
    metrics = StepMetrics()
    service = make_service(metrics)
    finished = asyncio.Event()

    def watch(event: StepEvent) -> None:
        if event.step_id == "store" and event.kind == "succeeded":
            finished.set()

    for consumer in service.consumers:
        consumer.observers += (watch,)
    await service.start_all()
    await enqueue_next("sources", JobPayload("import-1", "fetch", Fetch("people.csv")))
    await finished.wait()
    await service.close_all()
    await close_all_queues()
    print(f"stored {STORED['import-1']}")
    for (workflow, step), counts in metrics.steps.items():
        print(f"{workflow} {step}: {counts.succeeded} of {counts.started} attempts succeeded")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        make_service(StepMetrics()).run()
    else:
        asyncio.run(demo())
