"""What is to leave with the next call: outcomes, and word that the jobs of a reply arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from toril.protocol.settling import Confirmation, Settled

Confirmations = dict[Confirmation, asyncio.Future[None] | None]
"""Replies that arrived, and who waits until the server knows it."""


class Outbox:
    """Filled by whoever runs jobs, and emptied by the pump, which has itself told of it."""

    def __init__(self) -> None:
        self.finished: list[Settled] = []
        self.to_confirm: Confirmations = {}
        self.held = 0
        """How many jobs are held: running, or done and not yet written."""
        self._tell: Callable[[], None] = _nobody

    def tell(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever something is put in."""
        self._tell = listener

    def finish(self, item: Settled) -> None:
        """An attempt is over; its outcome leaves with the next call."""
        self.finished.append(item)
        self._tell()

    def finish_again(self, item: Settled) -> None:
        """The outcome of a job was refused; the job is still held, and this is another one."""
        self.held += 1
        self.finish(item)

    def confirm_soon(self, received: Confirmation) -> None:
        """Let the server know that the jobs of a reply arrived."""
        self.to_confirm.setdefault(received, None)
        self._tell()

    async def confirm(self, received: Confirmation) -> None:
        """Return when the server knows that the jobs of a reply arrived."""
        known = self.to_confirm.get(received)
        if known is None:
            known = self.to_confirm[received] = asyncio.get_running_loop().create_future()
            self._tell()
        await asyncio.shield(known)

    def take_confirmations(self) -> Confirmations:
        """What is to be confirmed, and who waits for it; they leave now."""
        leaving, self.to_confirm = self.to_confirm, {}
        return leaving


def _nobody() -> None:
    """Nobody listens yet."""
