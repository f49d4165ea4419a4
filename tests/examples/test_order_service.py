"""The order service runs as its README says: an API and a worker as processes, on each database."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import httpx
import pytest
from sqlalchemy import create_engine, text

from tests.forked import Forked
from tests.helpers import wait_until
from tests.servers import free_port
from tests.sql.conftest import (  # noqa: F401 (fixtures)
    database_url,
    mariadb,
    mariadb_server,
    postgres,
)
from toril import Queue

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "examples" / "order_service"


@pytest.fixture
async def start(url, prefix, database_url):  # noqa: F811
    """Starts programs of the service; they are told to end after the test."""
    environment = {
        **os.environ,
        "DATABASE_URL": database_url,
        "TORIL_URL": url,
        "ORDERS_PREFIX": prefix,
        "PYTHONPATH": str(ROOT / "src"),
    }
    children = []

    def start(*command):
        child = Forked(*command, env=environment, needs=("uvicorn", "fastapi", "sqlalchemy"))
        children.append(child)
        return child

    yield start
    for child in children:
        child.terminate()
    codes = [await child.ended() for child in children]
    engine = create_engine(database_url)
    with engine.begin() as connection:
        for table in ("orders", "charges", "toril_outbox", "toril_idempotency"):
            connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
    engine.dispose()
    # uvicorn ends by the signal that it was told to end with.
    assert set(codes) <= {0, -signal.SIGKILL, -signal.SIGTERM}


def count_charges(database):
    engine = create_engine(database)
    with engine.connect() as connection:
        count = connection.execute(text("SELECT count(*) FROM charges")).scalar()
    engine.dispose()
    return count


async def test_orders_are_charged_once_although_the_worker_is_killed(
    start,
    url,
    prefix,
    database_url,  # noqa: F811
):
    """RULES-02, RULES-13, RULES-15, RULES-16 in one service."""
    port = free_port()
    start(
        *("-m", "uvicorn", "--app-dir", str(SERVICE), "app:app"),
        *("--port", str(port), "--log-level", "warning"),
    )
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as api:
        await wait_until(lambda: _answers(api), every=0.05)
        too_much = await api.post("/orders", json={"amount": 2_000_000})
        orders = [(await api.post("/orders", json={"amount": n})).json()["id"] for n in range(5)]
        first = start(str(SERVICE / "worker.py"))
        for order in orders:
            await wait_until(lambda order=order: _is_paid(api, order), every=0.05)
        first.kill()
        await first.ended()
        orders += [(await api.post("/orders", json={"amount": n})).json()["id"] for n in range(5)]
        start(str(SERVICE / "worker.py"))
        for order in orders[5:]:
            await wait_until(lambda order=order: _is_paid(api, order), every=0.05)

        assert too_much.status_code == 422
        assert (await api.get("/orders/999")).status_code == 404
        receipt = (await api.get(f"/orders/{orders[-1]}")).json()["receipt"]
        assert f"order-{orders[-1]}" in receipt
    assert len(set(orders)) == 10
    charged = await asyncio.to_thread(count_charges, database_url)
    assert charged == 10
    async with Queue("payments-dlq", connection=url, prefix=prefix) as dead:
        assert await dead.get_dead_letter_count() == 0


async def _answers(api):
    try:
        return (await api.get("/orders/0")).status_code == 404
    except httpx.TransportError:
        return False


async def _is_paid(api, order):
    return (await api.get(f"/orders/{order}")).json()["status"] == "paid"
