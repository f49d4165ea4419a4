"""The options of a job that a replay may replace."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from toril.options.backoff import Backoff
from toril.options.checks import Duration
from toril.options.keep import Keep
from toril.options.lane import OnExhausted, OnRetry


class ReplacedOptions(TypedDict, total=False):
    """The options of a job that a replay may change, as keyword arguments."""

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


REPLAY_OPTION_NAMES = frozenset(ReplacedOptions.__annotations__)
