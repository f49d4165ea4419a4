"""Leases: the locks of running jobs, renewed from a thread with a connection of its own.

The event loop may be blocked by a handler for as long as it likes; the locks are held all the same.
The thread sleeps in a blocking read of the worker's mailbox, so a cancellation reaches it at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from toril.errors import TorilError
from toril.logs import get_logger
from toril.protocol import leasing
from toril.protocol.keys import Keys
from toril.sync.connection import Connection

logger = get_logger("toril.worker")

_SLICE = 500
_LONGEST_GOODBYE_S = 3.0


class Lease:
    """Holds the locks of one worker's jobs.

    ``on_lost(job_id, token)`` and ``on_cancel(job_id, token, reason)`` are called in the lease's
    thread, which ends by itself when ``is_wanted()`` says that nobody runs these jobs any more.
    """

    def __init__(
        self,
        make_connection: Callable[[], Connection],
        keys: Keys,
        worker_id: str,
        *,
        lock_ms: int,
        on_lost: Callable[[str, str], None],
        on_cancel: Callable[[str, str, str], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._make_connection = make_connection
        self._keys = keys
        self._worker_id = worker_id
        self._lock_ms = lock_ms
        self._interval_s = lock_ms / 3000
        self._on_lost = on_lost
        self._on_cancel = on_cancel
        self._is_wanted = is_wanted
        self._is_in_trouble = False
        self._held: dict[str, str] = {}
        self._closing = threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="toril-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hold(self, job_id: str, token: str) -> None:
        """Renew this lock until it is let go."""
        self._held[job_id] = token

    def let_go(self, job_id: str, token: str) -> None:
        if self._held.get(job_id) == token:
            self._held.pop(job_id, None)

    def close(self) -> None:
        """Stop renewing; returns when the thread has ended, or sends nothing any more."""
        self._closing.set()
        deadline = time.monotonic() + _LONGEST_GOODBYE_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            # More than once: a socket that is being opened cannot be interrupted yet.
            if self._connection is not None:
                self._connection.interrupt()
            self._thread.join(timeout=0.1)

    def _run(self) -> None:
        self._connection = self._make_connection()
        next_renewal = time.monotonic() + self._interval_s
        while self._goes_on():
            try:
                wait_s = next_renewal - time.monotonic()
                if wait_s <= 0:
                    self._renew()
                    next_renewal = time.monotonic() + self._interval_s
                    continue
                self._read_mail(wait_s)
                # Here and not above: where nothing is held, renewing asks nobody.
                self._is_in_trouble = False
            except Exception as error:  # noqa: BLE001 (a lease that ends loses every lock)
                if not self._goes_on():
                    break
                self._complain(error)
                self._closing.wait(min(0.2, self._interval_s / 4))
                next_renewal = time.monotonic()
        self._connection.close()

    def _complain(self, error: Exception) -> None:
        """Once for each outage: tries follow each other quickly, because locks expire."""
        if not isinstance(error, TorilError):
            logger.error("the lease met an error that it does not know", exc_info=error)
        elif not self._is_in_trouble:
            logger.warning("the locks of running jobs cannot be renewed: %s", error)
        self._is_in_trouble = True

    def _goes_on(self) -> bool:
        return not self._closing.is_set() and self._is_wanted()

    def _read_mail(self, wait_s: float) -> None:
        assert self._connection is not None
        block_ms = max(1, int(min(wait_s, 10.0) * 1000))
        mail = self._connection.run(
            leasing.wait_for_mail(self._keys, self._worker_id, block_ms=block_ms)
        )
        if mail is not None:
            self._on_cancel(*mail)

    def _renew(self) -> None:
        assert self._connection is not None
        held = list(self._held.items())
        for start in range(0, len(held), _SLICE):
            part = held[start : start + _SLICE]
            renewal = self._connection.run(leasing.renew(self._keys, part, lock_ms=self._lock_ms))
            tokens = dict(part)
            for job_id in renewal.lost:
                if self._held.get(job_id) == tokens[job_id]:
                    self.let_go(job_id, tokens[job_id])
                    self._on_lost(job_id, tokens[job_id])
            for job_id, reason in renewal.cancelled:
                self._on_cancel(job_id, tokens[job_id], reason)
