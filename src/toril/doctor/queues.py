"""The queues of a running system: who works on them, what piles up, what does not fit together."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence

import msgspec

from toril.client.connection import Connection
from toril.doctor.finding import Finding, Severity
from toril.doctor.job_options import check_retries
from toril.doctor.reader import ConnectionReader
from toril.doctor.standstills import Standstills, check_standstills, read_standstills
from toril.doctor.wording import counted, lasting
from toril.errors import ServerUnavailableError
from toril.protocol import reading
from toril.protocol.codec import JobOpts
from toril.protocol.discovering import ClusterNode
from toril.protocol.job import Job
from toril.protocol.keys import COMPENSATION_SUFFIX, Keys

MANY_COMPLETED = 20_000
MANY_FAILED = 1000
LONG_WAIT_MS = 3_600_000
LETTERS_WAIT_MS = 24 * 3_600_000
_SAMPLE = 20
_HASH = re.compile(r"[0-9a-f]{32}")
_PERMANENT = ("KeyError", "TypeError", "ValidationError", "AttributeError", "IndexError")


class WorkerFacts(msgspec.Struct, frozen=True):
    """A worker's connection: which library speaks there."""

    library: str
    version: str

    @property
    def is_toril(self) -> bool:
        return "toril" in self.library


class QueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one queue."""

    name: str
    counts: dict[str, int]
    is_paused: bool = False
    in_lists: tuple[int, int] = (0, 0)
    """How many jobs are in `wait`, and in `paused`."""
    has_groups: bool = False
    has_lanes: bool = False
    repeating_by_add: Sequence[str] = ()
    """What recurs because a job was added with ``repeat``, and not by a scheduler."""
    concurrency: int | None = None
    """How many jobs may run at once, over all workers."""
    rate: tuple[int, int] | None = None
    """How many may start, in how many ms."""
    workers: Sequence[WorkerFacts] | None = None
    waiting: Sequence[Job] = ()
    failed: Sequence[Job] = ()
    stands: Standstills = Standstills()
    now_ms: int = 0

    @property
    def to_do(self) -> int:
        return sum(self.counts.get(state, 0) for state in ("waiting", "prioritized", "delayed"))

    @property
    def oldest_at(self) -> int | None:
        """When the oldest job was added that might run now."""
        times = [job.timestamp for job in self.waiting[:1]]
        if self.stands.oldest_prioritized is not None:
            times.append(self.stands.oldest_prioritized)
        return min(times, default=None)

    @property
    def is_for_dead_letters(self) -> bool:
        return any(_is_letter(job) for job in self.waiting)

    @property
    def subject(self) -> str:
        return f"queue {self.name}"


def _is_letter(job: Job) -> bool:
    try:
        return job.dead_letter is not None
    except (ValueError, RecursionError):
        return False  # its data are no JSON, so nothing was put into them


class NodeFacts(msgspec.Struct, frozen=True):
    """What a server says of its clients, if it may, and what time it has."""

    clients: str | None
    now_ms: int


async def read_queues(
    connection: Connection, reader: ConnectionReader, prefix: str, names: Sequence[str]
) -> tuple[list[QueueFacts], list[Finding]]:
    """What there is to see of these queues, and which of them cannot be looked at.

    Those on a node that does not answer are left out.
    """
    facts = await asyncio.gather(*(_read_node(reader, node) for node in reader.nodes))
    by_node = {node.near: of_node for node, of_node in zip(reader.nodes, facts, strict=True)}
    queues = [Keys(prefix, name) for name in names]
    read = await asyncio.gather(
        *(
            _try_to_read(connection, reader, keys, by_node[node.near])
            for keys in queues
            if (node := reader.node_of(keys.marker)) is not None
        )
    )
    return (
        [one for one in read if isinstance(one, QueueFacts)],
        [one for one in read if isinstance(one, Finding)],
    )


async def _try_to_read(
    connection: Connection, reader: ConnectionReader, keys: Keys, node: NodeFacts
) -> QueueFacts | Finding:
    """One queue that cannot be read says nothing of the others."""
    try:
        return await _read_queue(connection, reader, keys, node)
    except ServerUnavailableError:
        raise
    except Exception as error:  # noqa: BLE001 (the doctor examines what is broken)
        return Finding(
            code="D231",
            severity=Severity.ERROR,
            subject=f"queue {keys.name}",
            problem=f"it could not be examined: {type(error).__name__}: {error}",
            harm="Workers and producers may meet the same error.",
            remedy="If the server is too old or the user may not run scripts, mend that first.",
        )


async def _read_node(reader: ConnectionReader, node: ClusterNode) -> NodeFacts:
    clients = await reader.try_to_ask_node(node, "CLIENT", "LIST", "TYPE", "normal")
    seconds, micros = await reader.ask_node(node, "TIME")
    return NodeFacts(clients, int(seconds) * 1000 + int(micros) // 1000)


async def _read_queue(
    connection: Connection, reader: ConnectionReader, keys: Keys, node: NodeFacts
) -> QueueFacts:
    counts = await connection.run(reading.counts(keys, reading.STATES))
    (is_paused, concurrency, rate, rate_ms), groups, lanes, schedulers, *lists = await reader.ask(
        [
            ("HMGET", keys.meta, "paused", "concurrency", "max", "duration"),
            ("EXISTS", f"{keys.base}:groups"),
            ("EXISTS", f"{keys.base}:lanes:index"),
            ("ZRANGE", keys.repeat, "0", "200"),
            ("LLEN", keys.wait),
            ("LLEN", keys.paused),
        ]
    )
    repeating = await _repeating_by_add(reader, keys, schedulers)
    oldest = reading.jobs(keys, ("waiting",), 0, _SAMPLE - 1, newest_first=False)
    newest_failed = reading.jobs(keys, ("failed",), 0, _SAMPLE - 1, newest_first=True)
    return QueueFacts(
        name=keys.name,
        counts=counts,
        is_paused=is_paused is not None,
        in_lists=(lists[0], lists[1]),
        has_groups=bool(groups),
        has_lanes=bool(lanes),
        repeating_by_add=repeating,
        concurrency=_number(concurrency),
        rate=None if _number(rate) is None else (_number(rate) or 0, _number(rate_ms) or 0),
        workers=None if node.clients is None else _workers_in(node.clients, keys),
        waiting=await connection.follow(oldest),
        failed=await connection.follow(newest_failed),
        stands=await read_standstills(connection, reader, keys, counts),
        now_ms=node.now_ms,
    )


async def _repeating_by_add(
    reader: ConnectionReader, keys: Keys, names: Sequence[str]
) -> list[str]:
    """Their names are hashes and no record counts their iterations, or they tell it all."""
    old = [name for name in names if name.count(":") >= 4]
    hashes = [name for name in names if _HASH.fullmatch(name)]
    counted = await reader.ask([("HEXISTS", f"{keys.repeat}:{name}", "ic") for name in hashes])
    return old + [name for name, is_counted in zip(hashes, counted, strict=True) if not is_counted]


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _workers_in(clients: str, keys: Keys) -> list[WorkerFacts]:
    whole = reading.worker_names(keys)
    found = []
    for line in clients.splitlines():
        fields = dict(pair.split("=", 1) for pair in line.split(" ") if "=" in pair)
        name = fields.get("name", "")
        if name == whole or name.startswith(f"{whole}:w:"):
            library, version = fields.get("lib-name", ""), fields.get("lib-ver", "")
            found.append(WorkerFacts(library, version))
    return found


def check_queues(queues: Sequence[QueueFacts]) -> Iterator[Finding]:
    names = {queue.name: queue for queue in queues}
    for queue in queues:
        yield from _work(queue)
        yield from check_standstills(
            queue.subject,
            queue.name,
            queue.stands,
            queue.counts.get("active", 0),
            has_no_worker=queue.workers is not None and not queue.workers,
        )
        yield from _lists(queue)
        yield from _letters(queue)
        yield from _growth(queue)
        yield from _retries(queue)
        yield from _recurring(queue)
        yield from _limits(queue)
        yield from _libraries(queue)
        yield from _compensation(queue, names)


def _work(queue: QueueFacts) -> Iterator[Finding]:
    if queue.is_for_dead_letters or queue.name.endswith(COMPENSATION_SUFFIX):
        return
    if queue.is_paused and queue.to_do:
        yield Finding(
            code="D209",
            severity=Severity.WARNING,
            subject=queue.subject,
            problem=f"it is paused, and {counted(queue.to_do, 'job', 'wait')}",
            harm="Nobody runs them until it is resumed.",
            remedy="await queue.resume(), when the reason is gone.",
        )
        return
    if queue.workers is not None and not queue.workers and queue.to_do:
        yield Finding(
            code="D201",
            severity=Severity.ERROR,
            subject=queue.subject,
            problem=f"{counted(queue.to_do, 'job', 'wait')} and no worker is connected",
            harm="Nobody runs them, and nobody brings back the jobs of workers that died.",
            remedy="Start a worker for it, or remove the jobs if the queue is not used any more.",
        )
    elif queue.oldest_at is not None and queue.now_ms - queue.oldest_at > LONG_WAIT_MS:
        age = lasting(queue.now_ms - queue.oldest_at)
        yield Finding(
            code="D210",
            severity=Severity.WARNING,
            subject=queue.subject,
            problem=f"its oldest waiting job was added {age} ago",
            harm="Workers do not keep up, or hang.",
            remedy="Add workers or concurrency, and look at how long jobs run.",
        )


def _lists(queue: QueueFacts) -> Iterator[Finding]:
    """BullMQ 5 renames one list over the other when it pauses and when it resumes."""
    in_wait, in_paused = queue.in_lists
    if queue.is_paused and in_wait and in_paused:
        yield Finding(
            code="D218",
            severity=Severity.WARNING,
            subject=queue.subject,
            problem=f"it is paused with {counted(in_wait, 'job')} in `wait` and {in_paused} in "
            f"`paused`: BullMQ 5 and another program have both filled it",
            harm="If BullMQ 5 resumes it, those in `wait` are lost.",
            remedy="Resume it with Toril or BullMQ 6, which keep both.",
        )
    elif in_paused and not queue.is_paused:
        yield Finding(
            code="D219",
            severity=Severity.ERROR,
            subject=queue.subject,
            problem=f"it runs, and {counted(in_paused, 'job', 'wait')} in its `paused` list",
            harm="Nobody takes from that list, and the next pause by BullMQ 5 writes over it.",
            remedy="await queue.resume(); the sweep of a Toril worker does the same.",
        )


def _letters(queue: QueueFacts) -> Iterator[Finding]:
    if queue.is_for_dead_letters:
        age_ms = queue.now_ms - queue.waiting[0].timestamp
        count = queue.counts.get("waiting", 0)
        is_old = age_ms > LETTERS_WAIT_MS
        yield Finding(
            code="D203",
            severity=Severity.WARNING if is_old else Severity.INFO,
            subject=queue.subject,
            problem=f"{counted(count, 'dead letter')}, the oldest for {lasting(age_ms)}",
            harm="Work that was asked for was not done, and nobody has looked at it.",
            remedy="get_dead_letter_jobs() says why; replay them or purge them.",
        )
        if queue.workers:
            yield Finding(
                code="D216",
                severity=Severity.ERROR,
                subject=queue.subject,
                problem="a worker runs its dead letters as if they were jobs",
                harm="They are done again with their metadata inside the data, or lost.",
                remedy="Stop that worker; use replay_dead_letter() instead.",
            )
    elif queue.counts.get("failed", 0):
        count = queue.counts["failed"]
        yield Finding(
            code="D204",
            severity=Severity.WARNING if count > MANY_FAILED else Severity.INFO,
            subject=queue.subject,
            problem=f"it keeps {counted(count, 'job')} that failed for good",
            harm="They were not done, and nothing but this set says so.",
            remedy="Worker(dead_letter_queue=…) and an alert; retry_all() for those there now.",
        )


def _growth(queue: QueueFacts) -> Iterator[Finding]:
    completed = queue.counts.get("completed", 0)
    if completed > MANY_COMPLETED:
        yield Finding(
            code="D205",
            severity=Severity.WARNING,
            subject=queue.subject,
            problem=f"{completed} completed jobs are kept",
            harm="They fill the server's memory until it takes no more jobs.",
            remedy="remove_on_complete=1000, on the worker or in default_job_options; clean().",
        )


def _retries(queue: QueueFacts) -> Iterator[Finding]:
    if queue.is_for_dead_letters:
        return
    told: set[str] = set()
    for job in queue.waiting:
        for finding in check_retries(queue.subject, f"jobs named {job.name!r}", job.opts):
            if finding.code not in told:
                told.add(finding.code)
                yield finding
    burnt = [job for job in queue.failed if _looks_permanent(job)]
    if burnt:
        job = burnt[0]
        yield Finding(
            code="D215",
            severity=Severity.INFO,
            subject=queue.subject,
            problem=(
                f"job {job.id!r} was tried {job.attempts_made} times for"
                f" {(job.failed_reason or '')[:80]!r}"
            ),
            harm="An error in the data or the code is not gone at the next attempt.",
            remedy="Raise UnrecoverableError for errors that will not go away by themselves.",
        )


def _looks_permanent(job: Job) -> bool:
    reason = job.failed_reason or ""
    return job.attempts_made > 1 and reason.split(":", 1)[0].rpartition(".")[2] in _PERMANENT


def _recurring(queue: QueueFacts) -> Iterator[Finding]:
    if old := queue.repeating_by_add:
        yield Finding(
            code="D213",
            severity=Severity.WARNING,
            subject=queue.subject,
            problem=f"add(…, repeat) made {counted(len(old), 'recurring job')}, as {old[0]!r}",
            harm="That way is deprecated in BullMQ 5 and gone in 6: they will stop.",
            remedy="upsert_job_scheduler(id, cron=…) makes each anew; then remove the old ones.",
        )


def _limits(queue: QueueFacts) -> Iterator[Finding]:
    limits = []
    if queue.concurrency is not None:
        limits.append(f"at most {queue.concurrency} of its jobs run at once")
    if queue.rate is not None:
        limits.append(f"at most {queue.rate[0]} start in {queue.rate[1]} ms")
    if limits:
        yield Finding(
            code="D211",
            severity=Severity.INFO,
            subject=queue.subject,
            problem=f"{' and '.join(limits)}, over all workers",
            harm="More workers do not make it faster, which surprises who forgot the limit.",
            remedy="remove_global_concurrency(), remove_global_rate_limit(), if it is not wanted.",
        )


def _libraries(queue: QueueFacts) -> Iterator[Finding]:
    workers = queue.workers or ()
    if not workers:
        return
    strangers = [worker for worker in workers if not worker.is_toril]
    kinds = sorted({f"{w.library or 'unknown library'} {w.version}".strip() for w in workers})
    yield Finding(
        code="D208",
        severity=Severity.INFO,
        subject=queue.subject,
        problem=f"{counted(len(workers), 'worker')}: {', '.join(kinds)}",
        harm="Nothing, if that is what you expect.",
        remedy="Let all workers of a queue run the same version.",
    )
    used = [
        what
        for is_used, what in ((queue.has_groups, "groups"), (queue.has_lanes, "lanes"))
        if is_used
    ]
    if strangers and used:
        yield Finding(
            code="D207",
            severity=Severity.ERROR,
            subject=queue.subject,
            problem=(
                f"it uses {' and '.join(used)}, and has"
                f" {counted(len(strangers), 'worker')} of another library"
            ),
            harm="They finish jobs without telling the group or the lane, which then never ends.",
            remedy="Let only Toril's workers take from it.",
        )


def _compensation(queue: QueueFacts, names: dict[str, QueueFacts]) -> Iterator[Finding]:
    if queue.name.endswith(COMPENSATION_SUFFIX):
        if queue.to_do and queue.workers is not None and not queue.workers:
            yield Finding(
                code="D202",
                severity=Severity.ERROR,
                subject=queue.subject,
                problem=f"{counted(queue.to_do, 'compensation', 'wait')}, and no worker is there",
                harm="What was done for groups that failed is not undone.",
                remedy=f"Run Worker({queue.name!r}, …) beside the workers of the queue itself.",
            )
        return
    if not queue.has_groups:
        return
    other = names.get(queue.name + COMPENSATION_SUFFIX) or names.get(f"{queue.name}-compensation")
    if other is None or other.workers == []:
        yield Finding(
            code="D202",
            severity=Severity.WARNING,
            subject=queue.subject,
            problem="it has groups, and nobody works on its compensation queue",
            harm="When a group fails, nothing of it is undone until a worker comes.",
            remedy=f"Run Worker({queue.name + COMPENSATION_SUFFIX!r}, …).",
        )


def longest_options(queue: QueueFacts) -> list[JobOpts]:
    """The options that are in use in a queue, for what depends on them."""
    return [job.opts for job in queue.waiting]
