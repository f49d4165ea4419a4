"""Whether a worker is over, and what ended it."""

from __future__ import annotations

import asyncio


class Fate:
    """Known by whoever may find that there is no use in going on."""

    def __init__(self) -> None:
        self.is_over = asyncio.Event()
        self.is_closing = False
        """Has somebody asked for the end? What breaks now is no reason for it."""
        self.cause: BaseException | None = None

    def seal(self, cause: BaseException) -> None:
        """The worker cannot go on; the first cause counts."""
        if not self.is_closing and self.cause is None:
            self.cause = cause
            self.is_over.set()
