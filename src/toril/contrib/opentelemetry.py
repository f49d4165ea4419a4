"""Traces with OpenTelemetry: a span for every add and every attempt, linked through the job.

The context is stored as JSON in the job's ``telemetry`` option, where BullMQ's own telemetry also
keeps it, so a trace continues from Node to Python and back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider

from toril import sync
from toril.client.flow_producer import FlowProducer
from toril.client.queue import Queue
from toril.errors import Signal, UnrecoverableError
from toril.options import FlowJob, JobOptions, NewJob
from toril.protocol import codec
from toril.protocol.flows import FlowNode
from toril.protocol.groups import GroupNode
from toril.protocol.job import Job
from toril.protocol.new_group import Compensation, GroupJob, GroupSignal, member_of
from toril.worker.handlers import Handler, Middleware

if TYPE_CHECKING:
    from toril.outbox import Outbox

SYSTEM = "bullmq"


class TracedQueue:
    """A queue whose adds are spans; everything else is the queue's own."""

    def __init__(self, queue: Queue, *, tracer_provider: TracerProvider | None = None) -> None:
        self.queue = queue
        self._tracer = _tracer(tracer_provider)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)

    async def add(self, name: str, data: Any = None, **options: Unpack[JobOptions]) -> Job:
        """Add a job that carries the context of the span it was added in."""
        with _producing(self._tracer, "add", self.queue.name) as span:
            options.setdefault("telemetry", carrier())
            job = await self.queue.add(name, data, **options)
            _describe(span, job)
            return job

    async def add_bulk(self, jobs: Iterable[NewJob]) -> list[Job]:
        """Add many jobs in one span."""
        with _producing(self._tracer, "add_bulk", self.queue.name) as span:
            added = await self.queue.add_bulk(_carrying(jobs))
            span.set_attribute("messaging.batch.message_count", len(added))
            return added


class BlockingTracedQueue:
    """``TracedQueue`` for the blocking client."""

    def __init__(self, queue: sync.Queue, *, tracer_provider: TracerProvider | None = None) -> None:
        self.queue = queue
        self._tracer = _tracer(tracer_provider)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)

    def add(self, name: str, data: Any = None, **options: Unpack[JobOptions]) -> Job:
        """Add a job that carries the context of the span it was added in."""
        with _producing(self._tracer, "add", self.queue.name) as span:
            options.setdefault("telemetry", carrier())
            job = self.queue.add(name, data, **options)
            _describe(span, job)
            return job

    def add_bulk(self, jobs: Iterable[NewJob]) -> list[Job]:
        """Add many jobs in one span."""
        with _producing(self._tracer, "add_bulk", self.queue.name) as span:
            added = self.queue.add_bulk(_carrying(jobs))
            span.set_attribute("messaging.batch.message_count", len(added))
            return added


class TracedFlowProducer:
    """A producer of flows whose adds are spans; every job of a flow carries the context."""

    def __init__(
        self, producer: FlowProducer, *, tracer_provider: TracerProvider | None = None
    ) -> None:
        self.producer = producer
        self._tracer = _tracer(tracer_provider)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.producer, name)

    async def add(self, flow: FlowJob) -> FlowNode:
        """Add a flow in one span."""
        with _producing(self._tracer, "add", flow.queue_name) as span:
            node = await self.producer.add(_flow_carrying(flow))
            _describe(span, node.job)
            return node

    async def add_bulk(self, flows: Iterable[FlowJob]) -> list[FlowNode]:
        """Add several flows in one span."""
        roots = list(flows)
        names = ",".join(sorted({flow.queue_name for flow in roots}))
        with _producing(self._tracer, "add_bulk", names):
            return await self.producer.add_bulk([_flow_carrying(flow) for flow in roots])

    async def add_group(
        self,
        name: str,
        jobs: Iterable[GroupJob | GroupSignal | FlowJob],
        compensation: Mapping[str, Compensation] | None = None,
        **options: Any,
    ) -> GroupNode:
        """Create a group in one span; later stages, compensations and ends carry its context."""
        members = list(jobs)
        with _producing(self._tracer, "add_group", name) as span:
            span.set_attribute("messaging.batch.message_count", len(members))
            context = carrier()
            for end in ("on_completed", "on_failed"):
                if options.get(end) is not None:
                    options[end] = _with_context(options[end], context)
            return await self.producer.add_group(
                name,
                [_member_with_context(member, context) for member in members],
                {key: _with_context(one, context) for key, one in (compensation or {}).items()},
                **options,
            )


