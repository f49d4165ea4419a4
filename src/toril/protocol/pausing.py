"""Pausing and resuming a queue.

Next to BullMQ 5 jobs change lists when a queue is paused; that is done in slices, and calling again
continues where an interrupted call stopped.
"""

from __future__ import annotations

from toril.protocol.command import Command, Plan, Resend, plain, script
from toril.protocol.keys import Keys

SLICE = 1000


def pause(keys: Keys) -> Plan[None]:
    """Stop workers from taking jobs."""
    while (
        yield script("pause", keys, {"slice": SLICE}, lambda more: more == 1, resend=Resend.SAME)
    ):
        pass


def resume(keys: Keys) -> Plan[None]:
    """Let workers take jobs again."""
    while (
        yield script("resume", keys, {"slice": SLICE}, lambda more: more == 1, resend=Resend.SAME)
    ):
        pass


def is_paused(keys: Keys) -> Command[bool]:
    """Whether the queue is paused."""
    return plain("HEXISTS", keys.meta, "paused", parse=lambda reply: reply == 1)
