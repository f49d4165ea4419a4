"""Whether the server deletes keys by itself when its memory is full, as a cache should."""

from __future__ import annotations

import re
from typing import Any

from toril.protocol.command import Command, plain
from toril.protocol.keys import Keys

_POLICY = re.compile(rb"^maxmemory_policy:(\S+)", re.MULTILINE)
SAFE = "noeviction"


def policy(keys: Keys) -> Command[str]:
    """The server's ``maxmemory-policy``, or the safe one if it does not tell."""
    return plain("INFO", "memory", parse=_parse, near=keys.marker)


def _parse(reply: Any) -> str:
    found = _POLICY.search(reply)
    return SAFE if found is None else found[1].decode()


def harm(policy: str) -> str:
    """What a policy does to a queue once the memory is full, or ""."""
    if policy == SAFE:
        return ""
    if policy.startswith("volatile"):
        return "it deletes locks and whatever else expires, so jobs run twice"
    return "it deletes jobs, without a word to anybody"
