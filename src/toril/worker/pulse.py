"""The server's last sign of life, and its clock."""

from __future__ import annotations

import asyncio


class Pulse:
    """Updated by the pump and the lease, and read by whoever wants to know whether the server is
    there."""

    def __init__(self) -> None:
        self.heard_at = 0.0
        """When the pump got its last reply, by the loop's clock; 0.0 before the first."""
        self._felt_at = 0.0
        self._offset_ms = 0.0

    def hear(self, server_ms: int) -> None:
        """A reply written at ``server_ms`` has arrived."""
        self.heard_at = asyncio.get_running_loop().time()
        self._offset_ms = server_ms - self.heard_at * 1000

    def feel(self) -> None:
        """The server has answered the lease: a pump that is full or paused asks for nothing."""
        self._felt_at = asyncio.get_running_loop().time()

    @property
    def last_sign_at(self) -> float:
        """When the server last answered, whoever asked; 0.0 before the pump's first reply."""
        return max(self.heard_at, self._felt_at) if self.heard_at else 0.0

    @property
    def server_ms(self) -> int:
        """The server's time, estimated from the last reply."""
        return int(asyncio.get_running_loop().time() * 1000 + self._offset_ms)
