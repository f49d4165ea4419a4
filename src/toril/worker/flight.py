"""One line of calls from a worker to the server: at most one is in flight, and each is numbered.

The server remembers the last call of a flight, so a call whose reply was lost is simply repeated:
it returns the same reply, and settles and takes nothing twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from toril.client.connection import Connection
from toril.errors import ServerError, TorilError
from toril.options import Keep
from toril.protocol import leasing, settling
from toril.protocol.command import Command
from toril.protocol.keys import Keys
from toril.protocol.leasing import Marker
from toril.protocol.settling import UNSENDABLE, Confirmation, Reply, Result, Settled, Take
from toril.worker.outbox import Confirmations

LONGEST_PAUSE_S = 2.0


class Trip:
    """One call: what it carries, and what it asks for."""

    __slots__ = ("batch", "confirmations", "flight", "request", "take")

    def __init__(
        self,
        flight: Flight,
        request: int,
        take: Take,
        batch: Sequence[Settled] = (),
        confirmations: Confirmations | None = None,
    ) -> None:
        self.flight = flight
        self.request = request
        self.take = take
        self.batch = batch
        self.confirmations = confirmations or {}

    @property
    def name(self) -> Confirmation:
        """How the server identifies it."""
        return self.flight.name, self.request

    def end(self) -> None:
        """The server has received the confirmations, or nobody will send them any more."""
        for known in self.confirmations.values():
            if known is not None and not known.done():
                known.set_result(None)


class Flight:
    """Makes the pump's calls, one after another, however long the server is unavailable."""

    def __init__(
        self,
        connection: Connection,
        keys: Keys,
        name: str,
        *,
        on_error: Callable[[Exception], None],
        dead_letters: Keys | None = None,
        keep_letters: Keep | None = None,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self.name = name
        self._on_error = on_error
        self._dead_letters = dead_letters
        self._keep_letters = keep_letters
        self.last_request = 0
        self.unheard = 0
        """The last request that brought jobs whose arrival is not confirmed to the server yet."""
        self.confirm_at = 0.0
        self.confirming: asyncio.TimerHandle | None = None

    def post(self, trip: Trip, landed: Callable[[Trip, Reply | None], None]) -> bool:
        """Send a call now, in this turn of the loop, if a socket is free; False if it was not sent.

        ``landed`` gets the reply in the turn that reads it, or None if there is none; then ``call``
        with the same trip returns the reply.
        """
        command = self._command(trip.batch, trip)

        def answered(reply: Any) -> None:
            if isinstance(reply, Exception):
                landed(trip, None)
                return
            try:
                parsed = command.parse(reply)
            except TorilError:
                landed(trip, None)
                return
            landed(trip, parsed)

        try:
            return self._connection.post(command, answered)
        except UNSENDABLE:
            return False

    async def call(self, trip: Trip) -> Reply:
        """Settle and take; tries until the server has answered this request.

        Every try sends the same request: the server recognizes it by its number.
        """
        sent, refused = dict(enumerate(trip.batch)), dict[int, Result]()
        command = self._command(trip.batch, trip)
        pause_s = 0.05
        while True:
            try:
                reply = await self._connection.run(command)
            except ServerError as error:
                number = settling.too_large(sent, error)
                if number is None:
                    self._on_error(error)
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1))
                    pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
                    continue
                refused[number] = settling.refused_as_too_large(sent.pop(number), error)
            except UNSENDABLE:
                # It was not sent: one outcome holds a value that cannot be encoded.
                sendable = settling.sendable([*sent.values()])
                if sendable == [*sent.values()]:
                    raise
                sent = dict(zip(sent, sendable, strict=True))
            else:
                return _with_refused(reply, refused, len(trip.batch)) if refused else reply
            command = self._command([*sent.values()], trip)

    async def leave(self) -> None:
        """Make the server forget this flight, and have another worker look for work."""
        await self._connection.run(settling.leave(self._keys, [self.name]))

    async def pop_marker(self, block_ms: int) -> Marker | None:
        """Wait for something to take, without taking it yet; None if nothing came."""
        return await self._connection.run(leasing.pop_marker(self._keys, block_ms=block_ms))

    async def put_back(self, marker: Marker) -> None:
        """Tell another worker: this one has no room for the job that the marker announces."""
        await self._connection.run(leasing.put_marker(self._keys, marker))

    async def wait_and_take(
        self, block_ms: int, trip: Trip, landed: Callable[[Reply], None]
    ) -> None:
        """Wait for the marker and take, in one message: the server starts the second command as
        soon as the first one ends. ``landed`` gets the reply, if possible in the turn that reads
        it. If it is not called, ``call`` returns the result of the request."""
        marker = leasing.wait_for_marker(self._keys, block_ms=block_ms)
        await self._connection.run_behind(marker, self._command((), trip), landed)

    def _command(self, settled: Sequence[Settled], trip: Trip) -> Command[Reply]:
        return settling.settle(
            self._keys,
            settled,
            trip.take,
            flight=self.name,
            request=trip.request,
            confirmations=list(trip.confirmations),
            dead_letters=self._dead_letters,
            keep_letters=self._keep_letters,
        )


def _with_refused(reply: Reply, refused: dict[int, Result], count: int) -> Reply:
    """The reply as if the outcomes that were left out of the call had been refused in it."""
    if len(reply.results) == count:
        return reply  # a try before that, which held all of them, was read after all
    written = iter(reply.results)
    results = [refused[n] if n in refused else next(written) for n in range(count)]
    return msgspec.structs.replace(reply, results=results)
