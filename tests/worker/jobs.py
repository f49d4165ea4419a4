"""Handlers for the tests of ``executor="process"``: other processes import them from here."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from toril import Router, UnrecoverableError
from toril.errors import DelayedError

router = Router()


@router.on("where")
def where(job: Any) -> dict[str, Any]:
    return {"pid": os.getpid(), "parent": os.getppid(), "fence": job.fence, "data": job.data}


@router.on("write")
def write(job: Any) -> int:
    job.report({"half": True})
    job.update_data({"n": 2})
    assert job.data == {"n": 2}
    job.extend_lock(60_000)
    job.log("one")
    return job.log("two")


@router.on("write async")
async def write_async(job: Any) -> list[int]:
    await job.report(50)
    await job.update_data({"n": 3})
    await job.extend_lock(60_000)
    return await asyncio.gather(*(job.log(f"{n}") for n in range(3)))


@router.on("patient")
def patient(job: Any) -> str:
    job.log("runs")
    return "stopped early" if job.signal.wait(60) else "nobody told me"


@router.on("patient async")
async def patient_async(job: Any) -> str:
    await job.log("runs")
    async with asyncio.timeout(60):
        await job.signal.wait()
    return "stopped early"


@router.on("late to look")
def late_to_look(job: Any) -> str:
    """Asks for its signal only after it has been set."""
    job.log("runs")
    deadline = time.monotonic() + 60
    while not Path(job.data["file"]).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    return "stopped early" if job.signal.wait(60) else "nobody told me"


@router.on("next")
def next_one(job: Any) -> bool:
    return job.signal.is_set()


class CannotTravel(Exception):
    def __init__(self, number: int, *, text: str) -> None:
        super().__init__(f"{text} {number}")
        self.handle = open(os.devnull)  # noqa: SIM115 (nobody can pickle it)


class BankError(Exception):
    """Unpickling it would call it with its text alone."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Declined(UnrecoverableError, BankError):
    pass


@router.on("raise")
def fail(job: Any) -> None:
    match job.data:
        case "value":
            raise ValueError("no")
        case "travel":
            raise CannotTravel(7, text="stuck")
        case "unrecoverable":
            raise UnrecoverableError("hopeless")
        case "bank":
            raise BankError(503, "try later")
        case "declined":
            raise Declined(402, "declined")
        case "delayed" if job.fence == 1:
            raise DelayedError(10)
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "close":
            raise GeneratorExit


@router.on("collect")
def collect(job: Any) -> list[Any]:
    dependencies = job.dependencies()
    return [*job.children_values().values(), *dependencies.processed.values()]


@router.on("collect async")
async def collect_async(job: Any) -> list[Any]:
    dependencies = await job.dependencies()
    return [*(await job.children_values()).values(), *dependencies.processed.values()]


@router.on("not json")
def not_json(job: Any) -> object:
    return object()


@router.on("die")
def die(job: Any) -> None:
    match job.data:
        case "exit":
            os._exit(9)
        case "segfault":
            ctypes.string_at(0)
        case "unnamed":
            os.kill(os.getpid(), signal.SIGRTMIN + 1)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)


@router.on("hold")
def hold(job: Any) -> None:
    """Deaf to everything but SIGKILL."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    job.log(f"pid {os.getpid()}")
    end = time.monotonic() + 600
    while time.monotonic() < end:
        try:
            time.sleep(1)
        except BaseException:
            continue


@router.on("meet")
def meet(job: Any) -> list[float]:
    """Wait in the folder that the data name until a second job has come there."""
    began = time.time()
    folder = Path(job.data)
    (folder / job.id).touch()
    deadline = time.monotonic() + 60
    while len(list(folder.iterdir())) < 2:
        if time.monotonic() > deadline:
            raise TimeoutError("nobody came")
        time.sleep(0.005)
    time.sleep(0.05)
    return [began, time.time()]


plain_function = where
