"""A queue in plain Python: what the public API promises, without a server.

Time passes by whole hours, when it is told to; what takes milliseconds makes no difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field

LIVES = (
    "in time",
    "in time after a delay",
    "too late",
    "too late after a delay",
    "without a limit",
)


@dataclass
class ModelJob:
    id: str
    name: str
    attempts: int = 1
    priority: int = 0
    is_lifo: bool = False
    made: int = 0
    started: int = 0
    stalled: int = 0
    lane: str | None = None
    is_doomed: bool = False
    backs_off: bool = False
    due: int = 0
    """The hour from which on it could first run."""
    expires: int | None = None
    """It may wait for so many hours and a half."""
    has_waited: bool = False
    """For its delay, until it was over."""


@dataclass
class ModelQueue:
    """The next job to be taken is the first of ``wait``, then that of ``prioritized``."""

    jobs: dict[str, ModelJob] = field(default_factory=dict)
    wait: list[str] = field(default_factory=list)
    prioritized: list[tuple[int, int, str]] = field(default_factory=list)
    delayed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """In which hour they are due, and in which order within it."""
    active: dict[str, str] = field(default_factory=dict)
    """Who holds each running job."""
    expired: set[str] = field(default_factory=set)
    completed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    letters: list[str] = field(default_factory=list)
    """Names of the dead letters, the oldest first."""
    is_paused: bool = False
    clock: int = 0
    hour: int = 0

    def add(self, job: ModelJob, *, delay: int = 0) -> bool:
        """False when a job with this id exists."""
        if job.id in self.jobs:
            return False
        self.jobs[job.id] = job
        job.due = self.hour + delay
        if delay:
            self.put_off(job.id, delay)
        else:
            self.place(job, is_first=job.is_lifo)
        return True

    def put_off(self, job_id: str, hours: int) -> None:
        self.clock += 1
        self.delayed[job_id] = (self.hour + hours, self.clock)

    def let_in(self) -> None:
        """Who takes jobs lets in those that are due, whoever may run now."""
        for due, job_id in sorted((due, job_id) for job_id, due in self.delayed.items()):
            if due[0] <= self.hour:
                del self.delayed[job_id]
                self.jobs[job_id].has_waited = True
                self.place(self.jobs[job_id])

    def promote(self, job_id: str) -> None:
        """Somebody lets it in before its time: from now on it could run."""
        job = self.jobs[job_id]
        del self.delayed[job_id]
        if not job.started:
            job.due = self.hour
        self.place(job)

    def has_expired(self, job_id: str) -> bool:
        """Was it taken for the first time, and too late?"""
        job = self.jobs[job_id]
        return job.expires is not None and job.started == 1 and self.hour > job.due + job.expires

    def life_of(self, job_id: str) -> str:
        """How it was when it was taken."""
        job = self.jobs[job_id]
        if job.expires is None or job.started > 1:
            return "without a limit"
        life = "too late" if self.has_expired(job_id) else "in time"
        return f"{life} after a delay" if job.has_waited else life

    def place(self, job: ModelJob, *, is_first: bool = False) -> None:
        """At the end of those who wait, or before them."""
        if job.priority:
            self.clock += 1
            self.prioritized.append((job.priority, self.clock, job.id))
        elif is_first:
            self.wait.insert(0, job.id)
        else:
            self.wait.append(job.id)

    def place_first(self, job: ModelJob) -> None:
        if job.priority:
            self.prioritized.append((job.priority, 0, job.id))
        else:
            self.wait.insert(0, job.id)

    def take(self, token: str, count: int) -> list[str]:
        self.let_in()
        if self.is_paused:
            return []
        taken = []
        while len(taken) < count and self.wait:
            taken.append(self.wait.pop(0))
        while len(taken) < count and self.prioritized:
            first = min(self.prioritized)
            self.prioritized.remove(first)
            taken.append(first[2])
        for job_id in taken:
            self.active[job_id] = token
            self.jobs[job_id].started += 1
        return taken

    def complete(self, job_id: str) -> None:
        self.leave_active(job_id)
        self.jobs[job_id].made += 1
        self.completed.append(job_id)

    def fail(self, job_id: str) -> None:
        """Again, later, or for good: then it becomes a dead letter."""
        job = self.jobs[job_id]
        self.leave_active(job_id)
        job.made += 1
        if job.is_doomed or job.made >= job.attempts:
            self.letters.append(job.name)
            del self.jobs[job_id]
        elif job.backs_off:
            self.put_off(job_id, 1)
        else:
            self.let_in()
            self.place(job, is_first=job.is_lifo)

    def give_back(self, job_id: str) -> None:
        self.leave_active(job_id)
        self.place_first(self.jobs[job_id])

    def sweep(self, max_stalled: int) -> None:
        """Those whose lock expired go back to the front of the list, whatever their priority."""
        for job_id in [one for one in self.active if one in self.expired]:
            job = self.jobs[job_id]
            self.leave_active(job_id)
            job.stalled += 1
            if job.stalled > max_stalled:
                job.is_doomed = True
            self.wait.insert(0, job_id)

    def leave_active(self, job_id: str) -> None:
        del self.active[job_id]
        self.expired.discard(job_id)

    def forget(self, job_id: str) -> None:
        """Take a job out of wherever it is."""
        for place in (self.wait, self.completed, self.failed):
            if job_id in place:
                place.remove(job_id)
        self.prioritized = [one for one in self.prioritized if one[2] != job_id]
        self.delayed.pop(job_id, None)
        self.jobs.pop(job_id, None)

    def state_of(self, job_id: str) -> str | None:
        if job_id not in self.jobs:
            return None
        if job_id in self.active:
            return "active"
        if job_id in self.delayed:
            return "delayed"
        if job_id in self.completed:
            return "completed"
        if job_id in self.failed:
            return "failed"
        return "waiting" if job_id in self.wait else "prioritized"
