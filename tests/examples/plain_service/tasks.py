"""The handlers of the order service written without tasks, for routers and workers."""

from __future__ import annotations

from models import PREFIX, Charge, Order, engine, open_session, outbox, records
from sqlalchemy import func, select

from toril import Backoff, Context, Router, UnrecoverableError, Worker
from toril.idempotency import once
from toril.outbox import Relay

MOST_IN_STOCK = 1000

RETRIES = Backoff.exponential(1000, jitter=0.5)

router = Router()
relay = Relay(engine, outbox, prefix=PREFIX, confirm=True)


def ask_the_bank(amount: int, idempotency_key: str) -> str:
    """A real bank takes the key as a header, and does not charge twice for it either."""
    return f"receipt for {amount} by {idempotency_key}"


def move_money(ctx: Context, order_id: int, sign: int, status: str) -> str:
    """Once, whatever dies: the record of it commits with the work."""
    with open_session.begin() as session, once(session, ctx, table=records) as run:
        if not run.is_repeat:
            order = session.get_one(Order, order_id)
            amount = sign * order.amount
            session.add(Charge(order_id=order.id, amount=amount, key=ctx.idempotency_key))
            run.result = order.receipt = ask_the_bank(amount, ctx.idempotency_key)
            order.status = status
        return str(run.result)


@router.on
def charge(ctx: Context) -> str:
    return move_money(ctx, int(ctx.data["order_id"]), 1, "paid")


@router.on
def refund(ctx: Context) -> str:
    return move_money(ctx, int(ctx.compensation.compensation_data["order_id"]), -1, "refunded")


@router.on
def reserve(ctx: Context) -> None:
    order_id = int(ctx.data["order_id"])
    with open_session() as session:
        if session.get_one(Order, order_id).amount > MOST_IN_STOCK:
            raise UnrecoverableError(f"order {order_id} is more than we have")


@router.on
def mail(ctx: Context) -> str:
    """One at a time and in order for each customer, side by side for all of them."""
    customer, text = str(ctx.data["customer"]), str(ctx.data["text"])
    return f"{customer}: {text}"


@router.on
def report(ctx: Context) -> dict[str, int]:
    with open_session() as session:
        counts = select(Order.status, func.count()).group_by(Order.status)
        return dict(session.execute(counts).tuples().all())


workers = [
    Worker(name, router, prefix=PREFIX, dead_letter_queue=f"{name.replace(':', '-')}-dlq")
    for name in ("payments", "payments:compensation", "stock", "mail", "reports")
]
