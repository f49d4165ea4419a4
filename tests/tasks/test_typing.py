"""What type checkers say about tasks: wrong calls are errors, right ones are not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

PROGRAM = """
from decimal import Decimal
from typing import Any
from toril import App, Context, Handle, Worker
from toril.testing import TestContext
from toril.worker.active_job import ActiveJob
from toril.worker.child import AsyncChildJob, BlockingChildJob
from toril.worker.thread_job import ThreadJob

app = App()

class Receipt:
    pass

@app.task(queue="payments", attempts=5, lane=lambda order, **_: f"o{order}")
async def charge(ctx: Context, order: int, amount: Decimal) -> str:
    return str(ctx.data["order"])

@app.task
async def plain(order: int, note: str = "") -> int:
    return order

@app.task
def blocking(a: int, b: int) -> int:
    return a + b

async def right(ctx: Context) -> None:
    handle: Handle[str] = await charge.enqueue(1, Decimal("1"))
    text: str = await handle.result(timeout=1000)
    await charge.using(delay=1, lane="x").enqueue(1, amount=Decimal(1))
    number: int = await (await blocking.enqueue(1, b=2)).result()
    number = blocking(1, 2)
    number = await plain(1)
    text = await charge(ctx, 1, Decimal(1))
    text = charge.sync.enqueue(1, Decimal(1)).result()
    await app.enqueue_many([plain.call(1), plain.call(2, note="x")])
    async with app.group("order", group_id="order-1") as saga:
        first = saga.add(plain.call(1))
        second = saga.add(charge.call(first.result, Decimal(1)), pivot=True)
        saga.add(plain.call(2, note=second.result), after=[first])
    text = await (await app.chain(plain.call(1), charge.call(1, Decimal(1)))).result(1000)
    numbers: list[int] = await (await app.gather([plain.call(1)])).result()

def every_job_is_a_context(
    a: ActiveJob, b: ThreadJob, c: BlockingChildJob, d: AsyncChildJob, e: TestContext
) -> list[Context[Any]]:
    return [a, b, c, d, e]

async def handle(job: Context[dict[str, int]]) -> int:
    return job.data["n"]

worker = Worker("q", handle)

def bad_handler(job: int) -> None: ...

Worker("q", bad_handler)  # WRONG handler

async def wrong() -> None:
    await charge.enqueue("1", Decimal("1"))  # WRONG type
    await charge.enqueue(1)  # WRONG missing
    await charge.enqueue(1, Decimal("1"), colour="red")  # WRONG unknown
    number: int = await (await charge.enqueue(1, Decimal("1"))).result()  # WRONG result
    plain.call("x")  # WRONG call
    blocking.sync.enqueue(1)  # WRONG blocking
    await charge.using(dellay=1).enqueue(1, Decimal("1"))  # WRONG option
    async with app.group("order") as saga:
        step = saga.add(charge.call(1, Decimal(1)))
        saga.add(plain.call(step.result))  # WRONG result of a step
    number = await (await app.chain(plain.call(1), charge.call(1, Decimal(1)))).result()  # WRONG
"""
WRONG = [number for number, line in enumerate(PROGRAM.splitlines(), 1) if "# WRONG" in line]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.timeout(1800)
def test_mypy_finds_each_wrong_line_and_no_other(program: Path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-error-summary",
            str(program),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )

    found = [int(n) for n in re.findall(r"program\.py:(\d+): error", done.stdout)]
    assert sorted(set(found)) == WRONG, done.stdout + done.stderr


@pytest.mark.timeout(1800)
def test_pyright_finds_each_wrong_line_and_no_other(program: Path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "basedpyright",
            "--outputjson",
            "--pythonpath",
            sys.executable,
            "--level",
            "error",
            str(program),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=program.parent,
    )

    told = json.loads(done.stdout)["generalDiagnostics"]
    found = {one["range"]["start"]["line"] + 1 for one in told if one["severity"] == "error"}
    assert sorted(found) == WRONG, json.dumps(told, indent=1)
