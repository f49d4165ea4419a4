"""The order saga: payment, stock and e-mail all succeed, or what was done is undone."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from toril import (
    Compensation,
    FlowProducer,
    GroupJob,
    Queue,
    Router,
    UnrecoverableError,
    Worker,
)
from toril.cli.demo.stage import MARKS, Stage

_LOOK_EVERY_S = 0.05
_STEP_S = 0.7
_LONGEST_MS = 30_000


async def order_that_succeeds(stage: Stage, url: str) -> dict[str, str]:
    stage.announce(
        "An order succeeds",
        "Three jobs in three queues are one group: charge the card, reserve the goods, send"
        " a mail.",
    )
    order = _Order(stage, url, number=1, is_in_stock=True)
    return {"order 1": await order.fulfil()}


async def order_that_fails(stage: Stage, url: str) -> dict[str, str]:
    stage.announce(
        "An order fails and undoes itself",
        "The goods are gone. The card is charged already, so the money goes back by itself; the"
        " mail is not sent.",
    )
    order = _Order(stage, url, number=2, is_in_stock=False)
    state = await order.fulfil()
    return {"order 2": f"{state}, {', '.join(order.undone) or 'nothing undone'}"}


class _Order:
    """One order on its way, and the picture of it."""

    def __init__(self, stage: Stage, url: str, *, number: int, is_in_stock: bool) -> None:
        self.undone: list[str] = []
        self._stage = stage
        self._url = url
        self._number = number
        self._is_in_stock = is_in_stock
        self._members: list[Any] = []
        self._state = "ACTIVE"

    async def fulfil(self) -> str:
        """Send the order on its way, and return how it ended."""
        options: dict[str, Any] = {"connection": self._url}
        handlers = self._handlers()
        async with AsyncExitStack() as stack:
            for name in ("payments", "payments:compensation", "stock", "mail"):
                await stack.enter_async_context(Worker(name, handlers, **options))
            payments = await stack.enter_async_context(Queue("payments", **options))
            flow = await stack.enter_async_context(FlowProducer(**options))
            # The mail is put off, so that it can still be kept back; where it will be, until nobody
            # waits for the order any more, or a busy machine would send it before the failure.
            mail_delay = int(_STEP_S * 2500) if self._is_in_stock else 2 * _LONGEST_MS
            node = await flow.add_group(
                name="order",
                jobs=[
                    GroupJob("charge-payment", queue_name="payments", data={"euros": 99.99}),
                    GroupJob("reserve-goods", queue_name="stock", delay=int(_STEP_S * 1000)),
                    GroupJob("send-email", queue_name="mail", delay=mail_delay),
                ],
                compensation={"charge-payment": Compensation("refund-payment")},
            )
            with self._stage.picture(self._draw):
                waiting = asyncio.create_task(
                    payments.wait_for_group(node.group_id, timeout=_LONGEST_MS)
                )
                while not waiting.done():
                    await self._look(payments, node.group_id)
                    await asyncio.sleep(_LOOK_EVERY_S)
                await self._look(payments, node.group_id)
                return (await waiting).state.value

    async def _look(self, payments: Queue, group_id: str) -> None:
        self._members = await payments.get_group_jobs(group_id)
        group = await payments.get_group_state(group_id)
        self._state = group.state.value if group is not None else "gone"

    def _handlers(self) -> Router:
        router = Router()

        @router.on("charge-payment")
        async def charge(job: Any) -> dict[str, str]:
            await asyncio.sleep(_STEP_S)
            return {"receipt": f"r-{self._number}"}

        @router.on("reserve-goods")
        async def reserve(job: Any) -> None:
            await asyncio.sleep(_STEP_S)
            if not self._is_in_stock:
                raise UnrecoverableError("the last one was sold a moment ago")

        @router.on("send-email")
        async def send(job: Any) -> None:
            await asyncio.sleep(_STEP_S / 2)

        @router.on("refund-payment")
        async def refund(job: Any) -> None:
            await asyncio.sleep(_STEP_S)
            receipt = job.data["originalReturnValue"]["receipt"]
            self.undone.append(f"{receipt} refunded")

        return router

    def _draw(self) -> RenderableType:
        table = Table.grid(padding=(0, 3))
        for member in self._members:
            table.add_row(f"  {member.name}", f"[dim]{member.queue_name}[/]", MARKS[member.status])
        if self._state == "COMPENSATING":
            table.add_row("  refund-payment", "[dim]payments:compensation[/]", MARKS["active"])
        for what in self.undone:
            table.add_row(
                "  refund-payment", "[dim]payments:compensation[/]", f"[green]✓  {what}[/]"
            )
        colour = {"COMPLETED": "green", "FAILED": "red", "COMPENSATING": "yellow"}
        name = self._state
        return Group(table, f"  the group is [bold {colour.get(name, 'cyan')}]{name}[/]")
