"""Where a worker sends the jobs that failed for good, and what it reports about them."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from toril.options import DeadLetterOptions, Keep
from toril.protocol.burying import BurialPolicy, grave_of
from toril.protocol.keys import Keys
from toril.protocol.settling import Settled


class QueueLike(Protocol):
    """A queue, async or blocking: only the location of its keys matters."""

    name: str
    keys: Keys


BurialTarget = str | QueueLike | DeadLetterOptions | None


class DeadLettered(msgspec.Struct, frozen=True):
    """What listeners are told about a job that went to the dead letters."""

    job_id: str
    queue: str
    dead_letter_queue: str
    failed_reason: str
    dead_letter_job_id: str
    cause: str
    fingerprint: str
    error: BaseException | None = None


class Burial:
    """The target of a worker's dead letters, checked when the worker is made."""

    def __init__(self, target: Any, source: Keys) -> None:
        options, self.keys = grave_of(target, source)
        self.source = source
        self.hook = options.on_dead_letter
        self.keep = None if options.keep is None else Keep.of(options.keep)
        self.policy = BurialPolicy(
            include_stalled=options.include_stalled, keep_source=options.keep_source
        )
        self.count = 0

    def tell_of(self, item: Settled, letter_id: str) -> DeadLettered:
        """What became of a job that was moved."""
        letter = item.outcome.letter
        assert letter is not None
        return DeadLettered(
            job_id=item.job_id,
            queue=self.source.name,
            dead_letter_queue=self.keys.name,
            failed_reason=item.outcome.reason,
            dead_letter_job_id=letter_id,
            cause=letter.trouble.cause,
            fingerprint=letter.trouble.fingerprint,
            error=item.outcome.error,
        )
