"""The API of the order service written without tasks; a test keeps it working beside the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from models import PREFIX, Order, create_tables, open_session, outbox
from pydantic import BaseModel

from tasks import RETRIES
from toril import Compensation, GroupJob, NewJob, Queue
from toril.dashboard import dashboard


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    create_tables()
    async with Queue("reports", prefix=PREFIX) as queue:
        await queue.upsert_job_scheduler(
            "report", cron="0 3 * * *", tz="Europe/Berlin", template=NewJob("report")
        )
    yield


app = FastAPI(lifespan=lifespan)

# Without authenticate= it answers to this machine only: see docs/guides/dashboard.md.
app.mount("/toril", dashboard(prefix=PREFIX))


class NewOrder(BaseModel):
    amount: int
    customer: str = "ann"


@app.post("/orders", status_code=201)
def create_order(new: NewOrder) -> dict[str, object]:
    with open_session() as session, session.begin():
        order = Order(amount=new.amount, customer=new.customer)
        session.add(order)
        session.flush()
        saga = f"order-{order.id}"
        data = {"order_id": order.id}
        steps = [
            GroupJob("charge", data, queue_name="payments", attempts=10, backoff=RETRIES),
            GroupJob("reserve", data, queue_name="stock"),
        ]
        undoing = {"charge": Compensation("refund", data)}
        outbox.add_group(session, "order", steps, undoing, group_id=saga)
        outbox.add(
            session,
            "mail",
            "mail",
            {"customer": order.customer, "text": f"thank you for order {order.id}"},
            lane=f"customer:{order.customer}",
        )
        if new.amount > 1_000_000:
            # Raised inside the transaction: neither the order nor its jobs will ever exist.
            raise HTTPException(422, "nobody orders that much")
        return {"id": order.id, "group_id": saga}


@app.get("/orders/{order_id}")
def read_order(order_id: int) -> dict[str, object]:
    with open_session() as session:
        order = session.get(Order, order_id)
        if order is None:
            raise HTTPException(404, "there is no such order")
        return {"id": order.id, "status": order.status, "receipt": order.receipt}
