"""One socket in hard weather: replies in pieces, too many of them, and a line that ended unseen."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import time
import warnings
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from tests.helpers import let_pass, wait_until
from tests.proxy import Proxy
from toril.client.connection import Connection
from toril.errors import AmbiguousResultError, ServerUnavailableError
from toril.protocol.command import Command, Resend, plain
from toril.sync.connection import Connection as BlockingConnection

Change = Callable[[bytes], list[bytes]]


class Weather:
    """A proxy that hands the server's replies on as ``change`` says: a list of separate writes."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.change: Change = lambda data: [data]
        self.lines: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lines.append(writer)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        forward = asyncio.create_task(self._forward(reader, back))
        try:
            while data := await there.read(2**20):
                for piece in self.change(data):
                    writer.write(piece)
                    await asyncio.sleep(0)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            forward.cancel()
            back.close()
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**20):
            back.write(data)


class SlowLink:
    """A proxy that hands a piece on only now and then, in both directions, and buffers little."""

    PIECE = 65_536
    PAUSE_S = 0.15

    def __init__(self, port: int) -> None:
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port, limit=self.PIECE)
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(self._carry(reader, back), self._carry(there, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(self.PIECE):
            writer.write(data)
            if len(data) > 1000:
                await let_pass(self.PAUSE_S, "the link is slow")
        writer.close()


class InThreads:
    """The blocking connection, to be awaited like the other."""

    def __init__(self, url: str, **options: float) -> None:
        self._connection = BlockingConnection(url, **options)

    async def run(self, command: Command[Any]) -> Any:
        return await asyncio.to_thread(self._connection.run, command)

    async def run_all(self, commands: list[Command[Any]], **options: int) -> list[Any]:
        return await asyncio.to_thread(partial(self._connection.run_all, commands, **options))

    async def close(self) -> None:
        self._connection.close()


@pytest.fixture(params=["async", "blocking"])
def connect(request, monkeypatch) -> Callable[..., Any]:
    monkeypatch.setattr("toril.sync.line._LOOK_AFTER_S", 0.0)
    return Connection if request.param == "async" else InThreads


@pytest.fixture
async def weather(server) -> AsyncIterator[tuple[Weather, str]]:
    weather = Weather(server.port)
    listener = await asyncio.start_server(weather.serve, "127.0.0.1", 0)
    yield weather, f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    listener.close()
    for line in weather.lines:
        line.close()


def has_good_line(connection: Connection | InThreads) -> bool:
    """Is there a line that the next command would be written to?"""
    if isinstance(connection, Connection):
        return any(line.is_open for line in connection._transport.sockets.here().free)
    return any(line.is_usable for line in connection._connection._transport._free)


def increment(prefix: str) -> Command[int]:
    """A command that must not be sent again."""
    return plain("INCR", f"{prefix}:q:toril:0", parse=int, resend=Resend.NEVER)


async def test_a_line_that_the_server_closed_meanwhile_is_not_written_to(weather, connect, prefix):
    """A write that is sent into a closed line may have been done, as far as anybody knows."""
    proxy, url = weather
    connection = connect(url)
    assert await connection.run(increment(prefix)) == 1
    proxy.lines[0].close()
    await proxy.lines[0].wait_closed()
    await wait_until(lambda: not has_good_line(connection))

    assert await connection.run(increment(prefix)) == 2
    await connection.close()


async def test_a_reply_that_nobody_asked_for_is_nobodys_answer(weather, connect, prefix):
    """The next caller would get it, and everybody after that the answer of somebody else."""
    proxy, url = weather
    connection = connect(url)
    await connection.run(increment(prefix))
    proxy.lines[0].write(b":41\r\n")
    await wait_until(lambda: not has_good_line(connection))

    assert await connection.run(increment(prefix)) == 2
    await connection.close()


async def test_two_replies_to_one_question_end_the_line(weather, connect, prefix):
    """Nobody knows which of them is the answer."""
    proxy, url = weather
    connection = connect(url)
    await connection.run(increment(prefix))

    proxy.change = lambda data: [data + data]
    with pytest.raises(AmbiguousResultError):
        await connection.run(increment(prefix))
    proxy.change = lambda data: [data]

    assert await connection.run(increment(prefix)) == 3
    await connection.close()


async def test_what_is_no_reply_ends_the_line(weather, connect, prefix):
    proxy, url = weather
    connection = connect(url)
    await connection.run(increment(prefix))
    proxy.change = lambda data: [b"HTTP/1.1 400 Bad Request\r\n\r\n"]

    with pytest.raises(AmbiguousResultError):
        await connection.run(increment(prefix))

    proxy.change = lambda data: [data]
    assert await connection.run(increment(prefix)) == 3
    await connection.close()


async def test_a_slot_on_the_move_is_waited_for_longer_than_a_server(weather, connect, prefix):
    """Somebody moves it right now; a server that does not answer may never come back."""
    proxy, url = weather
    connection, refused = connect(url, patience_s=0.1), 0
    await connection.run(increment(prefix))

    def refuse_at_first(data: bytes) -> list[bytes]:
        nonlocal refused
        if refused == 5:  # the pauses until then are longer than its patience, by any dice
            return [data]
        refused += 1
        return [b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n"]

    proxy.change = refuse_at_first

    assert await connection.run(plain("EXISTS", f"{prefix}:x", parse=int)) == 0
    assert refused == 5
    await connection.close()


async def test_replies_may_come_byte_by_byte_and_all_at_once(weather, connect, prefix):
    proxy, url = weather
    connection = connect(url)
    words = [plain("ECHO", f"{number} " * 5, parse=bytes.decode) for number in range(40)]
    await connection.run(increment(prefix))
    proxy.change = lambda data: [data[at : at + 1] for at in range(len(data))]

    assert await connection.run_all(words[:5]) == [f"{number} " * 5 for number in range(5)]
    proxy.change = lambda data: [data]
    assert await connection.run_all(words, at_once=7) == [f"{number} " * 5 for number in range(40)]
    await connection.close()


async def test_a_huge_request_and_its_huge_reply_come_whole(weather, connect):
    _, url = weather
    connection = connect(url)
    text = "x" * 3_000_000

    echoes = await asyncio.gather(
        *(connection.run(plain("ECHO", text + str(one), parse=len)) for one in range(3)),
        connection.run_all([plain("ECHO", text, parse=len)] * 4, at_once=2),
    )

    assert echoes == [len(text) + 1] * 3 + [[len(text)] * 4]
    await connection.close()


async def test_a_caller_that_leaves_takes_its_line_along(weather, prefix):
    """Its reply is still to come: whoever used the line next would get it."""
    _, url = weather
    connection = Connection(url)
    waiting = asyncio.create_task(
        connection.run(plain("BLPOP", f"{prefix}:q:toril:none", 30, parse=bool, block_ms=30_000))
    )
    sockets = connection._transport.sockets.here()
    await wait_until(lambda: any(line.is_open for line in sockets.in_use))
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert not sockets.in_use
    assert not sockets.free
    assert await connection.run(increment(prefix)) == 1
    await connection.close()


async def test_a_server_that_never_answers_is_left(weather, connect, prefix):
    proxy, url = weather
    connection = connect(url, patience_s=0.0)
    await connection.run(increment(prefix))
    # Only from now on: a busy machine may need longer for a reply that does come.
    getattr(connection, "_connection", connection)._reply_timeout_s = 0.1
    proxy.change = lambda data: []

    with pytest.raises(AmbiguousResultError, match="no reply in time"):
        await connection.run(increment(prefix))

    await connection.close()


async def test_a_request_and_its_reply_may_be_long_under_way_while_they_move(server, connect):
    """Only silence ends a call: what is cut for its size would be sent, and cut, forever."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SlowLink.PIECE)
    link = await asyncio.start_server(
        SlowLink(server.port).serve, sock=listener, limit=SlowLink.PIECE // 2
    )
    connection = connect(
        f"redis://127.0.0.1:{listener.getsockname()[1]}", reply_timeout_s=2.0, patience_s=0.0
    )
    large = b"x" * (20 * SlowLink.PIECE)
    began = time.monotonic()

    async with asyncio.timeout(60):
        echo = await connection.run(plain("ECHO", large, parse=bytes))

    assert echo == large
    assert time.monotonic() - began > 2.0, "the link was too fast to show anything"
    await connection.close()
    link.close()


async def test_a_large_request_that_does_not_move_is_left(start_server, connect):
    server = start_server()
    connection = connect(server.url, patience_s=0.0)
    await connection.run(plain("ECHO", b"opens a socket", parse=bytes))
    getattr(connection, "_connection", connection)._reply_timeout_s = 0.1
    server.freeze()

    async with asyncio.timeout(60):
        with pytest.raises(ServerUnavailableError):
            await connection.run(plain("ECHO", b"x" * 2**24, parse=bytes))

    server.thaw()
    await connection.close()


async def test_a_line_that_is_closed_is_nothing_to_warn_of(weather, prefix):
    """Redis-py and its streams warn of what they find open, and some programs end by a warning."""
    _, url = weather
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what earlier tests left open is not this line's

    gc.collect()  # what other tests left is not told here
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        connection = Connection(url)
        await asyncio.gather(*(connection.run(increment(prefix)) for _ in range(3)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.run(
                    plain("BLPOP", f"{prefix}:q:toril:none", 30, parse=bool, block_ms=30_000)
                )
        await connection.close()
        del connection
        gc.collect()
        await asyncio.sleep(0)

    assert [str(one.message) for one in seen if one.category is ResourceWarning] == []


@pytest.mark.parametrize("kind", ["async", "blocking"])
async def test_idle_lines_that_a_firewall_has_forgotten_cost_one_wait(kind, server):
    """Regression: each try took another dead line, until there was no more time to try."""
    forgotten: set[Any] = set()
    async with Proxy(server.port) as proxy:
        options: Any = {"reply_timeout_s": 3.0, "patience_s": 2.0}
        ping = plain("PING", parse=bytes)
        if kind == "async":
            connection = Connection(proxy.url, **options)

            async def ask() -> bytes:
                return await connection.run(ping)
        else:
            blocking = BlockingConnection(proxy.url, **options)

            async def ask() -> bytes:
                return await asyncio.to_thread(blocking.run, ping)

        proxy.rule = lambda words: "slow"
        await asyncio.gather(*(ask() for _ in range(4)))
        forgotten.update(proxy._tasks)
        proxy.rule = lambda words: "hold" if asyncio.current_task() in forgotten else None

        assert len(forgotten) == 4
        assert await ask() == b"PONG"
        await connection.close() if kind == "async" else blocking.close()
