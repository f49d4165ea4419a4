"""Every option of a job or a worker, its default and its check, in one place.

Options are frozen values.  An ``int`` is milliseconds wherever a duration is meant, and a
``timedelta`` does as well.  ``None`` means "not given": the default of the queue or of the worker
decides.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict, get_args

import msgspec

from toril.checking import refuse_wrong_fields, shown
from toril.errors import InvalidNameError, InvalidOptionError, UnknownOptionError

Duration = int | timedelta
"""A length of time: milliseconds, or a ``timedelta``."""

MAX_PRIORITY = 2**21 - 1
MAX_DELAY_MS = 10 * 366 * 24 * 3600 * 1000
MAX_ATTEMPTS = 1_000_000
MAX_NAME_LENGTH = 1024
MAX_LANE_LENGTH = 1024
LANE_ATTEMPTS = 3
_MOST_DOUBLINGS = 40
"""Of a wait: enough to reach ``MAX_DELAY_MS`` from the shortest one."""


def milliseconds(value: Duration, option: str, *, least: int = 0) -> int:
    """``value`` in whole milliseconds, or an error that names ``option``."""
    if isinstance(value, timedelta):
        value = round(value.total_seconds() * 1000)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOptionError(
            f"{option}={shown(value)} is no duration; give milliseconds as an int, or a timedelta"
        )
    if not least <= value <= MAX_DELAY_MS:
        raise InvalidOptionError(
            f"{option}={value!r} is out of range; it must lie between {least} and {MAX_DELAY_MS} ms"
        )
    return value


def epoch_ms(value: int | datetime, option: str) -> int:
    """A moment in milliseconds since the epoch; a ``datetime`` needs its time zone."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidOptionError(
                f"{option}={value!r} has no time zone; use datetime.now(timezone.utc) or the like"
            )
        return round(value.timestamp() * 1000)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOptionError(
            f"{option}={shown(value)} is no moment; give milliseconds since the epoch as an int,"
            f" or a datetime with its time zone"
        )
    return whole(value, option)


def _run_at_ms(value: int | datetime) -> int:
    """``epoch_ms`` that knows seconds when it sees them: nobody means a day in 1970."""
    moment_ms = epoch_ms(value, "run_at")
    if moment_ms < _SECONDS and not isinstance(value, datetime):
        raise InvalidOptionError(
            f"run_at={value!r} is a day in 1970 or soon after, for it is read as milliseconds; if"
            f" these are seconds, write run_at={value!r} * 1000, or give a datetime"
        )
    return moment_ms


_SECONDS = 10**11
"""Below it are the seconds of our days, and the milliseconds of 1970 to 1973."""