class TracedOutbox:
    """An outbox whose rows carry the trace of the request that wrote them."""

    def __init__(self, outbox: Outbox, *, tracer_provider: TracerProvider | None = None) -> None:
        self.outbox = outbox
        self._tracer = _tracer(tracer_provider)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.outbox, name)

    def add(
        self,
        target: Any,
        queue: str | FlowJob,
        name: str | None = None,
        data: Any = None,
        **options: Unpack[JobOptions],
    ) -> Any:
        """Write a job that carries the context of the span it was written in.

        Returns what ``Outbox.add`` does: the job's id, to be awaited with an async session.
        """
        if isinstance(queue, FlowJob):
            with _producing(self._tracer, "add", queue.queue_name):
                return self.outbox.add(target, _flow_carrying(queue))
        with _producing(self._tracer, "add", queue):
            options.setdefault("telemetry", carrier())
            return self.outbox.add(target, queue, name, data, **options)  # type: ignore[arg-type]

    def add_bulk(self, target: Any, queue: str, jobs: Iterable[NewJob]) -> Any:
        """Write many jobs in one span."""
        with _producing(self._tracer, "add_bulk", queue) as span:
            carrying = _carrying(jobs)
            span.set_attribute("messaging.batch.message_count", len(carrying))
            return self.outbox.add_bulk(target, queue, carrying)

    def add_flow(self, target: Any, flow: FlowJob) -> Any:
        """Start a flow whose jobs all carry the context."""
        with _producing(self._tracer, "add_flow", flow.queue_name):
            return self.outbox.add_flow(target, _flow_carrying(flow))

    def add_group(self, target: Any, name: str, jobs: Iterable[Any], *args: Any, **kw: Any) -> Any:
        """Start a group whose members carry the context, where they are ``GroupJob``."""
        with _producing(self._tracer, "add_group", name):
            context = carrier()
            carrying: list[Any] = [
                _member_with_context(job, context) if isinstance(job, NewJob) else job
                for job in jobs
            ]
            return self.outbox.add_group(target, name, carrying, *args, **kw)


def trace_jobs(*, tracer_provider: TracerProvider | None = None) -> Middleware:
    """Middleware for a worker: every attempt is a span, a child of the one that added the job.

    ``Worker(…, middleware=[trace_jobs()])``
    """
    tracer = _tracer(tracer_provider)

    def wrap(handler: Handler) -> Callable[[Any], Awaitable[Any]]:
        async def traced(job: Any) -> Any:
            with tracer.start_as_current_span(
                f"process {job.queue_name}",
                context=context_of(job.telemetry),
                kind=SpanKind.CONSUMER,
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                _set(span, "process", job.queue_name)
                _describe(span, job)
                span.set_attribute("toril.job.attempt", job.attempts_started)
                try:
                    return await handler(job)
                except BaseException as error:
                    _record(span, error)
                    raise

        return traced

    return wrap


def carrier() -> str:
    """The current context as the text that a job carries in ``telemetry``."""
    headers: dict[str, str] = {}
    inject(headers)
    return msgspec.json.encode(headers).decode()


def context_of(telemetry: str | None) -> Context | None:
    """The context that a job carries, or None if it carries none that can be read."""
    if not telemetry:
        return None
    try:
        headers = msgspec.json.decode(telemetry)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    if not isinstance(headers, Mapping):
        return None
    # Propagators take every value for text: one that is none must not fail the job.
    return extract({name: value for name, value in headers.items() if isinstance(value, str)})


def _tracer(provider: TracerProvider | None) -> trace.Tracer:
    return trace.get_tracer("toril", tracer_provider=provider)


@contextmanager
def _producing(tracer: trace.Tracer, verb: str, queue_name: str) -> Iterator[Span]:
    with tracer.start_as_current_span(f"{verb} {queue_name}", kind=SpanKind.PRODUCER) as span:
        _set(span, "publish", queue_name)
        yield span


def _set(span: Span, operation: str, queue_name: str) -> None:
    span.set_attribute("messaging.system", SYSTEM)
    span.set_attribute("messaging.operation.type", operation)
    span.set_attribute("messaging.destination.name", queue_name)


def _describe(span: Span, job: Any) -> None:
    span.set_attribute("messaging.message.id", job.id)
    span.set_attribute("toril.job.name", job.name)


def _record(span: Span, error: BaseException) -> None:
    """Record an error, unless the handler only postponed its job."""
    if isinstance(error, Signal) and not isinstance(error, UnrecoverableError):
        span.set_attribute("toril.job.put_back", type(error).__name__)
        return
    with suppress(Exception):  # it asks the error for its message, which may raise
        span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, codec.words_of(error)))


def _carrying(jobs: Iterable[NewJob]) -> list[NewJob]:
    context = carrier()
    return [
        msgspec.structs.replace(job, telemetry=context) if job.telemetry is None else job
        for job in jobs
    ]


def _with_context(job: Any, context: str) -> Any:
    if getattr(job, "telemetry", context) is None:
        return msgspec.structs.replace(job, telemetry=context)
    return job


def _member_with_context(member: Any, context: str) -> Any:
    if isinstance(member, FlowJob):
        member = member_of(member)
    own = getattr(member, "compensation", None)
    if own is not None:
        member = msgspec.structs.replace(member, compensation=_with_context(own, context))
    return _with_context(member, context)


def _flow_carrying(flow: FlowJob) -> FlowJob:
    children = tuple(_flow_carrying(child) for child in flow.children)
    telemetry = carrier() if flow.telemetry is None else flow.telemetry
    return msgspec.structs.replace(flow, telemetry=telemetry, children=children)
