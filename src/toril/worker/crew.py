"""The crew: the jobs a worker holds, from their arrival until their outcome is written."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import msgspec

from toril.errors import (
    DamagedJobError,
    FailedChildrenError,
    LockLostError,
    PendingChildrenError,
)
from toril.logs import get_logger
from toril.protocol import codec, settling
from toril.protocol.job import StoredJob, fields_of
from toril.protocol.keys import Keys
from toril.protocol.settling import (
    Attempt,
    Confirmation,
    Outcome,
    Policy,
    Raised,
    Released,
    Result,
    Settled,
)
from toril.worker.active_job import ActiveJob
from toril.worker.burial import Burial
from toril.worker.events import Emitter
from toril.worker.failure_log import FailureLog
from toril.worker.group_keeper import GroupKeeper
from toril.worker.locks import Locks
from toril.worker.outbox import Outbox
from toril.worker.sweeper import Sweeper
from toril.worker.writer import JobWriter

logger = get_logger("toril.worker")

GRACE_S = 1.0
_MOST_EARLY = 100

Perform = Callable[[ActiveJob], Awaitable[Attempt]]
"""Runs one job's handler and returns how it ended."""

_run: ContextVar[tuple[str, str] | None] = ContextVar("toril-run", default=None)
"""The job for which something is called, and its token; also in what its handler has started."""


