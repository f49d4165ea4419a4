"""The workflow-step layer: a thin convention over queues and workers.

A step of a workflow becomes a job (``JobPayload``, ``Producer``), and a service is a set of
consumers, each with the same pipeline around its work (``BaseConsumer``, ``ConsumerRegistrar``).
"""

from toril.errors import ClaimRefusedError, PayloadMismatchError
from toril.steps.consumer import BaseConsumer
from toril.steps.enqueueing import EnqueueOptions
from toril.steps.history import StepCounts, StepEvent, StepMetrics
from toril.steps.payload import JobPayload
from toril.steps.producer import Producer
from toril.steps.queues import close_all_queues, get_queue
from toril.steps.registrar import ConsumerRegistrar
from toril.steps.step_log import log_for

__all__ = [
    "BaseConsumer",
    "ClaimRefusedError",
    "ConsumerRegistrar",
    "EnqueueOptions",
    "JobPayload",
    "PayloadMismatchError",
    "Producer",
    "StepCounts",
    "StepEvent",
    "StepMetrics",
    "close_all_queues",
    "get_queue",
    "log_for",
]
