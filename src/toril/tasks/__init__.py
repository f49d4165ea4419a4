"""Functions as jobs: ``App``, ``@app.task``, ``task.enqueue``."""

from toril.tasks.app import App
from toril.tasks.calls import BlockingHandle, Call, Handle
from toril.tasks.middleware import TaskMiddleware
from toril.tasks.schedules import Declared, cron, every
from toril.tasks.task import BlockingTask, Task
from toril.worker.context import Context

__all__ = [
    "App",
    "BlockingHandle",
    "BlockingTask",
    "Call",
    "Context",
    "Declared",
    "Handle",
    "Task",
    "TaskMiddleware",
    "cron",
    "every",
]
