"""Adding jobs that belong together, over any number of queues: flows and groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

import msgspec

from toril.checking import checked
from toril.client.agreeing import Agreeing
from toril.client.connection import Connection, Target
from toril.client.groups import GroupProducer
from toril.client.ids import new_job_id
from toril.options import Duration, FlowJob, Replicas
from toril.protocol import adding, families, flows, partitioning, reading
from toril.protocol import placing as placing_of
from toril.protocol.command import plain
from toril.protocol.flows import FlowNode, PreparedNode
from toril.protocol.job import Job
from toril.protocol.keys import Keys, check_prefix, hash_tag
from toril.protocol.placing import Placing


@checked
class FlowProducer(GroupProducer):
    """Adds trees and groups of jobs, each in one atomic step.

    ``prefix`` applies to all jobs that do not name another one.  ``replicas`` works as for
    ``Queue``: a tree or a group is returned when that many replicas have it.  ``partitions`` says
    which queues have partitions, and how many: ``{"mail": 16}``.
    """

    def __init__(
        self,
        *,
        connection: Target = None,
        prefix: str = "bull",
        replicas: int = 0,
        replicas_timeout: Duration = 1000,
        partitions: Mapping[str, int] | None = None,
    ) -> None:
        check_prefix(prefix)
        self.prefix = prefix
        self._replicas = Replicas.of(replicas, replicas_timeout)
        self._owns_connection = not isinstance(connection, Connection)
        self._connection = (
            connection if isinstance(connection, Connection) else Connection(connection)
        )
        self._agreeing = Agreeing(self._connection, prefix, partitions)

    def __repr__(self) -> str:
        return f"<FlowProducer on {self._connection!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection."""
        if self._owns_connection:
            await self._connection.close()

    async def add(self, flow: FlowJob) -> FlowNode:
        """Add a job and everything it waits for; either the whole tree is added, or none of it.

        A job whose id already exists stays as it is, and its children are not added; its node has
        ``job.duplicated`` set.
        """
        return (await self.add_bulk([flow]))[0]

    async def add_bulk(self, flows_to_add: Iterable[FlowJob]) -> list[FlowNode]:
        """Add several trees, all of them or none."""
        roots = list(flows_to_add)
        if not roots:
            return []
        place = None
        if self._agreeing.is_needed:
            placing = await self._placing(placing_of.queues_of_flows(roots))
            roots = await self._where_they_are(roots, placing)
            place = placing.of_flow_job
        nodes = flows.prepare(roots, self.prefix, new_job_id, place=place)
        self._connection.check_slots(*flows.queues_of(roots, nodes))
        home = flows.home_of(roots, nodes)
        answers = await self._connection.run(flows.add(nodes, self._replicas, home))
        jobs = [
            None if added is None else _as_added(node, added)
            for node, added in zip(nodes, answers, strict=True)
        ]
        await self._read_duplicates(nodes, jobs)
        return flows.grow(nodes, jobs)

    async def get_flow(
        self,
        job_id: str,
        queue_name: str,
        *,
        prefix: str | None = None,
        depth: int = 10,
        max_children: int = 20,
    ) -> FlowNode | None:
        """A job and its descendants: ``depth`` levels, at most ``max_children`` children of each.

        None if there is no such job.
        """
        keys = await self._keys_of(job_id, queue_name, prefix)
        return await self._connection.follow(
            families.tree(keys, job_id, depth=depth, max_children=max_children)
        )

    async def _where_they_are(self, roots: Sequence[FlowJob], placing: Placing) -> list[FlowJob]:
        """The trees; one whose root exists in an earlier partition of a grown queue goes there."""
        found = list(roots)
        for index, root in enumerate(roots):
            known = placing.numbers.get(root.queue_name)
            if known is None:
                continue
            stem = hash_tag(root.queue_name) or root.queue_name
            for number in partitioning.homes_before(root, known, stem):
                name = partitioning.name_of(root.queue_name, number)
                traces = partitioning.traces_of(Keys(self.prefix, name), root)
                if await self._connection.run(plain("EXISTS", *traces, parse=bool)):
                    found[index] = msgspec.structs.replace(root, queue_name=name)
                    break
        return found

    async def _keys_of(self, job_id: str, queue_name: str, prefix: str | None) -> Keys:
        """The plain queue that has a job; the named queue itself if it has no partitions."""
        keys = Keys(self.prefix if prefix is None else prefix, queue_name)
        count = placing_of.told_of(queue_name, self._agreeing.told)
        if count == 1 or keys.prefix != self.prefix:
            return keys
        parts = [keys.sibling(partitioning.name_of(queue_name, number)) for number in range(count)]
        found = await self._connection.run_all(
            [plain("EXISTS", part.job(job_id), parse=bool) for part in parts]
        )
        numbers = [number for number, is_there in enumerate(found) if is_there]
        if len(numbers) > 1:
            raise partitioning.ambiguous(queue_name, job_id, numbers)
        return parts[numbers[0]] if numbers else parts[0]

    async def _read_duplicates(self, nodes: list[PreparedNode], jobs: list[Job | None]) -> None:
        """Put the jobs that already exist in place of those that were not added."""
        places = [index for index, job in enumerate(jobs) if job is not None and job.duplicated]
        commands = [
            reading.job(nodes[index].keys, job.id, duplicated=True)
            for index in places
            if (job := jobs[index]) is not None
        ]
        if not commands:
            return
        for index, existing in zip(places, await self._connection.run_all(commands), strict=True):
            jobs[index] = existing or jobs[index]


def _as_added(node: PreparedNode, added: adding.Added) -> Job:
    fields = adding.fields_of(node.job, added)
    return Job(node.keys.prefix, node.keys.name, added.id, fields, duplicated=added.is_duplicate)
