"""What the pages show, read through the same API that programs use.

Every answer is bounded: a page of jobs, a slice of a search, the newest log rows.  How many jobs a
queue has makes no difference.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from toril.client.connection import Connection
from toril.client.finder import Finder
from toril.client.queue import Queue
from toril.dashboard import exporting
from toril.dashboard.beside import Beside, Known
from toril.dashboard.folding import MOST_NAMES, MOST_QUEUES, Folding, NotFound
from toril.dashboard.last_runs import last_runs
from toril.dashboard.live import Pulse
from toril.dashboard.redacting import Redactor
from toril.dashboard.sharing import Shared
from toril.doctor import Finding, Severity, examine
from toril.errors import (
    GroupNotFoundError,
    InvalidInputError,
    InvalidNameError,
    NotDeadLettersError,
    ServerRefusalError,
    ServerUnavailableError,
    TorilError,
)
from toril.options import RateLimit
from toril.protocol import families, glancing, groups, lanes, partitioning, reading, scheduling
from toril.protocol.dead_letter import DeadLetterMetadata
from toril.protocol.dead_letters import DeadLetterFilter, DeadLetterGroup, Filter, LetterHead
from toril.protocol.glancing import ActiveJob, Glance, LaneGlance
from toril.protocol.groups import GroupInfo, GroupMember, GroupState, GroupStep
from toril.protocol.job import Job
from toril.protocol.keys import check_known_id, split_job_key
from toril.protocol.lanes import Lane
from toril.protocol.measuring import Metrics
from toril.protocol.partitioning import Row
from toril.protocol.reading import STATES, WorkerInfo
from toril.protocol.scheduling import JobScheduler

T = TypeVar("T")

PER_PAGE = 50
SEARCHED_AT_ONCE = 1000
GROUPS_COUNTED = 10_000
PER_READ = 25
MOST_BYTES_READ = 256 * 1024 * 1024
"""So many bytes of dead letters the server looks at for one page, and what one more read brings."""
MOST_EDITED = 1024 * 1024
MOST_ROWS = 100
MOST_LOG_ROWS = 200
MOST_FINGERPRINTS = 100
MOST_NODES = 300
MOST_CHILDREN = 20
MOST_LEVELS = 10
MOST_STAGES = 50
LATE = 1 << 62
AT_ONCE = 16
MINUTES = 60
DOCTOR_S = 30.0
DOCTOR_WAIT_S = 0.1

NEWEST_FIRST = frozenset(("completed", "failed"))


@dataclass(frozen=True)
class QueueRow:
    """A queue on the overview."""

    name: str
    glance: Glance
    oldest_waiting: int | None
    workers: list[WorkerInfo]
    added_per_s: float | None
    done_per_s: float | None
    failed_lately: int
    needing_a_person: int
    """How many groups go no further by themselves."""
    parts: tuple[str, ...] = ()
    """The partitions that this row stands for, if it is of a queue that has some."""
    is_beside: bool = False
    """Is it the plain queue beside partitions of the same name?"""

    @property
    def waiting(self) -> int:
        return self.glance.waiting + self.glance.prioritized


def _together(row: Row, rows: Sequence[QueueRow]) -> QueueRow:
    """Several queues as one row."""
    if row.queues == (row.name,):
        return replace(rows[0], is_beside=row.is_beside)

    def added(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return QueueRow(
        row.name,
        glancing.together([row.glance for row in rows]),
        min((row.oldest_waiting for row in rows if row.oldest_waiting is not None), default=None),
        reading.each_once(row.workers for row in rows),
        added(row.added_per_s for row in rows),
        added(row.done_per_s for row in rows),
        sum(row.failed_lately for row in rows),
        sum(row.needing_a_person for row in rows),
        tuple(row.name for row in rows),
    )


@dataclass(frozen=True)
class Chart:
    """Jobs per minute, the oldest minute first."""

    times: list[int]
    completed: list[float]
    failed: list[float]
    source: str

    @property
    def is_empty(self) -> bool:
        return not any(self.completed) and not any(self.failed)


@dataclass(frozen=True)
class Overview:
    rows: list[QueueRow]
    left_out: int
    is_searching: bool
    chart: Chart


@dataclass(frozen=True)
class Health:
    """What the doctor found, and whether it has looked yet."""

    findings: list[Finding]
    is_known: bool
    trouble: str = ""
    """Why the doctor could not look: the server may not let it."""
    looked_at: int = 0
    left_out: int = 0
    """How many plain queues it did not look at, because they are many."""


@dataclass(frozen=True)
class Wanted:
    """Which jobs of a state are to be listed."""

    name: str = ""
    job_id: str = ""
    lane: str = ""
    group: str = ""
    text: str = ""
    minutes: int = 0
    """Only those added or finished in the last so many minutes."""

    @property
    def is_any(self) -> bool:
        return self == Wanted()

    def admits(self, job: Job, now_ms: int) -> bool:
        since = now_ms - self.minutes * 60_000
        return (
            (not self.name or job.name == self.name)
            and (not self.job_id or self.job_id in job.id)
            and (not self.lane or job.lane == self.lane)
            and (not self.group or job.group_id == self.group)
            and (not self.text or self.text.lower() in (job.failed_reason or "").lower())
            and (not self.minutes or (job.finished_on or job.timestamp) >= since)
        )


@dataclass(frozen=True)
class JobList:
    jobs: list[Job]
    start: int
    next_start: int | None
    previous_start: int | None
    searched: int
    """How many jobs were looked at; more than are listed when a filter is on."""


@dataclass(frozen=True)
class QueuePage:
    name: str
    counts: dict[str, int]
    glance: Glance
    concurrency: int | None
    rate_limit: RateLimit | None
    workers: list[WorkerInfo]
    schedulers: int
    stopped_lanes: int
    is_dead_letters: bool
    chart: Chart
    parts: list[str]
    """Its partitions, if it has some."""
    whole: str
    """The queue that it is a partition of, if it is one."""


@dataclass(frozen=True)
class Relative:
    """Another job of the same flow."""

    queue: str
    id: str


@dataclass(frozen=True)
class JobPage:
    job: Job
    state: str
    why: str
    data: Any
    data_is_masked: bool
    data_bytes: int
    is_editable: bool
    """Is the payload shown whole, and small enough for a form?"""
    options: dict[str, Any]
    result: Any
    progress: Any
    logs: list[str]
    log_count: int
    parent: Relative | None
    children: dict[str, int]
    group_queue: str | None
    letter: DeadLetterMetadata | None
    whole: str
    """The queue that the job's queue is a partition of, if it is one."""


