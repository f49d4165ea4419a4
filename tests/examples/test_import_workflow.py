"""The example runs, to its end and until SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.helpers import wait_until
from toril import Queue
from toril.steps import JobPayload, Producer

ROOT = Path(__file__).parents[2]


@pytest.fixture
def start(url, prefix):
    async def start(mode: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            str(ROOT / "examples" / "import_workflow.py"),
            mode,
            env={
                **os.environ,
                "TORIL_URL": url,
                "IMPORT_PREFIX": prefix,
                "PYTHONPATH": str(ROOT / "src"),
            },
            stdout=asyncio.subprocess.PIPE,
        )

    return start


async def test_the_workflow_runs_to_its_end(start):
    program = await start("demo")

    output, _ = await asyncio.wait_for(program.communicate(), 120)

    assert program.returncode == 0
    assert "'name': 'Grace'" in output.decode()
    assert "import-1 store: 1 of 1 attempts succeeded" in output.decode()


async def test_the_service_runs_until_it_is_told_to_end(start, url, prefix):
    """STEP-12, RULES-16: a registrar as a program, ended by SIGTERM."""
    program = await start("serve")
    async with (
        Queue("sources", connection=url, prefix=prefix) as sources,
        Queue("rows", connection=url, prefix=prefix) as rows,
    ):
        await Producer(sources).enqueue(JobPayload("w1", "fetch", {"source": "people.csv"}))
        await wait_until(lambda: _is(rows.get_completed_count, 2), 60)

        program.send_signal(signal.SIGTERM)
        code = await asyncio.wait_for(program.wait(), 60)

        assert code == 0
        assert await sources.get_completed_count() == 1
        assert await rows.get_active_count() == 0


async def _is(ask, number: int) -> bool:
    return await ask() == number
