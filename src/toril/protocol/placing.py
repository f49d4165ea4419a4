"""Which partitions the jobs of a flow or a group go to.

A job with a lane, a deduplication id or an id of its own has a home.  The others stay together, so
that on a cluster they share a slot: those of a flow go where the job above them is, those of a
group to the partition of the group's id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from toril.options import FlowJob, NewJob
from toril.protocol import partitioning
from toril.protocol.keys import hash_tag
from toril.protocol.new_group import GroupJob, NewGroup, check_group_id
from toril.protocol.partitioning import Numbers

J = TypeVar("J", bound=NewJob)


def told_of(name: str, told: Mapping[str, int]) -> int:
    """How many partitions a queue has by what the user said; 1 for a plain one.

    A queue whose hash tag is the name of one with partitions has them too: ``{mail}-dlq``.
    """
    found = told.get(name)
    if found is None:
        found = told.get(hash_tag(name) or "", 1)
    return found


class Placing(msgspec.Struct, frozen=True):
    """Where jobs go, as far as the numbers of partitions are known."""

    numbers: Mapping[str, Numbers]
    """Of those queues that have partitions."""
    anywhere: int = 0
    """For what may go anywhere."""
    names_partition: bool = True
    """May an id that is made up name its partition?"""

    def of_flow_job(self, job: FlowJob, above: str | None) -> tuple[str, str]:
        """The plain queue of a job of a flow, and how its id ends; ``above`` is its parent's."""
        known = self.numbers.get(job.queue_name)
        if known is None:
            return job.queue_name, ""
        home = partitioning.home_of_job(job, known.now, _stem(job.queue_name))
        if home is None and above is not None:
            found = partitioning.whole_of(above)
            home = None if found is None else found[1] % known.now
        number = self.anywhere % known.now if home is None else home
        suffix = f"-{number}" if self.names_partition else ""
        return partitioning.name_of(job.queue_name, number), suffix

    def of_group(self, group: NewGroup, group_id: str, was: Mapping[str, int] = {}) -> NewGroup:
        """The group with its members in partitions.

        ``was`` has the numbers of partitions from the time when it was created, if it exists.
        """
        check_group_id(group_id)
        text = group.compensation_queue
        return msgspec.structs.replace(
            group,
            owner=self._queue_of(group.owner, group_id, was),
            members=tuple(
                self._placed(member, group_id, was) if isinstance(member, GroupJob) else member
                for member in group.members
            ),
            compensation_queue=text if "{queue}" in text else self._queue_of(text, group_id, was),
            on_completed=self._placed(group.on_completed, group_id, was),
            on_failed=self._placed(group.on_failed, group_id, was),
        )

    def owners_before(self, group: NewGroup, group_id: str) -> list[tuple[int, str]]:
        """The queues that may own the group since there were fewer partitions, and how many."""
        known = self.numbers.get(group.owner, Numbers())
        now = self._queue_of(group.owner, group_id, {})
        before = [
            (count, self._queue_of(group.owner, group_id, {group.owner: count}))
            for count in reversed(known.earlier)
        ]
        return [(count, name) for count, name in before if name != now]

    def _queue_of(self, name: str, group_id: str, was: Mapping[str, int]) -> str:
        known = self.numbers.get(name)
        if known is None:
            return name
        return partitioning.name_of(name, partitioning.home_of(group_id, was.get(name, known.now)))

    def _placed(self, job: Any, group_id: str, was: Mapping[str, int]) -> Any:
        if job is None or job.queue_name not in self.numbers:
            return job
        known = self.numbers[job.queue_name]
        count = was.get(job.queue_name, known.now)
        home = partitioning.home_of_job(job, count, _stem(job.queue_name))
        name = self._queue_of(job.queue_name, group_id, was)
        if home is not None:
            name = partitioning.name_of(job.queue_name, home)
        return msgspec.structs.replace(job, queue_name=name)


def queues_of_flows(roots: Iterable[FlowJob]) -> set[str]:
    """The names of all queues that jobs of these trees go to."""
    names: set[str] = set()
    stack: list[Any] = list(roots)
    while stack:
        job = stack.pop()
        if isinstance(job, FlowJob):  # what else is there is refused later
            names.add(job.queue_name)
            stack.extend(job.children)
    return names


def queues_of_group(group: NewGroup) -> set[str]:
    """The names of all queues that a group names."""
    ends: list[Any] = [job for _, job in group.ends]
    jobs = [*group.jobs, *ends]
    return {group.owner, group.compensation_queue, *(job.queue_name for job in jobs)}


def _stem(name: str) -> str:
    return hash_tag(name) or name
