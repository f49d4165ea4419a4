"""A job as the server knows it, decoded when asked."""

from __future__ import annotations

from typing import Any

from toril import deprecating
from toril.protocol import attempts, codec
from toril.protocol.attempts import JobAttempt
from toril.protocol.codec import CompensationPayload, JobOpts
from toril.protocol.dead_letter import DeadLetterMetadata, first_key, metadata_in, minted_key
from toril.protocol.keys import COMPENSATION_SUFFIX, GENERATED_ID

Fields = dict[bytes, Any]
"""A job's hash: the names as they are on the wire, the values raw."""

_NOTHING = b"{}"
_OWN_FIELDS = frozenset((b"x.lane", b"x.group"))


def fields_of(reply: list[Any] | Fields) -> Fields:
    """A hash as the server lists it, name after value; the last of equal names counts.

    On a cluster redis-py has made a dictionary of it already.
    """
    if isinstance(reply, dict):
        return reply
    words = iter(reply)
    return dict(zip(words, words, strict=True))


class StoredJob:
    """What every view of a job has in common: its stored fields under Python's names."""

    __slots__ = ("_data", "_fields", "id", "name", "opts", "prefix", "queue_name")

    def __init__(self, prefix: str, queue_name: str, job_id: str, fields: Fields) -> None:
        self.prefix = prefix
        self.queue_name = queue_name
        self.id = job_id
        self._fields = fields
        self.name: str = codec.text(fields.get(b"name"))
        self.opts: JobOpts = codec.decode_options(fields.get(b"opts", _NOTHING))
        if "timeout" in self.opts.raw and self._is_ours():
            self.opts = codec.decode_options_of_before(fields[b"opts"])
        self._data: Any = codec.UNSET

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} {self.name!r} of queue {self.queue_name!r}>"

    def _is_ours(self) -> bool:
        """Did Toril make this job? It chose the id, or put it into a lane or a group."""
        return bool(
            GENERATED_ID.fullmatch(self.id)
            or self.queue_name.endswith(COMPENSATION_SUFFIX)
            or self.has_any(_OWN_FIELDS)
        )

    @property
    def data(self) -> Any:
        """The payload, decoded once."""
        if self._data is codec.UNSET:
            self._data = codec.decode(self._fields.get(b"data"), {})
        return self._data

    @property
    def data_text(self) -> bytes:
        """The payload's JSON text, byte for byte."""
        text: bytes = self._fields.get(b"data", _NOTHING)
        return text

    def raw(self, field: bytes) -> bytes | None:
        """A field of its hash, byte for byte."""
        value: bytes | None = self._fields.get(field)
        return value

    def has_any(self, fields: frozenset[bytes]) -> bool:
        """Has its hash one of these?"""
        return not fields.isdisjoint(self._fields)

    @property
    def timestamp(self) -> int:
        """When it was added, in ms since the epoch."""
        return codec.number(self._fields.get(b"timestamp")) or 0

    @property
    def attempts_started(self) -> int:
        """How often a worker took it, whatever came of it."""
        return codec.number(self._fields.get(b"ats")) or 0

    @property
    def attempts_made(self) -> int:
        """How many attempts ended, well or badly."""
        return codec.number(self._fields.get(b"atm")) or 0

    @property
    def stalled_count(self) -> int:
        """How often a worker died or fell silent over it."""
        return codec.number(self._fields.get(b"stc")) or 0

    @property
    def priority(self) -> int:
        return codec.number(self._fields.get(b"priority")) or 0

    @property
    def delay(self) -> int:
        return codec.number(self._fields.get(b"delay")) or 0

    @property
    def processed_on(self) -> int | None:
        """When it was taken last, in ms since the epoch."""
        return codec.number(self._fields.get(b"processedOn"))

    @property
    def is_expired(self) -> bool:
        """Was it taken for the first time later than its ``expires`` allows?"""
        limit_ms = self.opts.expires
        if limit_ms is None or self.attempts_started > 1:
            return False
        return (self.processed_on or 0) > self.first_due_at + limit_ms

    @property
    def first_due_at(self) -> int:
        """When it could first run, in ms since the epoch.

        That is when it was added or promoted, when its delay was over, or when its last child had
        ended.
        """
        known = codec.number(self._fields.get(b"x.due"))
        if known is not None:
            return known
        # The field is 0 once the delay is over; what the job was given is in its options.
        return self.timestamp + max(self.delay, self.opts.delay)

    @property
    def lane(self) -> str | None:
        """The lane in which it runs one after another with others, if it has one."""
        return self.opts.lane

    @property
    def parent_key(self) -> str | None:
        return codec.text_or_none(self._fields.get(b"parentKey"))

    @property
    def scheduler_id(self) -> str | None:
        return codec.text_or_none(self._fields.get(b"rjk"))

    @property
    def deduplication_id(self) -> str | None:
        return codec.text_or_none(self._fields.get(b"deid"))

    @property
    def deferred_failure(self) -> str | None:
        """Why the next worker must fail it without running it."""
        return codec.text_or_none(self._fields.get(b"defa"))

    @property
    def failed_reason(self) -> str | None:
        value = self._fields.get(b"failedReason")
        return None if value is None else codec.reason(codec.text(value))

    @property
    def stacktrace(self) -> list[str]:
        """One entry per failed attempt, the oldest first."""
        try:
            traces = codec.decode(self._fields.get(b"stacktrace"), [])
        except (ValueError, RecursionError):
            return []
        return [str(trace) for trace in traces] if isinstance(traces, list) else []

    @property
    def dead_letter(self) -> DeadLetterMetadata | None:
        """Why and from where it came, if it is a dead letter."""
        try:
            return metadata_in(self.data)
        except (ValueError, RecursionError):
            return None

    @property
    def idempotency_key(self) -> str:
        """The same text at every attempt and redelivery: for databases and payment providers.

        The one it was given; else one of fields that never change. A dead letter has the key of the
        job that it was, and so has the job that it is replayed as.
        """
        given = self.opts.idempotency_key
        if given is not None:
            return given
        if b"x.letter" in self._fields and (first := self.dead_letter) is not None:
            return first_key(first)
        return minted_key(self.queue_name, self.id, self.timestamp)

    @property
    def group_id(self) -> str | None:
        """The id of the group that it belongs to, or None."""
        group = self.opts.group
        return None if group is None else group.id

    @property
    def compensation(self) -> CompensationPayload | None:
        """What this job is to undo, when it is the compensation of a group's member."""
        return codec.decode_compensation(self.data)

    @property
    def telemetry(self) -> str | None:
        value = self._fields.get(b"tm")
        return self.opts.telemetry if value is None else codec.text(value)


