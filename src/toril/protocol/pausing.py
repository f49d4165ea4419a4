"""Pausing a queue and letting it go on.

Next to BullMQ 5 jobs change lists when a queue is paused; that is done in slices, and calling again
goes on where a broken-off call stopped.
"""

from __future__ import annotations

from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.keys import Keys

SLICE = 1000


def pause(keys: Keys) -> Plan[None]:
    """Let nobody take from the queue."""
    while (
        yield script("pause", keys, {"slice": SLICE}, lambda more: more == 1, resend=Resend.SAME)
    ):
        pass


def resume(keys: Keys) -> Plan[None]:
    """Let jobs be taken again."""
    while (
        yield script("resume", keys, {"slice": SLICE}, lambda more: more == 1, resend=Resend.SAME)
    ):
        pass


def is_paused(keys: Keys) -> Command[bool]:
    """Does the queue hold its jobs back?"""
    return plain("HEXISTS", keys.meta, "paused", parse=lambda reply: reply == 1)


def rate_limit(keys: Keys, *, duration_ms: int) -> Command[None]:
    """Let workers with a rate limit start nothing for a while, as if it were used up."""
    return plain(
        "SET", keys.limiter, 2**53 - 1, "PX", duration_ms, parse=lambda _: None, resend=Resend.SAME
    )


def remove_rate_limit(keys: Keys) -> Command[None]:
    """Begin a new period of the rate limit."""
    return plain("DEL", keys.limiter, parse=lambda _: None)
