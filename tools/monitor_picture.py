"""Draw the picture of the monitor in its guide: the real program in a real terminal.

Starts a server, gives it work, opens ``toril monitor`` in tmux, and writes what is on the screen
to ``docs/guides/monitor.svg``.
"""

from __future__ import annotations

import asyncio
import io
import os
import random
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from rich.console import Console  # noqa: E402
from rich.text import Text  # noqa: E402
from tests.cli.terminal import Terminal  # noqa: E402

from toril import Backoff, NewJob, Queue, UnrecoverableError, Worker  # noqa: E402

PICTURE = ROOT / "docs" / "guides" / "monitor.svg"
WIDTH, HEIGHT = 100, 26
SECONDS = 14


async def handle(job: Any) -> None:
    await asyncio.sleep(random.uniform(0.02, 0.5))
    if job.name == "charge" and random.random() < 0.05:
        raise UnrecoverableError("the card was refused")
    if random.random() < 0.1:
        raise ConnectionError("the provider does not answer")
    await job.report(100)


async def work(url: str) -> None:
    """Keep some queues busy until we are cancelled."""
    payments, mail = Queue("payments", connection=url), Queue("mail", connection=url)
    workers = [
        Worker("payments", handle, connection=url, concurrency=6, worker_name="anna"),
        Worker("mail", handle, connection=url, concurrency=3, dead_letter_queue="mail-dlq"),
    ]
    retries: dict[str, Any] = {"attempts": 3, "backoff": Backoff.fixed(1000)}
    async with payments, mail, workers[0], workers[1]:
        while True:
            await payments.add_bulk(
                [NewJob("charge", lane=f"user:{random.randint(1, 9)}", **retries) for _ in range(9)]
            )
            await mail.add_bulk([NewJob("receipt") for _ in range(5)])
            await asyncio.sleep(0.5)


async def draw() -> None:
    with tempfile.TemporaryDirectory(prefix="toril-picture-") as directory:
        url = f"embedded:{directory}"
        busy = asyncio.create_task(work(url))
        env = {"PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        env |= {"COLORTERM": "truecolor", "PATH": os.environ["PATH"], "TORIL_URL": url}
        command = [sys.executable, "-m", "toril", "monitor"]
        with Terminal(command, env, width=WIDTH, height=HEIGHT) as terminal:
            await asyncio.sleep(3)
            terminal.press("Down", "Down")
            await asyncio.sleep(SECONDS)
            screen = terminal.screen(colours=True).replace(directory, "./data")
            terminal.press("q")
            await asyncio.sleep(0.5)
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(screen), end="")
    picture = console.export_svg(title="toril monitor")
    # Whoever looks at the page has a monospace font of their own; none is fetched.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL))


if __name__ == "__main__":
    if not Terminal.is_available():
        sys.exit("the picture needs tmux")
    asyncio.run(draw())
    print(f"wrote {PICTURE.relative_to(ROOT)}")
