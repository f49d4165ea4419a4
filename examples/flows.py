"""A film is encoded in parts, and rendered when all parts are there.

    python examples/flows.py

Set TORIL_URL to run it on your own server.
"""

from __future__ import annotations

import asyncio
import os

from toril import FlowJob, FlowProducer, Queue, Worker

SERVER = os.environ.get("TORIL_URL", "embedded:")


async def encode(job):
    return f"part {job.data['part']}, encoded"


async def render(job):
    parts = await job.children_values()
    return sorted(parts.values())


async def main() -> list[str]:
    async with (
        FlowProducer(connection=SERVER) as flow,
        Queue("video", connection=SERVER) as video,
        Worker("video", render, connection=SERVER),
        Worker("encode", encode, connection=SERVER, concurrency=4),
    ):
        parts = [FlowJob("encode", {"part": n}, queue_name="encode", attempts=3) for n in (1, 2, 3)]
        node = await flow.add(FlowJob("render", {"film": 7}, queue_name="video", children=parts))
        return await video.wait_for(node.job.id, timeout=30_000)


if __name__ == "__main__":
    for part in asyncio.run(main()):
        print(part)
