from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from django.db import connection

from toril.contrib.django.names import TaskContext
from toril.errors import UnrecoverableError

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task
def add(a: int, b: int = 1) -> int:
    return a + b


@task(queue_name="mail", priority=5)
async def send(to: str) -> dict[str, str]:
    return {"to": to}


@task(takes_context=True)
def attempts(context: TaskContext, fail_until: int) -> list[Any]:
    if context.attempt < fail_until:
        raise KeyError(f"attempt {context.attempt}")
    return [context.attempt, context.task_result.id]


@task
def refuse() -> None:
    raise UnrecoverableError("no use")


def meanwhile() -> None:
    """What a test does while the task runs."""


@task
def refuse_meanwhile() -> None:
    meanwhile()
    raise UnrecoverableError("card declined")


@task
async def refuse_meanwhile_async() -> None:
    meanwhile()
    raise UnrecoverableError("card declined")


@task
async def explode() -> None:
    raise ValueError("boom")


@task
async def hang() -> None:
    await asyncio.sleep(60)


@task
def leave(how: str) -> None:
    raise {"exit": SystemExit, "interrupt": KeyboardInterrupt, "close": GeneratorExit}[how](how)


@task
async def leave_async() -> None:
    raise SystemExit("exit")


@task
def rant(size: int) -> None:
    raise ValueError("x" * size)


@task
def bad_value() -> Any:
    return object()


@task
def slow(flag: str) -> int:
    """Waits until somebody kills the worker; the next one finds the flag and goes on."""
    path = Path(flag)
    if not path.exists():
        path.write_text(str(os.getpid()))
        time.sleep(600)
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO done (what) VALUES (%s)", ["slow"])
    return os.getpid()
