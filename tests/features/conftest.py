"""Fixtures for the tests of features: a connection, workers of "q", and queues with groups."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.features.group_support import World, open_world
from tests.features.lanes import Hand
from toril import Queue, Worker
from toril.client.connection import Connection
from toril.protocol.command import Skew, skew


@pytest.fixture
async def connection(url: str) -> AsyncIterator[Connection]:
    connection = Connection(url)
    yield connection
    await connection.close()


@pytest.fixture
def hand(connection: Connection, queue: Queue) -> Callable[..., Hand]:
    """Makes workers that are moved call by call."""
    return lambda name="one": Hand(connection, queue.keys, name)


@pytest.fixture
def work(url: str, prefix: str) -> Callable[..., Worker]:
    """Makes workers of the queue; idle ones ask again only after a minute."""

    def make(handler: Any, **options: Any) -> Worker:
        return Worker(
            "q", handler, connection=url, prefix=prefix, **{"drain_delay": 60_000, **options}
        )

    return make


@pytest.fixture
def clock() -> Iterator[Skew]:
    """Lets a test turn the clock forward for the scripts; it goes its own way again afterwards."""
    yield skew
    skew.ms = 0


@pytest.fixture
async def world(url: str, prefix: str, client: Any) -> AsyncIterator[World]:
    """Queues and groups; time goes its own way again after the test."""
    async with open_world(url, prefix, client) as world:
        yield world
    skew.ms = 0
