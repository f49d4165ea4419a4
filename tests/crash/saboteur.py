"""Breaks one network operation of a client or worker: the k-th, in one of the ways lines break.

`sabotage` puts a wrapper around the transport of every connection that is opened to its URL, those
of the lease's thread included; other connections of the same process are left alone.

    drop         the request never arrives
    lose         the server does it, the reply is lost (in a pipeline: those of all under way)
    double       the server does it twice, the second time as a request sent again
    forget       the server has forgotten its scripts
    delay        the request is held back until the locks have been renewed; if it is a request of
                 the thread that renews them, until they have expired
    reset        the socket breaks while the request is under way; whether it is done is chance
    cancel       the task that awaits all this is cancelled while the request is under way
    kill         the process dies before the request leaves
    kill after   the process dies when the server has done it
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import redis

import toril.client.connection as connecting
import toril.sync.connection as connecting_blocking
from toril.errors import TorilError
from toril.protocol.command import Command, Resend, plain
from toril.protocol.sending import Sending

HARMLESS = ("drop", "lose", "double", "reset", "forget")
"""Nobody may notice: no job runs twice, no call fails."""
FAULTS = (*HARMLESS, "delay", "cancel")
DEATHS = ("kill", "kill after")
EXIT_CODE = 86
DELAY_S = 0.5
"""Two renewals of the crash worlds. Nothing depends on how long it really takes."""

_FORGET: Command[Any] = plain("FUNCTION", "FLUSH", parse=lambda reply: reply)
_numbers = itertools.count(1)
_saboteurs: dict[str, Saboteur] = {}


class Saboteur:
    """Counts the network operations to one URL, and breaks the one with the number ``at``."""

    def __init__(self, fault: str | None = None, at: int = -1) -> None:
        self.fault = fault
        self.at = at
        self.expire_locks: Callable[[], None] = lambda: None
        self.operations: list[str] = []
        self.hit: str | None = None
        self.task: asyncio.Task[Any] | None = None
        """What ``cancel`` cancels."""
        self._lock = threading.Lock()

    def next_fault(self, sendings: Sequence[Sending]) -> tuple[str, int] | None:
        """The fault that meets one of these requests, and which one."""
        with self._lock:
            start = len(self.operations)
            self.operations += [_name(sending) for sending in sendings]
            place = self.at - start
            if self.fault is None or not 0 <= place < len(sendings):
                return None
            self.hit = _name(sendings[place])
            if self.fault == "cancel" and self.task is not None:
                self.task.get_loop().call_soon_threadsafe(self.task.cancel)
                return None
            return self.fault, place


class SabotagedTransport:
    """A transport of the async client with a saboteur in it."""

    def __init__(self, inner: Any, saboteur: Saboteur) -> None:
        self._inner = inner
        self._saboteur = saboteur
        self._posted: set[asyncio.Task[None]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __str__(self) -> str:
        return str(self._inner)

    async def exchange(self, sending: Sending, timeout_s: float) -> Any:
        fault = self._saboteur.next_fault([sending])
        if fault is None:
            return await self._inner.exchange(sending, timeout_s)
        match fault[0]:
            case "drop":
                sending.was_sent = True
                raise redis.ConnectionError("dropped on purpose")
            case "lose":
                await self._inner.exchange(sending, timeout_s)
                raise redis.ConnectionError("the reply was lost on purpose")
            case "reset":
                return await self._reset(self._inner.exchange(sending, timeout_s))
            case "delay":
                await asyncio.sleep(DELAY_S)
            case "forget":
                await self._inner.exchange(Sending(_FORGET), timeout_s)
            case "kill":
                os._exit(EXIT_CODE)
            case "kill after":
                await self._inner.exchange(sending, timeout_s)
                os._exit(EXIT_CODE)
        reply = await self._inner.exchange(sending, timeout_s)
        if fault[0] == "double" and (ghost := _ghost_of(sending)):
            with suppress(redis.ResponseError):  # nobody hears a ghost
                await self._inner.exchange(ghost, timeout_s)
        return reply

    def post(self, sending: Sending, timeout_s: float, answered: Callable[[Any], None]) -> bool:
        """What is posted meets the same faults."""

        async def exchange() -> None:
            try:
                reply = await self.exchange(sending, timeout_s)
            except (redis.RedisError, OSError, TorilError) as error:
                reply = error
            answered(reply)

        task = asyncio.ensure_future(exchange())
        self._posted.add(task)
        task.add_done_callback(self._posted.discard)
        return True

    async def exchange_all(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        fault = self._saboteur.next_fault(sendings)
        if fault is None:
            return await self._inner.exchange_all(sendings, timeout_s, at_once)  # type: ignore[no-any-return]
        kind, place = fault
        if kind == "delay":
            await asyncio.sleep(DELAY_S)
        if kind == "forget":
            await self._inner.exchange(Sending(_FORGET), timeout_s)
        part = sendings[: _answered(kind, place, sendings)]
        answers = await self._inner.exchange_all(part, timeout_s, at_once) if part else []
        if copies := _done_in_vain(kind, sendings[place : place + at_once]):
            await self._inner.exchange_all(copies, timeout_s, at_once)
        if kind.startswith("kill"):
            os._exit(EXIT_CODE)
        if kind == "double" and (ghost := _ghost_of(sendings[place])):
            with suppress(redis.ResponseError):  # nobody hears a ghost
                await self._inner.exchange(ghost, timeout_s)
        return _cut(kind, place, sendings, answers)

    async def _reset(self, exchange: Any) -> Any:
        task = asyncio.ensure_future(exchange)
        for _ in range(3):
            await asyncio.sleep(0)
        for line in list(self._inner.sockets.here().in_use):
            line.cut()
        return await task


class BlockingSabotagedTransport:
    """The same for blocking code."""

    def __init__(self, inner: Any, saboteur: Saboteur) -> None:
        self._inner = inner
        self._saboteur = saboteur

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __str__(self) -> str:
        return str(self._inner)

    def exchange(self, sending: Sending, timeout_s: float) -> Any:
        fault = self._saboteur.next_fault([sending])
        if fault is None:
            return self._inner.exchange(sending, timeout_s)
        if fault[0] == "drop":
            sending.was_sent = True
            raise redis.ConnectionError("dropped on purpose")
        if fault[0] == "kill":
            os._exit(EXIT_CODE)
        if fault[0] == "delay":
            time.sleep(DELAY_S)
            self._saboteur.expire_locks()
        if fault[0] == "forget":
            self._inner.exchange(Sending(_FORGET), timeout_s)
        reply = self._inner.exchange(sending, timeout_s)
        if fault[0] == "kill after":
            os._exit(EXIT_CODE)
        if fault[0] in ("lose", "reset"):
            raise ConnectionResetError("the reply was lost on purpose")
        if fault[0] == "double" and (ghost := _ghost_of(sending)):
            with suppress(redis.ResponseError):
                self._inner.exchange(ghost, timeout_s)
        return reply

    def exchange_all(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        fault = self._saboteur.next_fault(sendings)
        if fault is None:
            return self._inner.exchange_all(sendings, timeout_s, at_once)  # type: ignore[no-any-return]
        kind, place = fault
        if kind == "delay":
            time.sleep(DELAY_S)
            self._saboteur.expire_locks()
        if kind == "forget":
            self._inner.exchange(Sending(_FORGET), timeout_s)
        part = sendings[: _answered(kind, place, sendings)]
        answers = self._inner.exchange_all(part, timeout_s, at_once) if part else []
        if copies := _done_in_vain(kind, sendings[place : place + at_once]):
            self._inner.exchange_all(copies, timeout_s, at_once)
        if kind.startswith("kill"):
            os._exit(EXIT_CODE)
        if kind == "double" and (ghost := _ghost_of(sendings[place])):
            with suppress(redis.ResponseError):
                self._inner.exchange(ghost, timeout_s)
        return _cut(kind, place, sendings, answers)


def _answered(kind: str, place: int, sendings: Sequence[Sending]) -> int:
    """How many of these get their answers."""
    if kind == "kill after":
        return place + 1
    return place if kind in ("drop", "lose", "reset", "kill") else len(sendings)


def _done_in_vain(kind: str, under_way: Sequence[Sending]) -> list[Sending]:
    """Copies of those that the server does although their replies are lost."""
    count = {"lose": len(under_way), "reset": 1}.get(kind, 0)
    return [_copy_of(sending) for sending in under_way[:count]]


def _cut(kind: str, place: int, sendings: Sequence[Sending], answers: list[Any]) -> list[Any]:
    """The answers that still arrive when the line breaks at ``place``."""
    if kind not in ("drop", "lose", "reset"):
        return answers
    for sending in sendings[place:]:
        sending.was_sent = True
    lost = redis.ConnectionError("the line broke on purpose")
    return answers[:place] + [lost] * (len(sendings) - place)


def _ghost_of(sending: Sending) -> Sending | None:
    """The request as it is sent again; some never are, and one that waits proves nothing."""
    command = sending.command
    if command.resend is Resend.NEVER or command.block_ms:
        return None
    ghost = _copy_of(sending)
    ghost._resent = True
    return ghost


def _copy_of(sending: Sending) -> Sending:
    """The same request, with the same number; what becomes of it does not touch the first."""
    sending.request(time.monotonic())
    copy = Sending(sending.command)
    copy._way = sending._way
    copy._number = sending._number
    return copy


def _name(sending: Sending) -> str:
    command = sending.command
    return command.script.name if command.script else str(command.words[0])


@contextmanager
def sabotage(url: str, saboteur: Saboteur) -> Iterator[str]:
    """The URL under which ``saboteur`` stands before the server of ``url``."""
    for module, door in _DOORS.items():
        module._find, module._open_transport = door.find, door.open  # type: ignore[attr-defined]
    label = f"saboteur-{next(_numbers)}"
    _saboteurs[label] = saboteur
    try:
        yield f"{url}#{label}"
    finally:
        del _saboteurs[label]


class _Door:
    """How a connection opens its transport: the saboteur is in the URL, which is read first."""

    def __init__(self, module: Any, sabotaged: Any) -> None:
        self._find, self._open = module._find, module._open_transport
        self._sabotaged = sabotaged
        self._here = threading.local()

    def find(self, target: Any) -> Any:
        url, self._here.saboteur = _parse(target)
        return self._find(url)

    def open(self, where: Any, make: Any) -> Any:
        inner, saboteur = self._open(where, make), getattr(self._here, "saboteur", None)
        self._here.saboteur = None
        return inner if saboteur is None else self._sabotaged(inner, saboteur)


_DOORS = {
    connecting: _Door(connecting, SabotagedTransport),
    connecting_blocking: _Door(connecting_blocking, BlockingSabotagedTransport),
}


def _parse(target: Any) -> tuple[Any, Saboteur | None]:
    if not isinstance(target, str) or "#saboteur-" not in target:
        return target, None
    url, _, label = target.partition("#")
    return url, _saboteurs[label]
