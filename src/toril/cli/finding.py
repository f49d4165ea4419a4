"""Finding the queue of a job whose id is all that is known."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from toril.cli.server import Server
from toril.errors import InvalidOptionError, JobNotFoundError, RefusedError
from toril.protocol import reading
from toril.protocol.keys import Keys, check_known_id

if TYPE_CHECKING:
    from toril.sync.queue import Queue


def queue_of(server: Server, job_id: str, queue_name: str | None) -> str:
    """The queue that has the job; ``queue_name`` if it is given."""
    if queue_name is not None:
        return queue_name
    names = server.queue_names()
    commands = [reading.job(Keys(server.prefix, name), job_id) for name in names]
    found = [job.queue_name for job in server.connection.run_all(commands) if job is not None]
    if not found:
        raise JobNotFoundError(
            f"no queue under the prefix {server.prefix!r} has a job {job_id!r}"
            f" ({len(names)} queues were searched)"
        )
    if len(found) > 1:
        raise InvalidOptionError(
            f"job {job_id!r} exists in the queues {', '.join(found)}; choose one with --queue"
        )
    return found[0]


def queues_of(
    server: Server, job_ids: Sequence[str], queue_name: str | None, opened: ExitStack
) -> list[Queue | RefusedError]:
    """The queue of each job, open until ``opened`` is closed, or why there is none.

    Raises for an id that no job can have, and for one that several queues or partitions have.
    """
    queues: dict[str, Queue] = {}
    found: list[Queue | RefusedError] = []
    for job_id in job_ids:
        check_known_id(job_id)
        try:
            name = queue_of(server, job_id, queue_name)
            if name not in queues:
                queues[name] = opened.enter_context(server.queue(name))
        except RefusedError as error:
            found.append(error)
            continue
        if len(queues[name].partitions) > 1:
            queues[name].get_state(job_id)  # looks for it in all of them
        found.append(queues[name])
    return found
