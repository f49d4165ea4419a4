"""The worker service: relays the outbox and charges orders, until SIGTERM."""

from __future__ import annotations

from typing import Any

from models import PREFIX, Charge, Order, create_tables, engine, open_session, outbox, records
from sqlalchemy.orm import Session

import toril
from toril import Router, UnrecoverableError, Worker
from toril.idempotency import SqlStore, idempotent
from toril.outbox import Relay

router = Router()


def ask_the_bank(amount: int, idempotency_key: str) -> str:
    """A real bank takes the key as a header, and does not charge twice for it either."""
    return f"receipt for {amount} by {idempotency_key}"


@router.on("charge")
@idempotent(SqlStore(open_session, table=records))
def charge(job: Any, session: Session) -> str:
    order = session.get(Order, job.data["order"])
    if order is None:
        raise UnrecoverableError(f"order {job.data['order']} does not exist")
    session.add(Charge(order_id=order.id, key=job.idempotency_key))
    order.receipt = ask_the_bank(order.amount, job.idempotency_key)
    order.status = "paid"
    return order.receipt


def make_worker() -> Worker:
    return Worker(
        "payments",
        router,
        prefix=PREFIX,
        concurrency=10,
        remove_on_complete=1000,
        dead_letter_queue="payments-dlq",
    )


if __name__ == "__main__":
    create_tables()
    toril.run(make_worker(), Relay(engine, outbox, prefix=PREFIX, confirm=True))
