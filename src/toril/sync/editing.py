# Written by tools/unasync.py from src/toril/client/editing.py: change that file instead.
"""The part of a queue that changes its jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from toril.client.ids import new_job_id
from toril.options import Duration, epoch_ms, milliseconds, whole
from toril.protocol import cancelling, editing, leasing, moving, pausing, removing
from toril.protocol.cancelling import Cancelled
from toril.protocol.keys import Keys
from toril.protocol.removing import OnProgress
from toril.sync.connection import Connection
from toril.sync.dead_letters import UNCHANGED


class QueueEditing:
    """What operators do to a queue and its jobs.

    Methods that touch many jobs work in slices of a few milliseconds, so that other clients are
    served in between, and call ``on_progress`` with the number of jobs done so far.  If such a
    call is interrupted, calling it again resumes.
    """

    keys: Keys
    _connection: Connection

    def pause(self) -> None:
        """Stop workers from taking jobs; running jobs continue, and jobs can be added."""
        self._connection.follow(pausing.pause(self.keys))

    def resume(self) -> None:
        """Let workers take jobs again."""
        self._connection.follow(pausing.resume(self.keys))

    def is_paused(self) -> bool:
        return self._connection.run(pausing.is_paused(self.keys))

    def drain(self, delayed: bool = False, *, on_progress: OnProgress | None = None) -> int:
        """Remove waiting jobs, with ``delayed`` also delayed ones; returns how many.

        Active and finished jobs stay, and so do the pending iterations of schedulers.
        """
        plan = removing.drain(self.keys, delayed=delayed, on_progress=on_progress)
        return self._connection.follow(plan)

    def clean(
        self,
        state: str = "completed",
        grace: Duration = 0,
        limit: int = 0,
        *,
        on_progress: OnProgress | None = None,
    ) -> list[str]:
        """Remove the jobs in ``state`` that are older than ``grace``; returns their ids.

        ``state`` is completed, failed, waiting, prioritized, delayed or active (only those that no
        worker holds).  At most ``limit`` jobs are removed, the oldest first; 0 means all.
        """
        plan = removing.clean(
            self.keys,
            state,
            grace_ms=milliseconds(grace, "grace"),
            limit=whole(limit, "limit"),
            on_progress=on_progress,
        )
        return self._connection.follow(plan)

    def obliterate(self, force: bool = False, *, on_progress: OnProgress | None = None) -> int:
        """Remove the queue and everything that belongs to it; returns how many jobs it had.

        Raises ``NotPausedError`` if the queue is not paused, ``JobLockedError`` if jobs are active,
        and ``NotDeliveredError`` if it has something for queues in other slots of a cluster that
        cannot be reached.  ``force`` pauses it, takes active jobs away from their workers, and
        leaves what cannot be delivered to a worker.
        """
        plan = removing.obliterate(self.keys, force=force, on_progress=on_progress)
        return self._connection.follow(plan)

    def remove(self, job_id: str, *, remove_children: bool = True) -> bool:
        """Remove a job, whatever its state; False if there is none with this id.

        Raises ``JobLockedError`` if a worker is running it or one of its children.  Finding a job
        in the waiting list takes time in proportion to the list.
        """
        plan = removing.remove(self.keys, job_id, children=remove_children)
        return self._connection.follow(plan)

    def retry(
        self,
        job_id: str,
        *,
        reset_attempts: bool = False,
        force: bool = False,
        data: Any = UNCHANGED,
    ) -> None:
        """Run a failed or completed job again, with other ``data`` if they are given.

        Its attempt count is not reset, so it is not retried if it fails again, unless
        ``reset_attempts`` is given.  A member of a group that is over or being undone is refused
        with ``InvalidGroupStateError``, unless ``force`` is given.  What is refused keeps its data.
        """
        self._connection.run(
            moving.retry(
                self.keys,
                job_id,
                call=new_job_id(),
                resets_attempts=reset_attempts,
                force=force,
                data=data,
            )
        )

    def retry_all(
        self,
        state: str = "failed",
        *,
        until: int | datetime | None = None,
        reset_attempts: bool = False,
        force: bool = False,
        on_progress: OnProgress | None = None,
    ) -> int:
        """Run all failed (or completed) jobs again, the oldest first; returns how many.

        Only those that finished up to ``until``, which defaults to now.  Members of
        groups that are over or being undone stay, unless ``force`` is given.
        """
        plan = moving.retry_all(
            self.keys,
            state,
            until_ms=None if until is None else epoch_ms(until, "until"),
            resets_attempts=reset_attempts,
            force=force,
            on_progress=on_progress,
        )
        return self._connection.follow(plan)

    def promote(self, job_id: str) -> None:
        """Run a delayed job now."""
        self._connection.run(moving.promote(self.keys, job_id, call=new_job_id()))

    def promote_all(self, *, on_progress: OnProgress | None = None) -> int:
        """Run all delayed jobs now; returns how many."""
        plan = moving.promote_all(self.keys, on_progress=on_progress)
        return self._connection.follow(plan)

    def cancel(self, job_id: str, reason: str | None = None) -> Cancelled:
        """Cancel a job; returns what happened to it.

        A job that waits ends as failed, with the reason "cancelled: …"; in a long list it is marked
        and ends when its turn comes.  The worker that runs a job is told to stop it, which ends an
        ``async def`` at its next ``await``; a plain function has to check ``job.is_cancelled``.
        Raises ``JobNotInStateError`` if it has finished.
        """
        plan = cancelling.cancel(self.keys, job_id, call=new_job_id(), reason=reason)
        return self._connection.follow(plan)

    def change_priority(self, job_id: str, priority: int, *, lifo: bool = False) -> None:
        """Change a job's priority; with ``lifo`` it comes before others with the same one."""
        command = moving.change_priority(self.keys, job_id, priority, call=new_job_id(), lifo=lifo)
        self._connection.run(command)

    def change_delay(self, job_id: str, delay: Duration) -> None:
        """Change a delayed job to run ``delay`` from now."""
        delay_ms = milliseconds(delay, "delay")
        self._connection.run(moving.change_delay(self.keys, job_id, delay_ms, call=new_job_id()))

    def update_data(self, job_id: str, data: Any) -> None:
        """Replace a job's data."""
        self._connection.run(editing.update_data(self.keys, job_id, data))

    def update_progress(self, job_id: str, progress: Any) -> None:
        """Set a job's progress: a number, a string or any JSON."""
        self._connection.run(editing.update_progress(self.keys, job_id, progress))

    def add_log(self, job_id: str, row: str, *, keep: int | None = None) -> int:
        """Append a row to a job's log; returns how many rows it has, at most ``keep``."""
        if keep is not None:
            whole(keep, "keep", least=1)
        return self._connection.run(editing.add_log(self.keys, job_id, row, keep=keep))

    def clear_logs(self, job_id: str, *, keep: int = 0) -> None:
        """Remove a job's log, except for its last ``keep`` rows."""
        self._connection.run(editing.clear_logs(self.keys, job_id, keep=whole(keep, "keep")))

    def extend_lock(self, job_id: str, token: str, duration: Duration) -> None:
        """Extend the lock that ``token`` holds on a job to ``duration`` from now.

        Raises ``LockLostError`` if somebody else, or nobody, holds it.
        """
        lock_ms = milliseconds(duration, "duration", least=1)
        self._connection.run(leasing.extend_lock(self.keys, job_id, token, lock_ms=lock_ms))
