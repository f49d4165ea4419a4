"""The API: an order and the job that charges it are written in one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from models import PREFIX, Order, create_tables, open_session, outbox
from pydantic import BaseModel

from tasks import charge
from toril.dashboard import dashboard


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    create_tables()
    yield


app = FastAPI(lifespan=lifespan)

# Without authenticate= it answers to this machine only: see docs/guides/dashboard.md.
app.mount("/toril", dashboard(prefix=PREFIX))


class NewOrder(BaseModel):
    amount: int


@app.post("/orders", status_code=201)
def create_order(new: NewOrder) -> dict[str, object]:
    with open_session() as session, session.begin():
        order = Order(amount=new.amount)
        session.add(order)
        session.flush()
        call = charge.using(idempotency_key=f"order-{order.id}").call(order.id)
        job_id = outbox.add(session, call)
        if new.amount > 1_000_000:
            # Raised inside the transaction: neither the order nor its job will ever exist.
            raise HTTPException(422, "nobody orders that much")
        return {"id": order.id, "job_id": job_id}


@app.get("/orders/{order_id}")
def read_order(order_id: int) -> dict[str, object]:
    with open_session() as session:
        order = session.get(Order, order_id)
        if order is None:
            raise HTTPException(404, "there is no such order")
        return {"id": order.id, "status": order.status, "receipt": order.receipt}
