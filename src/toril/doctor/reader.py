"""Reading a server through a ``Connection``; what may not be read is None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toril.client.connection import Connection
from toril.errors import ServerRefusalError
from toril.protocol.command import Command, plain

_KEYS_PER_SCAN = 1000


class ConnectionReader:
    """Asks read-only questions; answers are text."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def scan(self, pattern: str) -> list[str]:
        keys: list[str] = []
        cursor = "0"
        while True:
            words = ("SCAN", cursor, "MATCH", pattern, "COUNT", _KEYS_PER_SCAN)
            cursor, found = await self._connection.run(plain(*words, parse=_text))
            keys += found
            if cursor == "0":
                return keys

    async def ask(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        if not commands:
            return []
        return await self._connection.run_all([_command(words) for words in commands])

    async def try_to_ask(self, *words: str) -> Any:
        """The answer, or None when it is refused, as by an ACL."""
        try:
            return (await self.ask([words]))[0]
        except ServerRefusalError:
            return None


def _command(words: tuple[str, ...]) -> Command[Any]:
    return plain(*words, parse=_pairs if words[0] == "HGETALL" else _text)


def _text(reply: Any) -> Any:
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "replace")
    if isinstance(reply, list):
        return [_text(item) for item in reply]
    return reply


def _pairs(reply: Any) -> dict[str, str]:
    words = iter(_text(reply))
    return dict(zip(words, words, strict=True))
