"""Draw the pictures of the documentation, from the real programs and a busy server.

    make pictures

The dashboard is drawn by Chromium and the monitor by itself, each in light and dark, into
``docs/images``.  It takes about a minute, so that there is something to see on the chart.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import shutil
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from playwright.async_api import async_playwright  # noqa: E402
from tests.dashboard.conftest import FLAGS, FLAGS_OF_WINDOWS, served  # noqa: E402
from tests.helpers import wait_until  # noqa: E402
from tests.servers import Server  # noqa: E402

from toril import (  # noqa: E402
    Compensation,
    Connection,
    FlowProducer,
    GroupJob,
    NewJob,
    Queue,
    Worker,
)
from toril.cli.monitor.app import MonitorApp  # noqa: E402
from toril.cli.monitor.watcher import Watcher  # noqa: E402
from toril.dashboard import dashboard  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

IMAGES = ROOT / "docs" / "images"
SECONDS = 45
SCHEMES = ("light", "dark")
PAGES = {"dashboard": "/", "dashboard-job": "/job?queue=payments&id=order-1042"}
SCREENS = {"monitor": ("1",), "monitor-job": ("6", "enter", "enter")}
"""The keys that lead to each picture of the monitor."""

HANDLER = """
import asyncio
from random import random
from toril import UnrecoverableError


async def charge(job):
    await job.log(f"charging {job.data['amount']} EUR")
    if job.id == "order-1042":
        raise UnrecoverableError("the card ending in 4242 was declined: insufficient_funds")
    if job.name == "mail":
        raise ConnectionError("smtp.example.com did not answer within 10 s")
    if job.name in ("reserve", "refund"):
        raise UnrecoverableError("the warehouse does not answer")
    await asyncio.sleep(60 if job.name == "long" else 0.3 * random())
    return {"receipt": f"r-{job.id}"}
"""
names: dict[str, Any] = {}
exec(compile(HANDLER, "shop/payments.py", "exec"), names)
charge = names["charge"]


async def keep_busy(payments: Queue, emails: Queue) -> None:
    """Orders come in waves."""
    for moment in range(100_000):
        count = 3 + round(2 * math.sin(moment / 25))
        await payments.add_bulk(
            [NewJob("charge", {"amount": 5}, lane=f"customer-{n}") for n in range(count)]
        )
        if moment % 40 == 0:
            await emails.add("mail", {"amount": 1})
        await asyncio.sleep(0.1)


@asynccontextmanager
async def shop(url: str) -> AsyncIterator[None]:
    """Some queues at work, with the troubles that people open these programs for."""
    at: dict[str, Any] = {"connection": url}
    undoing = Worker("payments:compensation", charge, **at)
    async with (
        Queue("payments", **at) as payments,
        Queue("emails", **at) as emails,
        Queue("webhooks", **at) as webhooks,
        FlowProducer(**at) as flows,
        Worker("payments", charge, concurrency=8, worker_name="pay-1", **at),
        Worker("emails", charge, dead_letter_queue="emails-dead", **at),
        undoing,
    ):
        await payments.add("charge", {"order": 1042, "amount": 89}, job_id="order-1042")
        await payments.add_bulk([NewJob("long", {"amount": 9}) for _ in range(3)])
        await emails.add_bulk([NewJob("mail", {"amount": 1}) for _ in range(9)])
        hooks = [NewJob("notify", {"to": n}, lane=f"customer-{n % 5}") for n in range(40)]
        await webhooks.add_bulk(hooks)
        order = await flows.add_group(
            "order",
            [GroupJob(name, {"amount": 3}, queue_name="payments") for name in ("pay", "reserve")],
            {"pay": Compensation("refund", {"amount": 3})},
        )
        await payments.wait_for_group(order.group_id, timeout=60_000)
        await wait_until(payments.get_failed_count)
        busy = asyncio.create_task(keep_busy(payments, emails))
        yield
        busy.cancel()


async def draw_dashboard(base: str) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=[*FLAGS, *FLAGS_OF_WINDOWS]
        )
        watching = await browser.new_page()
        await watching.goto(base)  # the chart grows while a page is open
        await asyncio.sleep(SECONDS)
        for name, path in PAGES.items():
            for scheme in SCHEMES:
                context = await browser.new_context(
                    viewport={"width": 1100, "height": 640},
                    color_scheme="dark" if scheme == "dark" else "light",
                )
                page = await context.new_page()
                await page.goto(base + path)
                await page.wait_for_timeout(500)
                await page.screenshot(path=IMAGES / f"{name}-{scheme}.png")
                await context.close()
        await browser.close()


async def draw_monitor(url: str) -> None:
    connection = Connection(url)
    for scheme in SCHEMES:
        watcher = Watcher(connection, "bull", (), time.monotonic)
        app = MonitorApp(watcher, connection, label="redis://redis.shop:6379", interval_s=0.5)
        async with app.run_test(size=(100, 26)) as pilot:
            app.theme = f"textual-{scheme}"
            await wait_until(lambda app=app: app.ticks > 12, timeout=60)
            while app._chosen_name != "payments":
                await pilot.press("down")
                await pilot.pause()
            for name, keys in SCREENS.items():
                for key in keys:
                    await pilot.press(key)
                    await asyncio.sleep(1.5)
                write(app.export_screenshot(title="toril monitor"), f"{name}-{scheme}")
        await watcher.close()
    await connection.close()


def write(picture: str, name: str) -> None:
    # Readers have their own monospace font; none is fetched.
    plain = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    (IMAGES / f"{name}.svg").write_text(plain)


async def main() -> None:
    logging.getLogger("toril.jobs").setLevel(logging.CRITICAL)
    with Server(tcp=True) as server:
        async with shop(server.url), served(dashboard(connection=server.url)) as base:
            await draw_dashboard(base)
            await draw_monitor(server.url)
    for path in sorted(IMAGES.iterdir()):
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    if shutil.which("chromium") is None:
        sys.exit("the pictures of the dashboard need Chromium: apt install chromium")
    asyncio.run(main())
