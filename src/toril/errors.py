"""Every exception of Toril, drawn as a tree.

TorilError
├── InvalidInputError (ValueError)      refused before anything was written
│   ├── InvalidNameError                a queue name, prefix, job name or job id
│   ├── InvalidOptionError              an option's value, or two that exclude each other
│   │   └── UnknownOptionError          an option that does not exist
│   ├── PayloadError                    data or a return value that is not JSON
│   │   └── PayloadTooLargeError        longer than ``size_limit``
│   ├── GroupValidationError            a group that cannot be: no jobs, a job of a flow, …
│   ├── CrossSlotError                  keys that a cluster keeps on different nodes
│   └── MissingKeyError                 a request without an idempotency key
├── ServerError (ConnectionError)       the server did not do what was asked
│   ├── ServerUnavailableError          no answer, or not in time
│   ├── AmbiguousResultError            sent, but the reply was lost: it may have happened
│   ├── NotReplicatedError              the jobs are there, and not yet on enough replicas
│   ├── ServerOutOfMemoryError          ``maxmemory`` reached; jobs can be drained, not added
│   └── ServerRefusalError              it answered with an error: a key of another type, …
│       └── ServerUnusableError         it cannot be used: password, permissions, version, replica
├── RefusedError                        the server refused, nothing was changed
│   ├── JobNotFoundError (LookupError)  ├── JobNotInStateError   ├── JobLockedError
│   ├── LockLostError                   ├── PendingChildrenError ├── FailedChildrenError
│   ├── ParentNotFoundError             ├── ParentConflictError  ├── SchedulerOwnsJobError
│   ├── DeadLetterNotFoundError         ├── DeadLetterSourceError ├── TooManyReplaysError
│   ├── NotDeadLettersError
│   ├── SchedulerConflictError          ├── StaleRequestError    ├── NotPausedError
│   ├── LaneFullError                   ├── GroupNotFoundError (LookupError)
│   ├── InvalidGroupStateError          ├── GroupExistsError     ├── DuplicateRowError
│   ├── PartitionMismatchError          ├── NotDeliveredError
│   └── SchedulerNotFoundError (LookupError)
├── JobFailedError                      raised by ``wait_for``: the job failed for good
│   └── JobRemovedError                 … or was removed before it finished
├── WaitTimeoutError (TimeoutError)     what was waited for did not happen in time
├── NoHandlerError                      no handler is registered for the job's name
├── HandlerTimeoutError (TimeoutError)  a handler ran longer than the job's ``timeout``
├── HandlerProcessError                 the process that ran a handler died, or could not start
├── UnfinishedWorkError                 a record of idempotent work says that it began, not its end
├── JobCancelledError                   the job was cancelled by ``queue.cancel``
├── EmbeddedServerError                 the embedded server could not be started
└── Signal                              raised *by handlers* to decide what happens to the job
    ├── UnrecoverableError              fail for good, even if attempts are left
    │   ├── PayloadMismatchError        the data is not what the consumer's type asks for
    │   │   └── ArgumentsError (TypeError)  … or not what the task's function takes
    │   ├── ResultError                 what a task returned does not fit its annotation
    │   ├── ExpiredError                not started within its ``expires``
    │   └── DamagedJobError             the stored job cannot be read or written
    ├── DelayedError                    delay the job, without counting the attempt
    │   └── ClaimRefusedError           somebody else has the step; look again later
    ├── RateLimitError                  put it back and hold the queue, or its lane
    └── WaitingChildrenError            wait until the children are done
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta


class TorilError(Exception):
    """The root of all errors raised by Toril."""


class InvalidInputError(TorilError, ValueError):
    """An argument was refused before anything was sent."""


class InvalidNameError(InvalidInputError):
    """A queue name, prefix, job name or job id that cannot be used in keys."""


class InvalidOptionError(InvalidInputError):
    """An option has a value it cannot have."""


class UnknownOptionError(InvalidOptionError):
    """An option that does not exist, most often a typo."""


class PayloadError(InvalidInputError):
    """Data that cannot be written as strict JSON."""


class PayloadTooLargeError(PayloadError):
    """Data whose JSON text is longer than the limit."""


class GroupValidationError(InvalidInputError):
    """A group that cannot be created."""


class CrossSlotError(InvalidInputError):
    """Keys that one script needs are in different slots of a cluster."""


class MissingKeyError(InvalidInputError):
    """A request to an idempotent view has no idempotency key."""


class ServerError(TorilError, ConnectionError):
    """The server did not do what was asked."""


class ServerUnavailableError(ServerError):
    """The server did not answer in time; the command had no effect."""


class AmbiguousResultError(ServerError):
    """The command was sent and its reply lost: it may or may not have happened.

    ``id`` names the group that ``add_group`` may have created.
    """

    id: str | None = None


class NotReplicatedError(ServerError):
    """Jobs were added, and fewer replicas than asked for have them: a failover may lose them.

    ``job_ids`` are theirs; ``reached`` of ``wanted`` replicas answered in time.
    """

    def __init__(
        self, job_ids: Sequence[str], reached: int, wanted: int, timeout_ms: int, why: str = ""
    ) -> None:
        shown = ", ".join(repr(job_id) for job_id in job_ids[:5])
        if len(job_ids) > 5:
            shown += f" and {len(job_ids) - 5} more"
        super().__init__(
            f"job{'s' if len(job_ids) != 1 else ''} {shown} can run, but {reached} of {wanted}"
            f" replicas confirmed within {timeout_ms} ms{why}: a failover may lose what was added;"
            f" look at the replicas, and add again what has a job_id of its own to ask again"
        )
        self.job_ids = tuple(job_ids)
        self.reached = reached
        self.wanted = wanted
        self.timeout_ms = timeout_ms

        self.why = why

    def of_all(self, others: Iterable[NotReplicatedError]) -> NotReplicatedError:
        """One error for the jobs of several, of which this is one."""
        job_ids = [job_id for one in others for job_id in one.job_ids]
        return NotReplicatedError(job_ids, self.reached, self.wanted, self.timeout_ms, self.why)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        parts = (self.job_ids, self.reached, self.wanted, self.timeout_ms, self.why)
        return type(self), parts


class ServerOutOfMemoryError(ServerError):
    """The server reached ``maxmemory`` and accepts no new jobs; workers keep draining."""


class ServerRefusalError(ServerError):
    """The server answered with an error, such as a key of the wrong type."""


class ServerUnusableError(ServerRefusalError):
    """The server cannot be used until somebody changes it or its address.

    The password, the permissions, the version or the database is wrong, or it is a replica.
    """


class RefusedError(TorilError):
    """A script refused, and changed nothing."""


class JobNotFoundError(RefusedError, LookupError):
    """There is no such job."""


class JobNotInStateError(RefusedError):
    """The job is not in the state that the change needs."""


class JobLockedError(RefusedError):
    """A worker is running the job."""


class LockLostError(RefusedError):
    """The worker no longer holds the job's lock, so nothing was written."""


