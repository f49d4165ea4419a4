"""The server's last sign of life, and its clock."""

from __future__ import annotations

import asyncio


class Pulse:
    """Updated by the pump, and read by whoever wants to know whether the server is there."""

    def __init__(self) -> None:
        self.heard_at = 0.0
        """When the last reply came, by the loop's clock; 0.0 before the first."""
        self._offset_ms = 0.0

    def hear(self, server_ms: int) -> None:
        """A reply written at ``server_ms`` has arrived."""
        self.heard_at = asyncio.get_running_loop().time()
        self._offset_ms = server_ms - self.heard_at * 1000

    @property
    def server_ms(self) -> int:
        """The server's time, estimated from the last reply."""
        return int(asyncio.get_running_loop().time() * 1000 + self._offset_ms)
