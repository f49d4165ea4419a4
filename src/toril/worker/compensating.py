"""A worker for compensations, to run next to the queue's own worker in the same process."""

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

    ``options`` are those of ``Worker``; ``compensation_queue`` is the one passed to ``add_group``.
    Run both together::

        toril.run(Worker("payments", charge), compensation_worker("payments", refund))
    """
    stem = queue_name
    if options.get("partitions", 1) > 1 and hash_tag(queue_name) is None:
        stem = f"{{{queue_name}}}"  # its partitions are in the slots of the queue it undoes
    return Worker(compensation_queue.replace("{queue}", stem), handler, **options)
