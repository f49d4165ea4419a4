# Written by tools/unasync.py from src/toril/client/partitions.py: change that file instead.
"""A queue that is made of several plain ones, so that more than one core can serve it.

Every partition is a plain queue that knows nothing about the others: this module only chooses among
them and combines their answers.  A call about one job, lane, scheduler or group goes to the
partition that has it; a call about the queue goes to all of them, one after another, and the
results are added up.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Unpack

from toril.checking import by_hand, checked_call
from toril.client.ids import new_job_id
from toril.errors import AmbiguousResultError, InvalidOptionError
from toril.options import (
    OPTION_NAMES,
    Duration,
    JobOptions,
    NewJob,
    RateLimit,
    Repeat,
    Replicas,
    milliseconds,
    new_job,
    refuse_unknown,
    schedule_of,
    whole,
)
from toril.protocol import (
    adding,
    deduplicating,
    groups,
    partitioning,
    pausing,
    reading,
    removing,
    scheduling,
)
from toril.protocol.adding import MOST_JOBS_PER_CALL, Added, Prepared, count_for_one_call
from toril.protocol.command import plain
from toril.protocol.dead_letters import (
    FILTER_NAMES,
    DeadLetterGroup,
    DeadLetterProgress,
    Filter,
    Interrupted,
    Walk,
)
from toril.protocol.groups import GroupInfo
from toril.protocol.job import Job, StoredJob
from toril.protocol.keys import Keys, check_known_id, hash_tag
from toril.protocol.measuring import Metrics
from toril.protocol.partitioning import Numbers
from toril.protocol.reading import UNFINISHED, WorkerInfo
from toril.protocol.scheduling import JobScheduler
from toril.sync.adder import Adder
from toril.sync.agreeing import AGREE_AGAIN_S
from toril.sync.batching import MOST_CALLS_AT_ONCE
from toril.sync.connection import Connection, Target
from toril.sync.letter_runs import Leg, Sums, check_resumed
from toril.sync.queue import Queue, new_jobs

MOST_IN_A_ROW = 50
"""How many jobs that may go anywhere are added to one busy partition in a row."""


class Placed(Prepared, frozen=True, kw_only=True):
    """A new job whose partition is known."""

    number: int
    job: NewJob


class PartitionedAdder(Adder):
    """Chooses the partition of each job; the adder of that plain queue does the rest."""

    def __init__(self, whole: PartitionedQueue) -> None:
        self._whole = whole

    def prepare(self, job: NewJob, suffix: str = "") -> Placed:
        whole = self._whole
        return self.place(job, partitioning.home_of_job(job, whole._count, whole._tag))

    def place(self, job: NewJob, home: int | None) -> Placed:
        """The job, ready for its partition, or for any partition if it has no home."""
        number = self._whole._anywhere() if home is None else home
        ready = self._whole._parts[number].adder.prepare(job, f"-{number}")
        return Placed(ready.id, ready.entry, ready.data, ready.opts, number=number, job=job)

    def send(self, job: Prepared) -> Added:
        assert isinstance(job, Placed)
        self._whole._agree(writes=True)
        if self._whole._earlier:
            [home] = self._whole._homes([job.job])
            job = job if home in (None, job.number) else self.place(job.job, home)
        return self._whole._parts[job.number].adder.send(job)


class PartitionedQueue(Queue):
    """``Queue(name, partitions=n)``.

    Order, priorities and LIFO apply within a partition.  A lane is in one partition, and so are
    jobs that share a deduplication id; jobs without either are spread evenly.
    """

    def __init__(
        self,
        name: str,
        *,
        connection: Target = None,
        prefix: str = "bull",
        default_job_options: JobOptions | None = None,
        replicas: int = 0,
        replicas_timeout: Duration = 1000,
        partitions: int = 1,
    ) -> None:
        self.keys = Keys(prefix, name)
        self.name = name
        partitioning.check(self.keys, partitions)
        self._count = partitions
        self._defaults: Mapping[str, Any] = default_job_options or {}
        refuse_unknown(self._defaults, OPTION_NAMES, f"the default_job_options of queue {name!r}")
        new_job("defaults", None, {}, self._defaults)
        self._replicas = Replicas.of(replicas, replicas_timeout)
        self._owns_connection = not isinstance(connection, Connection)
        self._connection = (
            connection if isinstance(connection, Connection) else Connection(connection)
        )
        self._parts = [
            Queue(
                partitioning.name_of(name, number),
                connection=self._connection,
                prefix=prefix,
                replicas=replicas,
                replicas_timeout=replicas_timeout,
            )
            for number in range(partitions)
        ]
        self._tag = hash_tag(name) or name
        self.adder: PartitionedAdder = PartitionedAdder(self)
        self._has_agreed = False
        self._agree_again_at = 0.0
        self._earlier: tuple[int, ...] = ()
        self._at = random.randrange(partitions)
        self._in_a_row = 0

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} in {self._count} partitions on {self._connection!r}>"

    @property
    def partitions(self) -> list[Queue]:
        return list(self._parts)

    def close(self) -> None:
        for part in self._parts:
            part.close()
        if self._owns_connection:
            self._connection.close()

    def _agree(self, *, writes: bool = False) -> None:
        """Raise if a different number of partitions is stored; store it if none is.

        Repeated from time to time: a growing queue takes no jobs from processes that do not know.
        It may be read: what somebody learns who only reads is asked again before a job is added.
        """
        if self._has_agreed and time.monotonic() < self._agree_again_at:
            return
        asked_at = time.monotonic()
        command = partitioning.agree(self.keys, self._count)
        if not writes:
            command = partitioning.read(self.keys)
        known = self._connection.run(command)
        known.refuse(self.keys, self._count, writes=writes)
        self._earlier = known.earlier
        self._has_agreed = (writes or bool(known.now)) and not known.next
        self._agree_again_at = asked_at + AGREE_AGAIN_S

    # ------------------------------------------------------------------ adding

    @by_hand
    def add(
        self,
        name: str,
        data: Any = None,
        *,
        repeat: Repeat | None = None,
        **options: Unpack[JobOptions],
    ) -> Job:
        self._agree(writes=True)
        job = new_job(name, data, options, self._defaults)
        if repeat is not None:
            return self._add_repeating(repeat, job)
        [home] = self._homes([job])
        placed = self.adder.place(job, home)
        return self._parts[placed.number]._add(placed)

    @by_hand
    def add_bulk(self, jobs: Iterable[NewJob]) -> list[Job]:
        given = [self._with_defaults(job) for job in new_jobs(jobs)]
        self._agree(writes=True)
        places = self._spread(self._homes(given))
        slices: list[list[int]] = []
        prepared: dict[int, Prepared] = {}
        for number, indices in places.items():
            part = self._parts[number]
            for index in indices:
                prepared[index] = part.adder.prepare(given[index], f"-{number}")
            start = 0
            while start < len(indices):
                rest = indices[start : start + MOST_JOBS_PER_CALL]
                count = count_for_one_call(prepared[index] for index in rest)
                slices.append(rest[:count])
                start += count
        homes = {index: number for number, indices in places.items() for index in indices}
        commands = []
        for indices in slices:
            part = self._parts[homes[indices[0]]]
            wanted = [prepared[index] for index in indices]
            each = part._as_added
            commands.append(adding.add_each(part.keys, wanted, each, self._replicas))
        answers: dict[int, Any] = {}
        replies = self._connection.run_all(commands, at_once=MOST_CALLS_AT_ONCE)
        for indices, reply in zip(slices, replies, strict=True):
            answers.update(zip(indices, reply, strict=True))
        adding.raise_worst(answers.values())
        added: dict[int, Job] = {}
        for number, indices in places.items():
            found = self._parts[number]._as_they_are([answers[index] for index in indices])
            added.update(zip(indices, found, strict=True))
        return [added[index] for index in range(len(given))]

    def _homes(self, jobs: Sequence[NewJob]) -> list[int | None]:
        """The partition of each job; None for one that may go anywhere.

        In a queue that has grown, a job whose id or deduplication id exists in the partition where
        it belonged before goes there, and is found to be a duplicate.
        """
        homes = [partitioning.home_of_job(job, self._count, self._tag) for job in jobs]
        looks = [
            (index, number, plain("EXISTS", *keys, parse=bool))
            for index, job in enumerate(jobs if self._earlier else ())
            for number, keys in self._earlier_places(job, homes[index])
        ]
        found = self._connection.run_all([look for _, _, look in looks]) if looks else []
        for (index, number, _), is_there in zip(looks, found, strict=True):
            if is_there:
                homes[index] = number
        return homes

    def _earlier_places(self, job: NewJob, home: int | None) -> Iterator[tuple[int, list[str]]]:
        """Where the same job may be from the time when the queue had fewer partitions."""
        if home is None:
            return
        numbers = Numbers(self._earlier, self._count)
        for number in reversed(partitioning.homes_before(job, numbers, self._tag)):
            yield number, partitioning.traces_of(self._parts[number].keys, job)

    def _anywhere(self) -> int:
        """The next partition, unless a call to the current one is in flight: then the jobs that
        wait for it are sent together."""
        is_away = self._parts[self._at].adder.is_away
        if not is_away or self._in_a_row >= MOST_IN_A_ROW:
            self._turn()
        self._in_a_row += 1
        return self._at

    def _turn(self) -> None:
        self._at = (self._at + 1) % self._count
        self._in_a_row = 0

    def _spread(self, homes: list[int | None]) -> dict[int, list[int]]:
        """Which jobs of a bulk go to which partition, each as many in a row as one call takes."""
        places: dict[int, list[int]] = {}
        free = [index for index, home in enumerate(homes) if home is None]
        for start in range(0, len(free), MOST_JOBS_PER_CALL):
            self._turn()
            places.setdefault(self._at, []).extend(free[start : start + MOST_JOBS_PER_CALL])
        for index, home in enumerate(homes):
            if home is not None:
                places.setdefault(home, []).append(index)
        return {number: sorted(indices) for number, indices in places.items()}

    # ------------------------------------------------------------------ finding

    def _part_of(self, job_id: str) -> Queue:
        """The partition that has a job; if none has it, the one that its id points to.

        An id made by Toril names its partition.  Other jobs may have been added to a partition by
        hand, or by Node, so all partitions are searched.  Ids that a partition assigned itself, as
        for dead letters, may exist in several: then it is unknown which one is meant.
        """
        self._agree()
        check_known_id(job_id)
        number = partitioning.named_in(job_id, self._count)
        if number is not None:
            return self._parts[number]
        home = partitioning.home_of(job_id, self._count)
        commands = [plain("EXISTS", part.keys.job(job_id), parse=bool) for part in self._parts]
        found = self._connection.run_all(commands)
        numbers = [number for number, is_there in enumerate(found) if is_there]
        if len(numbers) > 1:
            raise partitioning.ambiguous(self.name, job_id, numbers)
        return self._parts[numbers[0] if numbers else home]

    def _part_of_lane(self, lane: str) -> Queue:
        self._agree()
        return self._parts[partitioning.home_of(lane, self._count)]

    def _part_of_group(self, group_id: str) -> Queue:
        """The partition that owns a group; the first one if none does, which then says so."""
        self._agree()
        commands = [groups.read(part.keys, group_id) for part in self._parts]
        found = self._connection.run_all(commands)
        owners = [part for part, info in zip(self._parts, found, strict=True) if info is not None]
        return owners[0] if owners else self._parts[0]

    def _part_of_scheduler(self, scheduler_id: str) -> Queue | None:
        found = self._schedulers(scheduler_id)
        return found[0][0] if found else None

    def _schedulers(self, scheduler_id: str) -> list[tuple[Queue, JobScheduler]]:
        """The partitions that have a scheduler, and what they have; one that runs comes first.

        Several have it while it moves, after a move that was interrupted, and where an old and a
        new version of a program disagree about its lane.
        """
        self._agree()
        found = [(part, part.get_job_scheduler(scheduler_id)) for part in self._parts]
        known = [(part, one) for part, one in found if one is not None]
        return sorted(known, key=lambda pair: pair[1].is_paused)

    # ------------------------------------------------------------------ reading

    def get_job_counts(self, *states: str) -> dict[str, int]:
        self._agree()
        wanted = reading.check_states(states, beside=reading.IN_TRANSIT)
        return partitioning.add_up(self._counts(wanted))

    def _counts(self, states: Iterable[str]) -> list[dict[str, int]]:
        wanted = tuple(states)
        commands = [reading.counts(part.keys, wanted) for part in self._parts]
        return self._connection.run_all(commands)

    def get_jobs(
        self,
        states: str | Iterable[str] = (),
        start: int = 0,
        end: int = -1,
        *,
        newest_first: bool = False,
    ) -> list[Job]:
        """The jobs in these states, one state after another, taken from all partitions in turn."""
        self._agree()
        wanted = reading.check_states(states)
        counts = self._counts(wanted)
        totals = partitioning.add_up(counts)
        left, right = reading.bounds(start, end, sum(totals.values()))
        jobs: list[Job] = []
        for state in wanted:
            if left < totals[state] and right >= 0:
                of_state = [part[state] for part in counts]
                pages = partitioning.page(of_state, max(left, 0), min(right, totals[state] - 1))
                found = [
                    part.get_jobs(state, places[0], places[-1], newest_first=newest_first)
                    if places
                    else []
                    for part, places in zip(self._parts, pages, strict=True)
                ]
                jobs += partitioning.deal(pages, found)
            left, right = left - totals[state], right - totals[state]
        return jobs

    def get_job_ids(
        self, *states: str, start: int = 0, end: int = -1, newest_first: bool = False
    ) -> dict[str, list[str]]:
        self._agree()
        wanted = reading.check_states(states)
        counts = self._counts(wanted)
        ids: dict[str, list[str]] = {}
        for state in wanted:
            pages = partitioning.page([part[state] for part in counts], start, end)
            found = []
            for part, places in zip(self._parts, pages, strict=True):
                window: dict[str, Any] = {"newest_first": newest_first}
                if places:
                    window.update(start=places[0], end=places[-1])
                found.append((part.get_job_ids(state, **window))[state] if places else [])
            ids[state] = partitioning.deal(pages, found)
        return ids

    def get_counts_per_priority(self, priorities: Iterable[int]) -> dict[int, int]:
        self._agree()
        wanted = tuple(priorities)
        return partitioning.add_up([part.get_counts_per_priority(wanted) for part in self._parts])

    def get_workers(self) -> list[WorkerInfo]:
        """The workers that are connected now, each once, however many partitions it serves."""
        self._agree()
        found = [part.get_workers() for part in self._parts]
        return reading.each_once(found)

    def get_metrics(self, kind: str, start: int = 0, end: int = -1) -> Metrics:
        self._agree()
        parts = [part.get_metrics(kind) for part in self._parts]
        return partitioning.add_up_metrics(parts, start, end)

    def get_groups(
        self,
        state: str | Iterable[str] = (),
        start: int = 0,
        end: int = -1,
        *,
        newest_first: bool = False,
    ) -> list[GroupInfo]:
        self._agree()
        states = state if isinstance(state, str) else tuple(state)
        found = [part.get_groups(states, newest_first=newest_first) for part in self._parts]
        return _window(found, start, end)

    def get_lanes(self, start: int = 0, end: int = -1, *, state: str | None = None) -> list[str]:
        self._agree()
        if state is not None:
            return _window([part.get_lanes(state=state) for part in self._parts], start, end)
        counts = [part.get_lane_count() for part in self._parts]
        pages = partitioning.page(counts, start, end)
        found = [
            part.get_lanes(places[0], places[-1]) if places else []
            for part, places in zip(self._parts, pages, strict=True)
        ]
        return partitioning.deal(pages, found)

    def wait_for(
        self, job_id: str | StoredJob, timeout: Duration | None = None, *, may_come: bool = False
    ) -> Any:
        known = job_id.id if isinstance(job_id, StoredJob) else job_id
        part = self._part_of(known)
        return part.wait_for(known, timeout, may_come=may_come)

    def wait_until_empty(self, timeout: Duration | None = None) -> bool:
        self._agree()
        deadline = None
        if timeout is not None:
            deadline = time.monotonic() + milliseconds(timeout, "timeout") / 1000
        while True:
            for part in self._parts:
                left_ms = None if deadline is None else int((deadline - time.monotonic()) * 1000)
                if not part.wait_until_empty(None if left_ms is None else max(left_ms, 0)):
                    return False
            # A job that ended in one partition may have added a job to one that was empty before.
            if not any(partitioning.add_up(self._counts(UNFINISHED)).values()):
                return True

    # ------------------------------------------------------------------ steering

    def is_paused(self) -> bool:
        """Are all partitions paused?"""
        self._agree()
        commands = [pausing.is_paused(part.keys) for part in self._parts]
        paused = self._connection.run_all(commands)
        return all(paused)

    def clean(
        self,
        state: str = "completed",
        grace: Duration = 0,
        limit: int = 0,
        *,
        on_progress: Callable[[int], Any] | None = None,
    ) -> list[str]:
        whole(limit, "limit")
        self._agree()
        removed: list[str] = []
        for part in self._parts:
            left = limit - len(removed) if limit else 0
            if limit and left <= 0:
                break
            tell = _after(len(removed), on_progress)
            removed += part.clean(state, grace, left, on_progress=tell)
        return removed

    def obliterate(
        self, force: bool = False, *, on_progress: Callable[[int], Any] | None = None
    ) -> int:
        """Remove the queue and everything that belongs to it; returns how many jobs it had.

        Nothing is removed unless all partitions are paused, none has active jobs, and what they
        have for queues in other slots can be delivered.  ``force`` pauses all of them first.
        """
        self._agree()
        numbers = self._connection.run(partitioning.read(self.keys))
        parts = self._parts
        if force:
            for part in parts:
                part.pause()
        else:
            parts = self._parts_to_obliterate(is_known=bool(numbers.now))
            self._deliver_parcels(parts)
        removed = 0
        # None is erased before the jobs of all are removed, and what they left is delivered: one
        # that is erased is not paused.
        for part in parts:
            tell = _after(removed, on_progress)
            plan = removing.remove_jobs(part.keys, force=force, on_progress=tell)
            removed += self._connection.follow(plan)
        if not force:
            self._deliver_parcels(parts)
        for part in parts:
            removed += part.obliterate(force, on_progress=_after(removed, on_progress))
        if numbers.now:
            self._connection.run(partitioning.forget(self.keys, numbers))
        self._has_agreed = False
        return removed

    def _deliver_parcels(self, parts: Sequence[Queue]) -> None:
        """Deliver what they have for queues in other slots, or refuse: nothing may be lost."""
        for part in parts:
            self._connection.follow(removing.deliver_parcels(part.keys))

    def _parts_to_obliterate(self, *, is_known: bool) -> list[Queue]:
        """The partitions that exist; refuses if one of them is not paused or has active jobs.

        A call that was interrupted may have erased the others.
        """
        there = self._connection.run_all([reading.exists(part.keys) for part in self._parts])
        parts = [part for part, is_there in zip(self._parts, there, strict=True) if is_there]
        if not parts and is_known:
            return []
        paused = self._connection.run_all([pausing.is_paused(part.keys) for part in parts])
        counts = [reading.counts(part.keys, ("active",)) for part in parts]
        active = partitioning.add_up(self._connection.run_all(counts))
        is_paused = bool(parts) and all(paused)
        removing.refuse_to_obliterate(self.name, is_paused=is_paused, active=sum(active.values()))
        return parts

    def clean_groups(self, grace: Duration = 0, limit: int = 0) -> list[str]:
        whole(limit, "limit")
        self._agree()
        removed: list[str] = []
        for part in self._parts:
            left = limit - len(removed) if limit else 0
            if limit and left <= 0:
                break
            removed += part.clean_groups(grace, left)
        return removed

    def set_global_concurrency(self, concurrency: int) -> None:
        """Let at most this many jobs run at once, over all workers and partitions.

        Each partition gets its share, and cannot use what another one leaves unused.
        """
        shares = partitioning.share(concurrency, self._count, "concurrency")
        self._agree(writes=True)
        for part, share in zip(self._parts, shares, strict=True):
            part.set_global_concurrency(share)

    def get_global_concurrency(self) -> int | None:
        self._agree()
        found = [part.get_global_concurrency() for part in self._parts]
        limits = [limit for limit in found if limit is not None]
        return sum(limits) if len(limits) == self._count else None

    def is_maxed(self) -> bool:
        self._agree()
        maxed = [part.is_maxed() for part in self._parts]
        return all(maxed)

    @by_hand
    def set_global_rate_limit(
        self,
        limit: RateLimit | int | None = None,
        duration: Duration | None = None,
        *,
        max: int | None = None,  # noqa: A002
    ) -> None:
        """Let at most ``limit.max`` jobs start in any window, over all workers and partitions.

        Each partition gets its share, and cannot use what another one leaves unused.
        """
        if not isinstance(limit, RateLimit):
            raise InvalidOptionError(
                "write set_global_rate_limit(RateLimit(max=10, duration=1000))"
            )
        self._agree(writes=True)
        shares = partitioning.share_rate(limit, self._count)
        for part, share in zip(self._parts, shares, strict=True):
            part.set_global_rate_limit(share)

    def get_global_rate_limit(self) -> RateLimit | None:
        self._agree()
        found = [part.get_global_rate_limit() for part in self._parts]
        limits = [limit for limit in found if limit is not None]
        return partitioning.sum_of_rates(limits) if len(limits) == self._count else None

    def get_rate_limit_ttl(self, max: int | None = None) -> int:  # noqa: A002
        """How many ms until a rate limit lets any partition start a job."""
        self._agree()
        return min([part.get_rate_limit_ttl(max) for part in self._parts])

    def set_lane_concurrency(self, lane: str | None, concurrency: int | None) -> None:
        for part in self._parts_for(lane):
            part.set_lane_concurrency(lane, concurrency)

    def set_lane_rate_limit(self, lane: str | None, limit: RateLimit | None) -> None:
        for part in self._parts_for(lane):
            part.set_lane_rate_limit(lane, limit)

    def _parts_for(self, lane: str | None) -> list[Queue]:
        self._agree(writes=True)
        return self._parts if lane is None else [self._part_of_lane(lane)]

    # ------------------------------------------------------------------ deduplication, schedulers

    def get_deduplication_job_id(self, deduplication_id: str) -> str | None:
        self._agree()
        commands = [deduplicating.owner(part.keys, deduplication_id) for part in self._parts]
        owners = self._connection.run_all(commands)
        return next((owner for owner in owners if owner is not None), None)

    def remove_deduplication_key(self, deduplication_id: str, *, job_id: str | None = None) -> bool:
        self._agree()
        commands = [
            deduplicating.free(part.keys, deduplication_id, owner_id=job_id) for part in self._parts
        ]
        freed = self._connection.run_all(commands)
        return any(freed)

    def upsert_job_scheduler(
        self, scheduler_id: str, *, template: NewJob | None = None, **schedule: Any
    ) -> Job:
        self._agree(writes=True)
        lane = None if template is None else template.lane
        number = partitioning.home_of(scheduler_id if lane is None else lane, self._count)
        home = self._parts[number]
        found = self._schedulers(scheduler_id)
        elsewhere = [(part, one) for part, one in found if part is not home]
        # Paused, it makes no job twice while it is in two partitions. It is removed last: whatever
        # happens in between, it is somewhere, and the same call again puts it right.
        running = [part for part, one in elsewhere if not one.is_paused]
        for part in running:
            part.pause_job_scheduler(scheduler_id)
        try:
            job = home.upsert_job_scheduler(scheduler_id, template=template, **schedule)
        except AmbiguousResultError:
            raise  # its home may have it: then those elsewhere must not run
        except Exception:
            for part in running:
                part.resume_job_scheduler(scheduler_id)
            raise
        for part, _ in elsewhere:
            part.remove_job_scheduler(scheduler_id)
        return job

    def _add_repeating(self, repeat: Repeat, template: NewJob) -> Job:
        owner = template.lane or template.name
        scheduler_id = scheduling.repeating_id(owner, schedule_of(repeat))
        text = scheduler_id if template.lane is None else template.lane
        part = self._parts[partitioning.home_of(text, self._count)]
        return part._add_repeating(repeat, template)

    def get_job_scheduler(self, scheduler_id: str) -> JobScheduler | None:
        found = self._schedulers(scheduler_id)
        return found[0][1] if found else None

    def get_job_schedulers(self, start: int = 0, end: int = -1) -> list[JobScheduler]:
        self._agree()
        found = [part.get_job_schedulers() for part in self._parts]
        every = sorted((one for part in found for one in part), key=lambda one: one.next_at or 0)
        return _window([every], start, end)

    def remove_job_scheduler(self, scheduler_id: str) -> bool:
        found = self._schedulers(scheduler_id)
        removed = [part.remove_job_scheduler(scheduler_id) for part, _ in found]
        return any(removed)

    def pause_job_scheduler(self, scheduler_id: str) -> bool:
        found = self._schedulers(scheduler_id)
        paused = [part.pause_job_scheduler(scheduler_id) for part, _ in found]
        return any(paused)

    def resume_job_scheduler(self, scheduler_id: str) -> bool:
        part = self._part_of_scheduler(scheduler_id)
        return part is not None and part.resume_job_scheduler(scheduler_id)

    def change_job_scheduler(
        self, scheduler_id: str, *, template: NewJob | None = None, **schedule: Any
    ) -> JobScheduler:
        part = self._part_of_scheduler(scheduler_id) or self._parts[0]
        lane = None if template is None else template.lane
        if lane is not None and part is not self._part_of_lane(lane):
            raise InvalidOptionError(
                f"scheduler {scheduler_id!r} cannot be given lane {lane!r}, which is in another"
                f" partition; use upsert_job_scheduler()"
            )
        return part.change_job_scheduler(scheduler_id, template=template, **schedule)

    def run_job_scheduler(self, scheduler_id: str) -> Job:
        part = self._part_of_scheduler(scheduler_id)
        return (part or self._parts[0]).run_job_scheduler(scheduler_id)

    # ------------------------------------------------------------------ dead letters and events

    def is_dead_letter_queue(self) -> bool:
        self._agree()
        known = [part.is_dead_letter_queue() for part in self._parts]
        return any(known)

    def get_dead_letter_jobs(
        self,
        start: int = 0,
        end: int = 9,
        *,
        newest_first: bool = True,
        force: bool = False,
        payloads: bool = True,
    ) -> list[Job]:
        self._agree()
        counts = [part.get_dead_letter_count() for part in self._parts]
        pages = partitioning.page(counts, start, end)
        options = {"newest_first": newest_first, "force": force, "payloads": payloads}
        found = [
            part.get_dead_letter_jobs(places[0], places[-1], **options) if places else []
            for part, places in zip(self._parts, pages, strict=True)
        ]
        return partitioning.deal(pages, found)

    def get_dead_letter_summary(
        self, *, force: bool = False, payloads: bool = True, **filters: Any
    ) -> list[DeadLetterGroup]:
        self._agree()
        merged: dict[str, DeadLetterGroup] = {}
        for part in self._parts:
            for group in part.get_dead_letter_summary(force=force, payloads=payloads, **filters):
                known = merged.get(group.fingerprint)
                merged[group.fingerprint] = group if known is None else known.with_more(group)
        return sorted(merged.values(), key=lambda group: -group.count)

    def _interrupted_run(
        self, verb: str, wanted: Filter, resume: bool | str
    ) -> tuple[Interrupted | None, int]:
        """The run to be resumed, and the partition that it was interrupted in.

        Of several with the same filters that is the first: a later run, had it gone past there,
        would have taken its place.
        """
        for number, part in enumerate(self._parts if resume else ()):
            found = part._interrupted(verb, wanted, resume=resume)
            if found is not None:
                check_resumed(self.name, verb, wanted, resume, found)
                return found, number
        check_resumed(self.name, verb, wanted, resume or False, None)
        return None, 0

    def publish_event(
        self, name: str, data: Mapping[str, Any] | None = None, *, job_id: str | None = None
    ) -> str:
        part = self._parts[0] if job_id is None else self._part_of(job_id)
        return part.publish_event(name, data, job_id=job_id)


# ---------------------------------------------------------------------- the rest is passed on

_ABOUT_A_JOB = (
    *("add_log", "cancel", "change_delay", "change_priority", "clear_logs", "explain"),
    *("extend_lock", "get_children_values", "get_dependencies", "get_dependencies_count"),
    *("get_failed_children", "get_job", "get_job_log_count", "get_job_logs", "get_state"),
    *("promote", "remove", "retry", "update_data", "update_progress"),
    *("peek_dead_letter", "replay_dead_letter"),
)
_ABOUT_A_LANE = (
    *("drain_lane", "get_lane", "get_lane_jobs", "pause_lane", "resume_lane"),
    "set_lane_weight",
)
_ABOUT_A_GROUP = (
    *("cancel_group", "complete_member", "fail_member", "get_group_jobs", "get_group_state"),
    *("resolve_group", "retry_compensation", "wait_for_group"),
    *("get_group_results", "get_group_timeline", "retry_group"),
)
_ADDED_UP = (
    *("get_dead_letter_count", "get_dead_lettered_total", "get_failed_compensation_count"),
    *("get_job_scheduler_count", "get_lane_count", "reconcile_groups", "recover_lanes"),
    "trim_events",
)
_THROUGH_LETTERS = {"purge_dead_letters": "purge", "replay_all_dead_letters": "replay"}
_ADDED_UP_WITH_PROGRESS = ("drain", "promote_all", "retry_all")
_TOLD_TO_ALL = (
    *("pause", "resume", "rate_limit", "remove_rate_limit"),
    *("remove_global_concurrency", "remove_global_rate_limit"),
)


def _goes_to(find: str, name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(Queue, name))
    def call(self: PartitionedQueue, which: str, *args: Any, **options: Any) -> Any:
        part = getattr(self, find)(which)
        return getattr(part, name)(which, *args, **options)

    return call


def _adds_up(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(Queue, name))
    def call(self: PartitionedQueue, *args: Any, **options: Any) -> int:
        self._agree()
        return sum([getattr(part, name)(*args, **options) for part in self._parts])

    return call


def _adds_up_and_tells(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(Queue, name))
    def call(
        self: PartitionedQueue,
        *args: Any,
        on_progress: Callable[[int], Any] | None = None,
        **options: Any,
    ) -> int:
        self._agree()
        total = 0
        for part in self._parts:
            tell = _after(total, on_progress)
            total += getattr(part, name)(*args, on_progress=tell, **options)
        return total

    return call


def _goes_through_letters(name: str) -> Callable[..., Any]:
    verb = _THROUGH_LETTERS[name]

    @functools.wraps(getattr(Queue, name))
    def call(
        self: PartitionedQueue,
        *,
        resume: bool | str = False,
        on_progress: Callable[[DeadLetterProgress], Any] | None = None,
        **options: Any,
    ) -> int:
        """One run, under one name, through one partition after another."""
        self._agree()
        wanted = Filter.of(**{key: options[key] for key in FILTER_NAMES & options.keys()})
        found, first = self._interrupted_run(verb, wanted, resume)
        for part in self._parts[first:]:
            part._are_letters(force=options.get("force", False))
        sums = None
        if on_progress is not None:
            sums = Sums(on_progress, [part.get_dead_letter_count() for part in self._parts])
        run, total = new_job_id(), 0
        for number, part in enumerate(self._parts):
            if number < first:
                continue  # the run has finished there
            if sums is not None:
                options["on_progress"] = sums.of_part(number)
            total += getattr(part, name)(resume=Leg(run, found), **options)
            if found is not None:
                found = Interrupted(Walk(), found.wanted)
        return total

    return checked_call(call)


def _tells_all(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(Queue, name))
    def call(self: PartitionedQueue, *args: Any, **options: Any) -> None:
        self._agree(writes=True)
        for part in self._parts:
            getattr(part, name)(*args, **options)

    return call


def _after(done: int, on_progress: Callable[[int], Any] | None) -> Callable[[int], Any] | None:
    return None if on_progress is None else lambda count: on_progress(done + count)


def _window(parts: list[list[Any]], start: int, end: int) -> list[Any]:
    pages = partitioning.page([len(part) for part in parts], start, end)
    shown = [[part[place] for place in places] for part, places in zip(parts, pages, strict=True)]
    return partitioning.deal(pages, shown)


def _define(make: Callable[[str], Callable[..., Any]], names: Iterable[str]) -> None:
    for name in names:
        setattr(PartitionedQueue, name, make(name))


_define(functools.partial(_goes_to, "_part_of"), _ABOUT_A_JOB)
_define(functools.partial(_goes_to, "_part_of_lane"), _ABOUT_A_LANE)
_define(functools.partial(_goes_to, "_part_of_group"), _ABOUT_A_GROUP)
_define(_adds_up, _ADDED_UP)
_define(_adds_up_and_tells, _ADDED_UP_WITH_PROGRESS)
_define(_goes_through_letters, _THROUGH_LETTERS)
_define(_tells_all, _TOLD_TO_ALL)

__all__ = ["PartitionedQueue"]
