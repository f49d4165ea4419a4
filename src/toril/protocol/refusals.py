"""Why a call of the library refused to do what it was asked: one list for Lua and Python."""

from __future__ import annotations

from enum import IntEnum


class Refusal(IntEnum):
    """What a call returns instead of its result; ``refusals.MISSING`` and so on in Lua."""

    MISSING = -1
    """There is no such job, letter or member."""
    LOCK_EXPIRED = -2
    NOT_IN_STATE = -3
    CHILDREN_PENDING = -4
    NO_PARENT = -5
    LOCK_TAKEN = -6
    """Another worker holds the job."""
    OTHER_PARENT = -7
    SCHEDULED = -8
    """It is the pending iteration of a scheduler."""
    CHILD_FAILED = -9
    DAMAGED = -10
    TIME_TAKEN = -11
    """A job of a scheduler has this time already."""
    TIMES_TAKEN = -12
    CHANGED = -13
    """It is no longer what the caller has read."""
    AFTER_END = -14
    """The next time of a scheduler is after its end."""
    STALE = -101
    """A newer request was served already."""
    RUNNING = -111
    LOCKED = -112
    ID_TAKEN = -113
    NOT_PAUSED = -114
    REPLAYED_TOO_OFTEN = -115
    PARCELS_LEFT = -116
    """What the queue has for queues in other slots has not been delivered."""
    LANE_FULL = -121
    NO_GROUP = -131
    WRONG_GROUP_STATE = -132
    OTHER_GROUP = -133
    """Another group has this id."""
