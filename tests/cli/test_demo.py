"""`make demo`: the first thing that a stranger runs."""

from __future__ import annotations

import asyncio
import sys

import pytest


@pytest.mark.timeout(90)
async def test_the_demo_shows_what_happened_and_leaves_nothing_behind(tmp_path):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "toril.cli.demo",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=tmp_path,
    )

    output = (await process.communicate())[0].decode()

    assert process.returncode == 0, output
    facts = {
        " ".join(cells[0].split()): cells[1].strip()
        for line in output.splitlines()
        if len(cells := line.strip("│ ").split("│")) == 2
    }
    assert facts["charge completed"] == "149"
    assert facts["charge failed for good"] == "1"
    assert facts["charge tried again"] == "15"
    assert facts["receipt completed"] == "26"
    assert facts["why order 77 failed"] == "the card was reported stolen"
    assert int(facts["jobs per second in the burst"].replace(",", "")) > 100
    assert list(tmp_path.iterdir()) == []