def whole(value: int, option: str, *, least: int = 0, most: int = 2**53 - 1) -> int:
    """``value`` if it is an integer in range, or an error that names ``option``."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidOptionError(
            f"{option}={shown(value)} is out of range; it must be an integer from {least} to {most}"
        )
    return value


def check_text(value: str, option: str) -> None:
    """Refuse what looks like a text and cannot be sent: with half a surrogate pair in it."""
    if not isinstance(value, str):
        raise InvalidOptionError(f"{option}={shown(value)} must be a text")
    if value.isascii():
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidOptionError(f"{option}={value!r} is no valid Unicode text: {error}") from error


def flag(value: bool | None, option: str) -> None:
    """Refuse anything but True, False and None."""
    if value is not None and not isinstance(value, bool):
        raise InvalidOptionError(f"{option}={shown(value)} must be True or False")


class Backoff(msgspec.Struct, frozen=True):
    """How long a failed job waits before its next attempt.

    ``type`` is ``"fixed"``, ``"exponential"``, or the name of a strategy that the worker knows.
    With ``jitter`` j the wait is drawn evenly from the last j-th part of it, so that jobs which
    failed together do not come back together.
    """

    type: str
    delay: int = 0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or not self.type:
            raise InvalidOptionError(
                f"backoff type={shown(self.type)} must be a text: 'fixed', 'exponential', or the"
                f" name of a strategy of the worker"
            )
        whole(self.delay, "backoff delay", most=MAX_DELAY_MS)
        check_text(self.type, "backoff type")
        is_number = isinstance(self.jitter, int | float) and not isinstance(self.jitter, bool)
        if not is_number or not 0 <= self.jitter <= 1:
            raise InvalidOptionError(f"jitter={shown(self.jitter)} must lie between 0 and 1")

    @classmethod
    def fixed(cls, delay: Duration, *, jitter: float = 0.0) -> Backoff:
        """The same wait before every attempt."""
        return cls("fixed", milliseconds(delay, "backoff delay"), jitter)

    @classmethod
    def exponential(cls, delay: Duration, *, jitter: float = 0.0) -> Backoff:
        """A wait that doubles with every attempt, beginning with ``delay``."""
        return cls("exponential", milliseconds(delay, "backoff delay"), jitter)

    @classmethod
    def of(cls, value: Any) -> Backoff:
        """``value`` in any of the accepted forms: itself, a fixed wait, or the wire's object."""
        if isinstance(value, Backoff):
            return value
        if isinstance(value, Mapping):
            known = {"type", "delay", "jitter"}
            if not set(value) <= known or not isinstance(value.get("type"), str):
                raise InvalidOptionError(
                    f"backoff={dict(value)!r} needs a 'type' and may have 'delay' and 'jitter'"
                )
            return cls(value["type"], value.get("delay", 0), value.get("jitter", 0.0) or 0.0)
        if isinstance(value, str):
            raise InvalidOptionError(
                f"backoff={value!r} does not say how long to wait; write Backoff.exponential(1000),"
                f" Backoff.fixed(1000), or Backoff({value!r}, …) for a strategy of the worker"
            )
        return cls("fixed", milliseconds(value, "backoff"))

    def wait_ms(self, attempts_made: int, dice: float) -> int:
        """The wait after attempt number ``attempts_made``; ``dice`` is drawn from [0, 1)."""
        doublings = 0 if self.type == "fixed" else min(max(attempts_made - 1, 0), _MOST_DOUBLINGS)
        longest = min(self.delay << doublings, MAX_DELAY_MS)
        if not self.jitter:
            return longest
        shortest = longest * (1 - self.jitter)
        return int(shortest + (longest - shortest) * dice)


LANE_BACKOFF = Backoff("exponential", 500, 0.25)
"""How jobs of a lane wait that say nothing about it; they are run up to ``LANE_ATTEMPTS`` times."""


class Keep(msgspec.Struct, frozen=True, kw_only=True):
    """Which finished jobs stay: the newest ``count``, none older than ``age``."""

    count: int | None = None
    age: Duration | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None:
            whole(self.count, "count")
        if self.age is not None:
            msgspec.structs.force_setattr(self, "age", milliseconds(self.age, "age"))
        if self.limit is not None:
            whole(self.limit, "limit", least=1)

    @classmethod
    def of(cls, value: Keep | bool | int) -> Keep:
        """``True`` removes at once, ``False`` keeps all, a number keeps that many."""
        if isinstance(value, Keep):
            return value
        if isinstance(value, bool):
            return cls(count=0) if value else cls()
        return cls(count=whole(value, "keep"))

    @classmethod
    def of_option(cls, value: Keep | bool | int, option: str) -> Keep:
        """The same, with an error that names ``option``."""
        if not isinstance(value, Keep | int):
            raise InvalidOptionError(
                f"{option}={shown(value)} says not which jobs stay; give True, False, a number of"
                f" jobs, or Keep(count=…, age=…)"
            )
        return cls.of(value)


