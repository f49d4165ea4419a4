"""``/healthz``, ``/readyz`` and ``/metrics`` over HTTP, for whatever monitors the process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol

from toril.logs import get_logger

SILENCE_S = 15.0
"""An idle worker hears from its server every 5 seconds; three times that is too long a silence."""
_REQUEST_TIMEOUT_S = 5.0
_LONGEST_REQUEST = 16 * 1024
logger = get_logger("toril.health")

Metrics = Callable[[], tuple[bytes, str]]
"""The text of all metrics, and its content type."""


class Watched(Protocol):
    """Something that can report its health: a worker, a relay."""

    @property
    def is_running(self) -> bool: ...

    @property
    def last_reply_age(self) -> float | None: ...


def trouble_of(service: Watched) -> str | None:
    """Why a service cannot do its work now, or None."""
    if not service.is_running:
        return f"{service!r} is not running"
    error = getattr(service, "server_error", None)
    if error is not None:
        return f"{service!r} cannot reach its server: {error}"
    age = service.last_reply_age
    if age is None:
        return f"{service!r} has not heard from its server yet"
    if age > SILENCE_S:
        return f"{service!r} has not heard from its server for {age:.0f} s"
    return None


class HealthServer:
    """Answers three paths, and nothing else.

    ``/healthz`` is 200 while the event loop runs.  ``/readyz`` is 503, with the reasons, when a
    service is not running or does not hear from its server.  ``/metrics`` is what ``metrics``
    returns.
    """

    def __init__(self, services: Callable[[], Sequence[Watched]], metrics: Metrics | None) -> None:
        self._services = services
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port, which matters if any free one was requested."""
        self._server = await asyncio.start_server(self._serve, host, port, limit=_LONGEST_REQUEST)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                try:
                    request = await reader.readuntil(b"\r\n\r\n")
                except asyncio.LimitOverrunError:
                    request = b""
            # Not timed: collectors wait for a silent server, one after another.
            status, kind, body = await self._answer_or_say_why_not(request)
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    f"Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode()
                )
                if not request.startswith(b"HEAD "):
                    writer.write(body)
                await writer.drain()
        writer.close()

    async def _answer_or_say_why_not(self, request: bytes) -> tuple[str, str, bytes]:
        try:
            return await self._answer(request)
        except Exception:
            logger.exception("a request could not be answered: %r", request.partition(b"\r")[0])
            why = b"this could not be answered; see the log\n"
            return "500 Internal Server Error", "text/plain; charset=utf-8", why

    async def _answer(self, request: bytes) -> tuple[str, str, bytes]:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        text = "text/plain; charset=utf-8"
        if method not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", text, b"use GET\n"
        if path == b"/healthz":
            return "200 OK", text, b"ok\n"
        if path == b"/readyz":
            return self._readiness()
        if path == b"/metrics" and self._metrics is not None:
            # A collector may query the server, and it blocks while it does.
            body, kind = await asyncio.to_thread(self._metrics)
            return "200 OK", kind, body
        return "404 Not Found", text, b"there are /healthz, /readyz and /metrics\n"

    def _readiness(self) -> tuple[str, str, bytes]:
        services = self._services()
        troubles = [trouble for one in services if (trouble := trouble_of(one)) is not None]
        if not services:
            troubles = ["nothing is running yet"]
        if troubles:
            body = "".join(f"{trouble}\n" for trouble in troubles).encode()
            return "503 Service Unavailable", "text/plain; charset=utf-8", body
        return "200 OK", "text/plain; charset=utf-8", b"ready\n"
