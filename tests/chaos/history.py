"""What the queue's log says of each job, read while the storm goes on: the log itself is short."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import redis.asyncio

ENDS = ("completed", "failed")
BACK = ("waiting", "delayed", "waiting-children", "stalled")
"""What happens to a job between two takes of it."""
_LIFE = {"added", "active", "removed", *ENDS, *BACK}
_COUNT = ""
"""Under this id stands how many entries were read."""


async def follow(history: dict[str, list[str]], url: str, prefix: str, queue: str) -> None:
    """Write the events of every job into ``history`` until cancelled."""
    last, read = "0-0", itertools.count(1)
    stream = f"{prefix}:{queue}:events"
    options = {"decode_responses": True, "encoding_errors": "backslashreplace"}
    async with redis.asyncio.Redis.from_url(url, socket_timeout=120, **options) as client:
        while True:
            try:
                pages = await client.xread({stream: last}, count=5000, block=200)
            except (redis.exceptions.RedisError, OSError):
                await asyncio.sleep(0.05)  # the storm has the server
                continue
            for entry_id, fields in pages[0][1] if pages else ():
                last = entry_id
                history[_COUNT] = [str(next(read))]
                if fields.get("event") in _LIFE and "jobId" in fields:
                    history.setdefault(fields["jobId"], []).append(fields["event"])


async def missed(history: dict[str, list[str]], client: Any, prefix: str, queue: str) -> int:
    """How many entries the log lost before they were read; waits for those that are still there."""
    stream = f"{prefix}:{queue}:events"
    for _ in range(100):
        written = (await client.xinfo_stream(stream))["entries-added"]
        read = int(history.get(_COUNT, ["0"])[0])
        if read >= written:
            break
        await asyncio.sleep(0.05)
    return int(written - read)


def disorders(history: Mapping[str, list[str]]) -> Iterator[str]:
    """What cannot have happened to a job in that order."""
    for job_id, events in history.items():
        if job_id == _COUNT:
            continue
        held = False
        is_over = False
        for event in events:
            if event == "added":
                held = is_over = False
            elif event == "active":
                if held:
                    yield f"{job_id} was taken twice without having come back: {events}"
                if is_over:
                    yield f"{job_id} was taken after its end: {events}"
                held = True
            elif event in BACK:
                held = False
            elif event in ENDS:
                if is_over:
                    yield f"{job_id} ended twice: {events}"
                if not held and event == "completed":
                    yield f"{job_id} completed without having been taken: {events}"
                held, is_over = False, True
