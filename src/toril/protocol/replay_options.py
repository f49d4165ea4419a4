"""How dead letters are sent back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toril.errors import InvalidOptionError
from toril.options import (
    OPTION_NAMES,
    REPLAY_OPTION_NAMES,
    NewJob,
    check_text,
    refuse_unknown,
    whole,
)
from toril.protocol import codec
from toril.protocol.keys import Keys

DEFAULT_MAX_REPLAYS = 10


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every letter of a replay, be it one or many."""

    target: Keys | None = None
    """The queue to send them to; None for the one that each came from."""
    changes: Changes | None = None
    by: str | None = None
    keep_delay: bool = False
    max_replays: int | None = None
    force: bool = False
    dry_run: bool = False
    """Only say whether a letter would go."""

    def __post_init__(self) -> None:
        if self.by is not None:
            check_text(self.by, "by")
        if self.max_replays is not None:
            whole(self.max_replays, "max_replays")

    def args(self) -> dict[str, Any]:
        """What the scripts need beside the letters and their target."""
        given = {
            "keep_delay": self.keep_delay or None,
            "by": self.by,
            "max_replays": self.max_replays,
            "force": self.force or None,
            "changes": None if self.changes is None else self.changes.args(),
            "dry_run": self.dry_run or None,
        }
        return {name: value for name, value in given.items() if value is not None}


class Changes(msgspec.Struct, frozen=True):
    """Options that replace those of a letter's job, checked as those of a new job are."""

    job: NewJob

    @classmethod
    def of(
        cls,
        options: Mapping[str, Any],
        *,
        keep_delay: bool = False,
        others: frozenset[str] = frozenset(),
    ) -> Changes | None:
        """The changes that these keyword arguments ask for; None if they ask for none.

        ``others`` are the names of arguments that one who mistypes may have meant.
        """
        for option in options:
            if option in OPTION_NAMES and option not in REPLAY_OPTION_NAMES:
                raise InvalidOptionError(
                    f"a replay cannot change {option!r}; it can change"
                    f" {', '.join(sorted(REPLAY_OPTION_NAMES))}"
                )
        refuse_unknown(options, REPLAY_OPTION_NAMES | others, "dead letters")
        given = {option: value for option, value in options.items() if value is not None}
        if not given:
            return None
        if keep_delay and ("delay" in given or "run_at" in given):
            raise InvalidOptionError("keep_delay cannot be combined with delay or run_at; give one")
        return cls(NewJob("replayed", **given))

    @property
    def is_for_one(self) -> bool:
        """Would many jobs with these options be taken for one and the same?"""
        return self.job.idempotency_key is not None

    def check_lane(self, letter_id: str, lane: str | None) -> None:
        """Refuse what a job of the letter's lane cannot have."""
        job = self.job
        if lane and not job.lane and (job.priority or job.lifo):
            raise InvalidOptionError(
                f"dead letter {letter_id!r} belongs to lane {lane!r}, where order_ms decides;"
                f" replay it without priority and lifo"
            )

    def args(self) -> dict[str, Any]:
        """What the scripts need: the options as members of a JSON object, and the job's place."""
        job = self.job
        options = codec.wire_options(job)
        if job.attempts is None:
            del options["attempts"]
        if job.lane is not None:
            options["priority"] = 0
        args: dict[str, Any] = {"opts": codec.encode_wire_options(options)[1:-1].decode()}
        for name in ("delay", "run_at", "priority", "lifo", "lane", "order_ms"):
            if (value := job.normalised(name)) is not None:
                args[name] = value
        return args
