"""``toril.run``: workers as a program that handles SIGTERM and SIGINT."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol, Self

from toril.checking import checked_call
from toril.errors import InvalidOptionError, RunningLoopError
from toril.logs import get_logger
from toril.options import Duration, milliseconds
from toril.worker.child import refuse_in_child

logger = get_logger("toril.worker")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LAST_RESORT_S = 3.0


class Service(Protocol):
    """What a program can run: a worker, an outbox relay, a group of consumers."""

    async def run(self) -> None:
        """Work until ``close`` is called."""

    async def close(self, timeout: Duration | None = None) -> None:
        """Stop within ``timeout``; a second call may shorten it."""


@checked_call
def run(*workers: Service, timeout: Duration | None = 8_000, uvloop: bool = False) -> None:
    """Run workers until SIGTERM or SIGINT; blocks.

    After the first signal they take no more jobs, running jobs may finish within ``timeout`` (None:
    as long as they need), and the rest is handed back so that other workers get it at once.  A
    second signal hands everything back at once.  The default is below the 10 seconds after which
    Docker kills a container (Kubernetes: 30); ``uvloop=True`` needs uvloop to be installed.
    """
    refuse_in_child()
    if not workers:
        raise InvalidOptionError("run() needs a worker: toril.run(worker)")
    if timeout is not None:
        timeout = milliseconds(timeout, "timeout")
    _refuse_in_loop()
    with asyncio.Runner(loop_factory=_loop_factory(uvloop)) as runner:
        runner.run(_run_all(workers, timeout))


def _refuse_in_loop() -> None:
    if asyncio._get_running_loop() is not None:
        raise RunningLoopError(
            "toril.run(…) starts an event loop, and one is already running here (a notebook, an"
            " async function); use `await worker.run()` there, or"
            " `task = asyncio.create_task(worker.run())` and later `await worker.close()`"
        )


def _loop_factory(uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if not uvloop:
        return None
    try:
        import uvloop as library
    except ImportError as error:
        raise InvalidOptionError(
            "uvloop=True needs uvloop; install it with pip install 'toril[uvloop]'"
        ) from error
    return library.new_event_loop


async def _run_all(workers: tuple[Service, ...], timeout: int | None) -> None:
    with _Signals() as signals:
        running = [asyncio.create_task(worker.run()) for worker in workers]
        first = asyncio.create_task(signals.wait_for(1))
        second = asyncio.create_task(signals.wait_for(2))
        pending: set[asyncio.Task[Any]] = {*running, first}
        while pending - {first} and not first.done() and not any(map(_has_failed, running)):
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)

        closing = asyncio.create_task(_close_all(workers, timeout))
        await asyncio.wait([closing, second], return_when=asyncio.FIRST_COMPLETED)
        if not closing.done():
            await _close_all(workers, 0)
        for task in (first, second):
            task.cancel()
        await closing
        await asyncio.gather(*running)


async def _close_all(workers: tuple[Service, ...], timeout: int | None) -> None:
    await asyncio.gather(*(worker.close(timeout) for worker in workers))


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


class _Signals:
    """Counts the signals that ask this process to end.

    The handlers are Python's own and not the loop's: they run even if a job blocks the loop, so
    that the second signal can end a process that is stuck.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._came = asyncio.Condition()
        self._before: dict[int, Any] = {}
        self._last_resort: threading.Timer | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._last_resort is not None:
            self._last_resort.cancel()

    async def wait_for(self, count: int) -> None:
        async with self._came:
            await self._came.wait_for(lambda: self._count >= count)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count == 2:
            self._last_resort = threading.Timer(_LAST_RESORT_S, os._exit, [128 + number])
            self._last_resort.daemon = True
            self._last_resort.start()
        self._loop.call_soon_threadsafe(self._announce, number)

    def _announce(self, number: int) -> None:
        name = signal.Signals(number).name
        logger.info("%s: %s", name, "finishing" if self._count == 1 else "handing jobs back")
        self._notifying = self._loop.create_task(self._notify())

    async def _notify(self) -> None:
        async with self._came:
            self._came.notify_all()