class PendingChildrenError(RefusedError):
    """A parent cannot complete while its children are pending."""


class FailedChildrenError(RefusedError):
    """A child failed, and its option fails the parent too."""


class ParentNotFoundError(RefusedError):
    """The parent of a new child does not exist."""


class ParentConflictError(RefusedError):
    """The job that exists under this id already has another parent."""


class SchedulerOwnsJobError(RefusedError):
    """The job is a scheduler's pending iteration; remove the scheduler instead."""


class SchedulerConflictError(RefusedError):
    """The ids of a scheduler's next jobs are already taken, or others keep changing it."""


class SchedulerNotFoundError(RefusedError, LookupError):
    """There is no scheduler with this id."""


class StaleRequestError(RefusedError):
    """A newer request of the same worker has already been served."""


class NotPausedError(RefusedError):
    """The queue has to be paused first."""


class NotDeliveredError(RefusedError):
    """A queue has jobs or reports for queues in other slots of a cluster that did not arrive."""


class LaneFullError(RefusedError):
    """The lane already has ``max_lane_size`` waiting and delayed jobs."""


class DeadLetterNotFoundError(JobNotFoundError):
    """There is no such dead letter, or it was replayed or purged."""


class DeadLetterSourceError(RefusedError):
    """The source queue of a dead letter is unknown or cannot be reached."""


class TooManyReplaysError(RefusedError):
    """A dead letter was already replayed ``max_replays`` times."""


class NotDeadLettersError(RefusedError):
    """The queue is not a dead letter queue: ordinary jobs wait in it."""


class GroupNotFoundError(RefusedError, LookupError):
    """There is no such group."""


class InvalidGroupStateError(RefusedError):
    """The group is in a state in which this cannot be done."""


