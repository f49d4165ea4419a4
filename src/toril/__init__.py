"""Toril: a job queue on Redis or Valkey that speaks BullMQ's data layout."""

from toril.client.queue import Queue
from toril.client.queue_events import QueueEvents
from toril.errors import (
    AmbiguousResultError,
    DelayedError,
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
    PayloadError,
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
from toril.options import Backoff, Deduplication, Keep, NewJob, RateLimit
from toril.protocol.cancelling import Cancelled
from toril.protocol.events import Event
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
    "Event",
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
    "PayloadError",
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
