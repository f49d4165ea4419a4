"""Fixtures for the tests of the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from toril import Queue

MakeQueue = Callable[..., Queue]


@pytest.fixture
async def make_queue(url: str, prefix: str) -> AsyncIterator[MakeQueue]:
    """Opens queues under the test's prefix, closed after it."""
    queues: list[Queue] = []

    def make(name: str = "q", **options: Any) -> Queue:
        queues.append(Queue(name, connection=url, prefix=prefix, **options))
        return queues[-1]

    yield make
    for queue in queues:
        await queue.close()
