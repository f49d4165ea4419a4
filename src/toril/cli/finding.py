"""Finding the queue of a job whose id is all that is known."""

from __future__ import annotations

from toril.cli.server import Server
from toril.errors import InvalidOptionError, JobNotFoundError
from toril.protocol import reading
from toril.protocol.keys import Keys


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
