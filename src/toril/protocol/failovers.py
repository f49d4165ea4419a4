"""What sentinels tell of a failover, as they publish it.

From the moment at which a replica is told to be the primary, whatever the old one takes is lost,
and it keeps accepting writes for seconds. So writers stop just before and continue there.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from toril.protocol.slots import Node

_SWITCHED = "+switch-master"
_ABOUT_TO = "+failover-state-send-slaveof-noone"
_ABORTED = ("-failover-abort-slave-timeout", "-failover-abort-no-good-slave")
CHANNELS = (_SWITCHED, _ABOUT_TO, *_ABORTED)

LONGEST_HOLD_S = 3.0
"""For how long writes are held back when a sentinel is about to switch and tells nothing more."""


class Told(Enum):
    """What a sentinel tells, if not where the primary is."""

    NOTHING = "nothing of interest, for a while"
    ABOUT_TO_SWITCH = "a replica is about to become the primary"


def read(message: Mapping[str, Any] | None, service: str) -> Node | Told:
    """What a message says of ``service``: where its primary is now, or what is about to happen."""
    if message is None or message.get("type") != "message":
        return Told.NOTHING
    channel, words = message["channel"], str(message["data"]).split()
    match words:
        case [name, _, _, host, port] if channel == _SWITCHED and name == service:
            return host, int(port)
        case [*_, "@", name, _, _] if channel == _ABOUT_TO and name == service:
            return Told.ABOUT_TO_SWITCH
        case ["master", name, host, port, *_] if channel in _ABORTED and name == service:
            return host, int(port)
    return Told.NOTHING
