"""An order that undoes itself: reserve, charge, approve, ship and mail, one after the other.

    python examples/order_saga.py

The first order succeeds. The second is declined after the card was charged, so its steps are undone
in reverse order. For the third, even the refund fails; an operator fixes that and retries it. The
fourth fails at the mail, after the parcel was sent: it can no longer be undone, so an operator
fixes the address and the group continues.

Runs on the server that TORIL_URL names, or on one of its own.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from toril import (
    Backoff,
    Compensation,
    FlowProducer,
    GroupInfo,
    GroupJob,
    GroupNode,
    GroupSignal,
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
    """The outside world: what is charged, reserved and sent, and what can fail."""

    def __init__(self) -> None:
        self.charged: dict[int, str] = {}
        self.reserved: dict[int, int] = {}
        self.shipped: dict[int, str] = {}
        self.mailed: list[int] = []
        self.lost_addresses = {4}
        self.bank_refuses_refunds_of = {3}


def do(shop: Shop) -> Router:
    """The handlers that do the work."""
    router = Router()

    @router.on("reserve")
    async def reserve(job: Any) -> None:
        order = job.data["order"]
        shop.reserved[order] = 2
        say(order, "stock", "reserved 2 pieces")

    @router.on("charge")
    async def charge(job: Any) -> dict[str, str]:
        order = job.data["order"]
        shop.charged[order] = f"tx-{order}"
        say(order, "payments", f"charged 99 €, transaction tx-{order}")
        return {"transaction": f"tx-{order}"}

    @router.on("ship")
    async def ship(job: Any) -> str:
        order, receipt = job.data["order"], job.data["receipt"]  # what charge returned
        shop.shipped[order] = receipt["transaction"]
        say(order, "parcels", f"shipped, paid with {receipt['transaction']}")
        return f"parcel-{order}"

    @router.on("mail")
    async def mail(job: Any) -> None:
        order = job.data["order"]
        if order in shop.lost_addresses:
            say(order, "mail", "[red]this address does not exist[/red]")
            raise UnrecoverableError("550 no such mailbox")
        shop.mailed.append(order)
        say(order, "mail", f"told that {job.data['parcel']} is on its way")

    return router


def undo(shop: Shop) -> Router:
    """The handlers that undo. Each may run more than once, so each may be repeated safely."""
    router = Router()

    @router.on("refund")
    async def refund(job: Any) -> None:
        order = job.compensation.compensation_data["order"]
        receipt = job.compensation.original_return_value  # None when the process died half-way
        transaction = receipt["transaction"] if receipt else shop.charged.get(order)
        if order in shop.bank_refuses_refunds_of:
            say(order, "payments", f"[red]the bank refuses to refund {transaction}[/red]")
            raise ConnectionError("the bank is closed")
        shop.charged.pop(order, None)
        say(order, "payments", f"[yellow]refunded {transaction}[/yellow]")

    @router.on("release")
    async def release(job: Any) -> None:
        order = job.compensation.compensation_data["order"]
        pieces = shop.reserved.pop(order, 0)
        say(order, "stock", f"[yellow]released {pieces} pieces[/yellow]")

    return router


def say(order: int, where: str, what: str) -> None:
    show(f"  order {order}  [bold]{where:<10}[/bold] {what}")


async def place_order(flow: FlowProducer, order: int) -> GroupNode:
    data = {"order": order}
    return await flow.add_group(
        name=f"order-{order}",
        group_id=f"order-{order}",  # placed twice, it is the same order
        jobs=[
            GroupJob("reserve", data, queue_name="stock"),
            GroupJob("charge", data, queue_name="payments", after=["reserve"]),
            GroupSignal("approval", after=["charge"], timeout=60_000),
            GroupJob(
                "ship",
                data,
                queue_name="parcels",
                after=["approval"],
                inputs={"receipt": "charge"},
                pivot=True,
            ),
            GroupJob("mail", data, queue_name="mail", after=["ship"], inputs={"parcel": "ship"}),
        ],
        compensation={
            "charge": Compensation("refund", data, attempts=2, backoff=Backoff.fixed(100)),
            "reserve": Compensation("release", data),
        },
    )


def conclude(info: GroupInfo) -> None:
    colour = {"COMPLETED": "green", "FAILED": "yellow"}.get(info.state, "red")
    counts = f"{info.completed_count} of {info.total_jobs} done"
    reason = f", because of: {info.reason}" if info.reason else ""
    show(f"  [{colour}]{info.name} is {info.state}[/{colour}] ({counts}{reason})\n")


async def main() -> Shop:
    shop = Shop()
    queues = ("stock", "payments", "parcels", "mail")
    workers = [Worker(name, do(shop), **SERVER) for name in queues]
    workers += [compensation_worker(name, undo(shop), **SERVER) for name in queues[:2]]
    for worker in workers:
        await worker.start()
    async with (
        FlowProducer(**SERVER) as flow,
        Queue("stock", **SERVER) as stock,
        QueueEvents("stock", **SERVER) as events,
    ):
        events.on(
            "group:compensating",
            lambda event: show(f"  [yellow]{event.data['group_name']} is being undone[/yellow]"),
        )
        show("[bold]All goes well[/bold]")
        await place_order(flow, 1)
        await stock.complete_member("order-1", "approval", {"by": "back office"})
        conclude(await stock.wait_for_group("order-1", timeout=30_000))

        for order, title in (
            (2, "The order is declined, so the rest is undone"),
            (3, "Even the refund fails"),
        ):
            show(f"[bold]{title}[/bold]")
            node = await place_order(flow, order)
            await stock.fail_member(node.group_id, "approval", "declined")
            conclude(await stock.wait_for_group(node.group_id, timeout=30_000))

        show("[bold]Somebody calls the bank, and the refund is tried again[/bold]")
        shop.bank_refuses_refunds_of.clear()
        await stock.retry_compensation("order-3")
        conclude(await stock.wait_for_group("order-3", timeout=30_000))

        show("[bold]The parcel was sent, and the mail fails[/bold]")
        blocked = asyncio.Event()
        events.on("group:blocked", lambda event: blocked.set())
        await place_order(flow, 4)
        await stock.complete_member("order-4", "approval")
        await asyncio.wait_for(blocked.wait(), 30)
        show("  [red]order-4 is BLOCKED[/red]: somebody repairs the address")
        shop.lost_addresses.clear()
        await stock.retry_group("order-4")
        conclude(await stock.wait_for_group("order-4", timeout=30_000))
        for step in await stock.get_group_timeline("order-4"):
            show(f"    {step.what:<12} {step.member or ''} {step.reason or ''}")
    for worker in workers:
        await worker.close()
    show(f"Charged: {shop.charged}. Reserved: {shop.reserved}. Mailed: {shop.mailed}.")
    return shop


if __name__ == "__main__":
    asyncio.run(main())
