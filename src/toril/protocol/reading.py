"""Looking at a queue without changing it."""

from __future__ import annotations

from typing import Any

from toril.protocol.command import Command, plain
from toril.protocol.job import FIELDS, Job
from toril.protocol.keys import Keys, check_known_id


def job(keys: Keys, job_id: str, *, duplicated: bool = False) -> Command[Job | None]:
    """One job with everything that is stored of it, or None."""
    check_known_id(job_id)

    def parse(reply: list[Any]) -> Job | None:
        if reply[0] is None:
            return None
        return Job(keys.prefix, keys.name, job_id, reply, duplicated=duplicated)

    return plain("HMGET", keys.job(job_id), *FIELDS, parse=parse)
