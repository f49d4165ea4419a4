"""Names that a connection cannot have as they are: the worker works all the same, and is found."""

from __future__ import annotations

import pytest

from tests.helpers import wait_until
from toril import Queue, Worker

NAMES = ["two words", "line\nbreak", "worker-ü€😀", "100%", "%41", "a:w:b", None]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tail", ["", "-ü😀"], ids=["ascii", "unicode"])
async def test_a_worker_may_be_called_anything(name, tail, url, prefix):
    ran: list[str] = []

    async def handler(job):
        ran.append(job.id)

    where = {"connection": url, "prefix": prefix + tail}
    async with Queue("q ü", **where) as queue, Worker("q ü", handler, worker_name=name, **where):

        async def is_listed():
            return await queue.get_workers()

        (worker,) = await wait_until(is_listed)
        job = await queue.add("job")
        assert await queue.wait_for(job.id, 60_000) is None
        stored = await queue.get_job(job.id)
        await queue.obliterate(force=True)

    assert ran == [job.id]
    assert worker.name == (name or "")
    assert stored.processed_by == name
