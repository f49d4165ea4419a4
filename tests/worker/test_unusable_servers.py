"""A server that can never serve: known at its first answer, told in words, and the worker ends.

What passes by itself (loading, busy, a failover, no memory) is in test_troubled_servers.py.
"""

from __future__ import annotations

import asyncio
import re
import socketserver
import threading
from collections.abc import Iterator

import pytest
import redis

import toril.sync
from tests.helpers import wait_until
from tests.servers import Server
from toril import Queue, QueueEvents, Worker
from toril.cli.main import NO_SERVER, run
from toril.client.connection import Connection
from toril.errors import ServerUnusableError
from toril.protocol.replies import Trouble, classify
from toril.sync.connection import Connection as BlockingConnection
from toril.worker import outage

MAY_NOT_EVAL = ("on", ">x", "~*", "&*", "+@all", "-@scripting")
MAY_NOT_EMIT = ("on", ">x", "~*", "&*", "+@all", "-xadd")


class OldServer(socketserver.StreamRequestHandler):
    """Answers as Redis 6.2 does: it has no such script, and cannot compile what we show it."""

    def handle(self) -> None:
        while line := self.rfile.readline():
            words = [self._read_word() for _ in range(int(line[1:]))]
            self.wfile.write(self._answer(words[0].upper()))

    def _read_word(self) -> bytes:
        length = int(self.rfile.readline()[1:])
        return self.rfile.read(length + 2)[:-2]

    def _answer(self, verb: bytes) -> bytes:
        if verb == b"FCALL":
            return b"-ERR unknown command `FCALL`, with args beginning with: `add`, `13`, \r\n"
        if verb == b"EVALSHA":
            return b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
        if verb == b"EVAL":
            return (
                b"-ERR Error compiling script (new function): user_script:1:"
                b" unexpected symbol near '#' \r\n"
            )
        if verb == b"CLIENT":
            return b"-ERR Unknown subcommand or wrong number of arguments for 'SETINFO'.\r\n"
        return b"+OK\r\n"


@pytest.fixture(scope="module")
def urls() -> Iterator[dict[str, str]]:
    """Servers and users that cannot serve, by what is wrong with them."""
    guarded, replica = Server(tcp=True), Server({"replicaof": "127.0.0.1 1"}, tcp=True)
    old = socketserver.ThreadingTCPServer(("127.0.0.1", 0), OldServer)
    old.daemon_threads = True
    threading.Thread(target=old.serve_forever, daemon=True).start()
    with guarded, replica, old:
        with guarded.client() as client:
            # Who may not emit finds out when there is something to tell.
            client.hset("bull:q:1", mapping={"name": "x", "data": "{}", "opts": "{}"})
            client.rpush("bull:q:wait", "1")
            client.execute_command("ACL", "SETUSER", "silent", *MAY_NOT_EMIT)
            client.execute_command("ACL", "SETUSER", "reader", *MAY_NOT_EVAL)
            client.execute_command("ACL", "SETUSER", "default", "resetpass", ">secret")
        where = f"127.0.0.1:{guarded.port}"
        yield {
            "no password": f"redis://{where}",
            "a wrong password": f"redis://:wrong@{where}",
            "no right to run scripts": f"redis://reader:x@{where}",
            "no right within scripts": f"redis://silent:x@{where}",
            "no such database": f"redis://:secret@{where}/99",
            "a replica": replica.url,
            "an old server": f"redis://127.0.0.1:{old.server_address[1]}",
        }
        old.shutdown()


WORDS = {
    "no password": "asks for a password and none was given",
    "a wrong password": "does not accept the user or the password",
    "no right to run scripts": "ACL",
    "no right within scripts": "ACL",
    "no such database": "does not have the database",
    "a replica": "is a read-only replica",
    "an old server": "too old",
}


async def nothing(job):
    return None


