"""Draw the pictures of the dashboard in the documentation, from the real program in Chromium.

python tools/dashboard_pictures.py
"""

from __future__ import annotations

import asyncio
import math
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from playwright.async_api import async_playwright  # noqa: E402
from tests.dashboard.conftest import FLAGS, served  # noqa: E402
from tests.helpers import wait_until  # noqa: E402
from tests.servers import Server  # noqa: E402

from toril import FlowProducer, GroupJob, NewJob, Queue, Worker  # noqa: E402
from toril.dashboard import dashboard  # noqa: E402

PICTURES = {
    "dashboard": ("/", "light"),
    "dashboard-job": ("/job?queue=payments&id=order-1042", "dark"),
}
"""The name of a picture: the page on it, and its colours."""


HANDLER = """
import asyncio
from toril import UnrecoverableError


async def charge(job):
    await job.log(f"charging {job.data['amount']} EUR")
    if job.id == "order-1042":
        raise UnrecoverableError("the card ending in 4242 was declined: insufficient_funds")
    if job.name == "mail":
        raise ConnectionError("smtp.example.com did not answer within 10 s")
    await asyncio.sleep(60 if job.name == "long" else 0)
    return {"receipt": f"r-{job.id}"}
"""
names: dict[str, Any] = {}
exec(compile(HANDLER, "shop/payments.py", "exec"), names)
charge = names["charge"]


async def keep_busy(queue: Queue) -> None:
    """Orders come in waves, so that there is something to see on the chart."""
    for moment in range(10_000):
        count = 3 + round(2 * math.sin(moment / 25))
        await queue.add_bulk([NewJob("charge", {"amount": 5}) for _ in range(count)])
        await asyncio.sleep(0.1)


async def main() -> None:
    with Server(tcp=True) as server:
        at: dict[str, Any] = {"connection": server.url}
        async with (
            Queue("payments", **at) as payments,
            Queue("emails", **at) as emails,
            Queue("webhooks", **at) as webhooks,
            FlowProducer(**at) as flows,
            Worker("payments", charge, concurrency=5, worker_name="pay-1", **at),
            Worker("emails", charge, dead_letter_queue="emails-dead", **at),
        ):
            orders = [
                NewJob("charge", {"order": n, "amount": n % 90 + 5}, job_id=f"order-{n}")
                for n in range(1000, 1180)
            ]
            await payments.add_bulk(orders)
            await payments.add_bulk([NewJob("long", {"amount": 9}) for _ in range(3)])
            await emails.add_bulk([NewJob("mail", {"amount": 1}) for _ in range(9)])
            hooks = [NewJob("notify", {"to": n}, lane=f"customer-{n % 5}") for n in range(40)]
            await webhooks.add_bulk(hooks)
            await flows.add_group("trip", [GroupJob("fly", queue_name="webhooks")])
            await wait_until(payments.get_failed_count)
            busy = asyncio.create_task(keep_busy(payments))
            async with served(dashboard(connection=server.url)) as base:
                await _draw(base)
            busy.cancel()


async def _draw(base: str) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=[*FLAGS]
        )
        for name, (path, scheme) in PICTURES.items():
            context = await browser.new_context(
                viewport={"width": 1160, "height": 720},
                color_scheme="dark" if scheme == "dark" else "light",
            )
            page = await context.new_page()
            await page.goto(base + path)
            await page.wait_for_timeout(45_000 if path == "/" else 500)
            await page.screenshot(path=ROOT / f"docs/guides/{name}.png")
            await context.close()
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
