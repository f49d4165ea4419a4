"""Toril as the tests here use it: queues and workers under one prefix, and a scenario driver."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Self

from tests.forked import PIPE, Forked
from tests.helpers import wait_until
from tests.interop.scripted import Behaviours, ScriptedHandler
from toril import (
    Deduplication,
    FlowJob,
    FlowNode,
    FlowProducer,
    Keep,
    NewJob,
    Queue,
    RateLimit,
    Worker,
)

ROOT = Path(__file__).parents[2]


def make_worker(queue: str, handler: Any, url: str, prefix: str, **options: Any) -> Worker:
    """A worker, with options given as plain data."""
    if isinstance(options.get("limiter"), dict):
        options["limiter"] = RateLimit(**options["limiter"])
    if "name" in options:
        options["worker_name"] = options.pop("name")
    return Worker(queue, handler, connection=url, prefix=prefix, **own_options(options))


def own_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a scenario as Toril takes them."""
    result = dict(options)
    for option in ("remove_on_complete", "remove_on_fail"):
        keep = result.get(option)
        if isinstance(keep, dict):
            age = keep.get("age")
            result[option] = Keep(**{**keep, **({"age": age * 1000} if age is not None else {})})
    if isinstance(result.get("deduplication"), dict):
        result["deduplication"] = Deduplication(**result["deduplication"])
    return result


def flow_job(tree: dict[str, Any]) -> FlowJob:
    """The tree of a scenario as Toril takes it."""
    return FlowJob(
        tree["name"],
        tree.get("data", {}),
        queue_name=tree["queue"],
        children=[flow_job(child) for child in tree.get("children", [])],
        **own_options(tree.get("options", {})),
    )


def _labels(tree: dict[str, Any], node: FlowNode) -> dict[str, str]:
    labels = {tree["name"]: node.job.id}
    for child, below in zip(tree.get("children", []), node.children, strict=True):
        labels |= _labels(child, below)
    return labels


class RunningWorker:
    """A worker with its scripted handler and the task it runs in."""

    def __init__(self, worker: Worker, handler: ScriptedHandler) -> None:
        self.worker = worker
        self.handler = handler
        self.task = asyncio.create_task(worker.run())

    async def stop(self, timeout: int = 60_000) -> None:
        self.handler.release()
        await self.worker.close(timeout=timeout)
        await self.task


class WorkerProcess:
    """A worker in a process of its own."""

    def __init__(self, child: Forked) -> None:
        self._child = child

    async def line(self, wanted: str, timeout: float = 30.0) -> str:
        """The next line of its output that starts with ``wanted``."""
        assert self._child.stdout is not None
        async with asyncio.timeout(timeout):
            while line := await asyncio.to_thread(self._child.stdout.readline):
                if line.startswith(wanted):
                    return line.strip()
        raise RuntimeError(f"the worker process ended before it said {wanted!r}")

    async def kill(self) -> None:
        """End it as a crash does."""
        self._child.kill()
        await self._child.ended()


