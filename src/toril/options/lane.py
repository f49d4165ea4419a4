"""What a job may say about its lane, and the defaults of jobs in lanes."""

from __future__ import annotations

from typing import Literal, get_args

from toril.checking import shown
from toril.errors import InvalidOptionError
from toril.options.backoff import Backoff
from toril.options.checks import check_text

MAX_LANE_LENGTH = 1024
LANE_ATTEMPTS = 3
LANE_BACKOFF = Backoff("exponential", 500, 0.25)
"""The default backoff of jobs in lanes; they run up to ``LANE_ATTEMPTS`` times."""

OnRetry = Literal["block", "skip"]
OnExhausted = Literal["skip", "halt", "divert"]
ON_RETRY: tuple[str, ...] = get_args(OnRetry)
ON_EXHAUSTED: tuple[str, ...] = get_args(OnExhausted)


def check_lane(lane: str) -> None:
    """Refuse anything but a string of a reasonable length."""
    if not isinstance(lane, str) or not lane or len(lane) > MAX_LANE_LENGTH:
        raise InvalidOptionError(
            f"lane={shown(lane)} must be a string of 1 to {MAX_LANE_LENGTH} characters"
        )
    check_text(lane, "lane")
