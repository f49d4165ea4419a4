"""Dead letters: what failed for good is kept, looked at, and sent back when the trouble is over."""

from __future__ import annotations

import asyncio
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from toril import Backoff, NewJob, Queue, Worker
from toril.cli.demo.stage import Stage

MAILS = 8


async def dead_and_back(stage: Stage, url: str) -> dict[str, str]:
    stage.announce(
        "Dead letters come back",
        "The mail provider is down. What failed for good waits in newsletter-dlq; when the provider"
        " is up again, it is replayed.",
    )
    act = _Outage(url)
    with stage.picture(act.draw):
        await act.play()
    return {
        "dead letters": str(act.dead),
        "replayed": str(act.replayed),
        "delivered in the end": str(act.delivered),
    }


class _Outage:
    """The provider goes down and comes back."""

    def __init__(self, url: str) -> None:
        self.dead = self.replayed = self.delivered = 0
        self._url = url
        self._is_up = False
        self._waiting = 0
        self._kinds: list[str] = []

    async def play(self) -> None:
        options: dict[str, Any] = {"connection": self._url}
        async with (
            Queue("newsletter", **options) as queue,
            Queue("newsletter-dlq", **options) as dlq,
            Worker(
                "newsletter",
                self._send,
                concurrency=2,
                dead_letter_queue="newsletter-dlq",
                **options,
            ),
        ):
            retry = Backoff.fixed(150)
            await queue.add_bulk(
                [NewJob("send", {"to": n}, attempts=2, backoff=retry) for n in range(MAILS)]
            )
            while self._waiting < MAILS:
                self._waiting = await dlq.get_dead_letter_count()
                await asyncio.sleep(0.05)
            self.dead = self._waiting
            groups = await dlq.get_dead_letter_summary()
            self._kinds = [f"{group.count} times {group.fingerprint}" for group in groups]
            await asyncio.sleep(1)
            self._is_up = True
            self.replayed = await dlq.replay_all_dead_letters(by="the demo")
            await queue.wait_until_empty(30_000)
            self._waiting = await dlq.get_dead_letter_count()

    async def _send(self, job: Any) -> None:
        await asyncio.sleep(0.1)
        if not self._is_up:
            raise ConnectionError("the mail provider does not answer")
        self.delivered += 1

    def draw(self) -> RenderableType:
        table = Table.grid(padding=(0, 3))
        state = "[green]up[/]" if self._is_up else "[red]down[/]"
        table.add_row("  the provider is", state)
        table.add_row("  dead letters", f"[red]{'✉ ' * self._waiting}[/]{self._waiting}")
        table.add_row("  delivered", f"[green]{'✉ ' * self.delivered}[/]{self.delivered}")
        kinds = "".join(f"\n  [dim]grouped: {kind}[/]" for kind in self._kinds)
        return Group(table, kinds.lstrip("\n")) if kinds else table
