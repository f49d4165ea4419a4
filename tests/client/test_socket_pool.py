"""The sockets of a loop: who may have one, who is let next, and what becomes of broken ones.

No server is needed: a socket is what it was told.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.helpers import wait_until
from toril.client import transport as transports
from toril.client.connection import Connection
from toril.client.line import Line, LineError
from toril.client.sockets import NOT_YET, Reader, ReadOnlyError, ResponseError
from toril.client.transport import MOST_SOCKETS, ServerTransport, Sockets
from toril.errors import InvalidOptionError
from toril.protocol import reading
from toril.protocol.failovers import Told
from toril.protocol.keys import Keys


class FakeLine:
    """Notes what is done to it."""

    def __init__(self, *, is_open: bool = True, leads_to: tuple[str, int] = ("here", 1)) -> None:
        self.is_open = is_open
        self.told: list[str] = []
        self.closed_by = 0
        self.sent: list[bytes] = []
        self.replies: deque[Any] = deque()
        self.trouble = LineError("it broke")
        self.deadline = math.inf
        self._leads_to = leads_to

    def leads_to(self, host: str, port: int) -> bool:
        return (host, port) == self._leads_to

    def send(self, packed: bytes) -> None:
        self.sent.append(packed)

    def tell(self, waiter: Callable[[], None]) -> None:
        self.arrives = waiter

    def close(self) -> None:
        self.is_open = False
        self.closed_by = threading.get_ident()
        self.told.append("closed")

    def cut(self) -> None:
        self.is_open = False
        self.told.append("cut")

    def forsake(self) -> None:
        self.told.append("forsaken")

    def cut_if_late(self, now: float) -> None:
        self.told.append("looked at")


class Question:
    """Something to be sent."""

    replies = 1

    def packed(self, now: float) -> bytes:
        return b"question"


async def no_news() -> AsyncIterator[Told]:
    await asyncio.sleep(600)
    yield Told.ABOUT_TO_SWITCH


async def full(sockets: Sockets | None = None) -> Sockets:
    sockets = sockets or Sockets()
    for _ in range(MOST_SOCKETS):
        sockets.in_use.add(FakeLine())
    return sockets


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_nobody_is_held_back_before_a_failover_is_told():
    sockets = Sockets()
    sockets.listeners.append(asyncio.create_task(asyncio.sleep(0)))

    assert sockets.knows_primary
    await sockets.close()


async def test_a_socket_that_the_server_closed_is_closed_here_too():
    sockets = Sockets()
    closed, good = FakeLine(is_open=False), FakeLine()
    sockets.free += [good, closed]

    assert sockets.borrow_open() is good
    assert closed.told == ["closed"]
    assert sockets.in_use == {good}
    assert sockets.borrow_open() is None


async def test_whoever_waits_is_let_in_turn():
    sockets = await full()
    waiting = [asyncio.create_task(sockets.room()) for _ in range(3)]
    await turns()
    assert not any(one.done() for one in waiting)

    sockets.give_back(next(iter(sockets.in_use)))
    await turns()

    assert [one.done() for one in waiting] == [True, False, False]
    sockets.borrow_open()
    sockets.drop(next(iter(sockets.in_use)))
    await turns()
    assert [one.done() for one in waiting] == [True, True, False]
    waiting[2].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_whoever_gave_up_is_passed_over():
    sockets = await full()
    first, second = (asyncio.create_task(sockets.room()) for _ in range(2))
    await turns()

    first.cancel()
    await turns()
    sockets.give_back(next(iter(sockets.in_use)))
    await turns()

    assert first.cancelled()
    assert second.done()


async def test_whoever_is_cancelled_as_it_is_let_in_lets_the_next_one_in():
    sockets = await full()
    first, second = (asyncio.create_task(sockets.room()) for _ in range(2))
    await turns()

    sockets.give_back(next(iter(sockets.in_use)))
    first.cancel()
    await turns()

    assert first.cancelled()
    assert second.done()


async def test_whoever_can_make_no_socket_lets_the_next_one_in():
    def refuse() -> None:
        raise InvalidOptionError("no such option")

    transport = ServerTransport(refuse, "nowhere")
    sockets = await full(transport.sockets.here())
    first, second = (asyncio.create_task(transport.exchange_all([], 60, 10)) for _ in range(2))
    await turns()

    sockets.drop(next(iter(sockets.in_use)))
    await turns()

    assert [type(one.exception()) for one in (first, second)] == [InvalidOptionError] * 2
    await transport.close()


async def test_at_the_end_nobody_waits_for_a_socket():
    sockets = await full()
    waiting = [asyncio.create_task(sockets.room()) for _ in range(MOST_SOCKETS + 1)]
    await turns()

    sockets.interrupt()
    await turns()

    assert all(one.done() for one in waiting)
    async with asyncio.timeout(60):
        await sockets.room()


@pytest.mark.parametrize(
    ("reply", "is_kept"),
    [
        (b"OK", True),
        (ResponseError("WRONGTYPE"), True),
        (ReadOnlyError("READONLY"), False),
        (LineError("it broke"), False),
    ],
)
async def test_a_socket_is_used_again_unless_it_broke_or_leads_to_a_replica(reply, is_kept):
    sockets = Sockets()
    line = FakeLine()
    sockets.in_use.add(line)

    sockets.end(line, reply)

    assert sockets.in_use == set()
    assert (sockets.free, line.told) == (([line], []) if is_kept else ([], ["closed"]))


async def test_overdue_sockets_are_looked_for_as_long_as_some_are_in_use(monkeypatch):
    monkeypatch.setattr(transports, "_WATCH_EVERY_S", 0.001)
    sockets = Sockets()
    line = FakeLine()
    sockets.in_use.add(line)

    sockets.expect_reply(line, 60)
    await wait_until(lambda: len(line.told) >= 3)
    sockets.give_back(line)
    await wait_until(lambda: sockets.watch is None)

    seen = len(line.told)
    await turns()
    assert len(line.told) == seen


async def test_overdue_sockets_are_looked_for_when_they_are_due(monkeypatch):
    """The lock of a second is lost if the watch comes half a second late."""
    monkeypatch.setattr(transports, "_WATCH_EVERY_S", 600)
    sockets = Sockets()
    early, late = FakeLine(), FakeLine()
    sockets.in_use |= {early, late}

    sockets.expect_reply(early, 0.01)
    sockets.expect_reply(late, 0.02)
    await wait_until(lambda: early.told)
    sockets.give_back(early)
    seen = len(late.told)
    await wait_until(lambda: len(late.told) > seen)

    sockets.give_back(late)
    sockets.cut()


async def test_cutting_ends_everything_that_is_under_way():
    sockets = Sockets()
    free, used = FakeLine(), FakeLine()
    sockets.free.append(free)
    sockets.in_use.add(used)
    listener = asyncio.create_task(asyncio.Event().wait())
    sockets.listeners.append(listener)
    sockets.expect_reply(used, 60)
    watch = sockets.watch

    sockets.cut()
    await turns()

    assert (free.told, used.told) == (["closed"], ["cut"])
    assert sockets.free == []
    assert watch.cancelled()
    assert listener.cancelled()


async def test_a_new_primary_ends_the_hold_and_what_leads_elsewhere():
    sockets = Sockets()
    stays, goes, cut = FakeLine(leads_to=("new", 1)), FakeLine(), FakeLine()
    sockets.free += [stays, goes]
    sockets.in_use.add(cut)

    async def news():
        yield Told.ABOUT_TO_SWITCH
        assert not sockets.is_open.is_set()
        yield ("new", 1)

    await transports._listen(news, sockets)

    assert sockets.is_open.is_set()
    assert sockets.free == [stays]
    assert (stays.told, goes.told, cut.told) == ([], ["closed"], ["cut"])


def test_sockets_of_a_loop_that_is_closed_are_let_go_of():
    sockets = asyncio.run(full())
    free, used = FakeLine(), FakeLine()
    sockets.free.append(free)
    sockets.in_use.add(used)

    sockets.drop(used)
    assert used.told == ["forsaken"]
    assert used not in sockets.in_use

    sockets.forget()
    assert free.told == ["forsaken"]
    assert not sockets.free
    assert not sockets.in_use


async def test_a_loop_is_told_by_itself_at_once_and_by_others_in_its_turn():
    told: list[int] = []
    sockets = Sockets()
    here = asyncio.get_running_loop()

    transports._tell(here, lambda: told.append(threading.get_ident()), sockets)
    assert told == [threading.get_ident()]

    def from_elsewhere() -> None:
        transports._tell(here, lambda: told.append(threading.get_ident()), sockets)

    await asyncio.to_thread(from_elsewhere)
    await wait_until(lambda: len(told) == 2)
    assert told == [threading.get_ident()] * 2


async def test_closing_closes_the_sockets_of_every_loop():
    """Those of its own loop when it returns, and those of others in their turn."""
    transport = ServerTransport(lambda: None, "nowhere")
    mine = FakeLine()
    transport.sockets.here().free.append(mine)
    theirs = FakeLine()
    ready, may_end = threading.Event(), threading.Event()
    other = 0

    async def elsewhere() -> None:
        nonlocal other
        other = threading.get_ident()
        transport.sockets.here().free.append(theirs)
        ready.set()
        while not may_end.is_set():
            await asyncio.sleep(0.001)

    running = asyncio.create_task(asyncio.to_thread(asyncio.run, elsewhere()))
    await asyncio.to_thread(ready.wait, 60)

    await transport.close()
    assert mine.told == ["closed"]

    await wait_until(lambda: theirs.told == ["closed"])
    assert theirs.closed_by == other
    may_end.set()
    await running


# ---------------------------------------------------------------------------- posting


async def test_what_is_posted_leaves_at_once_and_its_reply_is_handed_over():
    transport = ServerTransport(lambda: None, "nowhere")
    sockets, line, answers = transport.sockets.here(), FakeLine(), []
    assert transport.post(Question(), 60, answers.append) is False, "no socket is open"
    sockets.free.append(line)

    assert transport.post(Question(), 60, answers.append) is True
    assert line.sent == [b"question"]
    assert sockets.in_use == {line}
    line.replies.append(b"answer")
    line.arrives()

    assert answers == [b"answer"]
    assert sockets.free == [line]
    await transport.close()


async def test_what_was_posted_on_a_line_that_broke_is_told_so():
    """What had arrived is no answer: it may be that of another question."""
    transport = ServerTransport(lambda: None, "nowhere")
    line, answers = FakeLine(), []
    transport.sockets.here().free.append(line)
    transport.post(Question(), 60, answers.append)

    line.is_open = False
    line.replies.append(b"somebody's")
    line.arrives()

    assert answers == [line.trouble]
    assert not transport.sockets.here().in_use
    await transport.close()


@pytest.mark.parametrize("why", ["closed", "nobody listens", "about to switch"])
async def test_nothing_is_posted_to_a_server_that_may_be_left(why):
    transport = ServerTransport(lambda: None, "nowhere", news=[no_news])
    sockets, line = transport.sockets.here(), FakeLine()
    sockets.free.append(line)
    if why != "nobody listens":
        sockets.listeners.append(asyncio.create_task(asyncio.Event().wait()))
        assert transport.post(Question(), 60, lambda reply: None) is True
        line.replies.append(b"answer")
        line.arrives()
    if why == "about to switch":
        sockets.is_open.clear()
    transport.is_closed = why == "closed"

    assert transport.post(Question(), 60, lambda reply: None) is False

    assert len(line.sent) == (why != "nobody listens")
    await transport.close()


# ---------------------------------------------------------------------------- many at once


async def answering(transport: ServerTransport, *replies: Any) -> list[FakeLine]:
    """Let requests that are sent together have these replies; returns on which lines they went."""
    used: list[FakeLine] = []

    async def pipeline(sockets, line, sendings, timeout_s, at_once, answers):
        used.append(line)
        answers.extend(replies)

    transport._pipeline = pipeline
    return used


async def test_many_requests_leave_a_socket_that_leads_to_a_replica():
    transport = ServerTransport(lambda: None, "nowhere")
    line = FakeLine()
    transport.sockets.here().free.append(line)
    refused = ReadOnlyError("READONLY")
    await answering(transport, b"OK", refused)

    assert await transport.exchange_all([Question()] * 2, 60, 10) == [b"OK", refused]

    assert line.told == ["closed"]
    assert not transport.sockets.here().in_use
    await transport.close()


async def test_many_requests_wait_for_a_socket_as_one_does():
    transport = ServerTransport(lambda: None, "nowhere")
    sockets = await full(transport.sockets.here())
    used = await answering(transport, b"OK")

    waiting = asyncio.create_task(transport.exchange_all([Question()], 60, 10))
    await turns()
    assert used == []
    line = next(iter(sockets.in_use))
    sockets.give_back(line)

    assert await waiting == [b"OK"]
    assert used == [line]
    await transport.close()


async def test_many_requests_wait_while_a_failover_is_about_to_happen():
    transport = ServerTransport(lambda: None, "nowhere", news=[no_news])
    sockets, line = transport.sockets.here(), FakeLine()
    sockets.free.append(line)
    sockets.is_open.clear()
    used = await answering(transport, b"OK")

    waiting = asyncio.create_task(transport.exchange_all([Question()], 60, 10))
    await turns()
    assert used == []
    sockets.is_open.set()

    assert await waiting == [b"OK"]
    await transport.close()


# ---------------------------------------------------------------------------- one line


class Cable:
    """What redis-py opens, as far as a line needs it."""

    def __init__(self, *, unsent: int = 0) -> None:
        self.told: list[str] = []
        self._unsent = unsent
        self._writer = self
        self._reader = None
        self.transport = self

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def get_extra_info(self, what: str) -> None:
        return None

    def write(self, packed: bytes) -> None:
        self.told.append("written")

    def abort(self) -> None:
        self.told.append("aborted")

    def close(self) -> None:
        self.told.append("closed")


def opened(cable: Cable) -> Line:
    """A line that may be silent for ten seconds, and whose time is over at 10."""
    line = Line(cable)
    line._transport = cable
    line._reader = Reader(notEnoughData=NOT_YET)
    line.is_open = True
    line.timeout_s, line.deadline = 10.0, 10.0
    return line


async def test_a_large_request_has_time_for_as_long_as_a_part_of_it_leaves():
    cable = Cable()
    line = opened(cable)
    cable._unsent = 300_000
    line.send(b"x" * 400_000)

    line.cut_if_late(5.0)
    assert line.deadline == 10.0, "nothing has left"
    for now, unsent in (9.0, 200_000), (18.0, 100_000), (27.0, 0):
        cable._unsent = unsent
        line.cut_if_late(now)
        assert line.deadline == now + 10.0
    line.cut_if_late(36.0)
    assert cable.told == ["written"]
    line.cut_if_late(37.0)

    assert cable.told == ["written", "aborted"]


async def test_what_a_small_request_left_in_the_system_gives_it_no_more_time():
    """On a link that is dead it never leaves, which is no sign of life."""
    cable = Cable()
    line = opened(cable)
    cable._unsent = 100
    line.send(b"x" * 100)
    cable._unsent = 50

    line.cut_if_late(10.0)

    assert cable.told == ["written", "aborted"]


async def test_the_next_request_is_not_taken_for_a_large_one_that_leaves():
    sockets = Sockets()
    cable = Cable(unsent=300_000)
    line = opened(cable)
    line.send(b"x" * 400_000)
    cable._unsent = 0

    sockets.give_back(line)
    line.deadline = 10.0
    line.cut_if_late(10.0)

    assert cable.told == ["written", "aborted"]


async def test_a_reply_has_time_for_as_long_as_a_part_of_it_comes():
    line = opened(Cable())
    line.send(b"question")
    line.deadline = -1.0

    line.data_received(b"$5\r\nhel")
    assert line.deadline > asyncio.get_running_loop().time()
    line.deadline = -1.0
    line.data_received(b"lo\r\n")

    assert list(line.replies) == [b"hello"]
    assert line.deadline == -1.0, "nothing more is due"


@pytest.mark.parametrize(("unsent", "told"), [(0, ["closed"]), (7, ["aborted"])])
async def test_what_is_half_sent_is_not_sent_on(unsent, told):
    cable = Cable(unsent=unsent)

    Line(cable).close()

    assert cable.told == told


async def test_a_line_is_cut_whether_it_was_opened_or_not():
    opened, unopened = Cable(), Cable()
    unopened._writer = None

    Line(opened).cut()
    Line(unopened).cut()

    assert opened.told == ["aborted"]
    assert unopened.told == []


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (None, "the connection was closed"),
        (ConnectionResetError("by peer"), "the connection was closed: by peer"),
    ],
)
async def test_whoever_asks_a_line_that_is_lost_is_told_why(why, words):
    line = Line(Cable())

    line.connection_lost(why)

    with pytest.raises(LineError) as told:
        await asyncio.wait_for(line.arrival(), 60)
    assert str(told.value) == words


# ---------------------------------------------------------------------------- tried again


class Answers:
    """A transport that gives these answers, one list for each time many are sent together."""

    is_cluster = finds_primary = False

    def __init__(self, *rounds: list[Any]) -> None:
        self.rounds = list(rounds)
        self.sent: list[int] = []
        self.loads = 0

    async def exchange(self, sending: Any, timeout_s: float) -> Any:
        self.loads += 1
        return b"toril"

    async def exchange_all(self, sendings: Any, timeout_s: float, at_once: int) -> list[Any]:
        self.sent.append(len(sendings))
        return self.rounds.pop(0)

    async def close(self) -> None:
        pass


@pytest.fixture
def naps(monkeypatch):
    slept: list[float] = []

    async def nap(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("toril.client.connection.asyncio.sleep", nap)
    return slept


COMMANDS = [reading.counts(Keys("bull", "q"), ["waiting"])] * 3


async def test_what_lacked_the_library_goes_again_once_and_at_once(naps, caplog):
    connection = Connection("redis://nowhere")
    lacking = ResponseError("Function not found")
    connection._transport = answers = Answers([[1], lacking, [3]], [[2]])

    await connection._exchange_all(COMMANDS, 10)

    assert (answers.sent, answers.loads) == ([3, 1], 1)
    assert naps == []
    assert caplog.text == ""


async def test_what_met_a_broken_line_goes_again_after_a_pause(naps, caplog):
    connection = Connection("redis://nowhere")
    broken = LineError("it broke")
    connection._transport = answers = Answers([[1], broken, broken], [[2], broken], [[3]])

    replies = await connection._exchange_all(COMMANDS, 10)

    assert replies == [[1], [2], [3]]
    assert answers.sent == [3, 2, 1]
    assert len(naps) == 2
    assert caplog.text == "", "it says nothing of functions"
