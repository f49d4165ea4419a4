"""Worker programs in processes of their own, for tests that kill, stop and signal them.

``python -m tests.worker.programs '{"url": …, "prefix": …, "handler": …}'`` runs a worker of queue
"q"; what it does with jobs is one of the handlers below. It prints a line for everything that
happens, so that a test need not guess.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from queue import Empty, Queue
from typing import Any

import pytest

import toril
from tests.forked import PIPE, Forked
from toril.errors import TorilError
from toril.worker import life, running


def say(*words: object) -> None:
    print(*words, flush=True)


async def hold(job: Any) -> None:
    """Runs for as long as it is let."""
    say("holding", job.id)
    await asyncio.sleep(600)


def hold_in_thread(job: Any) -> None:
    say("holding", job.id)
    time.sleep(600)


async def briefly(job: Any) -> str:
    say("holding", job.id)
    await asyncio.sleep(0.3)
    return "done"


async def stubborn(job: Any) -> None:
    """Blocks the loop, deaf to everything."""
    say("holding", job.id)
    end = time.monotonic() + 600
    while time.monotonic() < end:
        time.sleep(0.05)


async def die_at_once(job: Any) -> None:
    say("holding", job.id)
    os._exit(9)


async def block_until_told(job: Any) -> str:
    """Blocks the loop until a line comes on stdin."""
    say("holding", job.id)
    sys.stdin.readline()
    return "blocked"


async def write_when_told(job: Any) -> str:
    """Waits for a line on stdin, then tries to write everything a handler may write."""
    say("holding", job.id)
    await asyncio.to_thread(sys.stdin.readline)
    for name, write in (
        ("progress", lambda: job.report(99)),
        ("log", lambda: job.log("written by a zombie")),
        ("update_data", lambda: job.update_data({"by": "a zombie"})),
        ("extend_lock", lambda: job.extend_lock(60_000)),
    ):
        try:
            await write()
        except TorilError as error:
            say("refused", name, type(error).__name__)
        else:
            say("wrote", name)
    return "finished by a zombie"


async def deaf_and_writing(job: Any) -> str:
    """The same, by a handler that does not let itself be cancelled."""
    task = asyncio.create_task(write_when_told(job))
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()


HANDLERS = (
    hold,
    hold_in_thread,
    briefly,
    stubborn,
    die_at_once,
    block_until_told,
    write_when_told,
    deaf_and_writing,
)


def main(config: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO)
    if "patience_s" in config:
        # How long it asks its server to take jobs back, and may take after a second signal.
        life.GRACE_S = running._LAST_RESORT_S = config["patience_s"]
    handlers = {handler.__name__: handler for handler in HANDLERS}
    workers = []
    for _ in range(config.get("workers", 1)):
        worker = toril.Worker(
            "q",
            handlers[config["handler"]],
            connection=config["url"],
            prefix=config["prefix"],
            **config.get("options", {}),
        )
        worker.on("ready", lambda: say("ready", os.getpid()))
        worker.on("lost", lambda job, error: say("lost", job.id))
        worker.on("completed", lambda job, result: say("completed", job.id))
        worker.on("closing", lambda: say("closing"))
        worker.on("closed", lambda: say("closed"))
        workers.append(worker)
    toril.run(*workers, **config.get("run", {}))
    say("ended")


class Program:
    """One such process, seen by a test."""

    def __init__(self, **config: Any) -> None:
        words = ("-m", "tests.worker.programs", json.dumps(config))
        self.process = Forked(*words, stdin=PIPE, stdout=PIPE)
        self._lines: Queue[str | None] = Queue()
        self.said: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put(None)

    async def hear(self, start: str, timeout: float = 30.0) -> str:
        """Wait for a line that begins so; lines before it are in ``said``."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                line = self._lines.get_nowait()
            except Empty:
                await asyncio.sleep(0.005)
                continue
            if line is None:
                break
            self.said.append(line)
            if line.startswith(start):
                return line
        pytest.fail(f"the program did not say {start!r}, but {self.said}")

    def tell(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def wait(self, timeout: float = 30.0) -> int:
        return await asyncio.to_thread(self.process.wait, timeout)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


@contextlib.contextmanager
def programs() -> Iterator[Any]:
    """Starts programs, gone after the test."""
    started: list[Program] = []

    def start(**config: Any) -> Program:
        started.append(Program(**config))
        return started[-1]

    yield start
    for program in started:
        program.end()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