class Deduplication(msgspec.Struct, frozen=True):
    """Let only one job with this ``id`` in at a time.

    Without ``ttl`` until that job is finished; with it, for that long.  ``extend`` restarts the
    time at every duplicate, ``replace`` lets the newest replace the one still delayed (debounce),
    ``keep_last_if_active`` remembers the newest and runs it after the active one, ``reschedule``
    lets a duplicate move the one still delayed to its own time.
    """

    id: str
    ttl: Duration | None = None
    extend: bool = False
    replace: bool = False
    keep_last_if_active: bool = False
    reschedule: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id:
            raise InvalidOptionError(f"deduplication id={shown(self.id)} must be a text, not empty")
        check_text(self.id, "deduplication id")
        for mode in ("extend", "replace", "keep_last_if_active", "reschedule"):
            flag(getattr(self, mode), f"deduplication {mode}")
        if self.ttl is not None:
            ttl = milliseconds(self.ttl, "deduplication ttl", least=1)
            msgspec.structs.force_setattr(self, "ttl", ttl)
        if self.extend and self.ttl is None:
            raise InvalidOptionError(
                f"deduplication {self.id!r} has extend and no ttl; there is no time to extend"
            )
        if self.reschedule and self.replace:
            raise InvalidOptionError(
                f"deduplication {self.id!r} has both reschedule and replace; give one"
            )

    @classmethod
    def of(cls, value: Any) -> Deduplication:
        """``value`` in any of the accepted forms: itself, its id alone, or a mapping."""
        if isinstance(value, Deduplication):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping):
            given = {_DEDUPLICATION.get(str(name), str(name)): each for name, each in value.items()}
            refuse_unknown(given, frozenset(cls.__struct_fields__), f"deduplication={value!r}")
            return cls(**{"id": None, **given})
        raise InvalidOptionError(
            f"deduplication={shown(value)} is not known; write Deduplication('some-id'), or the id"
            f" alone"
        )


_DEDUPLICATION = {"keepLastIfActive": "keep_last_if_active"}


class RateLimit(msgspec.Struct, frozen=True):
    """At most ``max`` jobs are started in any window of ``duration``."""

    max: int
    duration: Duration

    def __post_init__(self) -> None:
        whole(self.max, "limiter max", least=1)
        duration = milliseconds(self.duration, "limiter duration", least=1)
        msgspec.structs.force_setattr(self, "duration", duration)


class Parent(msgspec.Struct, frozen=True):
    """The job that a new one is a child of: its id and the queue it is in.

    Without ``prefix`` it is under the prefix of the child's queue.
    """

    id: str
    queue_name: str
    prefix: str | None = None

    def __post_init__(self) -> None:
        refuse_wrong_fields(self)

    @classmethod
    def of(cls, value: Any) -> Parent:
        """A ``Parent``, or a job that was read, added or is being run."""
        if isinstance(value, Parent):
            return value
        try:
            return cls(value.id, value.queue_name, value.prefix)
        except AttributeError:
            raise InvalidOptionError(
                f"parent={shown(value)} is neither a job nor Parent(id, queue_name)"
            ) from None


CHILD_POLICIES = (
    "fail_parent_on_failure",
    "continue_parent_on_failure",
    "ignore_dependency_on_failure",
    "remove_dependency_on_failure",
)
"""What the final failure of a child does to its parent; at most one of them."""
OnRetry = Literal["block", "skip"]
OnExhausted = Literal["skip", "halt", "divert"]
ON_RETRY: tuple[str, ...] = get_args(OnRetry)
ON_EXHAUSTED: tuple[str, ...] = get_args(OnExhausted)


def check_lane(lane: str) -> None:
    """Refuse what cannot be a lane: anything but a text of some length."""
    if not isinstance(lane, str) or not lane or len(lane) > MAX_LANE_LENGTH:
        raise InvalidOptionError(
            f"lane={shown(lane)} must be a text of 1 to {MAX_LANE_LENGTH} characters"
        )
    check_text(lane, "lane")


def _check_choice(value: str | None, choices: tuple[str, ...], option: str) -> None:
    if value is not None and not (isinstance(value, str) and value in choices):
        raise InvalidOptionError(f"{option}={shown(value)} is not known; use one of {choices}")


class JobOptions(TypedDict, total=False):
    """The options of ``Queue.add`` and ``NewJob``, as keyword arguments."""

    job_id: str | None
    delay: Duration | None
    run_at: int | datetime | None
    priority: int | None
    lifo: bool | None
    attempts: int | None
    backoff: Backoff | Duration | Mapping[str, Any] | None
    remove_on_complete: bool | int | Keep | None
    remove_on_fail: bool | int | Keep | None
    keep_logs: int | None
    stack_trace_limit: int | None
    size_limit: int | None
    timeout: Duration | None
    expires: Duration | None
    idempotency_key: str | None
    timestamp: int | datetime | None
    deduplication: Deduplication | str | Mapping[str, Any] | None
    telemetry: str | None
    parent: Any
    fail_parent_on_failure: bool | None
    continue_parent_on_failure: bool | None
    ignore_dependency_on_failure: bool | None
    remove_dependency_on_failure: bool | None
    lane: str | None
    order_ms: int | datetime | None
    ordering_delay: Duration | None
    on_retry: OnRetry | None
    on_exhausted: OnExhausted | None
    max_lane_size: int | None


