"""What the blocks of each page take for granted, and what they must have done.

One function per page, named like it.  ``n`` is the namespace in which its blocks run.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import prometheus_client
from alembic.migration import MigrationContext
from alembic.operations import Operations
from django.utils.module_loading import import_string
from fastapi import FastAPI, Request
from flask import Flask
from sqlalchemy import MetaData, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import toril
import toril.steps
from tests.docs.playing import Enough, Other, Play
from tests.helpers import wait_until
from tests.servers import free_port
from toril import (
    App,
    Backoff,
    Compensation,
    FlowJob,
    GroupJob,
    GroupState,
    Queue,
    RateLimit,
    Worker,
)
from toril.errors import InvalidGroupStateError, RateLimitError
from toril.idempotency import idempotency_table
from toril.outbox import Outbox, Relay
from toril.testing import make_context

NEEDS_POSTGRES = {"guides/outbox"}
RECEIPT = {"receipt": 123}


async def give_receipt(job: Any) -> dict[str, int]:
    return RECEIPT


async def until_ended(queue: Queue, job_id: str, state: str = "completed") -> None:
    async def has_ended() -> bool:
        return await queue.get_state(job_id) == state

    await wait_until(has_ended, message=f"{job_id} is {state}")


async def feed(queue: Queue, block: asyncio.Task[None]) -> None:
    """Add jobs as long as a block watches for them."""
    while not block.done():
        await queue.add("charge", {})
        await asyncio.wait([block], timeout=0.05)
    await block


# ---------------------------------------------------------------------- guides


async def blocking_code(play: Play) -> None:
    n = play.names
    payments = await play.queue("payments")
    async with play.working(play.worker("payments", give_receipt)):
        await play.block()
        assert n["receipt"] == RECEIPT
        await feed(payments, asyncio.create_task(play.block(lines=1)))
        await play.block()
        assert n["receipts"] == [RECEIPT] * 100
        n["payments"].close()
    await play.block()
    assert await payments.get_waiting_count() == 1000


async def dashboard(play: Play) -> None:
    staff = SimpleNamespace(email="ana@example.com", is_staff=True, is_on_call=True)

    async def account_of(cookie: str | None) -> object:
        return staff if cookie == "ana" else None

    play.names["account_of"] = account_of
    await play.block()

    transport = httpx.ASGITransport(play.names["app"])
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as browser:
        refused = await browser.get("/toril/", follow_redirects=True)
        browser.cookies.set("session", "ana")
        shown = await browser.get("/toril/", follow_redirects=True)
    assert (refused.status_code, shown.status_code) == (401, 200)


async def dead_letters(play: Play) -> None:
    n = play.names
    reasons = {
        "late": ["ETIMEDOUT"] * 2,
        "away": ["the bank is away"] * 3,
        "bad": ["no currency", "account closed", "no amount", "no amount"],
    }
    made = {"late": TimeoutError, "away": ConnectionError, "bad": ValueError}

    def failing(job: Any) -> None:
        raise made[job.data["kind"]](job.data["reason"])

    places: dict[str, Any] = {"failing": failing}
    exec(compile("async def charge(job):\n    failing(job)\n", "bank.py", "exec"), places)

    async def charge(job: Any) -> None:
        await places["charge"](job)

    n["charge"] = charge
    payments, dlq = await play.queue("payments"), await play.queue("payments-dlq")
    async with play.working(play.worker("payments", charge, dead_letter_queue="payments-dlq")):
        for kind, texts in reasons.items():
            for reason in texts:
                await payments.add("charge", {"kind": kind, "reason": reason})

        async def are_dead() -> bool:
            return await dlq.get_dead_letter_count() == 9

        await wait_until(are_dead)
    fingerprints = {group.fingerprint: group.count for group in await dlq.get_dead_letter_summary()}
    letters = {
        letter.dead_letter.failed_reason: letter.id
        for letter in await dlq.get_dead_letter_jobs(0, 20)
    }

    await play.block()
    await n["dlq"].close()
    n["dlq"] = dlq
    assert sum(fingerprints.values()) == 9
    assert (await dlq.get_dead_letter_count(), await payments.get_waiting_count()) == (7, 2)
    for _ in range(2):
        await play.block()
    assert n["letter"].source_queue == "payments"
    (away,) = [each for each in fingerprints if each.startswith("ConnectionError")]
    play.instead["ConnectionError@bank.py:charge"] = away
    await play.block()
    assert await dlq.get_dead_letter_count() == 7, "a dry run changes nothing"
    await play.block()
    assert await dlq.get_dead_letter_count() == 4
    assert play.lines[-1].startswith("3 replayed")
    n["letter_id"] = letters["no amount"]
    await play.block()
    assert await dlq.get_dead_letter_count() == 2
    await play.block()
    assert await dlq.get_dead_letter_count() == 1
    (last,) = await dlq.get_dead_letter_jobs(0, 9)
    n["letter_id"] = last.id
    await play.block()
    assert await dlq.get_dead_letter_count() == 0
    n["pager"] = Other()
    await play.block()
    buried = n["DeadLetterOptions"]("payments-dlq", on_dead_letter=n["alert"])
    async with play.working(play.worker("orders", charge, dead_letter_queue=buried)):
        orders = await play.queue("orders")
        await orders.add("charge", {"kind": "bad", "reason": "no amount"})
        await wait_until(lambda: n["pager"].calls)
    ((name, (words,), _),) = n["pager"].calls
    assert (name, words.split()[1]) == ("send", "charge")


async def deduplication(play: Play) -> None:
    n = play.names
    await play.block()
    assert n["again"].duplicated
    n["mail"] = await play.queue("mail")
    await play.block()
    again = await n["mail"].add("digest", {}, deduplication=toril.Deduplication("digest-42"))
    assert not again.duplicated


async def events_and_results(play: Play) -> None:
    n = play.names
    payments = await play.queue("payments")
    async with play.working(play.worker("payments", give_receipt)):
        await play.block()
        assert n["receipt"] == RECEIPT
        await play.block()
        assert n["is_empty"]
        await feed(payments, asyncio.create_task(play.block(lines=3)))
    n["payments"] = payments
    await play.block()
    await play.block()

    def remember(event_id: str) -> None:
        raise Enough

    n["remember"] = remember
    with suppress(Enough):
        await asyncio.wait_for(n["follow"]("0-0"), 30)
    await play.block()
    assert n["state"] is None
    assert n["counts"]["completed"] > 0


async def flows(play: Play) -> None:
    n = play.names

    async def join(parts: Any) -> int:
        return len(list(parts))

    async def encode(job: Any) -> str:
        return f"part {job.data['part']}"

    async def list_pages() -> list[dict[str, int]]:
        return [{"page": 1}, {"page": 2}]

    n |= {"join": join, "list_pages": list_pages, "pages": await play.queue("pages")}
    video = await play.queue("video")
    await play.block()
    async with play.working(n["worker"], play.worker("encode", encode)):
        assert await video.wait_for(n["node"].job.id, timeout=60_000) == 2
    await play.block()
    imports = await play.queue("imports")
    workers = play.worker("imports", n["import_all"]), play.worker("pages", give_receipt)
    async with play.working(*workers):
        job = await imports.add("import-all", {"step": "spread"})
        assert await imports.wait_for(job.id, timeout=60_000) == 2


async def frameworks(play: Play) -> None:
    n = play.names
    await play.block()
    settings = n["TASKS"]["default"]
    assert import_string(settings["BACKEND"]).__name__ == "TorilBackend"
    n |= {"App": App, "FastAPI": FastAPI, "asynccontextmanager": asynccontextmanager}
    await play.block()

    @n["app"].task(queue="payments")
    async def charge(order: int) -> None: ...

    n["charge"] = charge
    transport = httpx.ASGITransport(n["api"])
    browser = httpx.AsyncClient(transport=transport, base_url="http://localhost")
    async with n["lifespan"](n["api"]), browser:
        asynchronous = (await browser.post("/orders/7")).json()["job"]
    n["web"] = Flask("shop")
    await play.block()
    answer = await asyncio.to_thread(n["web"].test_client().post, "/orders/8")
    payments = await play.queue("payments")
    waiting = {job.id for job in await payments.get_waiting()}
    assert waiting == {asynchronous, answer.json["job"]}


async def groups(play: Play) -> None:
    n = play.names
    n |= {"Queue": Queue, "bank": Other(refund="done"), "charge": give_receipt}
    payments = await play.queue("payments")

    async def status(member: str) -> str:
        members = {each.key: each for each in await payments.get_group_jobs("order-123")}
        return members[member].status

    async def is_refunded() -> bool:
        return (await payments.get_group_state("order-123")).state == GroupState.FAILED

    await play.block()
    async with play.working(play.worker("stock", give_receipt)):
        await wait_until(payments.get_waiting_count)
        await play.block(refusing=InvalidGroupStateError)
        await n["payments"].close()
        n["payments"] = payments
    assert await status("approval") == "completed"
    undo = toril.compensation_worker("stock", give_receipt, connection=play.url)
    parcels = play.worker("parcels", raise_no_address)
    async with play.working(parcels, undo):
        await play.block(until=is_refunded)
    assert [name for name, _, _ in n["bank"].calls] == ["refund"]
    await play.block(refusing=InvalidGroupStateError)
    assert n["info"].reason == "no such address"
    await play.block(raises=InvalidGroupStateError)


async def raise_no_address(job: Any) -> None:
    raise toril.UnrecoverableError("no such address")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int] = mapped_column(server_default="0")
    receipt: Mapped[str | None]


class Charge(Base):
    __tablename__ = "charges"

    order: Mapped[int] = mapped_column(primary_key=True)


async def idempotency(play: Play) -> None:
    n = play.names
    metadata = MetaData()
    idempotency_table(metadata)
    outbox = Outbox(metadata)
    engine = create_engine("sqlite:///shop.db")
    async_engine = create_async_engine("sqlite+aiosqlite:///shop.db")
    play.stack.push_async_callback(async_engine.dispose)
    play.stack.callback(engine.dispose)
    metadata.create_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Order(id=7, amount=12))
    bank, mailer = Other(charge="receipt-7"), Other()
    n |= {"Base": SimpleNamespace(metadata=MetaData()), "Order": Order, "Charge": Charge}
    n |= {"engine": engine, "async_engine": async_engine, "Session": Session, "bank": bank}
    queue = await play.queue("payments")

    await play.block()
    async with play.working(play.worker("payments", n["charge"])):
        job = await queue.add("charge", {"order": 7})
        assert await queue.wait_for(job.id, timeout=60_000) == "receipt-7"
    await play.block()
    assert "toril_idempotency" in n["Base"].metadata.tables
    n["job"] = make_context("charge", {"order": 7})
    await play.block()
    assert n["receipt"] == {"charged": True}

    def save(session: Session, request: Request) -> object:
        return SimpleNamespace(id=request.headers["Stripe-Event-Id"])

    n |= {"app": FastAPI(), "Request": Request, "save": save, "outbox": outbox}
    await play.block()
    transport = httpx.ASGITransport(n["app"])
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as stripe:
        header = {"Stripe-Event-Id": "event-1"}
        first, second = [await stripe.post("/webhooks/stripe", headers=header) for _ in range(2)]
    assert first.json() == second.json()
    n |= {"Backoff": Backoff, "timedelta": timedelta, "queue": queue, "data": {}}
    await play.block()
    n["mailer"] = mailer
    await play.block()
    mail = await play.queue("mail")
    async with play.working(play.worker("mail", n["send_mail"])):
        job = await mail.add("welcome", {})
        await mail.wait_for(job.id, timeout=60_000)
    assert len(mailer.calls) == 1


async def lanes(play: Play) -> None:
    n = play.names
    n |= {"crm": Other(), "event": SimpleNamespace(created_at_ms=1_700_000_000_000)}
    await play.block()
    queue = n["queue"] = await play.queue("crm")
    async with play.working(n["worker"]):
        await wait_until(lambda: len(n["crm"].calls) == 3)
    await play.block()
    assert (await queue.get_lane("user:42")).weight == 3
    busy = SimpleNamespace(status=429, retry_after_ms=1000)
    n["call_provider"] = Other(call=busy).call
    await play.block()
    await refuses(n["sync"], RateLimitError)


async def refuses(handler: Any, error: type[Exception]) -> None:
    try:
        await handler(SimpleNamespace(data={"report": 1}))
    except error:
        return
    raise AssertionError(f"it raised no {error}")


async def limits(play: Play) -> None:
    n = play.names
    n["provider"] = Other(post=SimpleNamespace(status=429, retry_after_ms=1000))
    await play.block()
    await refuses(n["send"], RateLimitError)
    mail = await play.queue("mail")
    assert await mail.get_global_rate_limit() == RateLimit(100, 60_000)
    n["provider"].answers["post"].status = 200
    async with play.working(n["worker"]):
        job = await mail.add("welcome", {})
        await mail.wait_for(job.id, timeout=60_000)
    n["is_ready"] = Other(ready=False).ready
    await play.block()
    await refuses(n["poll"], toril.errors.DelayedError)


async def managing_queues(play: Play) -> None:
    n = play.names
    payments = await play.queue("payments")
    await payments.add("charge", {}, job_id="order-123", delay=60_000)
    await play.block()
    n["payments"] = payments
    await payments.remove("order-123")
    await payments.add("charge", {}, job_id="order-123")
    await play.block()
    assert await payments.get_failed_count() == 1
    await play.block()
    assert play.lines == ["1 jobs run again"]
    await play.block()
    assert await payments.get_job_counts() == dict.fromkeys(await payments.get_job_counts(), 0)


async def outbox(play: Play) -> None:
    n = play.names
    engine = create_engine(play.instead["postgresql+psycopg://…"])
    play.stack.callback(engine.dispose)
    metadata = MetaData()
    Outbox(metadata)
    play.stack.callback(metadata.drop_all, engine)
    play.stack.callback(Base.metadata.drop_all, engine)
    metadata.create_all(engine)
    Base.metadata.create_all(engine)
    payments = await play.queue("payments")

    def rows() -> int:
        with engine.connect() as connection:
            waiting = text("SELECT count(*) FROM toril_outbox WHERE status = 'pending'")
            return connection.execute(waiting).scalar_one()

    async def has_come() -> bool:
        return await payments.get_waiting_count() == 1

    n |= {"order": Order(amount=3), "FlowJob": FlowJob}
    await play.block(until=has_come)
    n["engine"].dispose()
    n |= {"engine": engine, "order": Order(amount=4)}
    n["jobs"] = [GroupJob("charge", {}, queue_name="payments")]
    n["compensation"] = {"charge": Compensation("refund", {})}
    n["children"] = [FlowJob("encode", queue_name="encode")]
    await play.block()
    assert rows() == 2
    n |= {"order": 5, "psycopg": __import__("psycopg")}
    await play.block()
    assert rows() == 3
    with engine.begin() as connection:
        connection.execute(
            text("ALTER TABLE toril_outbox ADD CONSTRAINT uq_toril_outbox_queue_id UNIQUE (id)")
        )
    await play.block()
    with engine.begin() as connection:
        n["op"] = Operations(MigrationContext.configure(connection))
        n["upgrade"]()
        assert not connection.execute(
            text("SELECT 1 FROM pg_constraint WHERE conname = 'uq_toril_outbox_queue_id'")
        ).all()
    n["metadata"] = MetaData()
    await play.block()
    await play.block()
    n["Relay"] = Relay
    await play.block()
    async with n["lifespan"](None):
        await wait_until(lambda: rows() == 0)


async def production(play: Play) -> None:
    n = play.names
    engine = create_engine("sqlite:///shop.db")
    play.stack.callback(engine.dispose)
    metadata = MetaData()
    relay = Relay(engine, Outbox(metadata), connection=play.url)
    metadata.create_all(engine)
    worker = play.worker("payments", give_receipt)
    queue = await play.queue("payments")
    n |= {"worker": worker, "queue": queue, "relay": relay, "toril": toril, "url": play.url}
    await play.block(raises=SystemExit)
    assert "D103" in play.lines[-1]
    await play.block(until=lambda: worker.is_running)
    n["Queue"] = Queue
    await play.block()
    await n["queue"].close()


async def retries_and_failures(play: Play) -> None:
    n = play.names
    await play.block()
    await play.block()
    assert n["by_error"](1, "mine", PermissionError(), None) == -1
    await play.block()
    queue = await play.queue("payments")
    async with play.working(play.worker("payments", n["charge"])):
        job = await queue.add("charge", {"amount": -1}, attempts=3)
        await until_ended(queue, job.id, "failed")
    await play.block()
    assert play.lines[0].startswith(f"{job.id} negative amount 1")


async def scaling(play: Play) -> None:
    """Without a cluster: nothing connects before it is used."""
    play.names |= {"Queue": Queue, "Worker": Worker, "send": give_receipt, "App": App}
    play.names["FlowProducer"] = toril.FlowProducer
    await play.block()
    await play.block()


async def schedulers(play: Play) -> None:
    await play.block()
    mail = await play.queue("mail")
    assert {each.id for each in await mail.get_job_schedulers()} == {"digest", "poll"}
    await play.block()
    poll = await mail.get_job_scheduler("poll")
    assert (poll.every, poll.is_paused) == (600_000, False)


async def steps(play: Play) -> None:
    n = play.names
    service = Other(download="text", acquire=True)
    n |= {"download": service.download, "mark_done": service.mark_done, "locks": service}
    n["__name__"] = "__main__"
    queue = await play.queue("imports")
    page = {"url": "https://example.com"}
    await queue.add("step", {"workflowId": "w1", "stepId": "fetch", "data": page})

    async def is_done() -> bool:
        return await queue.get_completed_count() == 1

    await play.block(until=is_done)
    assert [name for name, _, _ in service.calls] == ["download", "mark_done"]
    await play.block()
    assert await queue.get_waiting_count() == 1
    n |= {"producer": n["Producer"](queue), "payload": n["JobPayload"]("w1", "fetch", None)}
    await play.block()
    assert await queue.get_delayed_count() == 1
    await play.block()
    exclusive = n["Exclusive"]("imports", connection=play.url)
    async with play.working(exclusive):
        await wait_until(lambda: "give_back" in [name for name, _, _ in service.calls])
    await toril.steps.close_all_queues()


async def tasks(play: Play) -> None:
    n = play.names
    n |= {"bank": Other(charge="receipt"), "build_report": lambda: None}
    payments = await play.queue("payments")
    block = asyncio.create_task(play.block())

    async def is_enqueued() -> bool:
        return block.done() or await payments.get_waiting_count() == 1

    await wait_until(is_enqueued)
    app = n["app"]

    @app.task(queue="stock")
    async def reserve(order: int) -> int:
        return order

    @app.task(queue="parcels")
    async def ship(order: int, receipt: str, items: int) -> str:
        return f"{order}: {receipt}, {items}"

    @asynccontextmanager
    async def make_pool() -> Any:
        yield "pool"

    n |= {"reserve": reserve, "ship": ship, "make_pool": make_pool}
    async with play.working(app):
        await block
        assert n["receipt"] == "receipt"
        await play.block()
        async with n["open_pools"](n["app"]) as state:
            assert state == {"pool": "pool"}
        await play.block()
        await play.block()
        n |= {"app": app, "order": 7, "amount": n["Decimal"]("9.99")}
        await play.block()
        assert n["group"].state == GroupState.COMPLETED


async def telemetry(play: Play) -> None:
    n = play.names
    before = set(prometheus_client.REGISTRY._collector_to_names)
    port = free_port()
    play.instead["start_http_server(9100)"] = f"serving = start_http_server({port})"
    n["send"] = give_receipt
    await play.block()
    queue = n["queue"] = await play.queue("mail")
    await play.block()
    async with play.working(n["worker"]):
        await wait_until(lambda: queue.get_completed_count())
    await play.block()
    assert n["metrics"].count == 1
    async with httpx.AsyncClient() as browser:
        shown = (await browser.get(f"http://127.0.0.1:{port}/metrics")).text
    assert 'toril_jobs{queue="mail",state="completed"} 1.0' in shown
    server, thread = n["serving"]
    server.shutdown()
    server.server_close()
    thread.join()
    for collector in set(prometheus_client.REGISTRY._collector_to_names) - before:
        prometheus_client.REGISTRY.unregister(collector)


SHOP = """
from toril import App, Context
app = App()

