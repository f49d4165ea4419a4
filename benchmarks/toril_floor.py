"""The floor: how fast the server alone completes a drain if no Python has to keep up with it.

A real worker drains a queue through a proxy that records every command. The server is emptied, the
same jobs are added again, and a client that only counts the answers sends exactly the same commands
as one stream. With these scripts and batches, no client can be faster than the server is then.
The client chooses job ids and tokens, so the second run finishes the same jobs; this is checked.

The rate is taken from the server's CPU time, not from the wall clock: the two are close on a quiet
machine; on a busy one the wall clock would lower the floor and so flatter our share of it.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from argparse import Namespace
from collections.abc import Sequence
from contextlib import nullcontext
from urllib.parse import urlsplit, urlunsplit

import hiredis
import redis
from clock import Stopwatch
from toril_program import all_completed, fill, main

from toril import Queue

SET_UP = {b"HELLO", b"CLIENT", b"AUTH", b"SELECT", b"PING"}
MAXIMUM_READ = 1 << 20

Words = list[bytes]


class Recorder:
    """A proxy in front of one server; ``commands`` is everything that went through it, in order.

    A worker has several calls in flight at once, on several connections. Passed on together they
    might run in a different order than they were recorded, and the replay would then give jobs to
    other tokens: so a command waits for the answer to the previous one, unless it blocks.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._turn = asyncio.Lock()
        self.commands: list[Words] = []

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def take(self) -> list[Words]:
        """What was recorded since the last time."""
        taken, self.commands = self.commands, []
        return taken

    async def _accept(self, near: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        far, ask = await asyncio.open_connection(*self._address)
        requests, answers = hiredis.Reader(), hiredis.Reader()
        try:
            while data := await near.read(MAXIMUM_READ):
                requests.feed(data)
                while (words := requests.gets()) is not False:
                    async with nullcontext() if _blocks(words) else self._turn:
                        self.commands.append(words)
                        ask.write(hiredis.pack_command(tuple(words)))
                        await _pass_one(far, answer, answers)
        except OSError:
            # A worker that closes may reset its connection; what it had sent is recorded.
            return
        finally:
            ask.close()
            answer.close()


async def _pass_one(
    far: asyncio.StreamReader, answer: asyncio.StreamWriter, parser: hiredis.Reader
) -> None:
    """Pass on one answer, whole."""
    while True:
        data = await far.read(MAXIMUM_READ)
        if not data:
            raise ConnectionError("the server closed the connection")
        answer.write(data)
        parser.feed(data)
        if parser.gets() is not False:
            return


def _blocks(words: Words) -> bool:
    return words[0].upper().startswith((b"B", b"XREAD"))


async def floor(given: Namespace) -> dict[str, float]:
    """Jobs per second of server time, the same by the wall clock, and microseconds per job."""
    # A call refused for an unknown script in one run would be done in the other: forget them all.
    server = redis.Redis.from_url(given.url)
    server.script_flush()
    where = urlsplit(given.url)
    recorder = Recorder(where.hostname or "127.0.0.1", where.port or 6379)
    near = urlunsplit(where._replace(netloc=f"127.0.0.1:{await recorder.start()}"))
    queue = Queue("bench", connection=given.url)

    await fill(Queue("bench", connection=near), given.jobs)
    added = recorder.take()

    await all_completed(near, given.jobs, given.concurrency)
    drained = recorder.take()

    server.flushdb()
    server.script_flush()
    add_seconds = _replay(given.url, added)
    before = _cpu(server)
    drain_seconds = _replay(given.url, drained)
    spent = _cpu(server) - before
    completed = (await queue.get_job_counts())["completed"]
    if completed < given.jobs:
        raise RuntimeError(f"the replay finished {completed} of {given.jobs} jobs")
    return {
        "rate": given.jobs / spent,
        "wall_rate": given.jobs / drain_seconds,
        "add_wall_rate": given.jobs / add_seconds,
        "server_us": spent / given.jobs * 1e6,
        "calls": len(drained),
    }


def _replay(url: str, commands: Sequence[Words]) -> float:
    """Send everything as fast as the server takes it; seconds until the last answer."""
    where = urlsplit(url)
    sent = [words for command in commands if (words := _unblocked(command))]
    stream = b"".join(hiredis.pack_command(tuple(words)) for words in sent)
    connection = socket.create_connection((where.hostname or "127.0.0.1", where.port or 6379))
    with connection:
        _select(connection, where.path)
        watch = Stopwatch()
        sender = threading.Thread(target=connection.sendall, args=(stream,))
        sender.start()
        _read(connection, len(sent))
        seconds = watch.seconds()
        sender.join()
    return seconds


def _unblocked(words: Words) -> Words | None:
    """A command without the waiting: a blocking pop has the same effect as its plain twin."""
    name = words[0].upper()
    if name in SET_UP:
        return None
    if name == b"BZPOPMIN":
        return [b"ZPOPMIN", *words[1:-1]] if len(words) == 3 else None
    return None if _blocks(words) else words


def _select(connection: socket.socket, path: str) -> None:
    number = path.lstrip("/") or "0"
    connection.sendall(hiredis.pack_command((b"SELECT", number.encode())))
    _read(connection, 1)


def _read(connection: socket.socket, count: int) -> None:
    parser = hiredis.Reader()
    while count:
        parser.feed(connection.recv(MAXIMUM_READ))
        while parser.gets() is not False:
            count -= 1


def _cpu(server: redis.Redis) -> float:
    cpu = server.info("cpu")
    return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"])


if __name__ == "__main__":
    main(floor=floor)