class ReplayOptions(TypedDict, total=False):
    """The options of a job that a replay may replace, as keyword arguments."""

    delay: Duration | None
    run_at: int | datetime | None
    priority: int | None
    lifo: bool | None
    attempts: int | None
    backoff: Backoff | Duration | Mapping[str, Any] | None
    remove_on_complete: bool | int | Keep | None
    remove_on_fail: bool | int | Keep | None
    keep_logs: int | None
    stack_trace_limit: int | None
    timeout: Duration | None
    expires: Duration | None
    idempotency_key: str | None
    lane: str | None
    order_ms: int | datetime | None
    on_retry: OnRetry | None
    on_exhausted: OnExhausted | None


class _Named(msgspec.Struct, frozen=True):
    name: str
    data: Any = None


class NewJob(_Named, frozen=True, kw_only=True):
    """A job that is to be added: its name, its data and its options."""

    job_id: str | None = None
    delay: Duration | None = None
    run_at: int | datetime | None = None
    priority: int | None = None
    lifo: bool | None = None
    attempts: int | None = None
    backoff: Backoff | Duration | Mapping[str, Any] | None = None
    remove_on_complete: bool | int | Keep | None = None
    remove_on_fail: bool | int | Keep | None = None
    keep_logs: int | None = None
    stack_trace_limit: int | None = None
    size_limit: int | None = None
    timeout: Duration | None = None
    expires: Duration | None = None
    idempotency_key: str | None = None
    timestamp: int | datetime | None = None
    deduplication: Deduplication | str | Mapping[str, Any] | None = None
    telemetry: str | None = None
    parent: Any = None
    fail_parent_on_failure: bool | None = None
    continue_parent_on_failure: bool | None = None
    ignore_dependency_on_failure: bool | None = None
    remove_dependency_on_failure: bool | None = None
    lane: str | None = None
    order_ms: int | datetime | None = None
    ordering_delay: Duration | None = None
    on_retry: OnRetry | None = None
    on_exhausted: OnExhausted | None = None
    max_lane_size: int | None = None

    def __post_init__(self) -> None:
        name = self.name
        if not isinstance(name, str) or not name or len(name) > MAX_NAME_LENGTH:
            raise InvalidNameError(
                f"job name {shown(name)} must be a text of 1 to {MAX_NAME_LENGTH} characters"
            )
        if self.job_id is not None and not isinstance(self.job_id, str):
            raise InvalidNameError(
                f"job_id={shown(self.job_id)} must be a text; numbers are given out by the queue"
                f" itself, so put a word before it, such as 'order-{shown(self.job_id)}'"
            )
        if not name.isascii():
            check_text(name, "job name")
        if self.delay is not None:
            if self.run_at is not None:
                raise InvalidOptionError(f"job {name!r} has both delay and run_at; give one")
            self._normalise("delay", milliseconds(self.delay, "delay"))
        if self.run_at is not None:
            self._normalise("run_at", _run_at_ms(self.run_at))
        if self.timestamp is not None:
            self._normalise("timestamp", epoch_ms(self.timestamp, "timestamp"))
        if self.priority is not None:
            whole(self.priority, "priority", most=MAX_PRIORITY)
        if self.attempts is not None:
            whole(self.attempts, "attempts", most=MAX_ATTEMPTS)
        if self.backoff is not None:
            self._normalise("backoff", Backoff.of(self.backoff))
        if self.remove_on_complete is not None:
            keep = Keep.of_option(self.remove_on_complete, "remove_on_complete")
            self._normalise("remove_on_complete", keep)
        if self.remove_on_fail is not None:
            keep = Keep.of_option(self.remove_on_fail, "remove_on_fail")
            self._normalise("remove_on_fail", keep)
        if self.keep_logs is not None:
            whole(self.keep_logs, "keep_logs")
        if self.stack_trace_limit is not None:
            whole(self.stack_trace_limit, "stack_trace_limit")
        if self.size_limit is not None:
            whole(self.size_limit, "size_limit")
        if self.timeout is not None:
            self._normalise("timeout", milliseconds(self.timeout, "timeout", least=1))
        if self.expires is not None:
            self._normalise("expires", milliseconds(self.expires, "expires", least=1))
        if self.idempotency_key is not None and not (
            isinstance(self.idempotency_key, str) and self.idempotency_key
        ):
            raise InvalidOptionError(
                f"idempotency_key={shown(self.idempotency_key)} must be a text, not empty"
            )
        if self.idempotency_key is not None:
            check_text(self.idempotency_key, "idempotency_key")
        if self.telemetry is not None:
            check_text(self.telemetry, "telemetry")
        if (
            self.lane is not None
            or self.order_ms is not None
            or self.ordering_delay is not None
            or self.on_retry is not None
            or self.on_exhausted is not None
            or self.max_lane_size is not None
        ):
            self._check_lane()
        if self.deduplication is not None:
            self._normalise("deduplication", Deduplication.of(self.deduplication))
        if self.lifo is not None:
            flag(self.lifo, "lifo")
        if self.parent is not None:
            self._check_family()
        elif (
            self.fail_parent_on_failure is not None
            or self.continue_parent_on_failure is not None
            or self.ignore_dependency_on_failure is not None
            or self.remove_dependency_on_failure is not None
        ):
            self._check_policies()

    @property
    def is_bare(self) -> bool:
        """Has it no options at all? Then there is nothing to look at one by one."""
        return msgspec.structs.astuple(self)[2:] == _NO_OPTIONS  # behind the name and the data

    def _check_lane(self) -> None:
        if self.lane is not None:
            check_lane(self.lane)
            if self.priority or self.lifo:
                raise InvalidOptionError(
                    f"job {self.name!r} has a lane and a priority or lifo; there order_ms decides"
                )
        if self.order_ms is not None:
            if self.lane is None:
                raise InvalidOptionError(f"job {self.name!r} has an order_ms and no lane")
            self._normalise("order_ms", epoch_ms(self.order_ms, "order_ms"))
        if self.ordering_delay is not None:
            delay = milliseconds(self.ordering_delay, "ordering_delay")
            self._normalise("ordering_delay", delay)
        if self.max_lane_size is not None:
            whole(self.max_lane_size, "max_lane_size", least=1)
        _check_choice(self.on_retry, ON_RETRY, "on_retry")
        _check_choice(self.on_exhausted, ON_EXHAUSTED, "on_exhausted")

    @property
    def child_policy(self) -> str | None:
        """The one option of ``CHILD_POLICIES`` that is set, if any."""
        chosen = [policy for policy in CHILD_POLICIES if getattr(self, policy)]
        if len(chosen) > 1:
            raise InvalidOptionError(f"job {self.name!r} has {' and '.join(chosen)}; give one")
        return chosen[0] if chosen else None

    def _check_policies(self) -> None:
        for policy in CHILD_POLICIES:
            flag(getattr(self, policy), policy)

    def _check_family(self) -> None:
        self._check_policies()
        self._normalise("parent", Parent.of(self.parent))
        if self.deduplication is not None:
            raise InvalidOptionError(
                f"job {self.name!r} has both a parent and a deduplication; the parent would wait"
                f" for a job that is never added"
            )

    def _normalise(self, option: str, value: object) -> None:
        msgspec.structs.force_setattr(self, option, value)


