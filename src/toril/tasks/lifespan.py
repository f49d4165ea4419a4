"""What an app opens before its first job and closes after its last, once per process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

Enter = Callable[[Any], AbstractAsyncContextManager[Any]]
"""``lifespan(app)``: an async context manager; what it yields is ``ctx.state`` in every task."""


class Lifespan:
    """Entered once, however many users it has; left when the last of them is done."""

    def __init__(self, enter: Enter | None, app: Any) -> None:
        self._enter = enter
        self._app = app
        self._users = 0
        self._open: AbstractAsyncContextManager[Any] | None = None
        self._turn: asyncio.Lock | None = None
        self.state: Any = None

    async def __aenter__(self) -> Any:
        async with self._lock():
            if self._users == 0 and self._enter is not None:
                manager = self._enter(self._app)
                self.state = await manager.__aenter__()
                self._open = manager
            self._users += 1
        return self.state

    async def __aexit__(self, *error: object) -> None:
        async with self._lock():
            self._users -= 1
            if self._users or self._open is None:
                return
            manager, self._open, self.state = self._open, None, None
            await manager.__aexit__(*error)  # type: ignore[arg-type]

    def _lock(self) -> asyncio.Lock:
        if self._users == 0 and (self._turn is None or not self._turn.locked()):
            self._turn = asyncio.Lock()  # of this loop: an app may run in several, one by one
        assert self._turn is not None
        return self._turn
