"""A worker for what undoes: beside the one that does, in the same process."""

from __future__ import annotations

from typing import Any

from toril.checking import checked_call
from toril.protocol.keys import hash_tag
from toril.protocol.new_group import COMPENSATION_QUEUE
from toril.worker.handlers import Handler, Router
from toril.worker.worker import Worker


@checked_call
def compensation_worker(
    queue_name: str,
    handler: Handler | Router,
    *,
    compensation_queue: str = COMPENSATION_QUEUE,
    **options: Any,
) -> Worker:
    """The worker that undoes the members of groups which ran in queue ``queue_name``.

    ``options`` are those of ``Worker``; ``compensation_queue`` is what ``add_group`` was given.
    Run both together::

        toril.run(Worker("payments", charge), compensation_worker("payments", refund))
    """
    stem = queue_name
    if options.get("partitions", 1) > 1 and hash_tag(queue_name) is None:
        stem = f"{{{queue_name}}}"  # the partitions of what is undone are in its slots
    return Worker(compensation_queue.replace("{queue}", stem), handler, **options)