@dataclass(frozen=True)
class LetterGroups:
    """The largest groups of dead letters, and how many there are besides."""

    groups: list[DeadLetterGroup]
    left_out: int


@dataclass(frozen=True)
class LettersPage:
    queue: str
    total: int
    groups: list[DeadLetterGroup]
    left_out: int
    is_counted: bool
    """Are the groups those of all letters?"""
    examined: int
    """So many letters have been looked at for them."""
    found: JobList
    parts: list[str]
    """Its partitions, if it has some."""


@dataclass(frozen=True)
class LaneRow:
    """A lane at work, and since when the next of its jobs waits."""

    lane: LaneGlance
    since: int | None


@dataclass(frozen=True)
class LanesPage:
    count: int
    at_work: list[LaneRow]
    stopped: list[Lane]
    left_out: int
    is_searched: bool
    """Were the settings of all lanes looked through for those that are stopped?"""


@dataclass(frozen=True)
class LanePage:
    lane: Lane
    jobs: list[Job]
    start: int
    """The first job that is shown."""
    count: int


@dataclass(frozen=True)
class Stage:
    """Members that may run together; of many, those that are not done come first."""

    members: list[GroupMember]

    @property
    def shown(self) -> list[GroupMember]:
        return sorted(self.members, key=lambda one: one.status == "completed")[:MOST_CHILDREN]

    @property
    def left_out(self) -> int:
        return len(self.members) - len(self.shown)


@dataclass(frozen=True)
class GroupList:
    rows: list[tuple[str, GroupInfo]]
    """Each with the plain queue that owns it."""
    row_of: dict[str, Row]
    """The queues as they are shown, by the plain ones."""
    owners: list[tuple[Row, int]]
    """Who owns groups, and how many."""
    states: dict[str, int]
    """How many groups are in each state, of as many as are counted."""
    is_counted: bool
    counted: int
    """The newest so many groups are counted, if there are more."""
    start: int
    next_start: int | None
    previous_start: int | None
    searched: int


@dataclass(frozen=True)
class GroupPage:
    info: GroupInfo
    owner: str
    """The plain queue that has it."""
    members: list[GroupMember]
    stage_of: dict[str, int]
    timeline: list[GroupStep]
    start: int
    """The first member that is shown."""
    step: int
    """The first step that is shown."""

    @property
    def shown(self) -> list[GroupMember]:
        return self.members[self.start : self.start + MOST_ROWS]

    @property
    def steps(self) -> list[GroupStep]:
        return self.timeline[self.step : self.step + MOST_ROWS]

    @property
    def stages(self) -> list[Stage]:
        """The members that may run together, in the order in which they come."""
        found: dict[int, list[GroupMember]] = {}
        for member in self.members:
            found.setdefault(self.stage_of[member.key], []).append(member)
        shown = [Stage(found[number]) for number in sorted(found)]
        return shown[:MOST_STAGES]

    @property
    def questions(self) -> list[GroupMember]:
        """The members of which somebody may say how they ended."""
        if self.info.state is GroupState.BLOCKED:
            ended = ("failed", "cancelled", "awaited")
            return [one for one in self.members if one.status in ended]
        if self.info.asks and self.info.needs_a_person:
            return [one for one in self.members if one.status in ("pending", "active", "awaited")]
        return [one for one in self.members if one.status == "awaited"]


@dataclass(frozen=True)
class ScheduleRow:
    queue: Row
    schedule: JobScheduler
    last_due: int | None
    """When it was due last, if it has run."""
    last: Job | None
    """The job of that time, if it is kept."""

    @property
    def last_state(self) -> str:
        if self.last is None:
            return ""
        if self.last.finished_on is None:
            return "running" if self.last.processed_on else "waiting"
        return "failed" if self.last.failed_reason else "completed"


@dataclass(frozen=True)
class WorkersRow:
    queue: Row
    workers: list[WorkerInfo]
    running: list[tuple[str, ActiveJob]]
    """What runs, with the plain queue that it is in."""


@dataclass
class Tree:
    """A job of a flow with its state, and those it waits for."""

    job: Job
    state: str = ""
    children: list[Tree] = field(default_factory=list)


