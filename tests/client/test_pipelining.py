"""Several commands in one go: in order, each with its answer, and safe when the line breaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.helpers import wait_until
from toril.client.connection import Connection
from toril.errors import AmbiguousResultError
from toril.protocol.command import Command, Resend, plain
from toril.sync.connection import Connection as BlockingConnection


class Cutter:
    """A proxy that cuts the line when the server's n-th reply byte chunk comes by."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.requests = b""
        self.bytes_until_cut: int | None = None
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        forward = asyncio.create_task(self._forward(reader, back))
        try:
            while chunk := await there.read(65536):
                if self.bytes_until_cut is not None:
                    chunk = chunk[: self.bytes_until_cut]
                    self.bytes_until_cut -= len(chunk)
                writer.write(chunk)
                await writer.drain()
                if self.bytes_until_cut == 0:
                    self.bytes_until_cut = None
                    break
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:  # also at the end of a test: what is left open waits on at the server
            forward.cancel()
            back.close()
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(65536):
            self.requests += chunk
            back.write(chunk)
            await back.drain()


@pytest.fixture
async def cutter(server) -> AsyncIterator[tuple[Cutter, str]]:
    cutter = Cutter(server.port)
    listener = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
    yield cutter, f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    listener.close()


def increments(prefix: str, count: int, resend: Resend) -> list[Command[int]]:
    """Each adds one to a counter of its own: what ran twice shows."""
    return [
        plain("INCR", f"{prefix}:q:toril:{number}", parse=int, resend=resend)
        for number in range(count)
    ]


async def values(client, prefix: str, count: int) -> list[str | None]:
    return await client.mget([f"{prefix}:q:toril:{number}" for number in range(count)])


async def test_answers_come_in_the_order_of_the_commands(url):
    connection = Connection(url)

    answers = await connection.run_all(
        [plain("ECHO", str(number), parse=int) for number in range(500)], at_once=7
    )

    assert answers == list(range(500))
    await connection.close()


async def test_an_error_of_one_command_is_raised_when_all_are_done(url, prefix, client):
    connection = Connection(url)
    commands = [
        plain("INCR", f"{prefix}:q:toril:0", parse=int),
        plain("NONSENSE", parse=int),
        plain("INCR", f"{prefix}:q:toril:1", parse=int),
    ]

    with pytest.raises(Exception, match="unknown command"):
        await connection.run_all(commands)

    assert await values(client, prefix, 2) == ["1", "1"]
    await connection.close()


async def test_many_commands_share_one_socket_and_one_packet(cutter):
    proxy, url = cutter
    connection = Connection(url)

    await connection.run_all([plain("ECHO", "x", parse=bytes)] * 50)

    assert proxy.connections == 1
    await connection.close()


@pytest.mark.parametrize("blocking", [False, True])
async def test_only_what_got_no_answer_is_sent_again(blocking, cutter, prefix, client):
    proxy, url = cutter
    run_all, close = _runner(url, blocking)
    await run_all([plain("PING", parse=bytes)] * 2)
    proxy.requests = b""
    proxy.bytes_until_cut = len(b":1\r\n") * 3

    answers = await run_all(increments(prefix, 8, Resend.SAME))

    # Three were answered; the other five ran, lost their answers, and ran again.
    assert answers == [1, 1, 1, 2, 2, 2, 2, 2]
    assert proxy.requests.count(b"INCR") == 8 + 5
    await close()


@pytest.mark.parametrize("blocking", [False, True])
async def test_what_must_not_run_twice_is_not_sent_again(blocking, cutter, prefix, client):
    proxy, url = cutter
    run_all, close = _runner(url, blocking)
    await run_all([plain("PING", parse=bytes)] * 2)
    proxy.requests = b""
    proxy.bytes_until_cut = len(b":1\r\n") * 3

    with pytest.raises(AmbiguousResultError):
        await run_all(increments(prefix, 8, Resend.NEVER), at_once=4)

    # The first four left together; two more when half of them was answered: those two or none of
    # them ran. What had not left yet was sent on a new socket, and nothing twice.
    assert set(await values(client, prefix, 8)) <= {"1", None}
    assert (await values(client, prefix, 8))[6:] == ["1", "1"]
    await close()


async def test_after_a_flush_the_library_is_loaded_again(queue, client):
    from toril import NewJob

    await queue.add("first")
    await client.function_flush()

    jobs = await queue.add_bulk([NewJob("x", {"n": n}) for n in range(900)])

    waiting = await queue.get_waiting(1)
    assert [job.id for job in waiting] == [job.id for job in jobs]


def _runner(url: str, blocking: bool) -> tuple[Callable, Callable]:
    if not blocking:
        connection = Connection(url)
        return connection.run_all, connection.close
    twin = BlockingConnection(url)

    async def run_all(commands, **options):
        return await asyncio.to_thread(lambda: twin.run_all(commands, **options))

    async def close() -> None:
        twin.close()

    return run_all, close


async def test_a_pipeline_that_is_cut_or_cancelled_leaves_no_socket_behind(cutter, prefix):
    """What is left in the middle is closed, and nobody goes on waiting for its reply."""
    proxy, url = cutter
    connection = Connection(url)
    sockets = connection._transport.sockets.here()
    proxy.bytes_until_cut = 6

    assert await connection.run_all(increments(prefix, 3, Resend.SAME))
    assert not sockets.in_use
    waits = [
        plain("BLPOP", f"{prefix}:q:toril:none", "20", parse=bool, block_ms=20_000) for _ in "ab"
    ]
    waiting = asyncio.create_task(connection.run_all(waits))
    await wait_until(lambda: b"BLPOP" in proxy.requests)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert not sockets.in_use
    await connection.close()
