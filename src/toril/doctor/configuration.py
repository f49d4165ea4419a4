"""Workers, consumers, queues and relays as they are configured, against the review checklist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from toril.client.queue import Queue
from toril.doctor import ailments
from toril.doctor.finding import Finding
from toril.doctor.job_options import as_stored, check_retention, check_retries
from toril.doctor.wording import counted, lasting
from toril.errors import InvalidOptionError
from toril.idempotency.decorator import MARK
from toril.idempotency.window import retry_window
from toril.options import Keep
from toril.protocol import codec
from toril.protocol.codec import JobOpts
from toril.steps.consumer import BaseConsumer
from toril.steps.registrar import ConsumerRegistrar
from toril.worker.handlers import Router
from toril.worker.worker import Worker

_SHORT_LOCK_MS = 5000
_LONG_LAG_MS = 60_000


class Parts(msgspec.Struct):
    """The objects of a program, by kind."""

    workers: list[Worker] = []
    queues: list[Queue] = []
    relays: list[Any] = []


def sort_out(objects: Iterable[Any]) -> Parts:
    """Workers, consumers, registrars, queues and relays, in any mixture."""
    parts = Parts([], [], [])
    for item in objects:
        if isinstance(item, Worker):
            parts.workers.append(item)
        elif isinstance(item, BaseConsumer):
            parts.workers.append(item.worker)
        elif isinstance(item, ConsumerRegistrar):
            parts.workers += [consumer.worker for consumer in item.consumers]
        elif isinstance(item, Queue):
            parts.queues.append(item)
        elif hasattr(item, "outbox") and hasattr(item, "stats"):
            parts.relays.append(item)
        else:
            raise InvalidOptionError(
                f"{item!r} is not something the doctor can examine;"
                " pass workers, consumers, queues or relays"
            )
    return parts


def check_configuration(
    parts: Parts, options_in_use: Mapping[str, Sequence[JobOpts]]
) -> Iterator[Finding]:
    """What the objects say of themselves; ``options_in_use`` are those of jobs, by queue."""
    defaults = {
        queue.name: as_stored(dict(queue.default_job_options))
        for queue in parts.queues
        if queue.default_job_options
    }
    for name, opts in defaults.items():
        yield from check_retries(f"queue {name}", "its jobs, by default,", opts)
    for worker in parts.workers:
        known = [*options_in_use.get(worker.name, ())]
        if worker.name in defaults:
            known.append(defaults[worker.name])
        yield from _worker(worker, defaults.get(worker.name))
        yield from _handlers(worker, known)


def _worker(worker: Worker, defaults: JobOpts | None) -> Iterator[Finding]:
    subject = f"worker of {worker.name}"
    options = worker.options
    if worker.dead_letter_queue is None:
        yield ailments.NO_DEAD_LETTERS.of(subject, queue=worker.name)
    yield from check_retention(
        subject,
        _kept(options.remove_on_complete, defaults, "keep_completed"),
        # What goes to the dead letters does not stay in the failed set.
        _kept(options.remove_on_fail, defaults, "keep_failed")
        if worker.dead_letter_queue is None
        else {"count": 0},
    )
    if options.concurrency == 1:
        yield ailments.ONE_AT_A_TIME.of(subject)
    if options.lock_ms < _SHORT_LOCK_MS:
        yield ailments.SHORT_LOCKS.of(subject, lock_ms=options.lock_ms)


def _kept(value: Any, defaults: JobOpts | None, name: str) -> Any:
    if value is not None:
        return codec.keep_args(Keep.of(value))
    return codec.UNSET if defaults is None else getattr(defaults, name)


def _handlers(worker: Worker, known: Sequence[JobOpts]) -> Iterator[Finding]:
    handler = worker.handler
    if isinstance(getattr(handler, "__self__", None), BaseConsumer):
        return  # what a consumer's handle does inside cannot be seen
    named = handler.handlers() if isinstance(handler, Router) else {"": handler}
    for name, function in named.items():
        subject = f"worker of {worker.name}" + (f", handler {name!r}" if name else "")
        guarded = getattr(function, MARK, None)
        if guarded is None:
            yield ailments.NOT_IDEMPOTENT.of(subject)
            continue
        yield from _lifetime(subject, guarded.store.ttl_ms, worker, known)


def _lifetime(
    subject: str, ttl_ms: int, worker: Worker, known: Sequence[JobOpts]
) -> Iterator[Finding]:
    longest_ms = 0
    for opts in known or [as_stored({})]:
        try:
            longest_ms = max(longest_ms, retry_window(opts, worker))
        except InvalidOptionError:
            continue  # a backoff that only the worker's strategy knows
    if ttl_ms <= longest_ms:
        yield ailments.RECORDS_TOO_SHORT.of(subject, ttl_ms=ttl_ms, longest_ms=longest_ms)


async def check_relays(relays: Sequence[Any]) -> list[Finding]:
    findings: list[Finding] = []
    for relay in relays:
        stats = await relay.stats()
        subject = f"outbox {relay.table.name}"
        if stats.parked:
            findings.append(ailments.ROWS_PARKED.of(subject, rows=counted(stats.parked, "row")))
        if stats.lag_ms > _LONG_LAG_MS:
            findings.append(
                ailments.ROWS_LATE.of(subject, age=lasting(stats.lag_ms), pending=stats.pending)
            )
    return findings
