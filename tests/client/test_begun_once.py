"""Work that is done once: who may begin it."""

from __future__ import annotations

import pytest

from toril.client.connection import Connection
from toril.protocol import remembering
from toril.protocol.keys import Keys


@pytest.fixture
async def connection(url):
    connection = Connection(url)
    yield connection
    await connection.close()


@pytest.mark.parametrize(
    ("job_id", "fence", "may_begin"),
    [
        ("a", 5, True),  # the reply was lost, and the same attempt asks again
        ("a", 6, True),  # the queue gave the job to somebody else
        ("a", 4, False),  # and this is who had it before
        ("b", 5, False),
        ("b", 6, False),
    ],
)
async def test_an_attempt_begins_what_it_or_an_earlier_one_has_begun(
    job_id, fence, may_begin, connection, prefix, client
):
    keys = Keys(prefix, "q")
    first = remembering.begin(keys, "s", "k", job_id="a", fence=5, lease_ms=60_000)
    assert (await connection.run(first)).busy_ms == 0
    (record,) = await client.keys(f"{prefix}:*")
    assert 0 < await client.pttl(record) <= 60_000

    second = remembering.begin(keys, "s", "k", job_id=job_id, fence=fence, lease_ms=60_000)
    begun = await connection.run(second)

    assert (begun.busy_ms == 0) is may_begin
    assert not begun.is_done


@pytest.mark.parametrize(
    ("job_id", "fence", "may_end"),
    [("a", 5, True), ("a", 4, False), ("a", 6, False), ("b", 5, False)],
)
async def test_only_the_attempt_that_has_begun_ends_or_abandons(
    job_id, fence, may_end, connection, prefix, client
):
    keys = Keys(prefix, "q")
    for number, finish in enumerate((remembering.end, remembering.abandon)):
        key = f"k{number}"
        begin = remembering.begin(keys, "s", key, job_id="a", fence=5, lease_ms=60_000)
        await connection.run(begin)
        more = {"result": b"1", "ttl_ms": 90_000} if finish is remembering.end else {}

        assert (
            await connection.run(finish(keys, "s", key, job_id=job_id, fence=fence, **more))
            is may_end
        )
        other = remembering.begin(keys, "s", key, job_id="c", fence=1, lease_ms=60_000)
        begun = await connection.run(other)
        is_abandoned = may_end and finish is remembering.abandon
        assert (begun.is_done, begun.busy_ms == 0) == (
            may_end and not is_abandoned,
            may_end,
        )
        if begun.is_done:
            (record,) = await client.keys(f"{prefix}:*")
            assert 60_000 < await client.pttl(record) <= 90_000
