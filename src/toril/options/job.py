"""A new job with all of its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, TypedDict

import msgspec

from toril.checking import shown
from toril.errors import InvalidNameError, InvalidOptionError
from toril.options.backoff import Backoff
from toril.options.checks import (
    Duration,
    check_choice,
    check_text,
    epoch_ms,
    flag,
    milliseconds,
    refuse_unknown,
    whole,
)
from toril.options.deduplication import Deduplication
from toril.options.keep import Keep
from toril.options.lane import ON_EXHAUSTED, ON_RETRY, OnExhausted, OnRetry, check_lane
from toril.options.parent import CHILD_POLICIES, Parent

MAX_PRIORITY = 2**21 - 1
MAX_ATTEMPTS = 1_000_000
MAX_NAME_LENGTH = 1024


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


class _Named(msgspec.Struct, frozen=True):
    name: str
    data: Any = None


class NewJob(_Named, frozen=True, kw_only=True):
    """A new job: its name, its data and its options."""

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
        _check_name(self.name)
        if self.job_id is not None:
            _check_job_id(self.job_id)
        if self.delay is not None:
            _delay_ms(self.delay)
            if self.run_at is not None:
                raise InvalidOptionError(f"job {self.name!r} has both delay and run_at; give one")
        if self.run_at is not None:
            _run_at_ms(self.run_at)
        if self.timestamp is not None:
            _timestamp_ms(self.timestamp)
        if self.priority is not None:
            whole(self.priority, "priority", most=MAX_PRIORITY)
        if self.lifo is not None:
            flag(self.lifo, "lifo")
        if self.attempts is not None:
            whole(self.attempts, "attempts", most=MAX_ATTEMPTS)
        if self.backoff is not None:
            Backoff.of(self.backoff)
        if self.remove_on_complete is not None:
            _keep_completed(self.remove_on_complete)
        if self.remove_on_fail is not None:
            _keep_failed(self.remove_on_fail)
        if self.keep_logs is not None:
            whole(self.keep_logs, "keep_logs")
        if self.stack_trace_limit is not None:
            whole(self.stack_trace_limit, "stack_trace_limit")
        if self.size_limit is not None:
            whole(self.size_limit, "size_limit")
        if self.timeout is not None:
            _timeout_ms(self.timeout)
        if self.expires is not None:
            _expires_ms(self.expires)
        if self.idempotency_key is not None:
            _check_idempotency_key(self.idempotency_key)
        if self.telemetry is not None:
            check_text(self.telemetry, "telemetry")
        if self.deduplication is not None:
            Deduplication.of(self.deduplication)
        if (
            self.lane is not None
            or self.order_ms is not None
            or self.ordering_delay is not None
            or self.on_retry is not None
            or self.on_exhausted is not None
            or self.max_lane_size is not None
        ):
            self._check_lane()
        if (
            self.parent is not None
            or self.fail_parent_on_failure is not None
            or self.continue_parent_on_failure is not None
            or self.ignore_dependency_on_failure is not None
            or self.remove_dependency_on_failure is not None
        ):
            self._check_family()

    def normalised(self, option: str) -> Any:
        """An option in normalized form: times in ms, a ``Keep``, a ``Backoff``; None if not given.

        The field itself holds what was given.
        """
        value = getattr(self, option)
        if value is None:
            return None
        normalise = _NORMALISERS.get(option)
        return value if normalise is None else normalise(value)

    @property
    def is_bare(self) -> bool:
        """Whether it has no options at all, so that none needs to be checked."""
        return msgspec.structs.astuple(self)[2:] == _NO_OPTIONS  # after the name and the data

    def _check_lane(self) -> None:
        if self.lane is not None:
            check_lane(self.lane)
            if self.priority or self.lifo:
                raise InvalidOptionError(
                    f"job {self.name!r} has both a lane and priority or lifo; lanes use order_ms"
                )
        if self.order_ms is not None:
            if self.lane is None:
                raise InvalidOptionError(f"job {self.name!r} has order_ms but no lane")
            _order_ms(self.order_ms)
        if self.ordering_delay is not None:
            _ordering_delay_ms(self.ordering_delay)
        if self.max_lane_size is not None:
            whole(self.max_lane_size, "max_lane_size", least=1)
        check_choice(self.on_retry, ON_RETRY, "on_retry")
        check_choice(self.on_exhausted, ON_EXHAUSTED, "on_exhausted")

    def _check_family(self) -> None:
        for policy in CHILD_POLICIES:
            flag(getattr(self, policy), policy)
        if self.parent is None:
            return
        Parent.of(self.parent)
        if self.deduplication is not None:
            raise InvalidOptionError(
                f"job {self.name!r} has both a parent and a deduplication; the parent would wait"
                f" for a job that is never added"
            )

    @property
    def child_policy(self) -> str | None:
        """The one option of ``CHILD_POLICIES`` that is set, if any."""
        chosen = [policy for policy in CHILD_POLICIES if getattr(self, policy)]
        if len(chosen) > 1:
            raise InvalidOptionError(f"job {self.name!r} has {' and '.join(chosen)}; give one")
        return chosen[0] if chosen else None


OPTION_NAMES = frozenset(NewJob.__struct_fields__) - {"name", "data"}
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


def _run_at_ms(value: int | datetime) -> int:
    """``epoch_ms`` that recognizes seconds: nobody means a day in 1970."""
    moment_ms = epoch_ms(value, "run_at")
    if moment_ms < _SECONDS and not isinstance(value, datetime):
        raise InvalidOptionError(
            f"run_at={value!r} is a date around 1970, because it is read as milliseconds; if"
            f" these are seconds, write run_at={value!r} * 1000, or give a datetime"
        )
    return moment_ms


_SECONDS = 10**11
"""Below it are the seconds of today's dates, and the milliseconds of 1970 to 1973."""


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name or len(name) > MAX_NAME_LENGTH:
        raise InvalidNameError(
            f"job name {shown(name)} must be a string of 1 to {MAX_NAME_LENGTH} characters"
        )
    if not name.isascii():
        check_text(name, "job name")


