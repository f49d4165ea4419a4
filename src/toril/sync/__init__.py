"""The blocking client: the same names, for code without an event loop."""

from toril.sync.connection import Connection
from toril.sync.flow_producer import FlowProducer
from toril.sync.manual_worker import ManualWorker
from toril.sync.queue import Queue
from toril.sync.queue_events import QueueEvents
from toril.sync.taken_job import TakenJob

__all__ = [
    "Connection",
    "FlowProducer",
    "ManualWorker",
    "Queue",
    "QueueEvents",
    "TakenJob",
]