@app.task(queue="payments")
async def charge(ctx: Context, order: int) -> str:
    await ctx.report(50)
    await ctx.log("card refused")
    return f"receipt {order}"

@app.task(queue="mail")
async def thank(order: int) -> None: ...

async def checkout(order: int) -> None:
    await charge.enqueue(order=order)
    await thank.enqueue(order=order)
"""
ORDERS = """
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sqlalchemy.schema import MetaData
from shop import charge
from toril.outbox import Outbox, Relay
engine = create_engine("sqlite:///orders.db")
outbox = Outbox(metadata := MetaData())
metadata.create_all(engine)

def place_order(amount: int) -> int:
    with Session(engine) as session, session.begin():
        outbox.add(session, charge.call(order=amount))
    return amount
"""


async def testing(play: Play) -> None:
    """As a reader has them: files next to a shop, and pytest."""
    first, *others = play.blocks
    conftest, tests = first.split("# test_shop.py\n")
    Path("shop.py").write_text(SHOP)
    Path("orders.py").write_text(ORDERS)
    Path("conftest.py").write_text(conftest)
    for number, block in enumerate([tests, *others]):
        Path(f"test_{number}.py").write_text(f"from shop import *\nfrom orders import *\n{block}")
        play.played += 1

    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        env=os.environ | {"TORIL_TEST_URL": play.url},
    )

    assert done.stdout.rstrip().rpartition("\n")[2].startswith("4 passed"), done.stdout


async def workers(play: Play) -> None:
    n = play.names
    payments = await play.queue("payments")
    job = await payments.add("charge", {"order": 7})
    n["__name__"] = "__main__"

    async def is_done() -> bool:
        return await payments.get_completed_count() == 1

    await play.block(until=is_done)
    assert (await payments.get_job(job.id)).return_value == {"receipt": 7}
    await play.block()
    await play.block()
    await play.block()
    seen: list[Any] = []

    async def charge(data: Any) -> str:
        seen.append(data)
        if len(seen) == 3:
            raise Enough
        if len(seen) == 2:
            raise ValueError("no")
        return "receipt"

    n["charge"] = charge
    for number in range(3):
        await payments.add("charge", {"order": number})
    await play.block(raises=Enough)
    assert await payments.get_completed_count() == 2


# ---------------------------------------------------------------------- other pages


async def server(play: Play) -> None:
    """Nothing connects before it is used."""
    await play.block()


async def coming_from(play: Play) -> None:
    n = play.names
    n["send"] = Other(send="sent").send
    mail = await play.queue("mail")
    block = asyncio.create_task(play.block())

    async def is_delayed() -> bool:
        return block.done() or await mail.get_delayed_count() == 1

    await wait_until(is_delayed)
    async with play.working(play.worker("mail", n["router"])):
        await mail.promote_all()
        await block
