"""What the tests of lanes share: workers at the granularity of one call, and a ledger."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from toril.client.connection import Connection
from toril.protocol import leasing, settling
from toril.protocol.job import StoredJob, fields_of
from toril.protocol.keys import Keys
from toril.protocol.settling import Outcome, Policy, Raised, Returned, Settled, Take


class Hand:
    """A worker moved by hand, call by call: it takes, settles, falls silent or dies as told."""

    def __init__(self, connection: Connection, keys: Keys, name: str) -> None:
        self._connection = connection
        self._keys = keys
        self.name = name
        self.held: dict[str, tuple[StoredJob, str]] = {}
        self._requests = itertools.count(1)

    async def take(self, count: int = 1) -> list[StoredJob]:
        _, jobs = await self.call([], count)
        return jobs

    async def take_one(self) -> StoredJob | None:
        jobs = await self.take(1)
        return jobs[0] if jobs else None

    async def complete(self, job: StoredJob, *, then_take: int = 0) -> list[StoredJob]:
        outcome = settling.decide(job, Returned(None), Policy(), dice=0.5)
        results, jobs = await self.call([(job, outcome)], then_take)
        assert results == [0], results
        return jobs

    async def fail(self, job: StoredJob, *, then_take: int = 0) -> list[StoredJob]:
        outcome = settling.decide(job, Raised(ValueError("no")), Policy(), dice=0.5)
        results, jobs = await self.call([(job, outcome)], then_take)
        assert results == [0], results
        return jobs

    async def give_back(self, job: StoredJob) -> None:
        results, _ = await self.call([(job, Outcome(kind="returned"))], 0)
        assert results == [0], results

    async def call(
        self, outcomes: Sequence[tuple[StoredJob, Outcome]], count: int
    ) -> tuple[list[Any], list[StoredJob]]:
        """One call of the pump: settle, then take. Returns the results and the jobs."""
        request = next(self._requests)
        command = self.command(outcomes, count, request)
        reply = await self._connection.run(command)
        for job, _ in outcomes:
            self.held.pop(job.id, None)
        return reply.results, self.receive(reply.jobs, request)

    def command(
        self, outcomes: Sequence[tuple[StoredJob, Outcome]], count: int, request: int
    ) -> Any:
        settled = [
            Settled(job.id, self.held[job.id][1] if job.id in self.held else "lost", outcome, job)
            for job, outcome in outcomes
        ]
        take = Take(count=count, token=self._token(request), lock_ms=30_000)
        return settling.settle(self._keys, settled, take, flight=self.name, request=request)

    def receive(self, rows: list[list[Any]], request: int) -> list[StoredJob]:
        jobs = []
        for row in rows:
            words = list(row)
            job_id = words.pop().decode()
            job = StoredJob(self._keys.prefix, self._keys.name, job_id, fields_of(words))
            self.held[job_id] = (job, self._token(request))
            jobs.append(job)
        return jobs

    def next_request(self) -> int:
        return next(self._requests)

    def _token(self, request: int) -> str:
        return f"{self.name}:{request}"


async def lose_lock(client: Any, keys: Keys, job_id: str) -> None:
    """The lock expires: its worker died or fell silent."""
    await client.delete(f"{keys.job(job_id)}:lock")


async def sweep(connection: Connection, client: Any, keys: Keys) -> list[str]:
    """A whole sweep: the jobs that hold no lock are brought back now."""
    found: list[str] = []
    for _ in range(2):  # the first one marks, the second one brings back
        await client.delete(keys.stalled_check)
        plan = leasing.sweep(keys, interval_ms=60_000, max_stalled=1000)
        found += await connection.follow(plan)
    return found


def fence_of(job: StoredJob) -> int:
    return int(job._fields[b"x.fence"])


async def drain(hand: Hand) -> list:
    """Take and complete until nothing is left; what was taken, in order."""
    seen = []
    jobs = await hand.take(1)
    while jobs:
        seen.append(jobs[0].data)
        jobs = await hand.complete(jobs[0], then_take=1)
    return seen
