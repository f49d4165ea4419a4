"""Dead letters as operators see them: look, group, replay, repair, purge."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Callable
from typing import Any, Unpack

from toril.client.connection import Connection
from toril.client.ids import new_job_id
from toril.errors import CrossSlotError, InvalidNameError, InvalidOptionError, RefusedError
from toril.options import whole
from toril.protocol import codec, dead_letters, reading
from toril.protocol.dead_letter import DeadLetterMetadata
from toril.protocol.dead_letters import (
    DEFAULT_MAX_REPLAYS,
    LISTS,
    REPLAYS_PER_SLICE,
    DeadLetterFilter,
    DeadLetterGroup,
    DeadLetterProgress,
    Filter,
    Group,
    Slice,
    Walk,
    after,
    again,
)
from toril.protocol.job import Job
from toril.protocol.keys import Keys, hash_tag

UNCHANGED: Any = codec.UNSET


class DeadLetters:
    """The part of a queue that works on dead letters: every method is the queue's own.

    The filters ``name`` (exact), ``failed_reason`` (any part, whatever the case), ``fingerprint``,
    ``source_queue``, ``since`` and ``until`` (ms or a datetime) must all hold.
    """

    name: str
    keys: Keys
    _connection: Connection

    async def get_dead_letter_count(self) -> int:
        """How many dead letters wait here."""
        counts = [await self._connection.run(dead_letters.count(self.keys, part)) for part in LISTS]
        return sum(counts)

    async def get_dead_letter_jobs(
        self, start: int = 0, end: int = 9, *, oldest_first: bool = False
    ) -> list[Job]:
        """The dead letters from ``start`` to ``end``, both included, the newest first."""
        ids: list[str] = []
        for part in LISTS:
            command = dead_letters.page(self.keys, part, start, end, oldest_first=oldest_first)
            ids = ids or await self._connection.run(command)
        found = await self._connection.run_all([reading.job(self.keys, job_id) for job_id in ids])
        return [job for job in found if job is not None]

    async def peek_dead_letter(self, job_id: str) -> Job | None:
        """One dead letter with its metadata, or None."""
        return await self._connection.run(reading.job(self.keys, job_id))

    async def get_dead_lettered_total(self) -> int:
        """How many jobs of *this* queue ever became dead letters: a counter for monitoring."""
        return await self._connection.run(dead_letters.total(self.keys, "deadLettered"))

    async def get_dead_letter_summary(
        self, **filters: Unpack[DeadLetterFilter]
    ) -> list[DeadLetterGroup]:
        """The dead letters grouped by fingerprint, the largest group first."""
        survey = await self._survey(Filter.of(**filters))
        commands = [reading.job(self.keys, group.example) for group in survey.values()]
        examples = await self._connection.run_all(commands)
        groups = [
            DeadLetterGroup(
                fingerprint=fingerprint,
                count=group.count,
                first_seen=group.first,
                last_seen=group.last,
                example_id=group.example,
                example=example,
            )
            for (fingerprint, group), example in zip(survey.items(), examples, strict=True)
        ]
        return sorted(groups, key=lambda group: -group.count)

    async def replay_dead_letter(
        self,
        job_id: str,
        *,
        data: Any = UNCHANGED,
        by: str | None = None,
        keep_delay: bool = False,
        max_replays: int | None = None,
        force: bool = False,
    ) -> str:
        """Send a dead letter back to the queue it came from; returns the id of the new job.

        The new job has the data and options of the first, and its idempotency key, and no attempts
        made.  ``data`` repairs the payload; the first one is kept, and ``by`` says who did it.
        Raises ``DeadLetterNotFoundError`` when somebody was faster, and ``InvalidGroupStateError``
        for a member of a group that is over or being undone, unless ``force`` is given.
        """
        source = await self._connection.run(dead_letters.source_of(self.keys, job_id))
        if source is None:
            return await self._replay_apart(
                job_id, data, by=by, keep_delay=keep_delay, max_replays=max_replays, force=force
            )
        text = None
        if data is not UNCHANGED:
            text = codec.encode(data, f"the new data of dead letter {job_id!r}")
        self._connection.check_slots(self.keys, self.keys.sibling(source))
        new_id = await self._connection.run(
            dead_letters.replay(
                self.keys,
                job_id,
                new_job_id(),
                source,
                keep_delay=keep_delay,
                by=by,
                max_replays=max_replays,
                force=force,
                text=text,
                is_repaired=text is not None,
            )
        )
        if new_id is not None:
            return new_id
        return await self._replay_apart(
            job_id, data, by=by, keep_delay=keep_delay, max_replays=max_replays, force=force
        )

    async def replay_all_dead_letters(
        self,
        *,
        by: str | None = None,
        keep_delay: bool = False,
        max_replays: int | None = DEFAULT_MAX_REPLAYS,
        force: bool = False,
        rate: float | None = None,
        progress: Callable[[DeadLetterProgress], Any] | None = None,
        dry_run: bool = False,
        resume: bool = False,
        **filters: Unpack[DeadLetterFilter],
    ) -> int:
        """Send the dead letters that pass the filters back to their queues; returns how many.

        Works in slices, the oldest first; what arrives meanwhile is left alone.  ``rate`` is how
        many jobs to send per second, ``dry_run`` only counts, and ``resume`` goes on where an
        earlier call with the same filters was interrupted, and counts what that one did.  Letters
        that came back ``max_replays`` times are left alone; None replays them too.  So are members
        of groups that are over or being undone, unless ``force`` is given.
        """
        wanted = Filter.of(**filters)
        if max_replays is not None:
            whole(max_replays, "max_replays")
        if rate is not None and not (isinstance(rate, (int, float)) and rate > 0):
            raise InvalidOptionError(f"rate={rate!r} must be a number of jobs per second above 0")
        if dry_run:
            survey = await self._survey(
                wanted, is_for_replay=True, max_replays=max_replays, force=force
            )
            return sum(group.count for group in survey.values())
        run = new_job_id()
        sweep = dead_letters.sweep_key(self.keys, "replay", wanted)
        walk = await self._begin(sweep, resume=resume)
        before, began = walk.done, time.monotonic()
        at_once = REPLAYS_PER_SLICE
        if rate is not None:
            at_once = min(at_once, max(1, math.ceil(rate / 10)))
        examined = held = 0
        while True:
            result = await self._connection.run(
                dead_letters.replay_slice(
                    self.keys,
                    walk,
                    wanted,
                    [new_job_id() for _ in range(at_once)],
                    run=run,
                    sweep=sweep,
                    tag=hash_tag(self.keys.base) if self._connection.is_cluster else None,
                    keep_delay=keep_delay,
                    by=by,
                    max_replays=max_replays,
                    force=force,
                )
            )
            extra = 0
            for letter_id in result.asked:
                extra += await self._replay_asked(
                    letter_id,
                    wanted,
                    by=by,
                    keep_delay=keep_delay,
                    max_replays=max_replays,
                    force=force,
                )
            is_over = _is_over(walk, result)
            walk = after(walk, result, taken_apart=extra)
            examined += result.examined
            held += result.held
            await _tell(progress, walk, result, examined, held)
            if is_over:
                return walk.done
            if rate is not None:
                ahead_s = (walk.done - before) / rate - (time.monotonic() - began)
                if ahead_s > 0:
                    await asyncio.sleep(ahead_s)

    async def purge_dead_letters(
        self,
        *,
        progress: Callable[[DeadLetterProgress], Any] | None = None,
        dry_run: bool = False,
        resume: bool = False,
        **filters: Unpack[DeadLetterFilter],
    ) -> int:
        """Remove the dead letters that pass the filters for good; returns how many.

        Without a filter every waiting job of this queue goes.  Works in slices, as a replay does.
        """
        wanted = Filter.of(**filters)
        if dry_run:
            if not wanted.args():
                return await self.get_dead_letter_count()
            return sum(group.count for group in (await self._survey(wanted)).values())
        run = new_job_id()
        sweep = dead_letters.sweep_key(self.keys, "purge", wanted)
        walk = await self._begin(sweep, resume=resume)
        examined = 0
        accepted: list[str] = []
        while True:
            command = dead_letters.purge_slice(
                self.keys, walk, wanted, run=run, sweep=sweep, accepted=accepted
            )
            result = await self._connection.run(command)
            looked_at = bool(accepted)
            accepted = []
            for letter_id in () if looked_at else result.asked:
                if await self._admitted(letter_id, wanted) is not None:
                    accepted.append(letter_id)
            if accepted:
                walk = again(walk, result)
                continue
            is_over = _is_over(walk, result)
            walk = after(walk, result)
            examined += result.examined
            await _tell(progress, walk, result, examined, 0)
            if is_over:
                return walk.done

    async def _begin(self, sweep: str, *, resume: bool) -> Walk:
        last = await self._connection.run(dead_letters.last_walk(sweep)) if resume else None
        return Walk() if last is None else last

    async def _survey(
        self,
        wanted: Filter,
        *,
        is_for_replay: bool = False,
        max_replays: int | None = None,
        force: bool = False,
    ) -> dict[str, Group]:
        """Walk through all letters and count those that pass, by fingerprint."""
        found: dict[str, Group] = {}
        walk = Walk()
        while True:
            command = dead_letters.survey_slice(
                self.keys,
                walk,
                wanted,
                is_for_replay=is_for_replay,
                max_replays=max_replays,
                force=force,
            )
            result = await self._connection.run(command)
            for fingerprint, group in result.groups.items():
                found[fingerprint] = group.merged(found.get(fingerprint))
            for letter_id in result.asked:
                job = await self._admitted(letter_id, wanted)
                if job is not None:
                    letter = Group(1, job.timestamp, job.timestamp, job.id)
                    meta = job.dead_letter
                    fingerprint = meta.fingerprint if meta is not None else ""
                    found[fingerprint] = letter.merged(found.get(fingerprint))
            if _is_over(walk, result):
                return found
            walk = after(walk, result)

    async def _admitted(self, letter_id: str, wanted: Filter) -> Job | None:
        """A letter that Toril did not write, if it is one and passes the filter."""
        job = await self._connection.run(reading.job(self.keys, letter_id))
        meta = None if job is None else _metadata(job)
        return job if meta is not None and wanted.admits(meta) else None

    async def _replay_asked(
        self,
        letter_id: str,
        wanted: Filter,
        *,
        by: str | None,
        keep_delay: bool,
        max_replays: int | None,
        force: bool,
    ) -> int:
        """Replay one letter of a bulk that the script could not decide on; 1 if it went."""
        if await self._admitted(letter_id, wanted) is None:
            return 0
        try:
            await self.replay_dead_letter(
                letter_id, by=by, keep_delay=keep_delay, max_replays=max_replays, force=force
            )
        except (RefusedError, CrossSlotError):
            return 0  # it stays where it is
        return 1

    async def _replay_apart(
        self,
        job_id: str,
        data: Any,
        *,
        by: str | None,
        keep_delay: bool,
        max_replays: int | None,
        force: bool,
    ) -> str:
        """Replay a letter that has to be decoded: another program wrote it or changed its data."""
        job = await self._connection.run(reading.job(self.keys, job_id))
        if job is None:
            raise dead_letters.not_found(job_id, self.name)
        meta = _metadata(job)
        if meta is None or not meta.source_queue:
            raise dead_letters.source_unknown(job_id, self.name)
        try:
            source = self.keys.sibling(meta.source_queue)
        except InvalidNameError as error:
            raise dead_letters.source_unknown(job_id, self.name) from error
        self._connection.check_slots(self.keys, source)
        is_repaired = data is not UNCHANGED
        new_text = codec.encode(data, f"the new data of {job_id!r}") if is_repaired else None
        priority = meta.original_opts.get("priority")
        delay = meta.original_opts.get("delay")
        new_id = await self._connection.run(
            dead_letters.replay(
                self.keys,
                job_id,
                new_job_id(),
                meta.source_queue,
                keep_delay=keep_delay,
                by=by,
                max_replays=max_replays,
                force=force,
                text=new_text or dead_letters.original_text(job),
                options=dead_letters.original_options(job, meta),
                job_id=meta.original_job_id,
                priority=priority if isinstance(priority, int) else 0,
                delay=delay if isinstance(delay, int) else 0,
                is_repaired=is_repaired,
            )
        )
        assert new_id is not None
        return new_id


def _metadata(job: Job) -> DeadLetterMetadata | None:
    try:
        return job.dead_letter
    except ValueError:
        return None


def _is_over(walk: Walk, result: Slice) -> bool:
    return result.is_done and walk.list == LISTS[-1]


async def _tell(
    progress: Callable[[DeadLetterProgress], Any] | None,
    walk: Walk,
    result: Slice,
    examined: int,
    held: int,
) -> None:
    if progress is None:
        return
    _told = progress(
        DeadLetterProgress(done=walk.done, examined=examined, held=held, left=result.length)
    )
    # unasync: off
    if inspect.isawaitable(_told):
        await _told
    # unasync: on
