"""Tasks and Node: each runs what the other adds."""

from __future__ import annotations

import asyncio
from decimal import Decimal

from tests.interop.support import wait_for_state
from toril import App


async def test_a_node_producers_job_runs_as_a_task(peer, client, url, prefix):
    app = App(connection=url, prefix=prefix)

    @app.task(queue="q")
    async def charge(order: int, amount: Decimal, note: str = "none") -> dict[str, str]:
        return {"double": str(amount * 2), "note": note}

    running = asyncio.create_task(app.run())
    job_id = await peer.add("q", "charge", {"order": 1, "amount": "9.99"})
    await wait_for_state(client, prefix, "q", job_id, "completed")
    job = await peer.job("q", job_id)
    await app.close()
    await running

    assert job["returnvalue"] == {"double": "19.98", "note": "none"}


async def test_a_tasks_job_runs_in_a_node_worker(peer, client, url, prefix):
    app = App(connection=url, prefix=prefix)

    @app.task(queue="q", attempts=3)
    async def charge(order: int, amount: Decimal) -> int: ...

    await peer.work("q", {"*": [["return", 42]]})
    handle = await charge.enqueue(1, Decimal("9.99"))

    assert await handle.result(60_000) == 42
    job = await peer.job("q", handle.id)
    assert job["data"] == {"order": 1, "amount": "9.99"}
    assert job["opts"]["attempts"] == 3
    await app.close()
