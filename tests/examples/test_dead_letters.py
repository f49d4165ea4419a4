"""The story of an outage plays to its end."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


async def test_the_operator_gets_out_of_the_outage(url, prefix):
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / "dead_letters.py"),
        "1010",
        env={
            **os.environ,
            "TORIL_URL": url,
            "EXAMPLE_PREFIX": prefix,
            "PYTHONPATH": str(ROOT / "src"),
        },
        stdout=asyncio.subprocess.PIPE,
    )

    output, _ = await asyncio.wait_for(program.communicate(), 120)

    text = output.decode()
    assert program.returncode == 0
    assert "1010 alerts, 1010 dead letters." in text
    assert "1010 x ConnectionError@dead_letters.py:Bank.charge" in text
    assert "2 x TypeError@dead_letters.py:Bank.charge" in text
    assert text.rstrip().endswith("1010 of 1010 charged,\n0 dead letters.")
