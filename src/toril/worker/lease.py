"""Leases: the locks of running jobs, renewed from a thread with a connection of its own.

A handler may block the event loop for as long as it likes; the locks are still held.
The thread sleeps in a blocking read of the worker's mailbox, so a cancellation reaches it at once,
and the worker knows that its server is there even while it asks for no jobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

import msgspec

from toril.errors import TorilError
from toril.logs import get_logger
from toril.protocol import leasing
from toril.protocol.keys import Keys
from toril.sync.connection import Connection
from toril.worker.crew import Crew
from toril.worker.locks import Locks
from toril.worker.pulse import Pulse

logger = get_logger("toril.worker")

_SLICE = 500
_LONGEST_GOODBYE_S = 3.0


class Berth(msgspec.Struct, frozen=True):
    """One worker in a lease: the locks it holds, and the crew to notify."""

    keys: Keys
    worker_id: str
    locks: Locks
    crew: Crew
    pulse: Pulse

    @property
    def mailbox(self) -> str:
        return leasing.mailbox(self.keys, self.worker_id)

    @property
    def bell(self) -> str:
        return leasing.group_bell(self.keys)


class Lease:
    """Renews the locks of a worker's jobs, and tells its crew which jobs are lost or cancelled.

    Workers of several partitions of one server may share a lease: then it has several berths.

    The crew is told on the loop that started the lease. The thread ends by itself when that loop is
    closed: a program that forgets to close a worker must not hold its jobs forever.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        make_connection: Callable[[], Connection],
        *berths: Berth,
        lock_ms: int,
    ) -> None:
        self._make_connection = make_connection
        self._berths = {berth.mailbox: berth for berth in berths}
        self._bells = {berth.bell: berth for berth in berths}
        self._lock_ms = lock_ms
        self._interval_s = lock_ms / 3000
        self._is_in_trouble = False
        self._closing = threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="toril-lease", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """Stop renewing; returns when the thread has ended, or can no longer send anything.

        A thread of its own waits for that: those of the loop may all be busy with functions of
        handlers, which nobody can stop.
        """
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def wait_for_end() -> None:
            self._end()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_note, ended)

        try:
            threading.Thread(target=wait_for_end, name="toril-lease-end", daemon=True).start()
        except RuntimeError:  # the system gives no more threads: the lease ends by itself
            self._closing.set()
            return
        await ended

    def _end(self) -> None:
        self._closing.set()
        deadline = time.monotonic() + _LONGEST_GOODBYE_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            # More than once: a socket that is still being opened cannot be interrupted.
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
                # Here and not above: when no locks are held, renewing sends nothing.
                self._is_in_trouble = False
                for berth in self._berths.values():
                    self._tell(berth.pulse.feel)
            except Exception as error:  # noqa: BLE001 (a lease that ends loses every lock)
                if not self._goes_on():
                    break
                self._complain(error)
                self._closing.wait(min(0.2, self._interval_s / 4))
                next_renewal = time.monotonic()
        self._connection.close()

    def _complain(self, error: Exception) -> None:
        """Once per outage: it retries quickly, because locks expire."""
        if not isinstance(error, TorilError):
            logger.error("the lease got an unexpected error", exc_info=error)
        elif not self._is_in_trouble:
            logger.warning("the locks of running jobs cannot be renewed: %s", error)
        self._is_in_trouble = True

    def _goes_on(self) -> bool:
        return not self._closing.is_set() and not self._loop.is_closed()

    def _read_mail(self, wait_s: float) -> None:
        assert self._connection is not None
        block_ms = max(1, int(min(wait_s, 10.0) * 1000))
        found = self._connection.run(
            leasing.wait_for_mail_in([*self._berths, *self._bells], block_ms=block_ms)
        )
        if found is not None and found[0] in self._bells:
            self._tell(self._bells[found[0]].crew.look_for_groups)
            return
        if found is None or found[1] is None:
            return
        crew = self._berths[found[0]].crew
        job_id, token, reason, *told = found[1]
        if told:  # not stopped: its group has turned
            self._tell(crew.tell, job_id, token)
        else:
            self._tell(crew.cancel, job_id, token, reason)

    def _renew(self) -> None:
        """Renew the locks of all berths, even if one of them fails."""
        trouble: Exception | None = None
        for berth in self._berths.values():
            try:
                self._renew_of(berth)
            except TorilError as error:
                trouble = error
        if trouble is not None:
            raise trouble

    def _renew_of(self, berth: Berth) -> None:
        assert self._connection is not None
        held = berth.locks.all()
        for start in range(0, len(held), _SLICE):
            part = held[start : start + _SLICE]
            renewal = self._connection.run(leasing.renew(berth.keys, part, lock_ms=self._lock_ms))
            tokens = dict(part)
            for job_id in renewal.lost:
                if berth.locks.holds(job_id, tokens[job_id]):
                    berth.locks.let_go(job_id, tokens[job_id])
                    self._tell(berth.crew.lose, job_id, tokens[job_id])
            for job_id, reason in renewal.cancelled:
                self._tell(berth.crew.cancel, job_id, tokens[job_id], reason)

    def _tell(self, what: Callable[..., None], *words: str) -> None:
        self._loop.call_soon_threadsafe(what, *words)


def _note(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
