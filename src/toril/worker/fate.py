"""Whether a worker is over, and what ended it."""

from __future__ import annotations

import asyncio


class Fate:
    """Shared by every part that may find out that the worker cannot continue."""

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.is_closing = False
        """Has somebody asked the worker to end? Then errors from now on are not the cause."""
        self.cause: BaseException | None = None

    def seal(self, cause: BaseException) -> None:
        """The worker cannot continue; the first cause counts."""
        if not self.is_closing and self.cause is None:
            self.cause = cause
            self.is_over.set()
