"""Adding jobs that belong together, over any number of queues: flows and groups."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from toril.checking import checked
from toril.client.connection import Connection, Target
from toril.client.groups import GroupProducer
from toril.client.ids import new_job_id
from toril.options import Duration, FlowJob, Replicas
from toril.protocol import adding, families, flows, reading
from toril.protocol.flows import FlowNode, PreparedNode
from toril.protocol.job import Job
from toril.protocol.keys import Keys, check_prefix


@checked
class FlowProducer(GroupProducer):
    """Adds trees and groups of jobs, each in one atomic step.

    ``prefix`` is that of all jobs which do not name another one.  ``replicas`` as for ``Queue``: a
    tree or a group is returned when that many replicas have it.
    """

    def __init__(
        self,
        *,
        connection: Target = None,
        prefix: str = "bull",
        replicas: int = 0,
        replicas_timeout: Duration = 1000,
    ) -> None:
        check_prefix(prefix)
        self.prefix = prefix
        self._replicas = Replicas.of(replicas, replicas_timeout)
        self._owns_connection = not isinstance(connection, Connection)
        self._connection = (
            connection if isinstance(connection, Connection) else Connection(connection)
        )

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
        """Add a job and all that it waits for; either the whole tree is there, or nothing of it.

        A job whose id exists already stays as it is, and what is below it is not added; the node
        says so by ``job.duplicated``.
        """
        return (await self.add_bulk([flow]))[0]

    async def add_bulk(self, flows_to_add: Iterable[FlowJob]) -> list[FlowNode]:
        """Add several trees, all of them or none."""
        roots = list(flows_to_add)
        if not roots:
            return []
        nodes = flows.prepare(roots, self.prefix, new_job_id)
        self._connection.check_slots(*flows.queues_of(roots, nodes))
        answers = await self._connection.run(flows.add(nodes, self._replicas))
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
        """A job and those below it: ``depth`` levels, at most ``max_children`` children of each.

        None when there is no such job.
        """
        keys = Keys(self.prefix if prefix is None else prefix, queue_name)
        return await self._connection.follow(
            families.tree(keys, job_id, depth=depth, max_children=max_children)
        )

    async def _read_duplicates(self, nodes: list[PreparedNode], jobs: list[Job | None]) -> None:
        """In place of what was not added, the jobs that exist."""
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
