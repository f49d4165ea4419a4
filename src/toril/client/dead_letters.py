"""Dead letters as operators see them: look, group, replay, repair, purge."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from toril.client.connection import Connection
from toril.client.ids import new_job_id
from toril.client.letter_runs import Fate, Leg, Pace, Told, check_rate, check_resumed
from toril.deprecating import renamed
from toril.errors import (
    CrossSlotError,
    InvalidGroupStateError,
    InvalidNameError,
    InvalidOptionError,
    NotDeadLettersError,
    RefusedError,
    TooManyReplaysError,
)
from toril.options import ReplacedOptions
from toril.protocol import codec, dead_letters, partitioning, reading, replaying
from toril.protocol.dead_letter import DeadLetterMetadata, without_metadata
from toril.protocol.dead_letters import (
    FILTER_NAMES,
    DeadLetterFilter,
    DeadLetterGroup,
    DeadLetterProgress,
    Filter,
    Group,
    Interrupted,
    Run,
    Walk,
    after,
    again,
    has_begun_anew,
)
from toril.protocol.job import Job
from toril.protocol.keys import Keys, hash_tag
from toril.protocol.removing import OnProgress
from toril.protocol.replay_options import DEFAULT_MAX_REPLAYS, Changes, ReplayOptions
from toril.protocol.replaying import Contents, ReplayFilter

UNCHANGED: Any = codec.UNSET
Transform = Callable[[Any, DeadLetterMetadata], Any]
"""Repairs a letter: from its data and metadata to the new data."""
MOST_EXAMPLES = 1000
LOOKED_AT = 4
"""How many more jobs than one at each end are read to tell what waits in an unmarked queue."""
_FROM_THE_OLDEST = Walk()


class QueueDeadLetters:
    """The part of a queue that works on dead letters: every method is the queue's own.

    A letter must match all of the filters ``name`` (exact), ``failed_reason`` (any part of it,
    ignoring case), ``fingerprint``, ``source_queue``, ``since`` and ``until`` (ms, a datetime, or a
    timedelta for how long ago).

    Methods that list, group, replay or remove many letters raise ``NotDeadLettersError`` for a
    queue that has other waiting jobs and never received a letter, unless ``force`` is given.
    """

    name: str
    keys: Keys
    _connection: Connection

    async def get_dead_letter_count(self) -> int:
        """How many dead letters are here, including prioritized and delayed ones."""
        return await self._connection.follow(dead_letters.total_count(self.keys))

    @renamed("oldest_first", "newest_first", operator.not_)
    async def get_dead_letter_jobs(
        self,
        start: int = 0,
        end: int = 9,
        *,
        newest_first: bool = True,
        force: bool = False,
        payloads: bool = True,
    ) -> list[Job]:
        """The dead letters from ``start`` to ``end``, both included, by default the newest first.

        Those with a priority or a delay come last.  With ``payloads=False`` the ``data`` of each
        are only its metadata, so large payloads are not sent over the network.
        """
        jobs = await self._page(start, end, oldest_first=not newest_first, payloads=payloads)
        if jobs and not any(_metadata(job) is not None for job in jobs):
            await self._are_letters(force=force)
        return jobs

    async def peek_dead_letter(self, job_id: str) -> Job | None:
        """One dead letter with its metadata, or None."""
        return await self._connection.run(reading.job(self.keys, job_id))

    async def is_dead_letter_queue(self) -> bool:
        """Whether this is a dead letter queue: it has ever received a letter, or it is empty."""
        try:
            await self._are_letters(force=False)
        except NotDeadLettersError:
            return False
        return True

    async def get_dead_lettered_total(self) -> int:
        """How many jobs of *this* queue have ever become dead letters: a counter for monitoring."""
        return await self._connection.run(dead_letters.total(self.keys, "deadLettered"))

    async def get_dead_letter_summary(
        self,
        *,
        force: bool = False,
        payloads: bool = True,
        on_progress: OnProgress | None = None,
        **filters: Unpack[DeadLetterFilter],
    ) -> list[DeadLetterGroup]:
        """The dead letters grouped by fingerprint, the largest group first.

        All letters are read, in short slices; ``on_progress`` gets the number read so far.
        Only the largest 1,000 groups have an ``example``.  With ``payloads=False`` the ``data`` of
        an example are only its metadata.
        """
        wanted = Filter.of(**filters)
        await self._are_letters(force=force)
        survey = await self._survey(await self._at_times(wanted), on_progress=on_progress)
        largest = sorted(survey.items(), key=lambda item: -item[1].count)
        ids = [group.example for _, group in largest[:MOST_EXAMPLES]]
        examples = {job.id: job for job in await self._read(ids, payloads=payloads)}
        return [
            DeadLetterGroup(
                fingerprint=fingerprint,
                count=group.count,
                first_seen=group.first,
                last_seen=group.last,
                example_id=group.example,
                example=examples.get(group.example),
            )
            for fingerprint, group in largest
        ]

    async def replay_dead_letter(
        self,
        job_id: str,
        *,
        data: Any = UNCHANGED,
        queue_name: str | None = None,
        by: str | None = None,
        keep_delay: bool = False,
        max_replays: int | None = None,
        force: bool = False,
        dry_run: bool = False,
        **options: Unpack[ReplacedOptions],
    ) -> str:
        """Send a dead letter back to the queue it came from; returns the id of the new job.

        The new job has the data, options and idempotency key of the original job, and starts with
        no attempts made.  ``data`` replaces the payload; the original one is kept, and ``by`` says
        who changed it.  With ``queue_name`` the job goes to that queue instead, under the same
        prefix.  ``options`` such as ``attempts`` or ``delay`` replace those of the original job.
        Raises ``DeadLetterNotFoundError`` if somebody was faster, and ``InvalidGroupStateError``
        for a member of a group that is over or being undone, unless ``force`` is given.
        ``dry_run`` raises the same errors and changes nothing; no job has the id that it returns.
        """
        how = ReplayOptions(
            target=None if queue_name is None else await self._sibling(queue_name),
            changes=Changes.of(options, keep_delay=keep_delay),
            by=by,
            keep_delay=keep_delay,
            max_replays=max_replays,
            force=force,
            dry_run=dry_run,
        )
        return await self._replay_one(job_id, _repaired(job_id, data), how)

    @renamed("progress", "on_progress")
    async def replay_all_dead_letters(
        self,
        *,
        by: str | None = None,
        keep_delay: bool = False,
        max_replays: int | None = DEFAULT_MAX_REPLAYS,
        force: bool = False,
        rate: float | None = None,
        queue_name: str | None = None,
        transform: Transform | None = None,
        on_progress: Callable[[DeadLetterProgress], Any] | None = None,
        dry_run: bool = False,
        resume: bool | str = False,
        **filters: Unpack[ReplayFilter],
    ) -> int:
        """Send the dead letters that match the filters back to their queues; returns how many.

        Works in slices, the oldest first; letters that arrive in the meantime are left alone.
        ``rate`` is how many jobs to send per second, and ``dry_run`` only counts.  ``resume=True``
        continues an interrupted call with the same filters, and includes what that one did in the
        count.  ``resume`` with the name of a run, as reported to ``on_progress``, resumes that run
        with its own filters.  Letters that came back ``max_replays`` times are left alone; None
        replays them too.  So are members of groups that are over or being undone, unless ``force``
        is given.

        ``transform`` repairs each letter: it gets the data and the metadata, and returns the new
        data; what it raises ends the run, which can be resumed.  With ``queue_name`` all go to that
        queue.  Job options such as ``attempts`` or ``delay`` replace those of each letter; pass
        them again when you resume a run.
        """
        wanted, changes = _split(filters, keep_delay=keep_delay)
        how = ReplayOptions(
            target=None if queue_name is None else await self._sibling(queue_name),
            changes=changes,
            by=by,
            keep_delay=keep_delay,
            max_replays=max_replays,
            force=force,
        )
        check_rate(rate)
        await self._are_letters(force=force)
        run, walk, wanted = await self._begin("replay", wanted, resume=resume)
        if dry_run:
            survey = await self._survey(wanted, how, walk=walk)
            return sum(group.count for group in survey.values())
        tell = Told(on_progress, run.name, walk.done)
        return await self._replay_slices(run, walk, wanted, how, transform, rate, tell)

    @renamed("progress", "on_progress")
    async def purge_dead_letters(
        self,
        *,
        on_progress: Callable[[DeadLetterProgress], Any] | None = None,
        dry_run: bool = False,
        resume: bool | str = False,
        force: bool = False,
        **filters: Unpack[DeadLetterFilter],
    ) -> int:
        """Remove the dead letters that match the filters for good; returns how many.

        Without a filter, every waiting job of this queue is removed.  Works in slices like a
        replay.  ``force`` also purges a queue that is not a dead letter queue.
        """
        wanted = Filter.of(**filters)
        is_sure = await self._are_letters(force=force)
        run, walk, wanted = await self._begin("purge", wanted, resume=resume)
        if dry_run:
            if not wanted.args() and not run.resumed:
                return await self.get_dead_letter_count()
            survey = await self._survey(wanted, walk=walk)
            return sum(group.count for group in survey.values())
        tell = Told(on_progress, run.name, walk.done)
        accepted: list[str] = []
        while True:
            command = dead_letters.purge_slice(
                self.keys, walk, wanted, run=run, is_sure=is_sure, accepted=accepted
            )
            result = await self._connection.run(command)
            looked_at = bool(accepted)
            accepted = []
            for letter_id in () if looked_at else result.asked:
                if await self._admitted(letter_id, wanted, payload=False) is not None:
                    accepted.append(letter_id)
            if accepted:
                walk = again(walk, result)
                continue
            walk = after(walk, result)
            await tell.slice(walk, result)
            if result.is_last and not result.asked:  # else it is not known that this is done, too
                return walk.done

    async def _sibling(self, queue_name: str) -> Keys:
        """The target of letters that do not go back to their own queue."""
        if queue_name == self.name:
            raise InvalidOptionError(
                f"queue_name={queue_name!r} is the dead letter queue itself; name another one"
            )
        target = self.keys.sibling(queue_name)
        self._connection.check_slots(target)
        if partitions := (await self._connection.run(partitioning.read(target))).now:
            raise InvalidOptionError(
                f"queue {queue_name!r} has {partitions} partitions, and its workers take nothing"
                f" from the plain queue of this name; name one of its partitions, such as"
                f" {partitioning.name_of(queue_name, 0)!r}"
            )
        return target

    async def _page(self, start: int, end: int, *, oldest_first: bool, payloads: bool) -> list[Job]:
        page = dead_letters.page(self.keys, start, end, oldest_first=oldest_first)
        return await self._read(await self._connection.follow(page), payloads=payloads)

    async def _read(self, ids: Sequence[str], *, payloads: bool) -> list[Job]:
        read = reading.jobs_of if payloads else dead_letters.heads
        return await self._connection.follow(read(self.keys, ids))

    async def _are_letters(self, *, force: bool) -> bool:
        """Are the jobs that wait here dead letters? Raises if they are something else.

        An unmarked queue got its letters from another program, or from a version that did not mark
        it; a few jobs are enough to tell.  False for an empty queue: anything may arrive next.
        """
        if force or await self._connection.run(dead_letters.is_marked(self.keys)):
            return True
        jobs = await self._page(0, LOOKED_AT, oldest_first=True, payloads=False)
        jobs += await self._page(0, LOOKED_AT, oldest_first=False, payloads=False)
        if not jobs:
            return False
        if any(_metadata(job) is not None for job in jobs):
            return True
        raise dead_letters.not_dead_letters(self.name)

    async def _begin(
        self, verb: str, wanted: Filter, *, resume: bool | str
    ) -> tuple[Run, Walk, Filter]:
        """A new run, where it begins, and what it looks for.

        A run that resumes an earlier one gets its own name: the earlier one may still be running.
        """
        if isinstance(resume, Leg):
            name, found = str(resume), resume.found
        else:
            name, found = new_job_id(), await self._interrupted(verb, wanted, resume=resume)
            check_resumed(self.name, verb, wanted, resume, found)
        if found is not None:
            # One that is resumed by its name has filters, though none are given now.
            said = wanted if wanted.args() else found.wanted
            return Run(verb, name, said, found.run), found.walk, found.wanted
        return Run(verb, name, wanted), Walk(), await self._at_times(wanted)

    async def _interrupted(
        self, verb: str, wanted: Filter, *, resume: bool | str
    ) -> Interrupted | None:
        """The run that is to be resumed, if it is one of this queue."""
        earlier = resume if isinstance(resume, str) else None
        if resume is True:
            earlier = await self._connection.run(dead_letters.latest_run(self.keys, verb, wanted))
        if earlier is None:
            return None
        return await self._connection.run(dead_letters.interrupted(self.keys, verb, earlier))

    async def _at_times(self, wanted: Filter) -> Filter:
        """The filter with times in place of durations, by the server's clock."""
        if not wanted.is_relative:
            return wanted
        return wanted.at(await self._connection.run(dead_letters.server_time(self.keys)))

    async def _survey(
        self,
        wanted: Filter,
        replay: ReplayOptions | None = None,
        *,
        walk: Walk = _FROM_THE_OLDEST,
        on_progress: OnProgress | None = None,
    ) -> dict[str, Group]:
        """Walk through all letters and count those that match, by fingerprint.

        Letters that ``replay`` would leave alone are not counted.  A ``walk`` that was interrupted
        is gone on with: what died after it began is not of its run.
        """
        found: dict[str, Group] = {}
        elsewhere: dict[str, Group] = {}
        examined = 0
        while True:
            command = dead_letters.survey_slice(self.keys, walk, wanted, replay)
            result = await self._connection.run(command)
            if has_begun_anew(walk, result):
                found = dict(elsewhere)
            examined += result.examined
            for fingerprint, group in result.groups.items():
                found[fingerprint] = group.merged(found.get(fingerprint))
            for letter_id in result.asked:
                job = await self._admitted(letter_id, wanted, payload=False)
                if job is not None and (replay is None or await self._would_go(job, replay)):
                    letter = Group(1, job.timestamp, job.timestamp, job.id)
                    meta = job.dead_letter
                    fingerprint = meta.fingerprint if meta is not None else ""
                    found[fingerprint] = letter.merged(found.get(fingerprint))
            if on_progress is not None:
                on_progress(examined)
            if result.is_last:
                return found
            if result.next:
                elsewhere = dict(found)
            walk = after(walk, result)

    async def _would_go(self, job: Job, how: ReplayOptions) -> bool:
        """Would a replay take a letter of which only its data, or a group elsewhere, can tell?"""
        meta = job.dead_letter
        if meta is None or not (how.target or meta.source_queue):
            return True
        target = how.target or self.keys.sibling(meta.source_queue)
        try:
            await self._judge(job.id, new_job_id(), target, how)
        except InvalidGroupStateError:
            return False
        return True

    async def _admitted(self, letter_id: str, wanted: Filter, *, payload: bool) -> Job | None:
        """A letter that Toril did not write, if it is one and matches the filter."""
        for job in await self._read([letter_id], payloads=payload):
            meta = _metadata(job)
            if meta is not None and wanted.admits(meta):
                return job
        return None

    async def _replay_slices(
        self,
        run: Run,
        walk: Walk,
        wanted: Filter,
        how: ReplayOptions,
        transform: Transform | None,
        rate: float | None,
        tell: Told,
    ) -> int:
        """Replay what matches, slice by slice; returns how many, including the run's earlier ones.

        Each slice gets new ids; those it does not need are never used.
        """
        pace = Pace(rate, walk.done)
        at_once = pace.most_at_once(replaying.REPLAYS_PER_SLICE)
        asks, seeks = transform is not None, await self._seeks_homes(how)
        while True:
            ids = [new_job_id() for _ in range(at_once)]
            command = replaying.replay_slice(
                self.keys, walk, wanted, ids, how, run=run, asks=asks, seeks_homes=seeks
            )
            result = await self._connection.run(command)
            fates = {
                letter_id: await self._replay_asked(letter_id, wanted, how, transform)
                for letter_id in result.asked
            }
            sent = {letter_id for letter_id, fate in fates.items() if fate is Fate.SENT}
            walk = after(walk, result, taken_apart=sent)
            await tell.slice(walk, result, fates.values())
            if result.is_last and not result.asked:  # else it is not known that this is done, too
                return walk.done
            await pace.keep(walk.done)

    async def _replay_asked(
        self, letter_id: str, wanted: Filter, how: ReplayOptions, transform: Transform | None
    ) -> Fate:
        """Replay one letter of a bulk that the script could not decide on."""
        job = await self._admitted(letter_id, wanted, payload=True)
        if job is None:
            return Fate.LEFT
        data = UNCHANGED
        if transform is not None and (meta := job.dead_letter) is not None:
            data = transform(without_metadata(job.data), meta)
            # unasync: off
            if inspect.isawaitable(data):
                data = await data
            # unasync: on
        try:
            await self._replay_one(letter_id, _repaired(letter_id, data), how)
        except InvalidGroupStateError:
            return Fate.HELD_BY_GROUP
        except TooManyReplaysError:
            return Fate.HELD
        except (RefusedError, CrossSlotError):
            return Fate.LEFT
        return Fate.SENT

    async def _replay_one(self, letter_id: str, repaired: bytes | None, how: ReplayOptions) -> str:
        """Replay one letter, from Toril's notes about it or, if they do not suffice, its data."""
        note = await self._connection.run(dead_letters.note_of(self.keys, letter_id))
        if note is not None:
            if how.changes is not None:
                how.changes.check_lane(letter_id, note.lane)
            target = how.target or await self._home(letter_id, note.source, how, note.lane)
            contents = None if repaired is None else Contents(text=repaired, is_repaired=True)
            new_id = await self._replay_to(target, letter_id, how, contents)
            if new_id is not None:
                return new_id
        lane = None if note is None else note.lane
        target, contents = await self._taken_apart(letter_id, repaired, how, lane)
        new_id = await self._replay_to(target, letter_id, how, contents)
        if new_id is None:  # not to be: what it is given it need not cut out of the letter
            raise dead_letters.not_found(letter_id, self.name)
        return new_id

    async def _home(
        self, letter_id: str, source: str, how: ReplayOptions, lane: str | None
    ) -> Keys:
        """The queue that a letter goes back to: of one with partitions, that of the job's lane.

        It may be another one than before: since then the queue has grown, or the replay changes
        the lane.  What belongs to a group goes where its group knows it.
        """
        lane = (how.changes and how.changes.job.lane) or lane
        keys, part = self.keys.sibling(source), partitioning.whole_of(source)
        if lane is None or part is None:
            return keys
        stem, number = part
        numbers = await self._connection.run(partitioning.read(self.keys.sibling(stem)))
        if number >= numbers.now or (home := partitioning.home_of(lane, numbers.now)) == number:
            return keys
        if await self._connection.run(dead_letters.is_member(self.keys, letter_id)):
            return keys
        return self.keys.sibling(partitioning.name_of(stem, home))

    async def _seeks_homes(self, how: ReplayOptions) -> bool:
        """May a lane of the letters here be in another partition than the one they came from?"""
        if how.target is not None:
            return False
        if how.changes is not None and how.changes.job.lane is not None:
            return True
        if (part := partitioning.whole_of(self.name)) is None:
            return False
        whole = self.keys.sibling(hash_tag(part[0]) or part[0])
        numbers = await self._connection.run(partitioning.read(whole))
        return bool(numbers.earlier) or not numbers.now

    async def _replay_to(
        self, target: Keys, letter_id: str, how: ReplayOptions, contents: Contents | None
    ) -> str | None:
        self._connection.check_slots(target)
        new_id = new_job_id()
        id_in_group = await self._judge(letter_id, new_id, target, how)
        replayed = await self._connection.run(
            replaying.replay(self.keys, letter_id, new_id, target.name, how, contents)
        )
        return replayed and (id_in_group or replayed)

    async def _judge(
        self, letter_id: str, new_id: str, target: Keys, how: ReplayOptions
    ) -> str | None:
        """Ask a letter's group in another slot; the id of its job there, None without such a group.

        Raises ``InvalidGroupStateError`` if the group does not take the job.
        """
        if not self._connection.is_cluster:
            return None
        group = await self._connection.run(dead_letters.group_elsewhere(self.keys, letter_id))
        if group is None:
            return None
        owner, member = group
        command = replaying.judge(
            owner, member, letter_id, self.name, new_id, target, force=how.force
        )
        return await self._connection.run(command)

    async def _taken_apart(
        self, letter_id: str, repaired: bytes | None, how: ReplayOptions, lane: str | None
    ) -> tuple[Keys, Contents]:
        """Where a letter that another program wrote or changed goes, and with what."""
        job = await self._connection.run(reading.job(self.keys, letter_id))
        if job is None:
            raise dead_letters.not_found(letter_id, self.name)
        meta = _metadata(job)
        if meta is None or (how.target is None and not meta.source_queue):
            raise dead_letters.source_unknown(letter_id, self.name)
        try:
            source = how.target or await self._home(letter_id, meta.source_queue, how, lane)
        except InvalidNameError as error:
            raise dead_letters.source_unknown(letter_id, self.name) from error
        return source, Contents.of_letter(job, meta, repaired)


def _split(given: ReplayFilter, *, keep_delay: bool) -> tuple[Filter, Changes | None]:
    """Which letters a bulk replay is about, and how it changes their jobs."""
    conditions: Any = {name: value for name, value in given.items() if name in FILTER_NAMES}
    options = {name: value for name, value in given.items() if name not in FILTER_NAMES}
    changes = Changes.of(options, keep_delay=keep_delay, others=FILTER_NAMES)
    if changes is not None and changes.is_for_one:
        raise InvalidOptionError(
            "several jobs with one idempotency_key would count as one; replay the letter by its id"
        )
    return Filter.of(**conditions), changes


def _metadata(job: Job) -> DeadLetterMetadata | None:
    try:
        return job.dead_letter
    except ValueError:
        return None


def _repaired(letter_id: str, data: Any) -> bytes | None:
    """The new data as text; None if the letter keeps its own."""
    if data is UNCHANGED:
        return None
    return codec.encode(data, f"the new data of dead letter {letter_id!r}")
