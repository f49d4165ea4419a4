"""How the service is tested: no mocks, a real server that the fixture brings along.

pip install pytest pytest-asyncio httpx; pytest
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from datetime import timedelta

os.environ["DATABASE_URL"] = f"sqlite:///{tempfile.mkdtemp()}/test.db"

import pytest
from app import app as api
from fastapi.testclient import TestClient
from models import Base, Charge, engine, open_session, outbox
from sqlalchemy import select

from tasks import app, charge, mail, report
from toril import App
from toril.outbox import Relay
from toril.testing import Rig, make_context


@pytest.fixture
def toril_app() -> App:
    return app


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    Base.metadata.create_all(engine)
    yield
    Base.metadata.drop_all(engine)


def order(amount: int) -> int:
    with TestClient(api) as client:
        return int(client.post("/orders", json={"amount": amount}).json()["id"])


def status_of(order_id: int) -> str:
    with TestClient(api) as client:
        return str(client.get(f"/orders/{order_id}").json()["status"])


def moved() -> list[int]:
    with open_session() as session:
        return list(session.scalars(select(Charge.amount)))


async def relay(rig: Rig) -> None:
    async with Relay(engine, outbox, connection=rig.url, prefix=rig.prefix) as relay:
        await relay.drain()


def test_an_order_is_charged_once_although_the_job_runs_twice() -> None:
    number = order(42)
    ctx = make_context("charge", {"order_id": number}, idempotency_key=f"order-{number}")

    assert charge(ctx, number) == charge(ctx, number)

    assert moved() == [42]


@pytest.mark.asyncio
async def test_an_order_is_paid(toril_rig: Rig) -> None:
    number = order(42)
    await relay(toril_rig)

    ran = await toril_rig.drain()

    assert sorted(job.name for job in ran) == ["charge", "mail", "reserve"]
    assert status_of(number) == "paid"


@pytest.mark.asyncio
async def test_an_order_that_is_not_in_stock_is_refunded(toril_rig: Rig) -> None:
    number = order(5000)
    await relay(toril_rig)

    await toril_rig.drain(raise_failures=False)

    # If the order was charged before it turned out that there is too little, it is refunded.
    assert status_of(number) in ("refunded", "new")
    assert sum(moved()) == 0


@pytest.mark.asyncio
async def test_the_mails_of_a_customer_keep_their_order(toril_rig: Rig) -> None:
    for number in range(3):
        await mail.enqueue("ann", f"mail {number}")

    toril_rig.assert_enqueued(mail, count=3, customer="ann")
    ran = await toril_rig.drain()

    assert [job.result for job in ran] == [f"ann: mail {number}" for number in range(3)]


@pytest.mark.asyncio
async def test_the_report_runs_every_night(toril_rig: Rig) -> None:
    order(42)
    await app.declare_schedules()

    assert await toril_rig.drain() == []
    await toril_rig.advance(timedelta(days=1))
    ran = await toril_rig.drain()

    assert [(job.name, job.result) for job in ran] == [(report.name, {"new": 1})]


def test_a_mail_without_a_server() -> None:
    with app.eager():
        handle = mail.sync.enqueue("ann", "hello")

    assert handle.result() == "ann: hello"