class FlowJob(NewJob, frozen=True, kw_only=True):
    """A job of a flow, in the queue ``queue_name``; it runs when its ``children`` are done."""

    queue_name: str
    prefix: str | None = None
    children: Sequence[FlowJob] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.queue_name, str):
            raise InvalidNameError(
                f"queue_name={shown(self.queue_name)} of job {self.name!r} must be a text"
            )
        if self.prefix is not None and not isinstance(self.prefix, str):
            raise InvalidNameError(
                f"prefix={shown(self.prefix)} of job {self.name!r} must be a text"
            )
        if self.children != () and (
            not isinstance(self.children, list | tuple)
            or not all(isinstance(child, FlowJob) for child in self.children)
        ):
            raise InvalidOptionError(
                f"children={shown(self.children)} of job {self.name!r} must be a list of"
                f" FlowJob(name, data, queue_name=…)"
            )
        deduplication = self.deduplication
        if self.children and deduplication is not None:
            for mode in ("replace", "keep_last_if_active", "reschedule"):
                if getattr(deduplication, mode):
                    raise InvalidOptionError(
                        f"job {self.name!r} has children, and its deduplication asks for {mode};"
                        f" a job with children cannot be replaced or put off"
                    )


OPTION_NAMES = frozenset(NewJob.__struct_fields__) - {"name", "data"}
REPLAY_OPTION_NAMES = frozenset(ReplayOptions.__annotations__)
_NO_OPTIONS = (None,) * len(OPTION_NAMES)


