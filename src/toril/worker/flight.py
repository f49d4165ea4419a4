"""One line of calls from a worker to the server: at most one is away, and each is numbered.

The server remembers the last call of a flight, so a call whose reply was lost is simply made again:
it returns what it returned, and settles and takes nothing twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from toril.client.connection import Connection
from toril.errors import ServerError
from toril.options import Keep
from toril.protocol import leasing, settling
from toril.protocol.command import Command
from toril.protocol.keys import Keys
from toril.protocol.settling import UNSENDABLE, Confirmation, Reply, Settled, Take

LONGEST_PAUSE_S = 2.0


class Flight:
    """Makes the pump's calls, one after another, however long the server is away."""

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
        self.last_request = 0
        self._dead_letters = dead_letters
        self._keep_letters = keep_letters

    async def call(
        self,
        settled: Sequence[Settled],
        take: Take,
        request: int,
        confirmations: Sequence[Confirmation] = (),
    ) -> Reply:
        """Settle and take; tries until the server has answered this very request.

        The same request is sent however often: the server knows it by its number.
        """
        make = partial(
            settling.settle,
            self._keys,
            take=take,
            flight=self.name,
            request=request,
            confirmations=confirmations,
            dead_letters=self._dead_letters,
            keep_letters=self._keep_letters,
        )
        command = make(settled)
        pause_s = 0.05
        while True:
            try:
                return await self._connection.run(command)
            except ServerError as error:
                self._on_error(error)
            except UNSENDABLE:
                # It has not left: one outcome holds what cannot be written down.
                sendable = settling.sendable(settled)
                if sendable == list(settled):
                    raise
                settled = sendable
                command = make(settled)
                continue
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def leave(self) -> None:
        """Be forgotten by the server, and let another worker look if there is work."""
        await self._connection.run(settling.leave(self._keys, [self.name]))

    async def wait_and_take(self, block_ms: int, take: Take, request: int) -> Reply:
        """Wait for the marker and take, in one message: the server begins the second command the
        moment the first one is over. Raises when the line breaks; ``call`` then tells what
        became of the request."""
        marker = leasing.wait_for_marker(self._keys, block_ms=block_ms)
        command = settling.settle(self._keys, [], take, flight=self.name, request=request)
        both: list[Command[Any]] = [marker, command]
        _, reply = await self._connection.run_all(both)
        assert isinstance(reply, Reply)
        return reply