class TorilSide:
    """Opens queues and workers under one prefix and closes them at the end."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self._queues: dict[str, Queue] = {}
        self._workers: list[RunningWorker] = []
        self._processes: list[WorkerProcess] = []
        self._events: list[Any] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes:
            await process.kill()
        for worker in list(self._workers):
            await self.stop_worker(worker)
        for events in self._events:
            await events.close()
        for queue in self._queues.values():
            await queue.close()

    def queue(self, name: str) -> Queue:
        if name not in self._queues:
            self._queues[name] = Queue(name, connection=self.url, prefix=self.prefix)
        return self._queues[name]

    def events(self, name: str, **options: Any) -> Any:
        from toril import QueueEvents

        events = QueueEvents(name, connection=self.url, prefix=self.prefix, **options)
        self._events.append(events)
        return events

    async def worker_process(
        self, queue: str, behaviours: Behaviours, **options: Any
    ) -> WorkerProcess:
        config = {
            "url": self.url,
            "prefix": self.prefix,
            "queue": queue,
            "behaviours": behaviours,
            "options": options,
        }
        words = ("-m", "tests.interop.toril_worker", json.dumps(config))
        process = WorkerProcess(Forked(*words, stdout=PIPE))
        self._processes.append(process)
        return process

    # -- the driver of scenarios --

    async def add(self, queue: str, name: str, data: Any = None, **options: Any) -> str:
        job = await self.queue(queue).add(name, data, **own_options(options))
        return job.id

    async def add_bulk(self, queue: str, new: list[dict[str, Any]]) -> list[str]:
        jobs = await self.queue(queue).add_bulk([NewJob(**own_options(job)) for job in new])
        return [job.id for job in jobs]

    async def pause(self, queue: str) -> None:
        await self.queue(queue).pause()

    async def resume(self, queue: str) -> None:
        await self.queue(queue).resume()

    async def drain(self, queue: str, *, delayed: bool = False) -> None:
        await self.queue(queue).drain(delayed=delayed)

    async def clean(self, queue: str, state: str, grace: int, limit: int) -> Any:
        return await self.queue(queue).clean(state, grace=grace, limit=limit)

    async def promote(self, queue: str, job: str) -> None:
        await self.queue(queue).promote(job)

    async def promote_all(self, queue: str) -> None:
        await self.queue(queue).promote_all()

    async def retry(self, queue: str, job: str, state: str = "failed") -> None:
        await self.queue(queue).retry(job)

    async def retry_all(self, queue: str, state: str = "failed") -> None:
        await self.queue(queue).retry_all(state)

    async def remove(self, queue: str, job: str) -> None:
        await self.queue(queue).remove(job)

    async def change_priority(self, queue: str, job: str, priority: int, lifo: bool) -> None:
        await self.queue(queue).change_priority(job, priority, lifo=lifo)

    async def change_delay(self, queue: str, job: str, delay: int) -> None:
        await self.queue(queue).change_delay(job, delay)

    async def update_data(self, queue: str, job: str, data: Any) -> None:
        await self.queue(queue).update_data(job, data)

    async def update_progress(self, queue: str, job: str, progress: Any) -> None:
        await self.queue(queue).update_progress(job, progress)

    async def add_log(self, queue: str, job: str, row: str) -> None:
        await self.queue(queue).add_log(job, row)

    async def start_worker(
        self, queue: str, behaviours: Behaviours | None = None, **options: Any
    ) -> RunningWorker:
        handler = ScriptedHandler(behaviours)
        handler.open_queue = self.queue
        worker = make_worker(queue, handler, self.url, self.prefix, **options)
        running = RunningWorker(worker, handler)
        self._workers.append(running)
        return running

    async def stop_worker(self, worker: RunningWorker) -> None:
        self._workers.remove(worker)
        await worker.stop()

    async def release(self, worker: RunningWorker, job_id: str) -> None:
        await wait_until(lambda: job_id in worker.handler.holding)
        worker.handler.release(job_id)

    async def upsert_scheduler(
        self, queue: str, scheduler: str, schedule: dict[str, Any], template: dict[str, Any]
    ) -> str:
        template = {"name": scheduler, **template}
        job = await self.queue(queue).upsert_job_scheduler(
            scheduler, **schedule, template=NewJob(**own_options(template))
        )
        return job.id

    async def remove_scheduler(self, queue: str, scheduler: str) -> None:
        await self.queue(queue).remove_job_scheduler(scheduler)

    async def remove_deduplication_key(self, queue: str, key: str) -> None:
        await self.queue(queue).remove_deduplication_key(key)

    async def flow(self, tree: dict[str, Any]) -> dict[str, str]:
        async with FlowProducer(connection=self.url, prefix=self.prefix) as producer:
            return _labels(tree, await producer.add(flow_job(tree)))

    async def crash(self, queue: str, behaviours: Behaviours, **options: Any) -> None:
        process = await self.worker_process(queue, behaviours, **options)
        await process.line("holding", 60)
        await process.kill()
