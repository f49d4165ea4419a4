"""Sending dead letters back: one by its id, or many in slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from toril.errors import InvalidGroupStateError, JobLockedError, RefusedError, TooManyReplaysError
from toril.options import ReplacedOptions
from toril.protocol import codec
from toril.protocol.burying import replayable
from toril.protocol.command import Command, Resend, script
from toril.protocol.dead_letter import DeadLetterMetadata, first_key, without_metadata
from toril.protocol.dead_letters import (
    DeadLetterFilter,
    Filter,
    Run,
    Slice,
    Walk,
    not_found,
    read_slice,
    walk_args,
)
from toril.protocol.job import Job
from toril.protocol.keys import Keys
from toril.protocol.refusals import Refusal
from toril.protocol.replay_options import ReplayOptions

REPLAYS_PER_SLICE = 50
"""So that a script takes less than 10 ms, also on a slow server."""
REPLAYED_BYTES_PER_SLICE = 500_000
"""And that it does so whatever the payloads: a larger one has a slice for itself."""

_AS_IT_WAS = ReplayOptions()


class ReplayFilter(DeadLetterFilter, ReplacedOptions, total=False):
    """The filters of a bulk replay, and the options that its jobs get, as keyword arguments."""


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is sent back with where the letter alone does not tell."""

    text: bytes
    options: bytes = b""
    job_id: str = ""
    priority: int = 0
    delay: int = 0
    is_repaired: bool = False

    @classmethod
    def of_letter(
        cls, job: Job, meta: DeadLetterMetadata, repaired: bytes | None = None
    ) -> Contents:
        """The contents of a letter that another program wrote or changed."""
        options = replayable(meta.original_opts)
        options.setdefault("idempotencyKey", first_key(meta))
        what = f"of dead letter {job.id!r}"
        priority, delay = meta.original_opts.get("priority"), meta.original_opts.get("delay")
        return cls(
            text=repaired or codec.encode(without_metadata(job.data), f"the data {what}"),
            options=codec.encode(options, f"the options {what}"),
            job_id=meta.original_job_id,
            priority=priority if isinstance(priority, int) else 0,
            delay=delay if isinstance(delay, int) else 0,
            is_repaired=repaired is not None,
        )

    def args(self) -> dict[str, Any]:
        """What the script needs beside the texts."""
        given = {
            "job": self.job_id,
            "is_repaired": self.is_repaired,
            "priority": self.priority,
            "delay": self.delay,
        }
        return {"has_data": True, **{name: value for name, value in given.items() if value}}


def replay(
    keys: Keys,
    letter_id: str,
    new_id: str,
    source: str,
    options: ReplayOptions = _AS_IT_WAS,
    contents: Contents | None = None,
) -> Command[str | None]:
    """Send one letter back; None when somebody changed its data, so that it needs ``contents``."""
    args: dict[str, Any] = {
        "id": letter_id,
        "new_id": new_id,
        "source": source,
        "prefix": keys.prefix,
    }
    args.update(options.args())
    if contents is not None:
        args.update(contents.args())

    def parse(reply: bytes | int) -> str | None:
        if isinstance(reply, bytes):
            return codec.name(reply)
        if reply == 1:
            return None
        raise refusal(reply, letter_id, keys.name)

    return script(
        "replayDeadLetter",
        keys,
        args,
        parse,
        payloads=() if contents is None else (contents.text, contents.options),
        resend=Resend.MARKED,
    )


def judge(
    owner: Keys, member: str, letter_id: str, queue: str, new_id: str, target: Keys, *, force: bool
) -> Command[str]:
    """The id that a letter's job gets in its group, which ``owner`` has in another slot."""

    def parse(reply: bytes | int) -> str:
        if isinstance(reply, bytes):
            return codec.name(reply)
        raise refusal(reply, letter_id, queue)

    args: dict[str, Any] = {"member": member, "new_id": new_id, "target": target.base}
    if force:
        args["force"] = True
    return script("judgeReplay", owner, args, parse, resend=Resend.SAME)


def refusal(code: int, letter_id: str, queue: str) -> Exception:
    """The error for a code that ``replayDeadLetter.lua`` gave."""
    match code:
        case Refusal.RUNNING:
            return JobLockedError(
                f"dead letter {letter_id!r} of queue {queue!r} is running: a worker has taken it;"
                f" wait until it has finished"
            )
        case Refusal.REPLAYED_TOO_OFTEN:
            return TooManyReplaysError(
                f"dead letter {letter_id!r} of queue {queue!r} has come back as often as"
                f" max_replays allows; repair its data, raise max_replays, or purge it"
            )
        case Refusal.ID_TAKEN:
            return RefusedError(
                f"dead letter {letter_id!r} of queue {queue!r} was to come back under an id that is"
                f" in use; replay it again, which draws another one"
            )
        case Refusal.WRONG_GROUP_STATE:
            return InvalidGroupStateError(
                f"dead letter {letter_id!r} of queue {queue!r} belongs to a group that is over or"
                f" being undone, or that does not wait for it, so running it again could not be"
                f" undone; pass force=True (--force) to replay it anyway"
            )
    return not_found(letter_id, queue)


def replay_slice(
    keys: Keys,
    walk: Walk,
    wanted: Filter,
    ids: Sequence[str],
    options: ReplayOptions = _AS_IT_WAS,
    *,
    run: Run,
    asks: bool = False,
    seeks_homes: bool = False,
) -> Command[Slice]:
    """Replay up to as many letters as there are new ``ids``, or name them if it ``asks``.

    If it ``seeks_homes``, it names those of lanes that may be in another partition by now.
    """
    args = walk_args(walk, wanted, run)
    args.update(options.args())
    args["limit"] = len(ids)
    args["bytes"] = REPLAYED_BYTES_PER_SLICE
    args["ids"] = list(ids)
    args["prefix"] = keys.prefix
    if options.target is not None:
        args["to"] = options.target.name
    if asks:
        args["asks"] = True
    if seeks_homes:
        args["seeks_homes"] = True
    if asks or seeks_homes:
        args["examine"] = len(ids)
    extra = run.keys(keys)
    return script("replayDeadLetters", keys, args, read_slice, extra=extra, resend=Resend.SAME)