@dataclass(frozen=True)
class FlowPage:
    tree: Tree
    asked: Relative
    is_cut: bool
    """Are there more jobs than are shown?"""


class Desk:
    """Reads for all pages over one connection."""

    def __init__(self, connection: Connection, prefix: str, redactor: Redactor) -> None:
        self.connection = connection
        self.prefix = prefix
        self.redacted = redactor
        self.shared = Shared()
        self.beside = Beside()
        self.finder = Finder(connection, prefix)
        self.folding = Folding(connection, prefix, self.finder)
        self.pulse = Pulse(connection, prefix, self.finder, before_news=self.shared.outdate)
        self._health = Health([], is_known=False)

    async def close(self) -> None:
        await self.beside.close()
        await self.pulse.close()
        await self.finder.close()
        await self.shared.close()

    def forget(self) -> None:
        """Something was changed: the next who ask are told what is there now."""
        self.shared.forget()
        self.beside.forget()

    def queue(self, name: str) -> Queue:
        """A plain queue by its name, which is checked and not looked for."""
        return self.folding.plain(name)

    async def known(self, name: str) -> Queue:
        """The queue by its name, with all its partitions; ``NotFound`` when there is none."""
        return await self.folding.one(name)

    async def _each(self, names: Iterable[str], ask: Callable[[Queue], Awaitable[T]]) -> list[T]:
        """Ask several queues, a few at a time."""

        async def one(name: str) -> T:
            return await ask(self.queue(name))

        return await _few(one(name) for name in names)

    # ------------------------------------------------------------------------ overview

    async def overview(self, part: str = "") -> Overview:
        """The queues whose names contain ``part``."""
        return await self.shared.get(("overview", part), lambda: self._overview(part))

    async def left_out(self) -> int:
        """How many queues the other pages about all queues do not look at."""
        folded = await self.shared.get("left out", self.folding.all)
        return folded.left_out

    async def _overview(self, part: str) -> Overview:
        folded = await self.folding.all(part)
        names = folded.parts
        looks = [glancing.look(self.queue(name).keys, most=0) for name in names]
        glances = await self.connection.run_all(looks) if looks else []
        metrics = await self._metrics(names)

        async def oldest(queue: Queue) -> int | None:
            plan = reading.heads(queue.keys, ("waiting", "prioritized"), 0, 0)
            jobs = await self.connection.follow(plan)
            return min((job.timestamp for job in jobs), default=None)

        crowded = [
            name
            for name, look in zip(names, glances, strict=True)
            if look.waiting + look.prioritized
        ]
        waiting_since = dict(zip(crowded, await self._each(crowded, oldest), strict=True))
        owners = [name for name, look in zip(names, glances, strict=True) if look.groups]
        counts = [groups.count_asking(self.queue(name).keys) for name in owners]
        answers = await self.connection.run_all(counts) if counts else []
        needing_a_person = dict(zip(owners, answers, strict=True))
        workers = await self._workers()
        rows: list[QueueRow] = []
        for name, glance in zip(names, glances, strict=True):
            watched = self.pulse.queues.get(name)
            rate = None if watched is None else watched.rate
            done, failed = metrics[name]
            rows.append(
                QueueRow(
                    name,
                    glance,
                    waiting_since.get(name),
                    workers.get(name, []),
                    None if rate is None else rate.added,
                    _per_second(done, failed) if rate is None else rate.completed + rate.failed,
                    sum(_aligned(failed)),
                    needing_a_person.get(name, 0),
                )
            )
        chart = self._chart([metrics[name] for name in names], names)
        by_name = {row.name: row for row in rows}
        wholes = [_together(one, [by_name[n] for n in one.queues]) for one in folded.rows]
        return Overview(wholes, folded.left_out, self.finder.is_searching, chart)

    async def _metrics(self, names: list[str]) -> dict[str, tuple[Metrics, Metrics]]:
        async def both(queue: Queue) -> tuple[Metrics, Metrics]:
            done = await queue.get_metrics("completed", 0, MINUTES - 1)
            return done, await queue.get_metrics("failed", 0, MINUTES - 1)

        found = await self.shared.get(
            ("metrics", tuple(names)), lambda: self._each(names, both), fresh_s=10.0
        )
        return dict(zip(names, found, strict=True))

    def _chart(self, metrics: list[tuple[Metrics, Metrics]], names: Iterable[str]) -> Chart:
        """What workers counted; where none counts, what was seen since a page was opened."""
        minute = int(time.time()) // 60 * 60
        if any(one.points for pair in metrics for one in pair):
            done = [_aligned(pair[0]) for pair in metrics]
            failed = [_aligned(pair[1]) for pair in metrics]
            return Chart(
                [minute - 60 * (MINUTES - 1 - index) for index in range(MINUTES)],
                [float(sum(values)) for values in zip(*done, strict=True)],
                [float(sum(values)) for values in zip(*failed, strict=True)],
                "per minute, counted by the workers",
            )
        series: dict[int, list[float]] = {}
        for name in names:
            watched = self.pulse.queues.get(name)
            for sample in watched.samples if watched else ():
                sums = series.setdefault(int(sample.at_s), [0.0, 0.0])
                sums[0] += 60 * sample.completed
                sums[1] += 60 * sample.failed
        times = sorted(series)
        return Chart(
            times,
            [series[at][0] for at in times],
            [series[at][1] for at in times],
            "per minute, as seen since a page was opened",
        )

    async def health(self) -> Health:
        """What the doctor says, or said: nobody waits for it for more than a moment."""

        async def ask() -> Health:
            names = await self.finder.names()
            some = names[:MOST_QUEUES]
            report = await examine(self.connection, prefix=self.prefix, queues=some, audit=False)
            found = [one for one in report.findings if one.severity is not Severity.INFO]
            return Health(found, True, "", len(some), len(names) - len(some))

        asking = asyncio.ensure_future(self.shared.get("doctor", ask, fresh_s=DOCTOR_S))
        done, _ = await asyncio.wait([asking], timeout=DOCTOR_WAIT_S)
        if not done:
            asking.add_done_callback(_ignore)
            return self._health
        try:
            self._health = asking.result()
        except ServerUnavailableError:
            raise
        except TorilError as error:
            self._health = Health([], is_known=True, trouble=str(error))
        return self._health

    # ------------------------------------------------------------------------ queue

    async def queue_page(self, name: str) -> QueuePage:
        return await self.shared.get(("queue", name), lambda: self._queue_page(name))

    async def _queue_page(self, name: str) -> QueuePage:
        queue = await self.known(name)
        parts = [part.name for part in queue.partitions]
        metrics = await self._metrics(parts)
        looks = [glancing.look(part.keys, most=0) for part in queue.partitions]
        workers = await self._workers()
        return QueuePage(
            name,
            await queue.get_job_counts(),
            glancing.together(await self.connection.run_all(looks)),
            await queue.get_global_concurrency(),
            await queue.get_global_rate_limit(),
            reading.each_once(workers.get(part, []) for part in parts),
            await queue.get_job_scheduler_count(),
            len((await self._stopped_lanes(queue)).value),
            await self._is_letters(queue),
            self._chart([metrics[part] for part in parts], parts),
            parts if len(parts) > 1 else [],
            await self.folding.whole_of(name),
        )

    async def _is_letters(self, queue: Queue) -> bool:
        """Has the queue letters? An empty one has none, though it could."""
        letters = await queue.get_dead_letter_count()
        return bool(letters) and await queue.is_dead_letter_queue()

    async def jobs(self, name: str, state: str, start: int, wanted: Wanted) -> JobList:
        """A page of the jobs in one state; with a filter, those found in the next slice."""
        key = ("jobs", name, state, start, wanted)
        return await self.shared.get(key, lambda: self._jobs(name, state, start, wanted))

    async def _jobs(self, name: str, state: str, start: int, wanted: Wanted) -> JobList:
        if state not in STATES:
            raise NotFound(f"There is no state {state!r}; the states are {', '.join(STATES)}.")
        queue = await self.known(name)
        size = PER_PAGE if wanted.is_any else SEARCHED_AT_ONCE
        jobs, total = await self._heads(queue, state, start, start + size - 1)
        now_ms = int(time.time() * 1000)
        found = jobs if wanted.is_any else [job for job in jobs if wanted.admits(job, now_ms)]
        return _page(jobs, found, start, size, total)

    async def _heads(self, queue: Queue, state: str, start: int, end: int) -> tuple[list[Job], int]:
        """Some jobs of a state without their payloads, and how many there are in all."""
        parts = queue.partitions
        asked = [reading.counts(part.keys, (state,)) for part in parts]
        counts = [one[state] for one in await self.connection.run_all(asked)]
        places = partitioning.page(counts, start, min(end, sum(counts) - 1))

        async def read(part: Queue, of_it: range) -> list[Job]:
            if not of_it:
                return []
            newest_first = state in NEWEST_FIRST
            return await self.connection.follow(
                reading.heads(part.keys, (state,), of_it[0], of_it[-1], newest_first=newest_first)
            )

        found = await _few(read(*one) for one in zip(parts, places, strict=True))
        return partitioning.deal(places, found), sum(counts)

    async def export(
        self, name: str, state: str, wanted: Wanted, letters: DeadLetterFilter | None
    ) -> AsyncIterator[dict[str, Any]]:
        """The jobs of a list, or dead letters, one by one, as they may be shown."""
        queue = await self.known(name)
        if letters is None and state not in STATES:
            raise NotFound(f"There is no state {state!r}; the states are {', '.join(STATES)}.")
        if letters is not None:
            # Refused now, not when the file has begun.
            await queue.get_dead_letter_jobs(0, 0, payloads=False)
        now_ms = int(time.time() * 1000)
        conditions = Filter.of(**(letters or {})).at(now_ms)

        async def read(start: int, end: int) -> list[Job]:
            if letters is not None:
                return await queue.get_dead_letter_jobs(start, end)
            return await queue.get_jobs(state, start, end, newest_first=state in NEWEST_FIRST)

        def admits(job: Job) -> bool:
            if letters is not None:
                return not letters or _passes(job, conditions)
            return wanted.is_any or wanted.admits(job, now_ms)

        return exporting.rows(read, admits, self.redacted)

    async def find_job(self, job_id: str) -> list[str]:
        """The queues that have a job of this id."""
        try:
            check_known_id(job_id)
        except InvalidNameError:
            return []
        names = (await self.finder.names())[:MOST_NAMES]
        answers = await self.connection.run_each(
            [reading.head(self.queue(name).keys, job_id) for name in names]
        )
        found = [one.queue_name for one in answers if isinstance(one, Job)]
        # A key of another type is no job; a server that does not answer has not said that.
        untold = [
            one
            for one in answers
            if isinstance(one, Exception) and type(one) is not ServerRefusalError
        ]
        if untold and not found:
            raise untold[0]
        return found

    # ------------------------------------------------------------------------ job

    async def job_page(self, name: str, job_id: str) -> JobPage:
        return await self.shared.get(("job", name, job_id), lambda: self._job_page(name, job_id))

    async def _job_page(self, name: str, job_id: str) -> JobPage:
        queue = await self.folding.maybe(name)
        job = await self._job(queue, job_id)
        log_count = await queue.get_job_log_count(job_id)
        logs = await queue.get_job_logs(job_id, max(log_count - MOST_LOG_ROWS, 0), -1)
        family = await queue.get_dependencies_count(job_id)
        letter = _quietly(lambda: job.dead_letter)
        data = exporting.data_of(job, self.redacted)
        children = {
            "waited for": family.unprocessed,
            "completed": family.processed,
            "failed": family.failed,
            "failed and ignored": family.ignored,
        }
        return JobPage(
            job=job,
            state=await queue.get_state(job_id) or "unknown",
            why=await queue.explain(job_id),
            data=self.redacted(data),
            data_is_masked=self.redacted.hides(data),
            data_bytes=len(job.data_text),
            is_editable=len(job.data_text) <= MOST_EDITED and not self.redacted.hides(data),
            options=self.redacted(job.opts.raw),
            result=self.redacted(_quietly(lambda: job.return_value)),
            progress=self.redacted(_quietly(lambda: job.progress)),
            logs=logs,
            log_count=log_count,
            parent=self._relative(job.parent_key),
            children={what: count for what, count in children.items() if count},
            group_queue=await self._owner_of_group(job),
            letter=letter,
            whole=await self.folding.whole_of(name),
        )

    async def _job(self, queue: Queue, job_id: str) -> Job:
        try:
            job = await queue.get_job(job_id)
        except InvalidNameError as error:
            raise NotFound(str(error)) from error
        if job is None:
            raise _no_job(queue.name, job_id)
        return job

    async def _head(self, queue: Queue, job_id: str) -> Job | None:
        """What a list shows of a job, in whichever partition it is."""
        try:
            check_known_id(job_id)
        except InvalidNameError as error:
            raise NotFound(str(error)) from error
        reads = [reading.head(part.keys, job_id) for part in queue.partitions]
        found = await self.connection.run_all(reads)
        return next((one for one in found if one is not None), None)

    def _relative(self, key: str | None) -> Relative | None:
        if not key:
            return None
        prefix, name, job_id = split_job_key(key, self.prefix)
        # BullMQ's flows may cross prefixes: under ours the same name would be another job.
        return Relative(name, job_id) if prefix == self.prefix and name else None

    async def _owner_of_group(self, job: Job) -> str | None:
        """The queue that owns the job's group: often its own, else one to be looked for."""
        if job.group_id is None:
            return None
        names = [job.queue_name, *(await self.finder.names())[:MOST_QUEUES]]
        group_id = job.group_id
        try:
            reads = [groups.read(self.queue(name).keys, group_id) for name in names]
        except GroupNotFoundError:
            return None  # another program wrote something that is no id of a group
        found = await self.connection.run_all(reads)
        return next((name for name, one in zip(names, found, strict=True) if one), None)

    # ------------------------------------------------------------------------ dead letters

    async def letter_queues(self) -> list[tuple[Row, int]]:
        """The queues that have dead letters, and how many."""
        return await self.shared.get("letter queues", self._letter_queues, fresh_s=2.0)

    async def _letter_queues(self) -> list[tuple[Row, int]]:
        async def count(queue: Queue) -> int:
            return await queue.get_dead_letter_count() if await self._is_letters(queue) else 0

        folded = await self.folding.all()
        names = folded.parts
        counts = dict(zip(names, await self._each(names, count), strict=True))
        sums = [(row, sum(counts[one] for one in row.queues)) for row in folded.rows]
        return [(row, number) for row, number in sums if number]

    async def letters(self, name: str, wanted: DeadLetterFilter, start: int) -> LettersPage:
        """A page of letters, and all of them by what went wrong, as far as they are counted."""
        queue = await self.known(name)
        try:
            which = repr(sorted(wanted.items()))
            survey = await self._summary(queue, wanted, which)
            key = ("letters", name, start, which)
            found = await self.shared.get(key, lambda: self._letters(queue, wanted, start))
        except NotDeadLettersError as error:
            raise NotFound(str(error)) from error
        return LettersPage(
            name,
            await queue.get_dead_letter_count(),
            survey.value.groups,
            survey.value.left_out,
            survey.is_whole,
            survey.done,
            found,
            [part.name for part in queue.partitions[1:] and queue.partitions],
        )

    async def _summary(
        self, queue: Queue, wanted: DeadLetterFilter, which: str
    ) -> Known[LetterGroups]:
        async def find(note: Callable[[int], None]) -> LetterGroups:
            found = await queue.get_dead_letter_summary(on_progress=note, payloads=False, **wanted)
            shown = found[:MOST_FINGERPRINTS]
            return LetterGroups(shown, len(found) - len(shown))

        return await self.beside.known(("letters", queue.name, which), LetterGroups([], 0), find)

    async def _letters(self, queue: Queue, wanted: DeadLetterFilter, start: int) -> JobList:
        now_ms = int(time.time() * 1000)
        conditions = Filter.of(**wanted).at(now_ms) if wanted else None
        size = PER_PAGE if conditions is None else SEARCHED_AT_ONCE
        letters, is_cut = await _read_some(queue, start, size)
        found = [one for one in letters if conditions is None or _passes(one, conditions)]
        looked_at = len(letters) if is_cut else size
        return _page(letters, found, start, looked_at, await queue.get_dead_letter_count())

    # ------------------------------------------------------------------------ groups

    async def groups(self, name: str, state: str, start: int = 0) -> GroupList:
        """Groups of one queue, a page of them, or the newest of all; who needs a person first."""
        key = ("groups", name, state, start)
        return await self.shared.get(key, lambda: self._groups(name, state, start))

    async def _groups(self, name: str, state: str, start: int) -> GroupList:
        rows = await self._rows(name)
        names = [part for row in rows for part in row.queues]
        looks = [glancing.look(self.queue(one).keys, most=0) for one in names]
        glances = await self.connection.run_all(looks) if looks else []
        counts = {one: look.groups for one, look in zip(names, glances, strict=True) if look.groups}
        owners = list(counts)
        size = groups_searched(name, state)
        if name:
            places = partitioning.page(list(counts.values()), start, start + size - 1)
        else:
            places = [range(size)] * len(owners)
        urgent = [] if start else await self._needing_a_person(owners)
        found = urgent + await self._newest(owners, places, {one.id for _, one in urgent})
        found = [row for row in found if state in ("", row[1].state)]
        found.sort(key=lambda row: (not row[1].needs_a_person, -row[1].updated_at))
        total = sum(counts.values())
        sums = [(row, sum(counts.get(one, 0) for one in row.queues)) for row in rows]
        share = max(GROUPS_COUNTED // max(len(counts), 1), MOST_ROWS)
        states = await self._group_states(name, {one: min(counts[one], share) for one in counts})
        return GroupList(
            found if name else found[:MOST_ROWS],
            {part: row for row in rows for part in row.queues},
            [(owner, count) for owner, count in sums if count],
            states.value,
            states.is_whole,
            sum(min(count, share) for count in counts.values()),
            start,
            start + size if name and start + size < total else None,
            max(start - size, 0) if start else None,
            size,
        )

    async def _group_states(self, name: str, looked_at: dict[str, int]) -> Known[dict[str, int]]:
        """How many are in each state, of so many of the newest groups of each owner."""

        async def find(note: Callable[[int], None]) -> dict[str, int]:
            found: Counter[str] = Counter()
            for owner, count in looked_at.items():
                for start in range(0, count, SEARCHED_AT_ONCE):
                    end = min(start + SEARCHED_AT_ONCE, count) - 1
                    plan = groups.newest_states(self.queue(owner).keys, start, end)
                    found.update(await self.connection.follow(plan))
                    note(found.total())
            return found

        return await self.beside.known(("groups by state", name), {}, find)

    async def _needing_a_person(self, owners: Sequence[str]) -> list[tuple[str, GroupInfo]]:
        most = _share(len(owners))

        async def ask(queue: Queue) -> list[tuple[str, GroupInfo]]:
            plan = groups.needing_a_person(queue.keys, most=most)
            return [(queue.name, one) for one in await self.connection.follow(plan)]

        return [row for found in await self._each(owners, ask) for row in found]

    async def _newest(
        self, owners: Sequence[str], places: Sequence[range], known: set[str]
    ) -> list[tuple[str, GroupInfo]]:
        """The groups at these places of each owner, but for those that are known."""

        async def read(name: str, of_it: range) -> list[tuple[str, GroupInfo]]:
            plan = groups.newest(self.queue(name).keys, of_it[0], of_it[-1])
            return [(name, one) for one in await self.connection.follow(plan)]

        asked = [(one, of_it) for one, of_it in zip(owners, places, strict=True) if of_it]
        pages = await _few(read(*one) for one in asked)
        return [row for page in pages for row in page if row[1].id not in known]

    async def group(self, name: str, group_id: str, start: int = 0, step: int = 0) -> GroupPage:
        """A group, with a page of its members and a page of what happened to them."""
        # Read where it is said to be: the public calls search all queues for a group that is gone.
        parts = (await self.folding.maybe(name)).partitions
        try:
            reads = [groups.read(part.keys, group_id) for part in parts]
            found = await self.connection.run_all(reads)
            owner = next((part for part, one in zip(parts, found, strict=True) if one), None)
            if owner is None:
                raise GroupNotFoundError(group_id)
            story = await self.connection.follow(groups.story(owner.keys, group_id))
        except (GroupNotFoundError, InvalidInputError) as error:
            reason = f"The queue {name!r} owns no group {group_id!r}."
            raise NotFound(reason) from error
        return GroupPage(
            story.info,
            owner.name,
            story.members,
            groups.stage_of(story.members),
            story.steps,
            min(start, max(len(story.members) - 1, 0)) // MOST_ROWS * MOST_ROWS,
            min(step, max(len(story.steps) - 1, 0)) // MOST_ROWS * MOST_ROWS,
        )

    # ------------------------------------------------------------------------ lanes

    async def lanes(self, name: str, by: str = "") -> LanesPage:
        """Some lanes at work, those that are stopped, and how many there are.

        Those with the most jobs come first, or those whose next job waits for longest.
        """
        return await self.shared.get(("lanes", name, by), lambda: self._lanes(name, by))

    async def _lanes(self, name: str, by: str) -> LanesPage:
        queue = await self.known(name)
        parts = queue.partitions
        most = _share(len(parts))
        looks = [glancing.lanes_at_work(part.keys, most=most) for part in parts]
        found = [one for some in await self.connection.run_all(looks) for one in some]
        at_work = await self._with_ages(parts, found)
        at_work.sort(key=lambda row: -row.lane.depth)
        if by == "oldest":
            at_work.sort(key=lambda row: row.since if row.since is not None else LATE)
        stopped = await self._stopped_lanes(queue)
        reads = [
            lanes.read(parts[partitioning.home_of(lane, len(parts))].keys, lane)
            for lane in stopped.value[:MOST_ROWS]
        ]
        read = await self.connection.run_all(reads) if reads else []
        return LanesPage(
            await queue.get_lane_count(),
            at_work[:MOST_ROWS],
            [one for one in read if one is not None],
            max(len(stopped.value) - MOST_ROWS, 0),
            stopped.is_whole,
        )

    async def _with_ages(
        self, parts: Sequence[Queue], found: Sequence[LaneGlance]
    ) -> list[LaneRow]:
        homes = [parts[partitioning.home_of(one.name, len(parts))] for one in found]
        heads = [
            (index, glancing.added_at(home.keys, one.head))
            for index, (home, one) in enumerate(zip(homes, found, strict=True))
            if one.head
        ]
        answers = await self.connection.run_all([read for _, read in heads]) if heads else []
        since = {index: at for (index, _), at in zip(heads, answers, strict=True)}
        return [LaneRow(one, since.get(index)) for index, one in enumerate(found)]

    async def _stopped_lanes(self, queue: Queue) -> Known[list[str]]:
        """Those that are paused or halted; for them the settings of all lanes are read."""

        async def find(note: Callable[[int], None]) -> list[str]:
            return await queue.get_lanes(state="stopped")

        return await self.beside.known(("stopped lanes", queue.name), [], find)

    async def lane(self, name: str, lane: str, start: int = 0) -> LanePage:
        """A lane, and a page of its jobs: those that run, those that wait, those with a delay."""
        queue = await self.known(name)
        found = await queue.get_lane(lane) if lane else None
        if found is None:
            raise NotFound(f"The lane {lane!r} of the queue {name!r} has no jobs and no settings.")
        count = len(found.holders) + found.depth + found.delayed
        start = min(start, max(count - 1, 0)) // PER_PAGE * PER_PAGE
        home = queue.partitions[partitioning.home_of(lane, len(queue.partitions))].keys
        plan = lanes.job_ids(home, lane, start, start + PER_PAGE - 1)
        ids = await self.connection.follow(plan)
        jobs = await self.connection.follow(reading.jobs_of(home, ids, reading.head))
        return LanePage(found, jobs, start, count)

    # ------------------------------------------------------------------------ the rest

    async def schedules(self, name: str) -> list[ScheduleRow]:
        """The schedules of one queue or of all, those due first."""
        return await self.shared.get(("schedules", name), lambda: self._schedules(name))

    async def _schedules(self, name: str) -> list[ScheduleRow]:
        async def ask(queue: Queue) -> list[tuple[Queue, JobScheduler]]:
            plan = scheduling.many(queue.keys, 0, MOST_ROWS - 1, payloads=False)
            return [(queue, one) for one in await self.connection.follow(plan)]

        row_of = {part: row for row in await self._rows(name) for part in row.queues}
        found = [row for part in await self._each(row_of, ask) for row in part]
        found.sort(key=lambda row: row[1].next_at or 0)
        due = [(*row, scheduling.due_before(row[1])) for row in found[:MOST_ROWS]]
        jobs = await last_runs(self.connection, [(queue.keys, one, at) for queue, one, at in due])
        return [
            ScheduleRow(row_of[queue.name], one, at, job)
            for (queue, one, at), job in zip(due, jobs, strict=True)
        ]

    async def _rows(self, name: str) -> list[Row]:
        """The queue of this name, or all."""
        if not name:
            return (await self.folding.all()).rows
        queue = await self.folding.maybe(name)
        return [Row(name, tuple(part.name for part in queue.partitions))]

    async def workers(self, name: str) -> list[WorkersRow]:
        """For each queue who works on it, and what runs for how long."""
        rows = await self._rows(name)

        async def ask() -> list[list[ActiveJob]]:
            looks = [
                glancing.active(self.queue(part).keys, most=_share(len(row.queues)))
                for row in rows
                for part in row.queues
            ]
            return await self.connection.run_all(looks) if looks else []

        parts = [part for row in rows for part in row.queues]
        running = dict(zip(parts, await self.shared.get(("running", *parts), ask), strict=True))
        workers = await self._workers()
        found = [
            WorkersRow(
                row,
                reading.each_once(workers.get(part, []) for part in row.queues),
                [(part, job) for part in row.queues for job in running[part]],
            )
            for row in rows
        ]
        return [row for row in found if row.workers or row.running or name]

    async def _workers(self) -> dict[str, list[WorkerInfo]]:
        """Who is connected, by queue; nobody where the server does not say."""

        async def ask() -> dict[str, list[WorkerInfo]]:
            try:
                return await self.finder.workers()
            except ServerRefusalError:
                return {}

        return await self.shared.get("workers", ask, fresh_s=2.0)

    async def flow(self, name: str, job_id: str) -> FlowPage:
        """The flow that a job is part of, as much of it as a page shows."""
        return await self.shared.get(("flow", name, job_id), lambda: self._flow(name, job_id))

    async def _flow(self, name: str, job_id: str) -> FlowPage:
        job = await self._head(await self.folding.maybe(name), job_id)
        if job is None:
            raise _no_job(name, job_id)
        for _ in range(MOST_LEVELS):
            above = self._relative(job.parent_key)
            parent = None if above is None else await self._head(self.queue(above.queue), above.id)
            if parent is None:
                break
            job = parent
        top = Tree(job)
        everyone, level = [top], [top]
        for _ in range(MOST_LEVELS):
            families = await _few(self._children(one.job) for one in level)
            following: list[Tree] = []
            for one, children in zip(level, families, strict=True):
                room = MOST_NODES - len(everyone) - len(following)
                one.children = [Tree(child) for child in children[:room]]
                following += one.children
            everyone += following
            level = following
        states = await _few(
            self.queue(one.job.queue_name).get_state(one.job.id) for one in everyone
        )
        for one, state in zip(everyone, states, strict=True):
            one.state = state or "unknown"
        return FlowPage(top, Relative(name, job_id), is_cut=len(everyone) >= MOST_NODES)

    async def _children(self, job: Job) -> list[Job]:
        plan = families.tree(
            self.queue(job.queue_name).keys,
            job.id,
            depth=2,
            max_children=MOST_CHILDREN,
            payloads=False,
        )
        node = await self.connection.follow(plan)
        return [] if node is None else [child.job for child in node.children]


def _no_job(queue: str, job_id: str) -> NotFound:
    return NotFound(
        f"There is no job {job_id!r} in the queue {queue!r}."
        " It may have been removed after it finished."
    )


def _share(parts: int) -> int:
    """How many rows each of so many partitions may give to one page."""
    return max(MOST_ROWS // max(parts, 1), 4)


async def _few(asking: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The answers to many questions, a few of them under way at a time."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(question: Coroutine[Any, Any, T]) -> T:
        async with turn:
            return await question

    return list(await asyncio.gather(*(one(question) for question in asking)))


async def _read_some(queue: Queue, start: int, most: int) -> tuple[list[Job], bool]:
    """Dead letters, fewer if they are very large; was something left out for that?"""
    found: list[Job] = []
    size = 0
    while len(found) < most:
        first = start + len(found)
        last = min(first + PER_READ, start + most) - 1
        some = await queue.get_dead_letter_jobs(first, last, payloads=False)
        found += some
        size += sum(one.data_bytes for one in some if isinstance(one, LetterHead))
        if len(some) < PER_READ:
            return found, False
        if size > MOST_BYTES_READ:
            return found, True
    return found, False


def groups_searched(queue: str, state: str) -> int:
    """How many groups are looked at for a page: of the one queue, or of each of all."""
    if not queue:
        return MOST_ROWS
    return SEARCHED_AT_ONCE if state else PER_PAGE


def _page(looked_at: list[Job], found: list[Job], start: int, size: int, count: int) -> JobList:
    """As many of the jobs found as a page has, and where the next one begins."""
    step = size
    if len(found) > PER_PAGE:
        step = looked_at.index(found[PER_PAGE])
        found = found[:PER_PAGE]
    return JobList(
        found,
        start,
        start + step if start + step < count else None,
        max(start - size, 0) if start else None,
        min(step, len(looked_at)),
    )


def _passes(letter: Job, wanted: Filter) -> bool:
    """Does a letter pass the filter? Those of the bulk operations are judged by the server."""
    meta: DeadLetterMetadata | None = _quietly(lambda: letter.dead_letter)
    if meta is None or (wanted.name is not None and letter.name != wanted.name):
        return False
    if isinstance(wanted.since, int) and letter.timestamp < wanted.since:
        return False
    if isinstance(wanted.until, int) and letter.timestamp >= wanted.until:
        return False
    return wanted.admits(meta)


def _aligned(metrics: Metrics) -> list[int]:
    """The last minutes, the oldest first; what was counted long ago is not lately."""
    minutes = [0] * MINUTES
    if metrics.last_at is None:
        return minutes
    behind = max(int(time.time() * 1000 - metrics.last_at) // 60_000, 0)
    for index, count in enumerate(metrics.data[: max(MINUTES - behind, 0)]):
        minutes[MINUTES - 1 - behind - index] = count
    return minutes


def _per_second(done: Metrics, failed: Metrics) -> float | None:
    """The pace of the last whole minute, where workers count."""
    if not (done.points or failed.points):
        return None
    return (_aligned(done)[-1] + _aligned(failed)[-1]) / 60


def _quietly(read: Callable[[], Any], instead: Any = None) -> Any:
    """What another program wrote into a job may be no JSON."""
    try:
        return read()
    except (ValueError, RecursionError):
        return instead


def _ignore(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