def new_job(
    name: str, data: Any, options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> NewJob:
    """A ``NewJob`` from keyword arguments over a queue's defaults."""
    if defaults:
        options = {**defaults, **options}
    try:
        return NewJob(name, data, **options)
    except TypeError:
        refuse_unknown(options, OPTION_NAMES, f"job {name!r}")
        raise


def refuse_unknown(options: Mapping[str, Any], known: frozenset[str], owner: str) -> None:
    """Raise for the first option that is not ``known``, with the name that was probably meant."""
    if not isinstance(options, Mapping):
        raise InvalidOptionError(f"{owner} must be a dict of options, and not {shown(options)}")
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(str(option), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"
            raise UnknownOptionError(f"unknown option {option!r} for {owner}; {hint}")


class DeadLetterOptions(msgspec.Struct, frozen=True):
    """Where a worker sends the jobs that failed for good, and who is told.

    ``queue_name`` is a name or a ``Queue``.  ``on_dead_letter(job, letter)``, plain or async, is
    called after each move.  Jobs given up because workers died over them go the same way unless
    ``include_stalled`` is False.  ``keep_source`` leaves the job in the source's ``failed`` too.
    ``keep`` says how many letters stay, and for how long: the oldest are removed when new ones
    come.
    """

    queue_name: Any
    on_dead_letter: Callable[..., Any] | None = None
    include_stalled: bool = True
    keep_source: bool = False
    keep: Keep | int | None = None

    def __post_init__(self) -> None:
        if self.keep is not None:
            keep = Keep.of_option(self.keep, "keep")
            if isinstance(self.keep, bool) or keep.count == 0 or keep.age == 0:
                raise InvalidOptionError(
                    f"keep={self.keep!r} would remove letters at once; give a number of them, or"
                    f" Keep(count=…, age=…)"
                )
            msgspec.structs.force_setattr(self, "keep", keep)
        name = getattr(self.queue_name, "name", self.queue_name)
        if not isinstance(name, str) or not name:
            raise InvalidNameError(
                f"dead_letter_queue={self.queue_name!r} names no queue; give a text that is not"
                f" empty, a Queue or DeadLetterOptions"
            )
        if self.on_dead_letter is not None and not callable(self.on_dead_letter):
            raise InvalidOptionError(
                f"on_dead_letter={self.on_dead_letter!r} cannot be called; give a function of a job"
                f" and a letter"
            )
        flag(self.include_stalled, "include_stalled")
        flag(self.keep_source, "keep_source")

    @classmethod
    def of(cls, value: object) -> DeadLetterOptions:
        """``value`` in any of the accepted forms: itself, a queue, or the name of one."""
        return value if isinstance(value, DeadLetterOptions) else cls(value)


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When a scheduler runs: ``every`` so often, or at the times of a ``cron`` pattern in ``tz``.

    Nothing runs before ``start``, after ``end`` or more than ``limit`` times.  ``offset`` moves the
    grid of ``every``; ``immediately`` lets the first run of a pattern happen now.
    """

    every: Duration | None = None
    cron: str | None = None
    tz: str | None = None
    start: int | datetime | None = None
    end: int | datetime | None = None
    limit: int | None = None
    offset: Duration | None = None
    immediately: bool = False

    def __post_init__(self) -> None:
        if (self.every is None) == (self.cron is None):
            raise InvalidOptionError("a scheduler needs either every= or cron=, and not both")
        for option in ("cron", "tz"):
            text = getattr(self, option)
            if text is not None and not isinstance(text, str):
                raise InvalidOptionError(f"{option}={shown(text)} must be a text")
        flag(self.immediately, "immediately")
        if self.every is not None:
            self._normalise("every", milliseconds(self.every, "every", least=1))
        if self.start is not None:
            self._normalise("start", epoch_ms(self.start, "start"))
        if self.end is not None:
            self._normalise("end", epoch_ms(self.end, "end"))
        if self.limit is not None:
            whole(self.limit, "limit", least=1)
        if self.offset is not None:
            self._normalise("offset", milliseconds(self.offset, "offset"))
        if self.cron is not None and self.offset is not None:
            raise InvalidOptionError("offset goes with every=; a cron pattern says when it runs")
        if self.every is not None and (self.tz is not None or self.immediately):
            raise InvalidOptionError(
                "tz and immediately go with cron=; every= has no zone and begins at once"
            )
        if self.immediately and self.start is not None:
            raise InvalidOptionError("immediately and start exclude each other; give one")

    def _normalise(self, option: str, value: object) -> None:
        msgspec.structs.force_setattr(self, option, value)


BackoffStrategy = Callable[[int, str, BaseException, Any], int]
"""``(attempts_made, type, error, job) -> ms``; a negative number fails the job for good."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker takes, holds and gives back its jobs."""

    concurrency: int = 1
    lock_duration: Duration = 30_000
    stalled_interval: Duration = 30_000
    max_stalled_count: int = 1
    max_started_attempts: int | None = None
    drain_delay: Duration = 5_000
    name: str | None = None
    limiter: RateLimit | None = None
    remove_on_complete: bool | int | Keep | None = None
    remove_on_fail: bool | int | Keep | None = None
    metrics_points: int | None = None

    def __post_init__(self) -> None:
        whole(self.concurrency, "concurrency", least=1, most=100_000)
        if self.name is not None:
            check_text(self.name, "worker_name")
        if self.limiter is not None and not isinstance(self.limiter, RateLimit):
            raise InvalidOptionError(
                f"limiter={shown(self.limiter)} is no limit; write RateLimit(max=10, duration=1000)"
            )
        for option, least in (("lock_duration", 50), ("stalled_interval", 20), ("drain_delay", 1)):
            self._normalise(option, milliseconds(getattr(self, option), option, least=least))
        whole(self.max_stalled_count, "max_stalled_count")
        if self.max_started_attempts is not None:
            whole(self.max_started_attempts, "max_started_attempts", least=1)
        if self.remove_on_complete is not None:
            keep = Keep.of_option(self.remove_on_complete, "remove_on_complete")
            self._normalise("remove_on_complete", keep)
        if self.remove_on_fail is not None:
            keep = Keep.of_option(self.remove_on_fail, "remove_on_fail")
            self._normalise("remove_on_fail", keep)
        if self.metrics_points is not None:
            whole(self.metrics_points, "metrics_points", least=1)

    def _normalise(self, option: str, value: object) -> None:
        msgspec.structs.force_setattr(self, option, value)


Repeat = Mapping[str, Any]
"""A schedule as a mapping: ``every`` or ``cron`` (``pattern`` does as well), ``tz``, ``limit`` …"""


def schedule_of(repeat: Repeat) -> Schedule:
    """The schedule that ``repeat=`` describes."""
    if not isinstance(repeat, Mapping):
        raise InvalidOptionError(
            f"repeat={shown(repeat)} is no schedule; write {{'every': 60_000}} or"
            f" {{'cron': '0 9 * * *', 'tz': 'Europe/Berlin'}}"
        )
    given = {"cron" if name == "pattern" else name: value for name, value in repeat.items()}
    refuse_unknown(given, frozenset(Schedule.__struct_fields__), "repeat")
    return Schedule(**given)
