"""Handlers for ``executor="process"`` that leave something behind when they return."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from contextvars import ContextVar
from typing import Any

from toril import Router
from toril.worker import child

router = Router()
visitor: ContextVar[str] = ContextVar("visitor")
visitor.set("nobody")
kept: list[Any] = []
"""What an earlier job left behind in this process."""


@router.on("leave a task")
async def leave_a_task(job: Any) -> int:
    async def write() -> None:
        await asyncio.sleep(0.05)  # the next job runs by then
        await job.update_data({"of": job.id})

    kept.append(asyncio.create_task(write()))
    return os.getpid()


@router.on("leave a thread")
def leave_a_thread(job: Any) -> int:
    def write() -> None:
        time.sleep(0.05)  # the next job runs by then
        for call in (job.report, job.update_data, job.log):
            try:
                call("of " + job.id)
            except Exception as error:
                kept.append(error)

    threading.Thread(target=write, daemon=True).start()
    return os.getpid()


@router.on("leave a thread that stays")
def leave_a_thread_that_stays(job: Any) -> int:
    """Python waits for it at the end of the process."""
    child._LONGEST_GOODBYE_S = 0.1
    threading.Thread(target=threading.Event().wait).start()
    return os.getpid()


@router.on("leave a task that stays")
async def leave_a_task_that_stays(job: Any) -> int:
    """The loop waits for it at the end of the process."""
    child._LONGEST_GOODBYE_S = 0.1

    async def stay() -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(600)

    kept.append(asyncio.create_task(stay()))
    return os.getpid()


@router.on("stop waiting")
async def stop_waiting(job: Any) -> int:
    """For the answer to a report, which then comes to nobody."""
    for _ in range(20):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0):
                await job.report(1)
    return os.getpid()


@router.on("run after a task")
async def run_after_a_task(job: Any) -> list[Any]:
    (task,) = kept
    await asyncio.wait([task], timeout=60)
    error = task.exception()
    return [os.getpid(), type(error).__name__, str(error)]


@router.on("run after a thread")
def run_after_a_thread(job: Any) -> list[Any]:
    deadline = time.monotonic() + 60
    while len(kept) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    return [os.getpid(), *(type(error).__name__ for error in kept)]


@router.on("visit")
def visit(job: Any) -> list[Any]:
    found = visitor.get()
    visitor.set(job.id)
    return [os.getpid(), found]


@router.on("visit async")
async def visit_async(job: Any) -> list[Any]:
    return visit(job)


@router.on("fence")
def fence(job: Any) -> int:
    return job.fence


@router.on("pid")
def pid(job: Any) -> int:
    return os.getpid()


@router.on("stop a program")
def stop_a_program(job: Any) -> list[int]:
    """How a program that this handler starts ends by each of the polite signals."""
    ends = []
    for number in (signal.SIGTERM, signal.SIGINT):
        program = subprocess.Popen(["sleep", "60"])
        program.send_signal(number)
        try:
            ends.append(program.wait(30))
        except subprocess.TimeoutExpired:
            program.kill()
            ends.append(0)
    return ends


@router.on("stop a fork")
def stop_a_fork(job: Any) -> int:
    """How a copy of this process ends by SIGTERM."""
    ours, theirs = os.pipe()
    copy = os.fork()
    if copy == 0:
        os.write(theirs, b"!")
        time.sleep(20)
        os._exit(0)
    os.read(ours, 1)  # it has begun
    os.kill(copy, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])


@router.on("leave a fork")
def leave_a_fork(job: Any) -> None:
    """Dies while a copy of its process lives on."""
    if os.fork() == 0:
        time.sleep(job.data["seconds"])
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)


@router.on("leave a program")
def leave_a_program(job: Any) -> None:
    """Dies while a program that it started lives on, with all that it may inherit."""
    os.system(f"sleep {job.data['seconds']} &")
    os.kill(os.getpid(), signal.SIGKILL)


@router.on("ignore")
def ignore(job: Any) -> str:
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    return "still here"