class Crew:
    """Starts jobs, stops them, and puts their outcomes into the outbox."""

    def __init__(
        self,
        keys: Keys,
        perform: Perform,
        policy: Policy,
        *,
        outbox: Outbox,
        locks: Locks,
        sweeper: Sweeper,
        keeper: GroupKeeper,
        writer: JobWriter,
        emitter: Emitter,
        burial: Burial | None,
    ) -> None:
        self._outbox = outbox
        self._locks = locks
        self._sweeper = sweeper
        self._keeper = keeper
        self._keys = keys
        self._perform = perform
        self._policy = policy
        self._writer = writer
        self._emitter = emitter
        self._burial = burial
        self._has_hook = burial is not None and burial.hook is not None
        self._jobs: dict[str, tuple[ActiveJob, asyncio.Task[None] | None]] = {}
        self._cancelled_early: dict[str, tuple[str, str]] = {}
        self._failures = FailureLog()

    @property
    def jobs(self) -> list[ActiveJob]:
        """The jobs whose handlers are running."""
        return [job for job, _ in self._jobs.values()]

    def runs_caller(self) -> bool:
        """Is this called for a job that is running here? Its caller must not wait for its end."""
        job_id, token = _run.get() or ("", "")
        job, _ = self._jobs.get(job_id, (None, None))
        return job is not None and job.token == token

    # ------------------------------------------------------------------ what the pump brings

    def read(self, words: list[Any], token: str) -> ActiveJob:
        """A job that was just taken, whatever its hash holds; it is not started yet."""
        job_id = codec.name(words.pop())
        fields = fields_of(words)
        if b"x.group" in fields:
            self._keeper.meet()
        return ActiveJob(self._keys.prefix, self._keys.name, job_id, fields, token, self._writer)

    def start_job(self, job: ActiveJob, received: Confirmation) -> None:
        """Run a job that was just taken; its outcome goes into the outbox."""
        self._hold(job)
        # Before its task: a loop may run a task at once, which may look for the job, or even end.
        self._jobs[job.id] = (job, None)
        task = asyncio.get_running_loop().create_task(self._attempt(job, received))
        if not job.is_settled:
            self._jobs[job.id] = (job, task)
        if self._emitter.has("active"):
            self._emitter.emit("active", job)
        if self._cancelled_early:
            self._cancel_early(job)

    def hand_back(self, job: ActiveJob, received: Confirmation) -> None:
        """Hand back a job that arrived too late to be run."""
        self._hold(job)
        self._settle(job, Released())

    def settled(self, item: Settled, code: Result) -> None:
        """``item`` was written, or refused with ``code``."""
        self._locks.let_go(item.job_id, item.token)
        if isinstance(code, bytes):
            self._announce_letter(item, code)
        elif isinstance(code, list):
            self._give_up(item, settling.damage(item.job_id, code))
        elif code == 0:
            self._announce(item)
        elif code > 0:
            self._resubmit(item, settling.nothing_to_wait_for(code))
        else:
            self._refused(item, code)

    def look_for_groups(self) -> None:
        """A group of this queue is due soon, and perhaps nobody takes its jobs."""
        self._keeper.meet()

    def drained(self) -> None:
        """The queue has just run out of jobs."""
        self._emitter.emit("drained")

    # ------------------------------------------------------------------ at the end of a worker

    async def finish(self) -> None:
        """Wait until all running jobs have ended."""
        # A task that is done but still here raised what ends loops: `release` hands its job back.
        while running := [task for _, task in self._jobs.values() if task and not task.done()]:
            await asyncio.wait(running)

    async def release(self) -> None:
        """Stop the jobs that still run and hand them back for other workers."""
        left = [(job, task) for job, task in self._jobs.values() if task and not task.done()]
        for job, task in left:
            job.is_released = True
            _stop(job, task)
        if left:
            await asyncio.wait([task for _, task in left], timeout=GRACE_S)
        for job, _ in list(self._jobs.values()):
            # It ignores cancellation: its result will be refused, another worker gets the job.
            self._jobs.pop(job.id, None)
            self._settle(job, Released(is_begun=True))

    # ------------------------------------------------------------------ what the lease tells

    def lose(self, job_id: str, token: str) -> None:
        """Somebody else may be running this job now: stop it, and write nothing."""
        job, task = self._jobs.get(job_id, (None, None))
        if job is None or task is None or job.token != token:
            return
        job.is_cancelled = True
        job.cancel_reason = f"the lock of job {job_id!r} was lost"
        self._announce_loss(
            job, LockLostError(f"{job.cancel_reason}; another worker will run it again")
        )
        _stop(job, task)

    def cancel(self, job_id: str, token: str, reason: str) -> None:
        """Somebody asked to stop this job."""
        job, task = self._jobs.get(job_id, (None, None))
        if job is None or task is None:
            # The message arrived before the reply that brings the job.
            if len(self._cancelled_early) >= _MOST_EARLY:
                self._cancelled_early.clear()
            self._cancelled_early[job_id] = (token, reason)
            return
        if job.token != token or job.is_cancelled:
            return
        job.is_cancelled = True
        job.cancel_reason = reason
        _stop(job, task)

    def tell(self, job_id: str, token: str) -> None:
        """The job's group has turned: the job may stop early, and its outcome counts as usual."""
        job, _ = self._jobs.get(job_id, (None, None))
        if job is not None and job.token == token:
            job.has_turned = True
            job.set_signals()

    def _cancel_early(self, job: ActiveJob) -> None:
        token, reason = self._cancelled_early.pop(job.id, ("", ""))
        if token:
            self.cancel(job.id, token, reason)

    # ------------------------------------------------------------------ one job

    def _hold(self, job: ActiveJob) -> None:
        """Renew the lock of a job that was just taken, from now on for this run of it."""
        older, _ = self._jobs.get(job.id, (None, None))
        if older is not None:  # it was lost, and no renewal will say so any more
            self.lose(job.id, older.token)
        self._locks.hold(job.id, job.token)

    async def _attempt(self, job: ActiveJob, received: Confirmation) -> None:
        _run.set((job.id, job.token))
        if job.is_suspect:
            await self._outbox.confirm(received)
        try:
            attempt = await self._perform(job)
        except Exception as error:
            logger.exception("job %r could not be run", job.id)
            attempt = Raised(error)
        # A lost job may have come back to this same worker with another token.
        if self._jobs.get(job.id, (None,))[0] is job:
            del self._jobs[job.id]
        self._settle(job, attempt)

    def _settle(self, job: ActiveJob, attempt: Attempt) -> None:
        if job.is_settled:
            return
        job.is_settled = True
        outcome = self._decide(job, attempt)
        if outcome.error is not None:
            self._failures.tell(job, outcome, outcome.error)
        if outcome.error is not None and not self._emitter.tells_errors and not self._has_hook:
            # An error keeps all its frames and locals alive; with many failures that adds up.
            outcome = msgspec.structs.replace(outcome, error=None)
        self._outbox.finish(Settled(job.id, job.token, outcome, job))

    def _decide(self, job: StoredJob, attempt: Attempt) -> Outcome:
        return settling.decide(job, attempt, self._policy, dice=random.random())

    def _give_up(self, item: Settled, error: DamagedJobError) -> None:
        """The server cannot write how the job ended: only this job fails, and for good."""
        logger.warning("%s", error)
        self._emitter.emit("error", error)
        self._resubmit(item, self._decide(item.job, Raised(error)))

    def _refused(self, item: Settled, code: int) -> None:
        error = settling.refusal(code, item.job_id)
        if isinstance(error, (PendingChildrenError, FailedChildrenError)):
            self._resubmit(item, self._decide(item.job, Raised(error)))
            return
        if isinstance(error, LockLostError):
            self._announce_loss(item.job, error)
            return
        logger.warning("%s", error)
        self._emitter.emit("error", error)

    def _resubmit(self, item: Settled, outcome: Outcome) -> None:
        """The job is still ours: its outcome was not written, so send another one."""
        self._locks.hold(item.job_id, item.token)
        self._outbox.finish_again(Settled(item.job_id, item.token, outcome, item.job))

    # ------------------------------------------------------------------ what listeners hear

    def _announce(self, item: Settled) -> None:
        outcome, job = item.outcome, item.job
        if outcome.kind == "completed":
            if self._emitter.has("completed"):
                self._emitter.emit("completed", job, outcome.return_value)
        elif outcome.error is not None:
            event = "failed" if outcome.kind == "failed" else "retrying"
            self._emitter.emit(event, job, outcome.error)

    def _announce_letter(self, item: Settled, letter_id: bytes) -> None:
        burial = self._burial
        assert burial is not None
        burial.count += 1
        self._announce(item)
        if item.outcome.details.get("on_exhausted") == "divert":
            self._sweeper.divert_soon()
        if item.outcome.error is None:  # nobody listened when the job failed
            return
        letter = burial.tell_of(item, codec.name(letter_id))
        self._emitter.emit("deadLettered", item.job, letter)
        if burial.hook is not None:
            self._emitter.call("on_dead_letter", burial.hook, item.job, letter)

    def _announce_loss(self, job: StoredJob, error: LockLostError) -> None:
        """Once per run of a job, by whichever notices first: the lease or the refused outcome."""
        assert isinstance(job, ActiveJob)
        if job.is_lost:
            return
        job.is_lost = True
        logger.warning("%s", error)
        self._emitter.emit("lost", job, error)
        self._emitter.emit("error", error)


def call_for_no_job() -> None:
    """What follows is not called for the job whose handler asked for it."""
    _run.set(None)


def _stop(job: ActiveJob, task: asyncio.Task[None]) -> None:
    """A task that has not started must not be cancelled: nobody would report the outcome."""
    job.set_signals()
    if job.is_running:
        task.cancel()
