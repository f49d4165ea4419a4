"""Each kind of slice has a bound in bytes, or bytes do not matter to it.

Half a megabyte where a payload is moved: take, settle, add, bury, divert and replay
(`tests/worker/test_big_jobs.py`, `tests/features/dead_letters/test_places.py`).  Letting due jobs
in, promoting and retrying move ids alone.  Draining, cleaning and obliterating free payloads and
read none: the server frees a megabyte in about 10 microseconds, so 250 jobs of that size take 3 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from tests.helpers import wait_until
from tests.servers import Server
from toril import NewJob, Queue, Worker
from toril.errors import ServerRefusalError
from toril.protocol import adding, dead_letters, lanes, removing, replaying
from toril.worker import pump

JOBS = 10
PAYLOAD = "x" * 300


@pytest.fixture(scope="module")
def server_of_its_own() -> Iterator[Server]:
    with Server() as server:
        yield server


async def promote_all(queue: Queue) -> int:
    return await queue.promote_all()


async def retry_all(queue: Queue) -> int:
    return await queue.retry_all()


async def drain(queue: Queue) -> int:
    return await queue.drain(delayed=True)


async def clean(queue: Queue) -> int:
    return len(await queue.clean("delayed"))


async def obliterate(queue: Queue) -> int:
    await queue.pause()
    return await queue.obliterate()


async def fail_all(queue: Queue, url: str) -> None:
    async def refuse(job: Any) -> None:
        raise ValueError("no")

    async with Worker(queue.name, refuse, connection=url, concurrency=JOBS):
        await queue.promote_all()

        async def have_failed() -> bool:
            return await queue.get_failed_count() == 2 * JOBS

        await wait_until(have_failed)


@pytest.mark.parametrize("change", [promote_all, retry_all, drain, clean, obliterate])
async def test_what_moves_ids_or_frees_jobs_reads_and_writes_no_payload(
    change: Callable[[Queue], Awaitable[int]], server_of_its_own: Server
) -> None:
    """No command of theirs names `data`, reads whole jobs or carries more than ids."""
    url = server_of_its_own.unix_url
    async with Queue(change.__name__, connection=url) as queue:
        await queue.add_bulk([NewJob("big", PAYLOAD, delay=60_000) for _ in range(JOBS)])
        in_lane = NewJob("big", PAYLOAD, delay=60_000, lane="a", attempts=1)
        await queue.add_bulk([in_lane] * JOBS)
        if change is retry_all:
            await fail_all(queue, url)
        told = []
        with (
            server_of_its_own.client() as raw,
            server_of_its_own.client() as watching,
            watching.monitor() as monitor,
        ):
            assert await change(queue) == 2 * JOBS
            raw.echo("the end")
            for seen in monitor.listen():
                if seen["command"].upper().startswith("ECHO"):
                    break
                if seen["client_type"] == "lua":
                    told.append(seen["command"])

    assert told
    of_jobs = [one for one in told if one != f"HGETALL bull:{change.__name__}:meta"]
    touching = [one for one in of_jobs if " data" in one or one.upper().startswith("HGETALL")]
    assert not touching, touching[:3]
    assert PAYLOAD not in "".join(told)


def test_the_bounds_are_those_that_the_documentation_names() -> None:
    assert {
        adding.MOST_BYTES_PER_CALL,
        pump.MOST_BYTES_PER_CALL,
        lanes.DIVERTED_BYTES,
        replaying.REPLAYED_BYTES_PER_SLICE,
    } == {500_000}
    assert dead_letters.PURGED_BYTES_PER_SLICE == 16_000_000
    assert removing.SLICE == 250


async def test_a_job_that_is_too_large_for_the_server_hurts_no_other_of_its_batch(
    start_server: Callable[..., Server],
) -> None:
    """Regression: whatever was added at the same time was refused with it."""
    server = start_server({"proto-max-bulk-len": "1mb"})
    async with Queue("q", connection=server.url) as queue:
        sizes = [1, 2, 1_100_000, 3]  # the first leaves alone, the others wait for its reply
        answers = await asyncio.gather(
            *(queue.add("job", "x" * size) for size in sizes), return_exceptions=True
        )

        too_large = [isinstance(answer, ServerRefusalError) for answer in answers]
        assert too_large == [False, False, True, False]
        assert await queue.get_waiting_count() == 3