class Job(StoredJob):
    """A job as it was when it was read."""

    __slots__ = ("duplicated",)

    def __init__(
        self,
        prefix: str,
        queue_name: str,
        job_id: str,
        fields: Fields,
        *,
        duplicated: bool = False,
    ) -> None:
        super().__init__(prefix, queue_name, job_id, fields)
        self.duplicated = duplicated
        """True when ``add`` found this job under the id it was given."""

    @property
    def progress(self) -> Any:
        """What the handler reported last; 0 before it did."""
        value = self._fields.get(b"progress")
        return 0 if value is None else codec.decode_or_text(value)

    @property
    def return_value(self) -> Any:
        return codec.decode_or_text(self._fields.get(b"returnvalue"))

    @property
    def finished_on(self) -> int | None:
        """When it completed or failed for good, in ms since the epoch."""
        return codec.number(self._fields.get(b"finishedOn"))

    @property
    def processed_by(self) -> str | None:
        """The name of the worker that took it last, if that worker has one."""
        return codec.text(self._fields.get(b"pb")) or None

    @property
    def attempt_history(self) -> list[JobAttempt]:
        """When each attempt began and ended, and which worker made it; the oldest first.

        The server keeps about the last 25.  Attempts made by BullMQ, or by a worker of an earlier
        version, can be missing; ``number`` shows the gap.
        """
        return attempts.history_of(self._fields)


def fence_of(job: StoredJob) -> int:
    """A lane's job carries the lane's number; any other is fenced by how often it was taken."""
    fence = codec.number(job.raw(b"x.fence"))
    return job.attempts_started if fence is None else fence


def warn_of_progress() -> None:
    """``ctx.progress(…)`` is an old name; ``job.progress`` is what was reported, and stays."""
    deprecating.warn("progress(…) of a running job", "report(…)", level=3)
