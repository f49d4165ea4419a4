"""One round trip as a value, and a plan of several.

A ``Command`` says what to send and how to read the answer.  A ``Plan`` is a generator that yields
commands, is sent their results, and returns its own: the same plan serves the async and the
blocking client.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from toril.errors import InvalidInputError
from toril.protocol import scripts
from toril.protocol.keys import Keys

T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode


class Skew:
    """How far a test has turned the clock forward, for every script of this process; 0 in life."""

    ms = 0


skew = Skew()

Word = str | bytes | int | float
"""One word of a server command."""


class Way(Enum):
    """How a call of our library is sent."""

    FUNCTION = "by its name in the library that the server holds"
    SCRIPT = "by the hash of its text"
    SOURCE = "by its text, which the server does not know yet"


class Resend(Enum):
    """May a command be sent again when its reply was lost?"""

    NEVER = "it may have happened, and must not happen twice"
    SAME = "doing it twice is the same as doing it once"
    MARKED = "only if the script is told, by ``a.resend``"
    NUMBERED = "the script knows the call by its flight and its number"


class Command(msgspec.Struct, Generic[T], frozen=True):
    """What to send in one round trip, and how to read the answer.

    Either a script with its ``args`` (one MessagePack map) and ``payloads`` (raw, after it), or the
    plain ``words`` of a server command.  ``near`` is a key on whose node a cluster answers a
    command that names no key itself.
    """

    parse: Callable[[Any], T]
    script: scripts.Script | None = None
    keys: tuple[str, ...] = ()
    args: dict[str, Any] = {}
    payloads: Sequence[bytes | str] = ()
    words: tuple[Word, ...] = ()
    resend: Resend = Resend.NEVER
    block_ms: int = 0
    near: str | None = None

    @property
    def writes(self) -> bool:
        """May it change anything?"""
        if self.script is not None:
            return not self.script.is_reading
        return self.resend is not Resend.SAME or self.words[0] == "DEL"

    def request(
        self,
        *,
        resent: bool = False,
        way: Way = Way.FUNCTION,
        number: dict[str, Any] | None = None,
    ) -> tuple[Word, ...]:
        """The words to send."""
        script = self.script
        if script is None:
            return self.words
        args = self.args
        if resent and self.resend is Resend.MARKED:
            args = {**args, "resend": True}
        elif number is not None:
            args = {**args, **number}
        if skew.ms:
            args = {**args, "skew_ms": skew.ms}
        if way is Way.FUNCTION:
            verb, code = "FCALL_RO" if script.is_reading else "FCALL", script.function
        elif way is Way.SCRIPT:
            verb, code = "EVALSHA", script.sha
        else:
            verb, code = "EVAL", script.source
        return (verb, code, len(self.keys), *self.keys, pack(args), *self.payloads)


def pack(args: Any) -> bytes:
    """Arguments as a script reads them."""
    try:
        return _encode(args)
    except UnicodeEncodeError:
        return _encode(_escaped(args))


def _escaped(value: Any, argument: str = "") -> Any:
    """``value`` with the names in it that are no UTF-8 as the bytes they are (``codec.name``)."""
    if isinstance(value, str):
        raw = _raw(value, argument)
        return msgspec.Raw(b"\xdb" + len(raw).to_bytes(4, "big") + raw)
    if isinstance(value, dict):
        return {key: _escaped(item, key) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(item, argument) for item in value]
    return value


def as_bytes(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Words of a command with the names in them that are no UTF-8 as the bytes they are."""
    return tuple(_raw(word) if isinstance(word, str) else word for word in words)


def _raw(text: str, argument: str = "") -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        what = f"{argument}={text!r}" if argument else f"{text!r}"
        raise InvalidInputError(f"{what} is no valid Unicode text: {error}") from error


Plan = Generator[Command[Any] | list[Command[Any]], Any, T]
"""Several round trips: yields commands, is sent their results, returns its own.

A list of commands is one round trip as well: they are independent and sent together.
"""


def script(
    name: str,
    keys: Keys,
    args: dict[str, Any],
    parse: Callable[[Any], T],
    *,
    extra: dict[str, str] | None = None,
    payloads: Sequence[bytes | str] = (),
    resend: Resend = Resend.NEVER,
) -> Command[T]:
    """A command that runs the script ``name``, its keys ordered as its first line names them.

    ``extra`` holds the keys that are not fixed keys of the queue.
    """
    loaded = scripts.load(name)
    return Command(
        parse,
        script=loaded,
        keys=keys.in_order(loaded.key_names, extra),
        args=args,
        payloads=payloads,
        resend=resend,
    )


def plain(
    *words: Word,
    parse: Callable[[Any], T],
    resend: Resend = Resend.SAME,
    block_ms: int = 0,
    near: str | None = None,
) -> Command[T]:
    """A command of the server itself; reading ones may be sent again."""
    return Command(parse, words=words, resend=resend, block_ms=block_ms, near=near)
