"""What a worker does when its server does not serve it: wait, or stop."""

from __future__ import annotations

import asyncio

from toril.errors import ServerUnusableError
from toril.logs import get_logger
from toril.worker.events import Emitter
from toril.worker.fate import Fate
from toril.worker.pulse import Pulse

logger = get_logger("toril.worker")

REFUSED_FOR_S = 30.0
"""How long a server that worked before may refuse a worker: somebody may be fixing it."""


class Outage:
    """Hears of every call that failed, and stops the worker if there is no point in waiting."""

    def __init__(self, queue_name: str, pulse: Pulse, emitter: Emitter, fate: Fate) -> None:
        self._queue_name = queue_name
        self._pulse = pulse
        self._emitter = emitter
        self._fate = fate
        self._last: tuple[float, Exception] | None = None
        self._refused_since: float | None = None

    @property
    def error(self) -> Exception | None:
        """Why the server could not be reached, if it has not answered since."""
        if self._last is None or self._pulse.heard_at > self._last[0]:
            return None
        return self._last[1]

    def hear(self, error: Exception) -> None:
        """A call has failed for so long that its caller reports it."""
        self._last = (asyncio.get_running_loop().time(), error)
        self._emitter.emit("error", error)
        if isinstance(error, ServerUnusableError) and self._is_refused_for_good():
            logger.critical("the worker of queue %r stops: %s", self._queue_name, error)
            self._fate.seal(error)
            return
        logger.warning("the worker of queue %r waits for its server: %s", self._queue_name, error)

    def _is_refused_for_good(self) -> bool:
        """Has the server never worked, or refused for so long that nobody seems to be fixing it?"""
        heard_at = self._pulse.heard_at
        if not heard_at:
            return True
        now = asyncio.get_running_loop().time()
        if self._refused_since is None or heard_at > self._refused_since:
            self._refused_since = now
        return now - self._refused_since >= REFUSED_FOR_S
