"""Workers, consumers, queues and relays as they are configured, against the review checklist."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from toril.client.queue import Queue
from toril.doctor.finding import Finding, Severity
from toril.doctor.job_options import as_stored, check_retention, check_retries
from toril.doctor.wording import counted, lasting
from toril.errors import InvalidOptionError
from toril.idempotency.decorator import MARK
from toril.idempotency.window import retry_window
from toril.options import Keep, milliseconds
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
                f"{item!r} is nothing the doctor knows; give it workers, consumers, queues, relays"
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
        yield Finding(
            code="D303",
            severity=Severity.WARNING,
            subject=subject,
            problem="it has no dead letter queue",
            harm="Jobs that failed for good lie in the failed set, where nobody looks.",
            remedy=f"Worker(…, dead_letter_queue='{worker.name}-dlq'), and an alert on its count.",
        )
    yield from check_retention(
        subject,
        _kept(options.remove_on_complete, defaults, "keep_completed"),
        # What goes to the dead letters does not stay in the failed set.
        _kept(options.remove_on_fail, defaults, "keep_failed")
        if worker.dead_letter_queue is None
        else {"count": 0},
        "Worker(…, remove_on_complete=1000, remove_on_fail=500), or default_job_options.",
    )
    if options.concurrency == 1:
        yield Finding(
            code="D305",
            severity=Severity.INFO,
            subject=subject,
            problem="it runs one job at a time",
            harm="Handlers that wait for others leave it idle.",
            remedy="Worker(…, concurrency=50) for async handlers, if that is not on purpose.",
        )
    if milliseconds(options.lock_duration, "lock_duration") < _SHORT_LOCK_MS:
        yield Finding(
            code="D306",
            severity=Severity.WARNING,
            subject=subject,
            problem=f"its locks last {options.lock_duration} ms",
            harm="A pause of the process or the network is taken for death: jobs run twice.",
            remedy="lock_duration=30_000, the default.",
        )


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
            yield Finding(
                code="D301",
                severity=Severity.WARNING,
                subject=subject,
                problem="it is not marked as idempotent",
                harm="A job may run twice: a charge or a mail would happen twice.",
                remedy="@idempotent(SqlStore(engine)), or make sure that it does no harm.",
            )
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
        yield Finding(
            code="D302",
            severity=Severity.ERROR,
            subject=subject,
            problem=f"its records live {ttl_ms} ms, its jobs may come back for {longest_ms} ms",
            harm="A late redelivery finds no record and does the work again.",
            remedy="Give the store a longer ttl, or retry for a shorter time.",
        )


async def check_relays(relays: Sequence[Any]) -> list[Finding]:
    findings: list[Finding] = []
    for relay in relays:
        stats = await relay.stats()
        subject = f"outbox {relay.table.name}"
        if stats.parked:
            findings.append(
                Finding(
                    code="D401",
                    severity=Severity.ERROR,
                    subject=subject,
                    problem=f"it has parked {counted(stats.parked, 'row')}",
                    harm="Their jobs were promised by a commit and do not exist.",
                    remedy="get_parked() says why; correct them and unpark() them.",
                )
            )
        if stats.lag_ms > _LONG_LAG_MS:
            waited = f"{lasting(stats.lag_ms)}, of {stats.pending}"
            findings.append(
                Finding(
                    code="D402",
                    severity=Severity.WARNING,
                    subject=subject,
                    problem=f"its oldest row has waited {waited}",
                    harm="No relay runs, or it does not keep up: jobs come late.",
                    remedy="toril.run(relay), more of them, or a larger batch_size.",
                )
            )
    return findings
