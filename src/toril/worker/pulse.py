"""The last sign of life of the server, and what time it is there."""

from __future__ import annotations

import asyncio


class Pulse:
    """Kept by the pump, and looked at by whoever wants to know whether the server is there."""

    def __init__(self) -> None:
        self.heard_at = 0.0
        """When the last reply came, by the loop's clock; 0.0 before the first."""
        self._offset_ms = 0.0

    def hear(self, server_ms: int) -> None:
        """A reply is here that was written at ``server_ms``."""
        self.heard_at = asyncio.get_running_loop().time()
        self._offset_ms = server_ms - self.heard_at * 1000

    @property
    def server_ms(self) -> int:
        """The server's time, as far as the last reply tells."""
        return int(asyncio.get_running_loop().time() * 1000 + self._offset_ms)
