"""Questions put to the server itself, so that neither party answers for its own work."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from tests.helpers import PATIENCE_S, wait_until
from tests.interop.scenario import state_of

FAR = 3_600_000

DOOMED = {"lock_duration": 1000, "stalled_interval": 100}
NODE_DOOMED = {"lockDuration": 1000, "stalledInterval": 100}
"""For those who are killed: their locks expire soon."""
SURVIVING = {"lock_duration": 30_000, "stalled_interval": 100}
NODE_SURVIVING = {"lockDuration": 30_000, "stalledInterval": 100}
"""For those who take over: however slow the machine is, they lose nothing themselves."""
PATIENT = {"drain_delay": 600_000}
NODE_PATIENT = {"drainDelay": 600}
"""For those who have to be woken: an idle one looks by itself in ten minutes (BullMQ: in 10 s)."""


async def wait_for_state(
    client: Any, prefix: str, queue: str, job_id: str, *states: str, timeout: float = PATIENCE_S
) -> str:
    """Wait until the job is in one of ``states`` and say in which."""

    async def reached() -> str | None:
        state = await state_of(client, prefix, queue, job_id)
        return state if state in states else None

    return await wait_until(reached, timeout, message=f"job {job_id} is {' or '.join(states)}")


async def wait_for_finished(
    client: Any, prefix: str, queue: str, count: int, *, timeout: float = PATIENCE_S
) -> None:
    """Wait until ``count`` jobs of the queue are completed or failed."""

    async def reached() -> bool:
        completed = await client.zcard(f"{prefix}:{queue}:completed")
        failed = await client.zcard(f"{prefix}:{queue}:failed")
        return completed + failed >= count

    await wait_until(reached, timeout, message=f"{count} jobs of {queue} are finished")


async def forget_all(client: Any, prefix: str) -> None:
    """Delete what is in the queue and known of it, but for its settings."""
    keys = [key async for key in client.scan_iter(match=f"{prefix}:q:*")]
    if dated := [key for key in keys if not key.endswith(":meta")]:
        await client.delete(*dated)


async def wait_until_idle(client: Any, prefix: str, queue: str, workers: int = 1) -> None:
    """Wait until ``workers`` workers block on the queue's marker."""
    name = f"{prefix}:{b64encode(queue.encode()).decode()}"

    async def blocked() -> bool:
        waiting = [
            row
            for row in await client.client_list()
            if row["cmd"] == "bzpopmin"
            and "b" in row["flags"]
            and (row["name"] == name or row["name"].startswith(f"{name}:w:"))
        ]
        return len(waiting) >= workers

    await wait_until(blocked, message=f"{workers} workers of {queue} are idle")


async def events_of(client: Any, prefix: str, queue: str, *names: str) -> list[dict[str, str]]:
    """The entries of the queue's event stream, of all names or of some."""
    rows = await client.xrange(f"{prefix}:{queue}:events")
    return [fields for _, fields in rows if not names or fields["event"] in names]


async def event_names(client: Any, prefix: str, queue: str, job_id: str) -> list[str]:
    """The names of the events of one job, in order."""
    rows = await events_of(client, prefix, queue)
    return [fields["event"] for fields in rows if fields.get("jobId") == job_id]


async def keys_of_job(client: Any, prefix: str, queue: str, job_id: str) -> list[str]:
    """Every key that belongs to one job."""
    return [key async for key in client.scan_iter(match=f"{prefix}:{queue}:{job_id}*", count=1000)]
