"""Many dead letters at once, written as the move writes them (`test_bulk.py` compares the two)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


async def forge(
    client: Any,
    prefix: str,
    queue: str,
    count: int,
    *,
    source: str = "orders",
    names: Sequence[str] = ("charge",),
) -> None:
    """Put ``count`` dead letters into ``queue``, their data ``{"n":number}``."""
    base = f"{prefix}:{queue}"
    last = await client.incrby(f"{base}:id", count)
    for start in range(0, count, 1000):
        pipeline = client.pipeline(transaction=False)
        ids = []
        for number in range(start, min(start + 1000, count)):
            letter_id = str(last - count + number + 1)
            ids.append(letter_id)
            name = names[number % len(names)]
            pipeline.hset(f"{base}:{letter_id}", mapping=letter(number, name, source))
        pipeline.lpush(f"{base}:wait", *ids)
        await pipeline.execute()
    await client.zadd(f"{base}:marker", {"0": 0})


def letter(number: int, name: str, source: str) -> dict[str, str | int]:
    meta = {
        "originalJobId": f"first-{number}",
        "originalTimestamp": 1_600_000_000_000,
        "deadLetteredAt": 1_700_000_000_000 + number,
        "sourceQueue": source,
        "failedReason": "Connection refused",
        "stacktrace": ["Traceback"],
        "attemptsMade": 1,
        "originalOpts": {"attempts": 0},
        "errorType": "ConnectionError",
        "fingerprint": "ConnectionError@bank.py:call",
        "cause": "attempts",
    }
    data = f'{{"n":{number}'
    metadata = json.dumps(meta, separators=(",", ":"))
    note = {
        "size": len(metadata),
        "source": source,
        "why": "connectionerror: connection refused",
        "fp": "ConnectionError@bank.py:call",
    }
    return {
        "name": name,
        "data": f'{data},"_dlqMeta":{metadata}}}',
        "opts": '{"attempts":0}',
        "timestamp": 1_700_000_000_000 + number,
        "delay": 0,
        "priority": 0,
        "x.letter": json.dumps(note),
    }
