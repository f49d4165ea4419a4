"""A TCP proxy that understands requests and breaks the line in the ways that lines break.

A test gives it a rule: a function that sees the words of each request and returns None, or what is
to go wrong with it:

    "cut"        the request never arrives; the client's connection is closed
    "hold"       the same, but only when ``may_cut`` is set: what was sent before it is done first
    "lose"       the server does it, the reply is lost and the client's connection is closed
    "swallow"    the server does it, nobody answers, and the connection stays open (half-open)
    "double"     the server gets it twice: now, and once more from a ghost when the reply is there
    "slow"       it is handed on a quarter of a second later, and everything behind it too
    "half-close" the server does it; the client finds its line closed for reading, and writes on
    "partial"    the server gets the first half of it, and then the line is closed
    "torn"       the server does it, the client gets the first half of the reply, and then nothing
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import cache
from typing import Any, Self

import hiredis

from toril.protocol import scripts

SLOW_S = 0.25

Rule = Callable[[list[bytes]], str | None]


class Proxy:
    """Stands before the server on ``port`` and listens on a port of its own."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.rule: Rule = lambda words: None
        self.may_lose = asyncio.Event()
        """Replies are lost and ghosts arrive when this is set: a test may let something happen
        before."""
        self.may_lose.set()
        self.may_cut = asyncio.Event()
        self.broken: list[tuple[str, bytes]] = []
        """What went wrong, with the first word of each request."""
        self.ghosts: list[Any] = []
        """What the server answered to requests that it got a second time."""

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._until_all_is_done()

    async def _until_all_is_done(self) -> None:
        """A request that was handed on may come late to a busy server, and write what the test has
        cleared away. The server reads all that is there before it answers a second question."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(60):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._target)
                for _ in range(2):
                    writer.write(b"PING\r\n")
                    await reader.readline()
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        line = _Line(self, writer, up_writer)
        back = asyncio.create_task(line.pass_replies(up_reader))
        try:
            await line.pass_requests(reader)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            back.cancel()
            for one in (writer, up_writer):
                with contextlib.suppress(Exception):
                    one.close()


class _Line:
    """One client's connection through the proxy."""

    def __init__(self, proxy: Proxy, down: asyncio.StreamWriter, up: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._down = down
        self._up = up
        self._is_mute = False
        self._tears = False
        self._was_answered = asyncio.Event()

    async def pass_requests(self, reader: asyncio.StreamReader) -> None:
        parser = hiredis.Reader()
        while data := await reader.read(65536):
            parser.feed(data)
            while (words := parser.gets()) is not False:
                if await self._pass(words):
                    return

    async def _pass(self, words: list[bytes]) -> bool:
        """Hand one request on; True when the line is broken now."""
        fault = self._proxy.rule(words)
        if fault is not None:
            self._proxy.broken.append((fault, words[0]))
        if fault == "hold":
            await self._proxy.may_cut.wait()
        if fault in ("cut", "hold"):
            return True
        if fault == "slow":
            await asyncio.sleep(SLOW_S)
            fault = None
        self._was_answered.clear()
        if fault in ("lose", "swallow", "half-close"):
            self._is_mute = True
        self._tears = fault == "torn"
        packed = hiredis.pack_command(tuple(words))
        if fault == "partial":
            self._up.write(packed[: len(packed) // 2])
            await self._up.drain()
            return True
        self._up.write(packed)
        if fault is None:
            return False
        await asyncio.wait_for(self._was_answered.wait(), 60)
        await self._proxy.may_lose.wait()
        if fault == "double":
            await self._send_ghost(packed)
            return False
        if fault == "half-close":
            self._down.write_eof()
            return False
        return fault in ("lose", "torn")

    async def _send_ghost(self, packed: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._proxy._target)
        writer.write(packed)
        parser = hiredis.Reader()
        reply = False
        while reply is False:
            parser.feed(await reader.read(65536))
            reply = parser.gets()
        self._proxy.ghosts.append(reply)
        writer.close()

    async def pass_replies(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65536):
            if self._tears:
                self._down.write(data[: len(data) // 2])
                self._is_mute = True
            elif not self._is_mute:
                self._down.write(data)
            self._was_answered.set()
        self._down.close()


def runs(words: list[bytes], name: str) -> bool:
    """Is this request a call of the script ``name``?"""
    return len(words) > 1 and words[1] in _known_as(name)


@cache
def _known_as(name: str) -> frozenset[bytes]:
    """How a request names that script."""
    script = scripts.load(name)
    return frozenset(text.encode() for text in (script.function, script.sha, script.source))
