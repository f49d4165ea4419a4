"""What ``--burst`` asks the server while it waits for the queues to be empty."""

from __future__ import annotations

import asyncio

from tests.helpers import wait_until
from toril import Worker
from toril.cli import worker as command
from toril.cli.worker import Burst


async def test_a_burst_keeps_one_connection_however_often_it_looks(
    queue, url, prefix, client, monkeypatch
):
    monkeypatch.setattr(command, "_LOOK_S", 0.005)
    may_end = asyncio.Event()

    async def handler(job):
        await may_end.wait()

    async def seen(what):
        return (await client.info("stats"))[what]

    worker = Worker("q", handler, connection=url, prefix=prefix)
    queue.add("job")
    burst = Burst([worker], [])
    async with worker, asyncio.TaskGroup() as group:
        await wait_until(queue.get_active_count)
        group.create_task(burst.run())
        connections = await seen("total_connections_received")
        enough = await seen("total_commands_processed") + 100

        async def has_looked_often():
            return await seen("total_commands_processed") > enough

        await wait_until(has_looked_often)
        opened = await seen("total_connections_received") - connections
        may_end.set()

    assert opened <= 3
