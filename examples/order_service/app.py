"""The API: an order, the saga that fulfils it and a mail are written in one transaction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from models import PREFIX, Order, create_tables, open_session, outbox
from pydantic import BaseModel

from tasks import charge, mail, reserve
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
    customer: str = "ann"


@app.post("/orders", status_code=201)
def create_order(new: NewOrder) -> dict[str, object]:
    with open_session() as session, session.begin():
        order = Order(amount=new.amount, customer=new.customer)
        session.add(order)
        session.flush()
        saga = f"order-{order.id}"
        # Concurrently; if one fails for good, what the other did is undone.
        steps = [charge.call(order.id), reserve.call(order.id)]
        outbox.add_group(session, "order", steps, group_id=saga)
        outbox.add(session, mail.call(order.customer, f"thank you for order {order.id}"))
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
