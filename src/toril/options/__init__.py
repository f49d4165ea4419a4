"""Every option of a job or a worker, its default and its check: one noun per module.

Options are frozen values.  A duration is an ``int`` of milliseconds, or a ``timedelta``.
``None`` means "not given": the default of the queue or of the worker applies.
"""

from toril.options.backoff import Backoff
from toril.options.checks import (
    MAX_DELAY_MS,
    Duration,
    check_text,
    epoch_ms,
    flag,
    milliseconds,
    refuse_unknown,
    whole,
)
from toril.options.dead_letters import DeadLetterOptions
from toril.options.deduplication import Deduplication
from toril.options.flow_job import FlowJob
from toril.options.job import (
    MAX_ATTEMPTS,
    MAX_NAME_LENGTH,
    MAX_PRIORITY,
    OPTION_NAMES,
    JobOptions,
    NewJob,
    new_job,
)
from toril.options.keep import Keep
from toril.options.lane import (
    LANE_ATTEMPTS,
    LANE_BACKOFF,
    MAX_LANE_LENGTH,
    ON_EXHAUSTED,
    ON_RETRY,
    OnExhausted,
    OnRetry,
    check_lane,
)
from toril.options.parent import CHILD_POLICIES, Parent
from toril.options.rate_limit import RateLimit
from toril.options.replay import REPLAY_OPTION_NAMES, ReplacedOptions
from toril.options.replicas import Replicas
from toril.options.schedule import Repeat, Schedule, schedule_of
from toril.options.worker import BackoffStrategy, WorkerOptions

__all__ = [
    "CHILD_POLICIES",
    "LANE_ATTEMPTS",
    "LANE_BACKOFF",
    "MAX_ATTEMPTS",
    "MAX_DELAY_MS",
    "MAX_LANE_LENGTH",
    "MAX_NAME_LENGTH",
    "MAX_PRIORITY",
    "ON_EXHAUSTED",
    "ON_RETRY",
    "OPTION_NAMES",
    "REPLAY_OPTION_NAMES",
    "Backoff",
    "BackoffStrategy",
    "DeadLetterOptions",
    "Deduplication",
    "Duration",
    "FlowJob",
    "JobOptions",
    "Keep",
    "NewJob",
    "OnExhausted",
    "OnRetry",
    "Parent",
    "RateLimit",
    "Repeat",
    "ReplacedOptions",
    "Replicas",
    "Schedule",
    "WorkerOptions",
    "check_lane",
    "check_text",
    "epoch_ms",
    "flag",
    "milliseconds",
    "new_job",
    "refuse_unknown",
    "schedule_of",
    "whole",
]
