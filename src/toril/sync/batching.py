"""Adding jobs from blocking code: each call goes by itself, in whatever thread it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from toril.errors import RefusedError
from toril.protocol import adding
from toril.protocol.adding import MOST_JOBS_PER_CALL, Added, Prepared, count_for_one_call
from toril.protocol.keys import Keys
from toril.sync.connection import Connection

T = TypeVar("T")

MOST_CALLS_AT_ONCE = 4


class Batcher:
    """Adds jobs to one queue; the twin of the async one, without anything to gather."""

    def __init__(self, connection: Connection, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys

    def add(self, job: Prepared) -> Added:
        """Add one job."""
        answer = self._connection.run(adding.add(self._keys, [job]))[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def add_all(self, jobs: list[Prepared], each: Callable[[Prepared, Added], T]) -> list[T]:
        """Add many jobs, in slices; raises the first refusal when all have been answered.

        Answers go through ``each`` while the server works on the next slices.
        """
        commands = []
        start = 0
        while start < len(jobs):
            part = jobs[start : start + MOST_JOBS_PER_CALL]
            part = part[: count_for_one_call(part)]
            commands.append(adding.add_each(self._keys, part, each))
            start += len(part)
        added: list[T] = []
        for answers in self._connection.run_all(commands, at_once=MOST_CALLS_AT_ONCE):
            for answer in answers:
                if isinstance(answer, RefusedError):
                    raise answer
                added.append(answer)
        return added

    def close(self) -> None:
        """Nothing is ever under way."""
