"""Adding jobs from blocking code: each call is sent by itself, in the calling thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from toril.options import Replicas
from toril.protocol import adding
from toril.protocol.adding import (
    MOST_JOBS_PER_CALL,
    Added,
    NotAdded,
    Prepared,
    count_for_one_call,
)
from toril.protocol.command import Command
from toril.protocol.keys import Keys
from toril.sync.connection import Connection

T = TypeVar("T")

MOST_CALLS_AT_ONCE = 4


class Batcher:
    """Adds jobs to one queue; the twin of the async one, without batching."""

    is_away = False
    """No caller ever waits for another's call."""

    def __init__(
        self, connection: Connection, keys: Keys, replicas: Replicas | None = None
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._replicas = replicas

    def add(self, job: Prepared) -> Added:
        """Add one job."""
        answer = self._connection.run(self._add([job]))[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def add_all(self, jobs: list[Prepared], each: Callable[[Prepared, Added], T]) -> list[T]:
        """Add many jobs, in slices.  Once all have been answered it raises the first refusal, or
        else ``NotReplicatedError`` if too few replicas have some of them.

        Answers go through ``each`` while the server works on the next slices.
        """
        commands = []
        start = 0
        while start < len(jobs):
            part = jobs[start : start + MOST_JOBS_PER_CALL]
            part = part[: count_for_one_call(part)]
            commands.append(adding.add_each(self._keys, part, each, self._replicas))
            start += len(part)
        slices = self._connection.run_all(commands, at_once=MOST_CALLS_AT_ONCE)
        answers = [answer for part in slices for answer in part]
        adding.raise_worst(answers)
        return cast(list[T], answers)

    def _add(self, jobs: list[Prepared]) -> Command[list[Added | NotAdded]]:
        return adding.add(self._keys, jobs, replicas=self._replicas)

    def close(self) -> None:
        """Nothing is ever in flight."""
