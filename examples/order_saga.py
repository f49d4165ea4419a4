"""An order that undoes itself: payment, inventory and e-mail, in three queues and one group.

    python examples/order_saga.py

The first order goes through. The second one fails in the middle: the warehouse has reserved, the
card is charged, and then the e-mail cannot be sent, so both are undone. For the third, the bank
refuses even the refund; somebody repairs that and lets it be tried again.

Runs on the server that TORIL_URL names, or on one of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from typing import Any

from toril import (
    Backoff,
    Compensation,
    FlowProducer,
    GroupInfo,
    GroupJob,
    GroupNode,
    Queue,
    QueueEvents,
    Router,
    UnrecoverableError,
    Worker,
    compensation_worker,
)

try:
    from rich import print as show
except ImportError:  # without colours
    import re

    def show(*objects: Any) -> None:  # type: ignore[misc]
        print(*(re.sub(r"\[/?[a-z ]+\]", "", str(item)) for item in objects))


SERVER: dict[str, Any] = {
    "connection": os.environ.get("TORIL_URL") or "embedded:",
    "prefix": os.environ.get("EXAMPLE_PREFIX", "bull"),
}


class Shop:
    """The outside world: what is charged, reserved and sent, and what of that can fail."""

    def __init__(self) -> None:
        self.charged: dict[int, str] = {}
        self.reserved: dict[int, int] = {}
        self.mailed: list[int] = []
        self.lost_addresses = {2, 3}
        self.bank_refuses_refunds_of = {3}
        self.both_done: dict[int, asyncio.Event] = defaultdict(asyncio.Event)

    def look_at(self, order: int) -> None:
        if order in self.charged and order in self.reserved:
            self.both_done[order].set()


def do(shop: Shop) -> Router:
    """The handlers that do."""
    router = Router()

    @router.on("charge-payment")
    async def charge(job: Any) -> dict[str, str]:
        order = job.data["order"]
        shop.charged[order] = f"tx-{order}"
        shop.look_at(order)
        say(order, "payments", f"charged {job.data['amount']} €, transaction tx-{order}")
        return {"transaction": f"tx-{order}"}

    @router.on("reserve-inventory")
    async def reserve(job: Any) -> None:
        order, pieces = job.data["order"], job.data["pieces"]
        shop.reserved[order] = pieces
        shop.look_at(order)
        say(order, "inventory", f"reserved {pieces} pieces")

    @router.on("send-confirmation")
    async def send(job: Any) -> None:
        order = job.data["order"]
        await shop.both_done[order].wait()  # for the show: the others come first
        if order in shop.lost_addresses:
            say(order, "mail", "[red]this address does not exist[/red]")
            raise UnrecoverableError("550 no such mailbox")
        shop.mailed.append(order)
        say(order, "mail", "confirmation sent")

    return router


def undo(shop: Shop) -> Router:
    """The handlers that undo. Each may run more than once, so each may be repeated safely."""
    router = Router()

    @router.on("refund-payment")
    async def refund(job: Any) -> None:
        order = job.data["compensationData"]["order"]
        receipt = job.compensation.original_return_value  # None when the process died half-way
        transaction = receipt["transaction"] if receipt else shop.charged.get(order)
        if order in shop.bank_refuses_refunds_of:
            say(order, "payments", f"[red]the bank refuses to refund {transaction}[/red]")
            raise ConnectionError("the bank is closed")
        shop.charged.pop(order, None)
        say(order, "payments", f"[yellow]refunded {transaction}[/yellow]")

    @router.on("release-inventory")
    async def release(job: Any) -> None:
        order = job.data["compensationData"]["order"]
        pieces = shop.reserved.pop(order, 0)
        say(order, "inventory", f"[yellow]released {pieces} pieces[/yellow]")

    return router


def say(order: int, where: str, what: str) -> None:
    show(f"  order {order}  [bold]{where:<10}[/bold] {what}")


async def place_order(flow: FlowProducer, order: int) -> GroupNode:
    data = {"order": order}
    return await flow.add_group(
        name=f"order-{order}",
        jobs=[
            GroupJob("charge-payment", queue_name="payments", data={**data, "amount": 99}),
            GroupJob("reserve-inventory", queue_name="inventory", data={**data, "pieces": 2}),
            GroupJob("send-confirmation", queue_name="mail", data=data),
        ],
        compensation={
            "charge-payment": Compensation(
                "refund-payment", data=data, attempts=2, backoff=Backoff.fixed(100)
            ),
            "reserve-inventory": Compensation("release-inventory", data=data),
        },
    )


def conclude(info: GroupInfo) -> None:
    colour = {"COMPLETED": "green", "FAILED": "yellow"}.get(info.state, "red")
    counts = f"{info.completed_count} of {info.total_jobs} done"
    reason = f", because of: {info.reason}" if info.reason else ""
    show(f"  [{colour}]{info.name} is {info.state}[/{colour}] ({counts}{reason})\n")


async def main() -> Shop:
    shop = Shop()
    queues = ("payments", "inventory", "mail")
    workers = [Worker(name, do(shop), **SERVER) for name in queues]
    workers += [compensation_worker(name, undo(shop), **SERVER) for name in queues[:2]]
    for worker in workers:
        await worker.start()
    async with (
        FlowProducer(**SERVER) as flow,
        Queue("payments", **SERVER) as payments,
        QueueEvents("payments", **SERVER) as events,
    ):
        events.on(
            "group:compensating",
            lambda event: show(f"  [yellow]{event.data['group_name']} is being undone[/yellow]"),
        )
        for order, title in (
            (1, "All goes well"),
            (2, "The e-mail fails, so the rest is undone"),
            (3, "Even the refund fails"),
        ):
            show(f"[bold]{title}[/bold]")
            node = await place_order(flow, order)
            conclude(await payments.wait_for_group(node.group_id, timeout=30_000))

        show("[bold]Somebody calls the bank, and the refund is tried again[/bold]")
        shop.bank_refuses_refunds_of.clear()
        await payments.retry_compensation(node.group_id)
        conclude(await payments.wait_for_group(node.group_id, timeout=30_000))
    for worker in workers:
        await worker.close()
    show(f"Charged: {shop.charged}. Reserved: {shop.reserved}. Mailed: {shop.mailed}.")
    return shop


if __name__ == "__main__":
    asyncio.run(main())