@pytest.mark.parametrize("trouble", WORDS)
async def test_whoever_asks_is_told_what_is_wrong(trouble, urls):
    connection = Connection(urls[trouble], patience_s=0.1)
    async with Queue("q", connection=connection) as queue:
        with pytest.raises(ServerUnusableError, match=WORDS[trouble]) as one:
            await queue.add("job")
    await connection.close()
    blocking = BlockingConnection(urls[trouble], patience_s=0.1)
    with (
        toril.sync.Queue("q", connection=blocking) as queue,
        pytest.raises(ServerUnusableError, match=WORDS[trouble]),
    ):
        queue.add("job")
    blocking.close()

    assert not re.search("secret|wrong@|x@", str(one.value))


@pytest.mark.parametrize("trouble", WORDS)
async def test_a_worker_ends_with_it(trouble, urls, caplog):
    worker = Worker("q", nothing, connection=urls[trouble])

    with pytest.raises(ServerUnusableError, match=WORDS[trouble]):
        await asyncio.wait_for(worker.run(), 30)

    assert not worker.is_running
    assert f"the worker of queue 'q' stops: {urls[trouble].rpartition('@')[0][:8]}" in caplog.text


@pytest.mark.parametrize("trouble", ["no password", "an old server"])
def test_the_command_line_ends_with_one_line(trouble, urls, capsys, monkeypatch, tmp_path):
    (tmp_path / "unusable_jobs.py").write_text("async def handle(job):\n    return None\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    code = run(["worker", "unusable_jobs:handle", "-q", "q", "--url", urls[trouble]])

    last_line = capsys.readouterr().err.splitlines()[-1]
    assert code == NO_SERVER
    assert last_line.startswith("toril: ")
    assert WORDS[trouble] in last_line


async def test_who_listens_to_events_is_told(urls):
    """Also one who goes on where an earlier program stopped, and so asks nothing at the start."""
    for position in ({}, {"last_event_id": "1-0"}):
        with pytest.raises(ServerUnusableError):
            async with QueueEvents("q", connection=urls["no password"], **position) as events:
                await asyncio.wait_for(anext(aiter(events)), 30)


async def test_a_worker_that_was_served_before_waits_for_the_mending(start_server):
    """An operator who sets a password, or loads the wrong rules, must not end a whole fleet."""
    server = start_server(tcp=True)
    done: list[str] = []
    errors: list[Exception] = []

    async def handle(job):
        done.append(job.id)

    worker = Worker("q", handle, connection=server.url)
    worker.on("error", errors.append)
    async with Queue("q", connection=server.url) as queue, worker:
        first = await queue.add("job")
        await wait_until(lambda: done == [first.id])
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "default", "resetpass", ">secret")
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await wait_until(lambda: any(isinstance(e, ServerUnusableError) for e in errors))
            assert worker.is_running

            client.execute_command("ACL", "SETUSER", "default", "nopass")
        second = await queue.add("job")
        await wait_until(lambda: done == [first.id, second.id])

    assert not isinstance(worker._parts.fate.cause, Exception)


async def test_but_not_for_ever(start_server, monkeypatch):
    monkeypatch.setattr(outage, "REFUSED_FOR_S", 0.2)
    server = start_server(tcp=True)
    done: list[str] = []

    async def handle(job):
        done.append(job.id)

    worker = Worker("q", handle, connection=server.url)
    running = asyncio.create_task(worker.run())
    async with Queue("q", connection=server.url) as queue:
        await queue.add("job")
        await wait_until(lambda: len(done) == 1)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "resetpass", ">secret")
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    with pytest.raises(ServerUnusableError, match="password"):
        await asyncio.wait_for(running, 30)


def test_codes_that_the_client_library_leaves_in_place_are_known_as_well():
    passing = ["LOADING …", "BUSY …", "MASTERDOWN …", "READONLY …", "CLUSTERDOWN …", "MISCONF …"]
    lasting = ["NOAUTH …", "WRONGPASS …", "NOPERM …", "DENIED …", "ERR unknown command 'EVALSHA'"]

    assert {classify(redis.ResponseError(one)) for one in passing} == {Trouble.NOT_NOW}
    assert {classify(redis.ResponseError(one)) for one in lasting} == {Trouble.UNUSABLE}
    unauthenticated = redis.ResponseError("Protocol error: unauthenticated multibulk length")
    assert classify(unauthenticated) is Trouble.UNUSABLE
