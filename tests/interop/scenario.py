"""Scenarios: one list of steps, run by BullMQ or by Toril, whoever is the driver.

A step is ``(verb, arguments)``: a method of the driver and what it is called with, except that

- ``"as"`` gives a label to the id (or ids) that the step returned, and ``"job"`` refers to one;
- ``work`` runs one worker until the jobs named in ``"until"`` are in those states (``"gone"``: no
  longer stored), then closes it. The states are read from Redis, by neither party;
- ``while_active`` runs a worker whose job ``"hold"`` hangs, carries out ``"steps"``, lets the job
  go and waits until ``"finished"`` jobs of the queue are finished;
- ``crash`` starts a worker in a process of its own and kills it once it holds its job;
- ``expire`` waits until the lock of a job is gone;
- ``tick`` lets the clock go on, where times must differ.

Options are written as Toril names them, durations in ms, and an ``age`` of retention in seconds as
on the wire. A behaviour is a list of actions; see ``node/peer.js`` for their names.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from tests.interop import golden
from tests.interop.peer import NodeError, NodePeer, PeerView

Step = tuple[str, dict[str, Any]]
Behaviours = dict[str, list[list[Any]]]


class Driver(Protocol):
    """One party that can carry out every step."""

    async def add(self, queue: str, name: str, data: Any, **options: Any) -> str: ...
    async def add_bulk(self, queue: str, new: list[dict[str, Any]]) -> list[str]: ...
    async def pause(self, queue: str) -> None: ...
    async def resume(self, queue: str) -> None: ...
    async def drain(self, queue: str, *, delayed: bool) -> None: ...
    async def clean(self, queue: str, state: str, grace: int, limit: int) -> list[str]: ...
    async def promote(self, queue: str, job: str) -> None: ...
    async def promote_all(self, queue: str) -> None: ...
    async def retry(self, queue: str, job: str, state: str = "failed") -> None: ...
    async def retry_all(self, queue: str, state: str = "failed") -> None: ...
    async def remove(self, queue: str, job: str) -> None: ...
    async def change_priority(self, queue: str, job: str, priority: int, lifo: bool) -> None: ...
    async def change_delay(self, queue: str, job: str, delay: int) -> None: ...
    async def update_data(self, queue: str, job: str, data: Any) -> None: ...
    async def update_progress(self, queue: str, job: str, progress: Any) -> None: ...
    async def add_log(self, queue: str, job: str, row: str) -> None: ...
    async def start_worker(self, queue: str, behaviours: Behaviours, **options: Any) -> Any: ...
    async def stop_worker(self, worker: Any) -> None: ...
    async def release(self, worker: Any, job_id: str) -> None: ...
    async def crash(self, queue: str, behaviours: Behaviours, **options: Any) -> None: ...
    async def flow(self, tree: dict[str, Any]) -> dict[str, str]: ...


async def run(steps: list[Step], driver: Driver, client: Any, prefix: str) -> dict[str, Any]:
    """Carry out ``steps`` and return the normalised dump of what they left behind."""
    labels: dict[str, str] = {}
    for number, (verb, arguments) in enumerate(steps, 1):
        try:
            await _step(verb, dict(arguments), driver, client, prefix, labels)
        except Exception as error:
            error.add_note(f"in step {number}: {verb} {arguments}")
            raise
    found = await golden.dump(client, prefix)
    workers = any(verb in {"work", "while_active", "crash"} for verb, _ in steps)
    return golden.normalise(found, prefix=prefix, keep=_chosen_ids(steps), markers=not workers)


async def _step(
    verb: str,
    arguments: dict[str, Any],
    driver: Driver,
    client: Any,
    prefix: str,
    labels: dict[str, str],
) -> None:
    queue = arguments.get("queue", "")
    if "job" in arguments:
        arguments["job"] = labels[arguments["job"]]
    if verb == "work":
        until = {labels[label]: state for label, state in arguments.pop("until").items()}
        worker = await driver.start_worker(name="w", **arguments)
        try:
            for job_id, state in until.items():
                await wait_for_state(client, prefix, queue, job_id, state)
        finally:
            await driver.stop_worker(worker)
        return
    if verb == "while_active":
        await _while_active(arguments, driver, client, prefix, labels)
        return
    if verb == "tick":
        await asyncio.sleep(0.003)
        return
    if verb == "expire":
        key = f"{prefix}:{queue}:{arguments['job']}:lock"

        async def unlocked() -> bool:
            return not await client.exists(key)

        await wait_until(unlocked, f"{key} expires")
        return
    label = arguments.pop("as", None)
    result = await getattr(driver, verb)(**arguments)
    if isinstance(label, str):
        labels[label] = result
    elif label is not None:
        labels.update(zip(label, result, strict=True))
    elif isinstance(result, dict):
        labels.update(result)


async def _while_active(
    arguments: dict[str, Any], driver: Driver, client: Any, prefix: str, labels: dict[str, str]
) -> None:
    queue, held = arguments["queue"], labels[arguments["hold"]]
    worker = await driver.start_worker(queue, arguments["behaviours"], name="w")

    async def finished() -> bool:
        sets = [f"{prefix}:{queue}:{state}" for state in ("completed", "failed")]
        return sum([await client.zcard(name) for name in sets]) == arguments["finished"]

    try:
        await wait_for_state(client, prefix, queue, held, "active")
        for verb, inner in arguments["steps"]:
            await _step(verb, dict(inner), driver, client, prefix, labels)
        await driver.release(worker, held)
        await wait_until(finished, f"{arguments['finished']} jobs are finished")
    finally:
        await driver.stop_worker(worker)


def _chosen_ids(steps: list[Step]) -> set[str]:
    chosen = set()
    for _, arguments in steps:
        for options in (arguments, *arguments.get("new", [])):
            if "job_id" in options:
                chosen.add(options["job_id"])
    return chosen


async def wait_until(
    condition: Callable[[], Awaitable[Any]], what: str, *, timeout: float = 60.0
) -> Any:
    """Ask until the answer is true and return it; say ``what`` was waited for if it never is."""
    deadline = time.monotonic() + timeout
    while True:
        if answer := await condition():
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout} s in vain until {what}")
        await asyncio.sleep(0.005)


async def wait_for_state(
    client: Any, prefix: str, queue: str, job_id: str, *states: str, timeout: float = 60.0
) -> str:
    """Wait until the job is in one of ``states``; ``"gone"`` is a job that is stored nowhere."""
    last = "?"

    async def reached() -> bool:
        nonlocal last
        last = await state_of(client, prefix, queue, job_id)
        return last in states

    try:
        await wait_until(reached, f"job {job_id} is {' or '.join(states)}", timeout=timeout)
    except TimeoutError as error:
        raise TimeoutError(f"{error}; it is {last}") from None
    return last


async def state_of(client: Any, prefix: str, queue: str, job_id: str) -> str:
    """The container a job is in, read without the help of either party."""
    base = f"{prefix}:{queue}"
    async with client.pipeline(transaction=True) as pipe:
        for state in ("completed", "failed", "delayed", "prioritized", "waiting-children"):
            pipe.zscore(f"{base}:{state}", job_id)
        for state in ("wait", "paused", "active"):
            pipe.lpos(f"{base}:{state}", job_id)
        pipe.exists(f"{base}:{job_id}")
        *places, exists = await pipe.execute()
    names = (
        "completed",
        "failed",
        "delayed",
        "prioritized",
        "waiting-children",
        "wait",
        "paused",
        "active",
    )
    for name, place in zip(names, places, strict=True):
        if place is not None:
            return name
    return "lost" if exists else "gone"


class NodeDriver:
    """Carries the steps out with BullMQ."""

    def __init__(self, peer: PeerView) -> None:
        self.peer = peer

    async def add(self, queue: str, name: str, data: Any, **options: Any) -> str:
        return await self.peer.add(queue, name, data, **camel(options))

    async def add_bulk(self, queue: str, new: list[dict[str, Any]]) -> list[str]:
        rows = [
            {
                "name": job["name"],
                "data": job["data"],
                "opts": camel({k: v for k, v in job.items() if k not in {"name", "data"}}),
            }
            for job in new
        ]
        jobs = await self.peer.call("queue.addBulk", queue=queue, args=[rows])
        return [str(job["id"]) for job in jobs]

    async def pause(self, queue: str) -> None:
        await self.peer.call("queue.pause", queue=queue)

    async def resume(self, queue: str) -> None:
        await self.peer.call("queue.resume", queue=queue)

    async def drain(self, queue: str, *, delayed: bool) -> None:
        await self.peer.call("queue.drain", queue=queue, args=[delayed])

    async def clean(self, queue: str, state: str, grace: int, limit: int) -> list[str]:
        ids: list[str] = await self.peer.call(
            "queue.clean", queue=queue, args=[grace, limit, state]
        )
        return ids

    async def promote(self, queue: str, job: str) -> None:
        await self.peer.call("job.promote", queue=queue, jobId=job)

    async def promote_all(self, queue: str) -> None:
        await self.peer.call("queue.promoteJobs", queue=queue)

    async def retry(self, queue: str, job: str, state: str = "failed") -> None:
        await self.peer.call("job.retry", queue=queue, jobId=job, args=[state])

    async def retry_all(self, queue: str, state: str = "failed") -> None:
        await self.peer.call("queue.retryJobs", queue=queue, args=[{"state": state}])

    async def remove(self, queue: str, job: str) -> None:
        await self.peer.call("job.remove", queue=queue, jobId=job)

    async def change_priority(self, queue: str, job: str, priority: int, lifo: bool) -> None:
        await self.peer.call(
            "job.changePriority",
            queue=queue,
            jobId=job,
            args=[{"priority": priority, "lifo": lifo}],
        )

    async def change_delay(self, queue: str, job: str, delay: int) -> None:
        await self.peer.call("job.changeDelay", queue=queue, jobId=job, args=[delay])

    async def update_data(self, queue: str, job: str, data: Any) -> None:
        await self.peer.call("job.updateData", queue=queue, jobId=job, args=[data])

    async def update_progress(self, queue: str, job: str, progress: Any) -> None:
        await self.peer.call("job.updateProgress", queue=queue, jobId=job, args=[progress])

    async def add_log(self, queue: str, job: str, row: str) -> None:
        await self.peer.call("job.log", queue=queue, jobId=job, args=[row])

    async def start_worker(self, queue: str, behaviours: Behaviours, **options: Any) -> str:
        return await self.peer.work(queue, behaviours, **camel(options))

    async def stop_worker(self, worker: str) -> None:
        await self.peer.stop_working(worker)

    async def release(self, worker: str, job_id: str) -> None:
        await self.peer.event("holding", where=lambda event: event["jobId"] == job_id)
        await self.peer.call("worker.release", jobId=job_id)

    async def upsert_scheduler(
        self, queue: str, scheduler: str, schedule: dict[str, Any], template: dict[str, Any]
    ) -> str:
        names = {"cron": "pattern", "start": "startDate", "end": "endDate"}
        repeat = {names.get(name, name): value for name, value in schedule.items()}
        own = {"name": template.get("name", scheduler), "data": template.get("data", {})}
        rest = {k: v for k, v in template.items() if k not in {"name", "data"}}
        job = await self.peer.call(
            "queue.upsertJobScheduler",
            queue=queue,
            args=[scheduler, repeat, {**own, "opts": camel(rest)}],
        )
        if job is None:
            raise NodeError("queue.upsertJobScheduler", {"message": "nothing is to come"})
        return str(job["id"])

    async def remove_scheduler(self, queue: str, scheduler: str) -> None:
        await self.peer.call("queue.removeJobScheduler", queue=queue, args=[scheduler])

    async def remove_deduplication_key(self, queue: str, key: str) -> None:
        await self.peer.call("queue.removeDeduplicationKey", queue=queue, args=[key])

    async def crash(self, queue: str, behaviours: Behaviours, **options: Any) -> None:
        async with NodePeer(self.peer.version, self.peer.process.url, self.peer.prefix) as victim:
            await victim.work(queue, behaviours, **camel(options))
            await victim.event("holding", timeout=60)
            await victim.kill()

    async def flow(self, tree: dict[str, Any]) -> dict[str, str]:
        node = await self.peer.call("flow.add", args=[_node_tree(tree)])
        return _labels(tree, node)


def camel(options: dict[str, Any]) -> dict[str, Any]:
    """Options with the names that BullMQ gives them."""

    def name(option: str) -> str:
        head, *rest = option.split("_")
        return head + "".join(word.title() for word in rest)

    return {
        name(option): camel(value) if isinstance(value, dict) else value
        for option, value in options.items()
    }


def _node_tree(tree: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": tree["name"],
        "queueName": tree["queue"],
        "data": tree.get("data", {}),
        "opts": camel(tree.get("options", {})),
        "children": [_node_tree(child) for child in tree.get("children", [])],
    }


def _labels(tree: dict[str, Any], node: dict[str, Any]) -> dict[str, str]:
    labels = {tree["name"]: str(node["job"]["id"])}
    for child, below in zip(tree.get("children", []), node.get("children", []), strict=False):
        labels |= _labels(child, below)
    return labels
