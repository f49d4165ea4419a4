"""S4: somebody is told of waiting work, and of when more is due.

A worker that waits at the server sees nothing but the marker, and the time at which it was told to
look again. Whoever has begun to take, or has not begun to wait, looks by himself.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.actors import FRESH, GONE, POPPED, Worker
from tests.model.view import Queue
from tests.model.world import Node

FOREVER_MS = 10**15


def wake_problems(name: str, queue: Queue, node: Node) -> Iterator[str]:
    workers = [worker for worker in node.workers if worker.queue == name and worker.phase != GONE]
    if "paused" in queue.meta or not workers or any(_will_look(worker) for worker in workers):
        return
    is_limited = queue.is_limited or any(worker.habits.limiter for worker in workers)
    by_ms = FOREVER_MS if is_limited else node.clock_ms
    if _has_work(queue) and "0" not in queue.marker and not _looks_by(workers, by_ms):
        yield "S4: there is work and no marker"
    due_ms = min(_due(queue), default=0)
    is_idle = any(worker.is_waiting for worker in workers)
    if due_ms and is_idle and not queue.marker and not _looks_by(workers, due_ms):
        yield f"S4: something is due at {due_ms}, and nobody will look then"


def _will_look(worker: Worker) -> bool:
    is_at_work = bool(worker.held) or worker.pending is not None
    return worker.phase == POPPED or (worker.phase == FRESH and not is_at_work)


def _looks_by(workers: list[Worker], time_ms: int) -> bool:
    return any(worker.is_waiting and 0 < worker.due_ms <= time_ms for worker in workers)


def _due(queue: Queue) -> Iterator[int]:
    yield from (int(score) // 4096 for score in queue.scores.get("delayed", {}).values())
    yield from (int(at) for at in queue.lanes_later.values())


def _has_work(queue: Queue) -> bool:
    """Is there something that may be taken now?"""
    concurrency = queue.meta.get("concurrency")
    if concurrency and len(queue.order.get("active", ())) >= int(concurrency):
        return False
    if queue.lanes_ready or queue.order.get("prioritized"):
        return True
    return any(queue.lane_of(job_id) is None for job_id in queue.order.get("wait", ()))
