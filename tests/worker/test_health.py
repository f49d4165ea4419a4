"""What the process answers to whatever monitors it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.helpers import let_pass, wait_until
from toril.worker.health import _REQUEST_TIMEOUT_S, HealthServer, Metrics


@asynccontextmanager
async def asking(metrics: Metrics) -> AsyncIterator[asyncio.StreamReader]:
    """The answer to a request for the metrics, to be read."""
    server = HealthServer(list, metrics)
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    yield reader
    writer.close()
    await server.close()


async def test_metrics_that_cannot_be_collected_are_an_error_and_no_silence(caplog):
    """A collector of the user raised: nothing was answered, and the connection stayed open."""

    def metrics() -> tuple[bytes, str]:
        raise ValueError("no such gauge")

    async with asking(metrics) as reader:
        answer = await asyncio.wait_for(reader.read(), 30)

    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"no such gauge" not in answer
    assert "no such gauge" in caplog.text


async def test_slow_metrics_are_waited_for(monkeypatch: pytest.MonkeyPatch):
    """Two collectors that wait for a server that is away took longer than a request may."""
    loop = asyncio.get_running_loop()
    now = loop.time
    begun, told = threading.Event(), threading.Event()

    def metrics() -> tuple[bytes, str]:
        begun.set()
        told.wait(60)
        return b"toril_up 0\n", "text/plain"

    async with asking(metrics) as reader:
        await wait_until(begun.is_set)
        monkeypatch.setattr(loop, "time", lambda: now() + 2 * _REQUEST_TIMEOUT_S)
        await let_pass(0.01, "the loop looks at its clock")
        told.set()
        answer = await asyncio.wait_for(reader.read(), 30)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"toril_up 0\n")
