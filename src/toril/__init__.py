"""Toril: a job queue on Redis or Valkey that speaks BullMQ's data layout."""

from toril.client.flow_producer import FlowProducer
from toril.client.queue import Queue
from toril.client.queue_events import QueueEvents
from toril.errors import (
    AmbiguousResultError,
    DelayedError,
    FailedChildrenError,
    HandlerTimeoutError,
    InvalidInputError,
    JobCancelledError,
    JobFailedError,
    JobLockedError,
    JobNotFoundError,
    JobNotInStateError,
    JobRemovedError,
    LockLostError,
    NoHandlerError,
    NotPausedError,
    ParentConflictError,
    ParentNotFoundError,
    PayloadError,
    PendingChildrenError,
    RateLimitError,
    RefusedError,
    SchedulerOwnsJobError,
    ServerError,
    ServerOutOfMemoryError,
    ServerUnavailableError,
    TorilError,
    UnrecoverableError,
    WaitingChildrenError,
    WaitTimeoutError,
)
from toril.options import Backoff, Deduplication, FlowJob, Keep, NewJob, Parent, RateLimit
from toril.protocol.cancelling import Cancelled
from toril.protocol.events import Event
from toril.protocol.families import Dependencies, DependenciesCount
from toril.protocol.flows import FlowNode
from toril.protocol.job import Job
from toril.worker.handlers import Router
from toril.worker.running import run
from toril.worker.worker import Worker

__all__ = [
    "AmbiguousResultError",
    "Backoff",
    "Cancelled",
    "Deduplication",
    "DelayedError",
    "Dependencies",
    "DependenciesCount",
    "Event",
    "FailedChildrenError",
    "FlowJob",
    "FlowNode",
    "FlowProducer",
    "HandlerTimeoutError",
    "InvalidInputError",
    "Job",
    "JobCancelledError",
    "JobFailedError",
    "JobLockedError",
    "JobNotFoundError",
    "JobNotInStateError",
    "JobRemovedError",
    "Keep",
    "LockLostError",
    "NewJob",
    "NoHandlerError",
    "NotPausedError",
    "Parent",
    "ParentConflictError",
    "ParentNotFoundError",
    "PayloadError",
    "PendingChildrenError",
    "Queue",
    "QueueEvents",
    "RateLimit",
    "RateLimitError",
    "RefusedError",
    "Router",
    "SchedulerOwnsJobError",
    "ServerError",
    "ServerOutOfMemoryError",
    "ServerUnavailableError",
    "TorilError",
    "UnrecoverableError",
    "WaitTimeoutError",
    "WaitingChildrenError",
    "Worker",
    "run",
]