class GroupExistsError(RefusedError):
    """Another group has this id; ``differences`` are the parts in which the two differ."""

    def __init__(self, message: str, differences: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.differences = list(differences)


class DuplicateRowError(RefusedError):
    """The outbox table of an earlier version allows one row per job id."""


class PartitionMismatchError(RefusedError):
    """A queue has another number of partitions than this process was told."""

    def __init__(self, queue: str, given: int, known: int, to_have: int = 0) -> None:
        words = (
            f"queue {queue!r} grows from {known} to {to_have} partitions, and takes no jobs"
            f" meanwhile; start this process again with partitions={to_have} when it has grown"
            if to_have
            else f"queue {queue!r} has {known} partitions and this process was told {given}; every"
            f" process must agree: write partitions={known}, or let the queue grow with"
            f" `toril partitions grow`"
        )
        super().__init__(words)
        self.queue = queue
        self.given = given
        self.known = known
        self.to_have = to_have

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.queue, self.given, self.known, self.to_have)


class JobFailedError(TorilError):
    """The job that was waited for failed for good."""

    def __init__(self, job_id: str, reason: str) -> None:
        super().__init__(f"job {job_id!r} failed: {reason}")
        self.job_id = job_id
        self.reason = reason


class JobRemovedError(JobFailedError):
    """The job that was waited for was removed, so its end is unknown."""

    def __init__(self, job_id: str) -> None:
        super().__init__(job_id, "it does not exist any more")


class WaitTimeoutError(TorilError, TimeoutError):
    """What was waited for did not happen in time."""


class NoHandlerError(TorilError):
    """No handler is registered for the job's name."""


class HandlerTimeoutError(TorilError, TimeoutError):
    """The handler ran longer than the job's ``timeout``."""


class HandlerProcessError(TorilError):
    """The process that ran the handler died, or could not be started."""


class UnfinishedWorkError(TorilError):
    """Idempotent work was recorded when it began, and never ended: it may not have been done."""


class JobCancelledError(TorilError):
    """The job was cancelled from outside."""


class EmbeddedServerError(TorilError):
    """The embedded server could not be started."""


class RunningLoopError(TorilError, RuntimeError):
    """A blocking function was called inside a running event loop."""


class UnsupportedPlatformError(TorilError, NotImplementedError):
    """This operating system does not support the feature."""


class Signal(TorilError):
    """Raised by a handler to decide what happens to its job."""


class UnrecoverableError(Signal):
    """Fail the job for good, even if attempts are left."""


def _milliseconds(value: int | timedelta) -> int:
    # Anything else is refused where it is used: an error that is unpickled is made without it.
    return round(value.total_seconds() * 1000) if isinstance(value, timedelta) else value


class DelayedError(Signal):
    """Run the job again after ``delay``, in ms or a ``timedelta``; the attempt does not count."""

    def __init__(self, delay: int | timedelta, message: str = "delayed by its handler") -> None:
        super().__init__(message)
        self.delay = _milliseconds(delay)


class PayloadMismatchError(UnrecoverableError):
    """The job's data does not fit the type that its consumer reads."""


class ArgumentsError(PayloadMismatchError, TypeError):
    """The arguments of a task do not fit its function: wrong, missing or unknown ones."""


class ResultError(UnrecoverableError):
    """What a task returned does not fit its annotation; it has run, and is not run again."""


class ExpiredError(UnrecoverableError):
    """No worker started the job within its ``expires``, so it was never run."""


class DamagedJobError(UnrecoverableError):
    """The stored job cannot be read, or its outcome cannot be written."""


class ClaimRefusedError(DelayedError):
    """Somebody else has claimed this step; the job comes back after ``delay`` milliseconds."""

    def __init__(
        self, message: str = "somebody else has this step", delay: int | timedelta = 1000
    ) -> None:
        super().__init__(delay, message)


class RateLimitError(Signal):
    """Put the job back and hold the queue for ``duration`` (ms, or a timedelta).

    With ``lane`` only the job's own lane is held, and other jobs continue.  A job without a lane
    then waits alone.
    """

    def __init__(
        self, duration: int | timedelta = 0, message: str = "rate limited", *, lane: bool = False
    ) -> None:
        super().__init__(message)
        self.duration = _milliseconds(duration)
        self.lane = lane


class WaitingChildrenError(Signal):
    """Wait until the children added by the handler are done."""
