"""An app at the top level of a module: what a child process can import."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from toril import App, Context


@asynccontextmanager
async def journal(app: App) -> AsyncIterator[dict[str, Any]]:
    """Writes down, in a file that the environment names, when a process opens and closes."""
    path = Path(os.environ["TORIL_TEST_JOURNAL"])
    with path.open("a") as file:
        file.write(f"open {os.getpid()}\n")
    yield {"pid": os.getpid()}
    with path.open("a") as file:
        file.write(f"close {os.getpid()}\n")


app = App(
    connection=os.environ.get("TORIL_TEST_URL"),
    prefix=os.environ.get("TORIL_TEST_PREFIX", "bull"),
    lifespan=journal,
    worker_options={"executor": "process"},
)


@app.task
def where(ctx: Context) -> list[int]:
    """The process it ran in, and the one that opened its state."""
    return [os.getpid(), ctx.state["pid"]]


@app.task
async def where_async(ctx: Context) -> list[int]:
    return [os.getpid(), ctx.state["pid"]]


@app.task(attempts=3, give_up_on=KeyError)
def broken() -> None:
    raise KeyError("gone")


@app.task
def passes_on() -> str:
    """The id of a job that it enqueues."""
    return where.sync.enqueue().id


@app.task
async def passes_on_async() -> str:
    return (await where.enqueue()).id
