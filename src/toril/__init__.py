"""Toril: a job queue on Redis or Valkey that speaks BullMQ's data layout."""

from toril.client.queue import Queue
from toril.client.queue_events import QueueEvents
from toril.errors import UnrecoverableError
from toril.options import Backoff, Deduplication, Keep, NewJob, RateLimit
from toril.worker.handlers import Router
from toril.worker.running import run
from toril.worker.worker import Worker

__all__ = [
    "Backoff",
    "Deduplication",
    "Keep",
    "NewJob",
    "Queue",
    "QueueEvents",
    "RateLimit",
    "Router",
    "UnrecoverableError",
    "Worker",
    "run",
]
