"""What a worker writes into its log while nobody answers: enough, and not a flood."""

from __future__ import annotations

import logging

import pytest

from tests.helpers import wait_until
from toril import Worker


async def test_an_idle_worker_complains_once_that_locks_cannot_be_renewed(
    caplog: pytest.LogCaptureFixture,
):
    def told(what: str) -> int:
        return sum(what in record.getMessage() for record in caplog.records)

    caplog.set_level(logging.WARNING, "toril.worker")
    worker = Worker("q", print, connection="redis://127.0.0.1:1")
    await worker.start()
    try:
        await wait_until(lambda: told("waits for its server") >= 3)
    finally:
        await worker.close(timeout=0)

    assert told("cannot be renewed") == 1
