"""What the next call carries: outcomes, and confirmations that the jobs of a reply arrived."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from toril.protocol.settling import Confirmation, Settled

Confirmations = dict[Confirmation, asyncio.Future[None] | None]
"""Replies that arrived, and who waits until the server knows."""


class Outbox:
    """Filled by whatever runs jobs, and emptied by the pump, which is notified of new entries."""

    def __init__(self) -> None:
        self.finished: list[Settled] = []
        self.to_confirm: Confirmations = {}
        self.held = 0
        """How many jobs are held: running, or finished but not yet written."""
        self._tell: Callable[[], None] = _nobody

    def tell(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever something is added."""
        self._tell = listener

    def finish(self, item: Settled) -> None:
        """An attempt is over; the next call carries its outcome."""
        self.finished.append(item)
        self._tell()

    def finish_again(self, item: Settled) -> None:
        """The outcome of a job was refused; the job is still held, and this is its new outcome."""
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
        """Take out what must be confirmed, and who waits for it, for the call that leaves now."""
        leaving, self.to_confirm = self.to_confirm, {}
        return leaving


def _nobody() -> None:
    """Nobody listens yet."""
