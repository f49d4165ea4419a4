"""What the service does in the background: an order is paid and reserved, or neither."""

from __future__ import annotations

from models import PREFIX, Charge, Order, engine, open_session, outbox, records
from sqlalchemy import func, select

from toril import App, Backoff, Context, UnrecoverableError, cron
from toril.idempotency import once
from toril.outbox import Relay

MOST_IN_STOCK = 1000

app = App(prefix=PREFIX, worker_options={"dead_letter_queue": "{queue}-dlq"})
relay = Relay(engine, outbox, prefix=PREFIX, confirm=True)


def ask_the_bank(amount: int, idempotency_key: str) -> str:
    """A real bank takes the key as a header, and does not charge twice for it either."""
    return f"receipt for {amount} by {idempotency_key}"


def move_money(ctx: Context, order_id: int, sign: int, status: str) -> str:
    """Happens once, whatever crashes: its record is committed together with the work."""
    with open_session.begin() as session, once(session, ctx, table=records) as run:
        if not run.is_repeat:
            order = session.get_one(Order, order_id)
            amount = sign * order.amount
            session.add(Charge(order_id=order.id, amount=amount, key=ctx.idempotency_key))
            run.result = order.receipt = ask_the_bank(amount, ctx.idempotency_key)
            order.status = status
        return str(run.result)


@app.task(queue="payments", attempts=10, backoff=Backoff.exponential(1000, jitter=0.5))
def charge(ctx: Context, order_id: int) -> str:
    return move_money(ctx, order_id, 1, "paid")


@charge.undo
def refund(ctx: Context, order_id: int) -> str:
    return move_money(ctx, order_id, -1, "refunded")


@app.task(queue="stock")
def reserve(order_id: int) -> None:
    with open_session() as session:
        if session.get_one(Order, order_id).amount > MOST_IN_STOCK:
            raise UnrecoverableError(f"order {order_id} is more than we have")


@app.task(queue="mail", lane=lambda customer, **_: f"customer:{customer}")
def mail(customer: str, text: str) -> str:
    """In order for each customer, concurrently for different customers."""
    return f"{customer}: {text}"


@app.task(queue="reports", schedule=cron("0 3 * * *", tz="Europe/Berlin"))
def report() -> dict[str, int]:
    with open_session() as session:
        counts = select(Order.status, func.count()).group_by(Order.status)
        return dict(session.execute(counts).tuples().all())
