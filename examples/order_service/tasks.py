"""What the service does in the background: an order is charged once, whatever dies."""

from __future__ import annotations

from models import PREFIX, Charge, Order, open_session, records

from toril import App, Backoff, Context, UnrecoverableError
from toril.idempotency import once

app = App(prefix=PREFIX, worker_options={"dead_letter_queue": "{queue}-dlq"})


def ask_the_bank(amount: int, idempotency_key: str) -> str:
    """A real bank takes the key as a header, and does not charge twice for it either."""
    return f"receipt for {amount} by {idempotency_key}"


@app.task(queue="payments", attempts=10, backoff=Backoff.exponential(1000, jitter=0.5))
def charge(ctx: Context, order_id: int) -> str:
    with open_session.begin() as session, once(session, ctx, table=records) as run:
        if not run.is_repeat:
            order = session.get(Order, order_id)
            if order is None:
                raise UnrecoverableError(f"order {order_id} does not exist")
            session.add(Charge(order_id=order.id, key=ctx.idempotency_key))
            run.result = order.receipt = ask_the_bank(order.amount, ctx.idempotency_key)
            order.status = "paid"
        return str(run.result)
