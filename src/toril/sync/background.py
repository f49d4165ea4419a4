"""What the client does in the background, in threads: the twin of the async client's module."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from toril.logs import get_logger
from toril.sync.connection import Connection

logger = get_logger("toril.client")

_LONGEST_GOODBYE_S = 5.0


class Background:
    """Runs ``work`` in the background until it returns or its connection is closed."""

    def __init__(self, work: Callable[[], None], connection: Connection, name: str) -> None:
        self._work = work
        self._connection = connection
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close the connection that the work waits on, and wait until it has ended."""
        self._connection.interrupt()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=_LONGEST_GOODBYE_S)
        self._connection.close()

    def _run(self) -> None:
        try:
            self._work()
        except Exception:
            logger.exception("%s ended with an error", self._thread.name)


def call(callback: Callable[..., Any], *args: Any) -> None:
    """Call a plain function."""
    callback(*args)


def is_set_within(signal: threading.Event, timeout_s: float) -> bool:
    """Wait for ``signal``, but no longer than ``timeout_s``."""
    return signal.wait(timeout_s)
