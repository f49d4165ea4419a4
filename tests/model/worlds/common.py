"""What the worlds are built of."""

from __future__ import annotations

from typing import Any

from tests.model.actors import Habits, Worker, keys_of
from tests.model.machine import START_MS, Request
from tests.model.slots import Q
from tests.model.view import PREFIX, View
from tests.model.world import Client
from toril import NewJob
from toril.protocol import adding, removing


def two(habits: Habits = Habits(), queue: str = Q) -> tuple[Worker, ...]:  # noqa: B008
    """Two workers of one queue."""
    return Worker("a", queue, habits), Worker("b", queue, habits)


def add(job_id: str, name: str = "job", queue: str = Q, **options: Any) -> Any:
    job = NewJob(name, {"n": job_id}, job_id=job_id, timestamp=START_MS, **options)
    return adding.add(keys_of(queue), [adding.prepare(job, job_id)])


def adds(job_id: str, name: str = "job", **options: Any) -> Client:
    return Client(f"add {job_id}", lambda view: add(job_id, name, **options))


def removes(job_id: str) -> Client:
    return Client(
        f"remove {job_id}",
        lambda view: first(removing.remove(keys_of(view.layout.home(job_id)), job_id)),
        may_remove=True,
    )


REMOVES_ORPHANS = Client(
    "BullMQ removes orphans", lambda view: Request("removeOrphans", (f"{PREFIX}:{Q}:",), ())
)


def _home(view: View, job_id: str) -> str:
    """The queue of a job, or of one that undoes a member: g-c0 undoes the first."""
    _, is_undoing, number = job_id.partition("-c")
    if is_undoing:
        return f"{view.layout.home(f'j{int(number) + 1}')}:compensation"
    return view.layout.home(job_id)


def retried_by_bullmq(job_id: str, state: str = "failed") -> Client:
    def make(view: View) -> Request | None:
        queue = _home(view, job_id)
        if job_id not in view.queues[queue].order.get(state, ()):
            return None
        return Request("retryFinished", (f"{PREFIX}:{queue}:",), (job_id, state))

    return Client(f"BullMQ retries {job_id}, which {state}", make)


def by_bullmq(what: str, job_id: str, *words: str, place: str = "") -> Client:
    """A program of BullMQ does this to a job, if it is there at all, or in this place."""

    def make(view: View) -> Request | None:
        queue = _home(view, job_id)
        if job_id not in (
            view.queues[queue].order.get(place, ()) if place else view.queues[queue].jobs
        ):
            return None
        return Request(what, (f"{PREFIX}:{queue}:",), (job_id, *words))

    name = " ".join((what, job_id, *words[:1]))
    return Client(name, make, may_remove=what == "bullRemove")


def first(plan: Any) -> Any:
    """The first command of a plan: enough for what is small."""
    return next(plan)
