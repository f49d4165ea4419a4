"""The queues of a running system: who works on them, what piles up, what does not fit together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toril.doctor import ailments
from toril.doctor.finding import Finding
from toril.doctor.job_options import check_retries
from toril.doctor.presence import undoing
from toril.doctor.queue_facts import QueueFacts
from toril.doctor.standstills import check_standstills
from toril.doctor.wording import counted, lasting
from toril.protocol.job import Job
from toril.protocol.keys import COMPENSATION_SUFFIX

MANY_COMPLETED = 20_000
MANY_FAILED = 1000
LONG_WAIT_MS = 3_600_000
LETTERS_WAIT_MS = 24 * 3_600_000
_PERMANENT = ("KeyError", "TypeError", "ValidationError", "AttributeError", "IndexError")


def check_queues(
    queues: Sequence[QueueFacts], beside: Sequence[QueueFacts] = ()
) -> Iterator[Finding]:
    """What is wrong with ``queues``; those ``beside`` them are only known."""
    names = {queue.name: queue for queue in (*beside, *queues)}
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
        yield ailments.PAUSED.of(queue.subject, waiting=counted(queue.to_do, "job", "wait"))
        return
    if queue.workers is not None and not queue.workers and queue.to_do:
        yield ailments.NO_WORKER.of(queue.subject, waiting=counted(queue.to_do, "job", "wait"))
    elif queue.oldest_at is not None and queue.now_ms - queue.oldest_at > LONG_WAIT_MS:
        yield ailments.LONG_WAIT.of(queue.subject, age=lasting(queue.now_ms - queue.oldest_at))


def _lists(queue: QueueFacts) -> Iterator[Finding]:
    """BullMQ 5 renames one list over the other when it pauses and when it resumes."""
    in_wait, in_paused = queue.in_lists
    if queue.is_paused and in_wait and in_paused:
        yield ailments.TWO_LISTS.of(
            queue.subject, in_wait=counted(in_wait, "job"), in_paused=in_paused
        )
    elif in_paused and not queue.is_paused:
        yield ailments.FORGOTTEN_LIST.of(queue.subject, waiting=counted(in_paused, "job", "wait"))


def _letters(queue: QueueFacts) -> Iterator[Finding]:
    if queue.is_for_dead_letters:
        age_ms = queue.now_ms - queue.waiting[0].timestamp
        count = queue.counts.get("waiting", 0)
        yield ailments.DEAD_LETTERS.of(
            queue.subject,
            has_come_far=age_ms > LETTERS_WAIT_MS,
            letters=counted(count, "dead letter"),
            age=lasting(age_ms),
        )
        if queue.workers:
            yield ailments.LETTERS_RUN.of(queue.subject)
    elif queue.counts.get("failed", 0):
        count = queue.counts["failed"]
        yield ailments.FAILED_JOBS.of(
            queue.subject,
            has_come_far=count > MANY_FAILED,
            jobs=counted(count, "job"),
        )


def _growth(queue: QueueFacts) -> Iterator[Finding]:
    completed = queue.counts.get("completed", 0)
    if completed > MANY_COMPLETED:
        yield ailments.COMPLETED_JOBS.of(queue.subject, jobs=completed)


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
        yield ailments.RETRIED_IN_VAIN.of(
            queue.subject,
            job=job.id,
            attempts=job.attempts_made,
            reason=(job.failed_reason or "")[:80],
        )


def _looks_permanent(job: Job) -> bool:
    reason = job.failed_reason or ""
    return job.attempts_made > 1 and reason.split(":", 1)[0].rpartition(".")[2] in _PERMANENT


def _recurring(queue: QueueFacts) -> Iterator[Finding]:
    if old := queue.repeating_by_add:
        yield ailments.REPEATED_BY_ADD.of(
            queue.subject, jobs=counted(len(old), "recurring job"), example=old[0]
        )


def _limits(queue: QueueFacts) -> Iterator[Finding]:
    limits = []
    if queue.concurrency is not None:
        limits.append(f"at most {queue.concurrency} of its jobs run at once")
    if queue.rate is not None:
        limits.append(f"at most {queue.rate[0]} start in {queue.rate[1]} ms")
    if limits:
        yield ailments.LIMITED.of(queue.subject, limits=" and ".join(limits))


def _libraries(queue: QueueFacts) -> Iterator[Finding]:
    workers = queue.workers or ()
    if not workers:
        return
    strangers = [worker for worker in workers if not worker.is_toril]
    kinds = sorted({f"{w.library or 'unknown library'} {w.version}".strip() for w in workers})
    yield ailments.WORKERS.of(
        queue.subject, workers=counted(len(workers), "worker"), kinds=", ".join(kinds)
    )
    used = [
        what
        for is_used, what in ((queue.has_groups, "groups"), (queue.has_lanes, "lanes"))
        if is_used
    ]
    if strangers and used:
        yield ailments.STRANGERS.of(
            queue.subject, features=" and ".join(used), workers=counted(len(strangers), "worker")
        )


def _compensation(queue: QueueFacts, names: dict[str, QueueFacts]) -> Iterator[Finding]:
    if queue.name.endswith(COMPENSATION_SUFFIX):
        if queue.to_do and queue.workers is not None and not queue.workers:
            yield ailments.NOTHING_IS_UNDONE.of(
                queue.subject,
                waiting=counted(queue.to_do, "compensation", "wait"),
                queue=queue.name,
            )
        return
    if not queue.has_groups:
        return
    other = next((names[name] for name in undoing(queue.name) if name in names), None)
    if other is None or other.workers == []:
        yield ailments.NOBODY_WOULD_UNDO.of(queue.subject, queue=queue.name + COMPENSATION_SUFFIX)