def _check_job_id(job_id: Any) -> None:
    if not isinstance(job_id, str):
        raise InvalidNameError(
            f"job_id={shown(job_id)} must be a string; the queue assigns numbers itself, so"
            f" put a word before it, such as 'order-{shown(job_id)}'"
        )


def _check_idempotency_key(key: Any) -> None:
    if not (isinstance(key, str) and key):
        raise InvalidOptionError(f"idempotency_key={shown(key)} must be a non-empty string")
    check_text(key, "idempotency_key")


_delay_ms = partial(milliseconds, option="delay")
_timeout_ms = partial(milliseconds, option="timeout", least=1)
_expires_ms = partial(milliseconds, option="expires", least=1)
_ordering_delay_ms = partial(milliseconds, option="ordering_delay")
_timestamp_ms = partial(epoch_ms, option="timestamp")
_order_ms = partial(epoch_ms, option="order_ms")
_keep_completed = partial(Keep.of_option, option="remove_on_complete")
_keep_failed = partial(Keep.of_option, option="remove_on_fail")

_NORMALISERS: dict[str, Callable[[Any], Any]] = {
    "delay": _delay_ms,
    "run_at": _run_at_ms,
    "timestamp": _timestamp_ms,
    "timeout": _timeout_ms,
    "expires": _expires_ms,
    "order_ms": _order_ms,
    "ordering_delay": _ordering_delay_ms,
    "backoff": Backoff.of,
    "remove_on_complete": _keep_completed,
    "remove_on_fail": _keep_failed,
    "deduplication": Deduplication.of,
    "parent": Parent.of,
}
"""The options that are accepted in more than one form; the others have one."""
