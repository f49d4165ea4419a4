"""A program whose own logging raises: a line is lost then, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import pytest

from tests.helpers import until_renewed
from toril import NewJob
from toril.logs import get_logger


def broken(record: logging.LogRecord) -> bool:
    raise LookupError("no request here")


@contextlib.contextmanager
def breaking(name: str) -> Iterator[None]:
    """A filter of the user's that looks for something which is there in web requests only."""
    logger = get_logger(name)
    logger.addFilter(broken)
    try:
        yield
    finally:
        logger.removeFilter(broken)


async def test_a_failure_that_cannot_be_logged_is_written_and_frees_its_slot(
    queue, start_worker, inside, capsys
):
    """Regression: each failed job kept its slot and its lock for as long as the worker lived."""

    def handler(job):
        raise ValueError("no")

    await queue.add_bulk([NewJob("x") for _ in range(3)])
    with breaking("toril.jobs"):
        worker = await start_worker(handler)
        await inside.until_finished(3)
        await worker.close()

    assert len(await inside.ids("failed")) == 3
    assert capsys.readouterr().err.count("LookupError: no request here") == 3


async def test_locks_are_renewed_although_an_outage_cannot_be_logged(
    queue, start_worker, inside, client
):
    """Regression: the thread that renews them ended, so every longer job was run twice."""

    async def handler(job):
        await asyncio.Event().wait()

    job = await queue.add("long")
    with breaking("toril.worker"):
        worker = await start_worker(handler, lock_duration=1500)
        await inside.until_active()
        lock = f"{inside.base}:{job.id}:lock"
        await until_renewed(client, lock)
        thread = worker._parts.lease._thread
        await client.client_kill_filter(_type="normal", skipme=True)
        for _ in range(3):
            await until_renewed(client, lock)

        assert thread.is_alive()
        await worker.close(timeout=0)


def test_a_record_names_who_wrote_it(caplog):
    logger = get_logger("toril.test")

    with caplog.at_level(logging.INFO, "toril.test"):
        logger.info("one")
        logger.warning("two", stacklevel=1)
        try:
            raise ValueError("no")
        except ValueError:
            logger.exception("three")

    assert [record.message for record in caplog.records] == ["one", "two", "three"]
    assert {(record.pathname, record.funcName) for record in caplog.records} == {
        (__file__, "test_a_record_names_who_wrote_it")
    }
    assert "ValueError: no" in caplog.text


@pytest.mark.parametrize("is_told", [True, False])
def test_what_logging_raises_is_told_as_python_tells_it(is_told, capsys, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", is_told)

    with breaking("toril.test"):
        get_logger("toril.test").warning("lost")

    assert ("LookupError" in capsys.readouterr().err) is is_told
