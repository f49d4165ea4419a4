"""Toril: a job queue on Redis or Valkey that speaks BullMQ's data layout.

Each name is imported when it is first used: a program that asks for one error, or the command line
for its help, does not wait for what opens sockets.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toril.client.connection import Connection
    from toril.client.flow_producer import FlowProducer
    from toril.client.manual_worker import ManualWorker
    from toril.client.queue import Queue
    from toril.client.queue_events import QueueEvents
    from toril.client.taken_job import TakenJob
    from toril.errors import (
        AmbiguousResultError,
        ArgumentsError,
        DeadLetterNotFoundError,
        DelayedError,
        ExpiredError,
        GroupNotFoundError,
        GroupValidationError,
        InvalidGroupStateError,
        InvalidInputError,
        JobFailedError,
        JobLockedError,
        JobNotFoundError,
        JobNotInStateError,
        LaneFullError,
        LockLostError,
        PayloadError,
        RateLimitError,
        RefusedError,
        ServerError,
        ServerUnavailableError,
        TorilError,
        UnrecoverableError,
        WaitingChildrenError,
        WaitTimeoutError,
    )
    from toril.options import (
        Backoff,
        DeadLetterOptions,
        Deduplication,
        FlowJob,
        Keep,
        NewJob,
        Parent,
        RateLimit,
    )
    from toril.protocol.attempts import JobAttempt
    from toril.protocol.cancelling import Cancelled
    from toril.protocol.codec import CompensationPayload
    from toril.protocol.dead_letter import DeadLetterMetadata
    from toril.protocol.events import Event
    from toril.protocol.families import Dependencies, DependenciesCount
    from toril.protocol.flows import FlowNode
    from toril.protocol.groups import (
        GroupEvent,
        GroupInfo,
        GroupMember,
        GroupNode,
        GroupState,
        GroupStep,
    )
    from toril.protocol.job import Job
    from toril.protocol.lanes import Lane
    from toril.protocol.measuring import Metrics
    from toril.protocol.new_group import Compensation, GroupJob, GroupSignal
    from toril.protocol.scheduling import JobScheduler
    from toril.tasks import App, Call, Handle, Task, TaskMiddleware, cron, every
    from toril.worker.compensating import compensation_worker
    from toril.worker.context import Context
    from toril.worker.handlers import Router
    from toril.worker.running import run
    from toril.worker.worker import Worker

__all__ = [
    "AmbiguousResultError",
    "App",
    "ArgumentsError",
    "Backoff",
    "Call",
    "Cancelled",
    "Compensation",
    "CompensationPayload",
    "Connection",
    "Context",
    "DeadLetterMetadata",
    "DeadLetterNotFoundError",
    "DeadLetterOptions",
    "Deduplication",
    "DelayedError",
    "Dependencies",
    "DependenciesCount",
    "Event",
    "ExpiredError",
    "FlowJob",
    "FlowNode",
    "FlowProducer",
    "GroupEvent",
    "GroupInfo",
    "GroupJob",
    "GroupMember",
    "GroupNode",
    "GroupNotFoundError",
    "GroupSignal",
    "GroupState",
    "GroupStep",
    "GroupValidationError",
    "Handle",
    "InvalidGroupStateError",
    "InvalidInputError",
    "Job",
    "JobAttempt",
    "JobFailedError",
    "JobLockedError",
    "JobNotFoundError",
    "JobNotInStateError",
    "JobScheduler",
    "Keep",
    "Lane",
    "LaneFullError",
    "LockLostError",
    "ManualWorker",
    "Metrics",
    "NewJob",
    "Parent",
    "PayloadError",
    "Queue",
    "QueueEvents",
    "RateLimit",
    "RateLimitError",
    "RefusedError",
    "Router",
    "ServerError",
    "ServerUnavailableError",
    "TakenJob",
    "Task",
    "TaskMiddleware",
    "TorilError",
    "UnrecoverableError",
    "WaitTimeoutError",
    "WaitingChildrenError",
    "Worker",
    "compensation_worker",
    "cron",
    "every",
    "run",
]

_HOMES = {
    "toril.client.connection": ("Connection",),
    "toril.client.flow_producer": ("FlowProducer",),
    "toril.client.manual_worker": ("ManualWorker",),
    "toril.client.queue": ("Queue",),
    "toril.client.queue_events": ("QueueEvents",),
    "toril.client.taken_job": ("TakenJob",),
    "toril.errors": (
        "ArgumentsError",
        "ExpiredError",
        "AmbiguousResultError",
        "DeadLetterNotFoundError",
        "DelayedError",
        "GroupNotFoundError",
        "GroupValidationError",
        "InvalidGroupStateError",
        "InvalidInputError",
        "JobFailedError",
        "JobLockedError",
        "JobNotFoundError",
        "JobNotInStateError",
        "LaneFullError",
        "LockLostError",
        "PayloadError",
        "RateLimitError",
        "RefusedError",
        "ServerError",
        "ServerUnavailableError",
        "TorilError",
        "UnrecoverableError",
        "WaitingChildrenError",
        "WaitTimeoutError",
    ),
    "toril.options": (
        "Backoff",
        "DeadLetterOptions",
        "Deduplication",
        "FlowJob",
        "Keep",
        "NewJob",
        "Parent",
        "RateLimit",
    ),
    "toril.protocol.cancelling": ("Cancelled",),
    "toril.protocol.codec": ("CompensationPayload",),
    "toril.protocol.dead_letter": ("DeadLetterMetadata",),
    "toril.protocol.events": ("Event",),
    "toril.protocol.families": (
        "Dependencies",
        "DependenciesCount",
    ),
    "toril.protocol.attempts": ("JobAttempt",),
    "toril.protocol.flows": ("FlowNode",),
    "toril.protocol.groups": (
        "GroupEvent",
        "GroupInfo",
        "GroupMember",
        "GroupNode",
        "GroupState",
        "GroupStep",
    ),
    "toril.protocol.job": ("Job",),
    "toril.protocol.lanes": ("Lane",),
    "toril.protocol.measuring": ("Metrics",),
    "toril.protocol.new_group": (
        "Compensation",
        "GroupJob",
        "GroupSignal",
    ),
    "toril.protocol.scheduling": ("JobScheduler",),
    "toril.tasks": (
        "App",
        "Call",
        "Handle",
        "Task",
        "TaskMiddleware",
        "cron",
        "every",
    ),
    "toril.worker.context": ("Context",),
    "toril.worker.compensating": ("compensation_worker",),
    "toril.worker.handlers": ("Router",),
    "toril.worker.running": ("run",),
    "toril.worker.worker": ("Worker",),
}
_MOVED = frozenset(
    {
        "MissingKeyError",
        "UnfinishedWorkError",
        "DuplicateRowError",
        "RunningLoopError",
        "UnsupportedPlatformError",
        "DeadLetterSourceError",
        "FailedChildrenError",
        "HandlerTimeoutError",
        "JobCancelledError",
        "JobRemovedError",
        "NoHandlerError",
        "NotDeadLettersError",
        "NotPausedError",
        "ParentConflictError",
        "ParentNotFoundError",
        "PendingChildrenError",
        "ResultError",
        "SchedulerConflictError",
        "SchedulerNotFoundError",
        "SchedulerOwnsJobError",
        "ServerOutOfMemoryError",
        "ServerRefusalError",
        "ServerUnusableError",
        "TooManyReplaysError",
    }
)
"""Errors that were here and are in ``toril.errors``, as all of them are."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = frozenset({"client", "errors", "options", "protocol", "sync", "tasks", "worker"})


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        return importlib.import_module(f"toril.{name}")
    if name in _MOVED:
        from toril import deprecating, errors

        deprecating.warn(f"toril.{name}", f"toril.errors.{name}")
        return getattr(errors, name)
    raise AttributeError(f"module 'toril' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
