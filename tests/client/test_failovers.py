"""Whoever writes stops before a failover, and leaves the old primary after it.

The sentinel is played by a queue of what it tells; with a real one: tests/worker/test_sentinel.py.
"""

from __future__ import annotations

import asyncio
import queue
import threading

import pytest

from tests.helpers import let_pass, wait_until, wait_until_sync
from toril.client import sockets
from toril.client.transport import ServerTransport
from toril.protocol import address, failovers
from toril.protocol.command import plain
from toril.protocol.failovers import Told
from toril.protocol.sending import Sending
from toril.sync import sockets as blocking_sockets
from toril.sync.transport import ServerTransport as BlockingTransport

PORT = plain("CONFIG", "GET", "port", parse=lambda reply: int(reply[1]))


def make(module, url, name=None):
    return module.maker(address.parse(url), client_name=name, socket_timeout_s=None)


async def test_the_async_client_waits_and_then_leaves(server, monkeypatch):
    monkeypatch.setattr(failovers, "LONGEST_HOLD_S", 60.0)
    told: asyncio.Queue = asyncio.Queue()
    heard = 0

    async def news():
        nonlocal heard
        while True:
            yield await told.get()
            heard += 1

    transport = ServerTransport(make(sockets, server.url), "label", news=[news])
    await transport.exchange(Sending(PORT), 5)
    (first,) = transport.sockets.here().free

    told.put_nowait(Told.ABOUT_TO_SWITCH)
    await wait_until(lambda: heard == 1)
    waiting = asyncio.create_task(transport.exchange(Sending(PORT), 5))
    await let_pass(0.05, "it would be answered in far less")
    assert not waiting.done()

    told.put_nowait(("elsewhere", 1))
    await waiting
    assert first not in transport.sockets.here().free
    assert not first.is_open
    (second,) = transport.sockets.here().free

    told.put_nowait(("127.0.0.1", server.port))
    await wait_until(lambda: heard == 3)
    assert transport.sockets.here().free == [second]
    await transport.close()


def calls_of(client):
    return [(row["name"], row["cmd"]) for row in client.client_list()]


async def test_a_blocking_call_at_the_old_primary_is_cut_short(server, prefix):
    """An idle worker must not wait there for what is added elsewhere."""
    told: asyncio.Queue = asyncio.Queue()

    async def news():
        while True:
            yield await told.get()

    transport = ServerTransport(make(sockets, server.url, prefix), "label", news=[news])
    words = ("BLPOP", f"{prefix}:nothing", 60)
    waiting = asyncio.create_task(transport.exchange(Sending(plain(*words, parse=bool)), 70))
    with server.client() as client:
        # Others may be blocked there, too: what an earlier test left goes when its time is over.
        await wait_until(lambda: (prefix, "blpop") in calls_of(client))

    told.put_nowait(("elsewhere", 1))

    await wait_until(waiting.done, 60)  # to be too late is a trouble of a line, too
    with pytest.raises(sockets.LINE_TROUBLES):
        waiting.result()
    await transport.close()


def test_the_blocking_client_waits_and_then_leaves(server, monkeypatch):
    monkeypatch.setattr(failovers, "LONGEST_HOLD_S", 60.0)
    told: queue.Queue = queue.Queue()

    def news():
        while True:
            yield told.get()

    transport = BlockingTransport(make(blocking_sockets, server.url), "label", news=[news])
    transport.exchange(Sending(PORT), 5)
    (first,) = transport._free

    told.put(Told.ABOUT_TO_SWITCH)
    wait_until_sync(lambda: not transport._is_open.is_set())
    waiting = threading.Thread(target=transport.exchange, args=(Sending(PORT), 5))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()

    told.put(("elsewhere", 1))
    waiting.join(60)
    assert not waiting.is_alive()
    assert first not in transport._free
    transport.close()
    told.put(Told.NOTHING)


async def test_a_failover_that_is_never_heard_of_again_holds_nobody_for_long(server, monkeypatch):
    monkeypatch.setattr(failovers, "LONGEST_HOLD_S", 0.1)

    async def news():
        yield Told.ABOUT_TO_SWITCH
        await asyncio.sleep(60)

    transport = ServerTransport(make(sockets, server.url), "label", news=[news])
    for _ in range(3):
        await asyncio.wait_for(transport.exchange(Sending(PORT), 5), 60)
    assert transport.sockets.here().is_open.is_set(), "nobody is held twice"
    await transport.close()


@pytest.mark.parametrize("how", ["one", "many"])
async def test_a_replica_is_left_at_its_first_refusal(how, start_server, prefix):
    server = start_server({"replicaof": "127.0.0.1 1"}, tcp=True)
    transport = ServerTransport(make(sockets, server.url), "label")
    write = Sending(plain("SET", f"{prefix}:key", "1", parse=bool))

    if how == "one":
        with pytest.raises(sockets.ReadOnlyError):
            await transport.exchange(write, 5)
    else:
        answers = await transport.exchange_all([write, Sending(PORT)], 5, 64)
        assert [type(answer) for answer in answers] == [sockets.ReadOnlyError, int]

    assert transport.sockets.here().free == []
    await transport.close()
