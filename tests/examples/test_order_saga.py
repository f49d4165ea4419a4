"""The example of a group undoes what it did."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


async def test_an_order_that_fails_in_the_middle_undoes_itself(url, prefix):
    """SAGA-30, SAGA-31: one order completes, one is undone, two need a hand."""
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / "order_saga.py"),
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
    order = [
        "order-1 is COMPLETED",
        "order-2 is FAILED",
        "order-3 is FAILED_COMPENSATION",
        "order-3 is FAILED (",
        "order-4 is BLOCKED",
        "order-4 is COMPLETED",
    ]
    places = [text.index(line) for line in order]
    assert places == sorted(places)
    assert "order-2 is being undone" in text
    assert "refunded tx-2" in text
    assert text.index("refunded tx-2") < text.index("released 2 pieces"), "the last step first"
    ends = "Charged: {1: 'tx-1', 4: 'tx-4'}. Reserved: {1: 2, 4: 2}. Mailed: [1, 4]."
    assert ends in text.replace("\n", " ")
