"""One round trip as a value, and a plan of several.

A ``Command`` says what to send and how to read the answer.  A ``Plan`` is a generator that yields
commands, is sent their results, and returns its own: the same plan serves the async and the
blocking client.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from toril.options import Replicas
from toril.protocol import scripts
from toril.protocol.keys import Keys
from toril.protocol.packing import PackedKeys, Word, pack_call, pack_words, raw

T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode


class Skew:
    """How far a test has turned the clock forward, for every script of this process; 0 in life."""

    ms = 0


skew = Skew()


class Way(Enum):
    """How a call of our library is sent."""

    FUNCTION = "by its name in the library that the server holds"
    SCRIPT = "by the hash of its text"
    SOURCE = "by its text, which the server does not know yet"


class Resend(Enum):
    """Whether a command may be resent if its reply was lost."""

    NEVER = "it may have happened, and must not happen twice"
    SAME = "doing it twice is the same as doing it once"
    MARKED = "only if the script is told, by ``a.resend``"
    NUMBERED = "the script knows the call by its flight and its number"


class Command(msgspec.Struct, Generic[T], frozen=True):
    """What to send in one round trip, and how to read the answer.

    Either a script with its ``args`` (one MessagePack map) and ``payloads`` (raw, after it), or the
    plain ``words`` of a server command.  ``near`` is a key on whose node a cluster answers a
    command that names no key itself.  ``packed_keys`` are ``keys`` as bytes, where they are the
    same at every call.  With ``replicas`` the answer is a pair: the reply, and how many replicas
    have what was written (``replicating.py``).
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
    packed_keys: PackedKeys | None = None
    replicas: Replicas | None = None

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
        told: Mapping[str, Any] | None = None,
    ) -> tuple[Word, ...]:
        """The words to send; ``told`` is what scripts on a cluster have to know as well."""
        if self.script is None:
            return self.words
        begin = _begin(self.script, way)
        args = self._packed_args(resent, number, told)
        return (*begin, len(self.keys), *self.keys, args, *self.payloads)

    def packed(
        self,
        *,
        resent: bool = False,
        way: Way = Way.FUNCTION,
        number: dict[str, Any] | None = None,
        told: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The same request as bytes."""
        if self.script is None or way is Way.SOURCE or self.packed_keys is None:
            words = self.request(resent=resent, way=way, number=number, told=told)
            return pack_words(words)
        args = self._packed_args(resent, number, told)
        return pack_call(_begin(self.script, way), self.packed_keys, (args, *self.payloads))

    def _packed_args(
        self, resent: bool, number: dict[str, Any] | None, told: Mapping[str, Any] | None
    ) -> bytes:
        args = self.args
        if number is not None:
            args = args | number
        elif resent and self.resend is Resend.MARKED:
            args = {**args, "resend": True}
        if told:
            args = {**args, **told}
        if skew.ms:
            args = {**args, "skew_ms": skew.ms}
        return pack(args)


def _begin(script: scripts.Script, way: Way) -> tuple[str, str]:
    if way is Way.FUNCTION:
        return "FCALL_RO" if script.is_reading else "FCALL", script.function
    if way is Way.SCRIPT:
        return "EVALSHA", script.sha
    return "EVAL", script.source


def pack(args: Any) -> bytes:
    """Arguments as a script reads them."""
    try:
        return _encode(args)
    except UnicodeEncodeError:
        return _encode(_escaped(args))


def _escaped(value: Any, argument: str = "") -> Any:
    """``value`` with the names in it that are no UTF-8 as the bytes they are (``codec.name``)."""
    if isinstance(value, str):
        text = raw(value, argument)
        return msgspec.Raw(b"\xdb" + len(text).to_bytes(4, "big") + text)
    if isinstance(value, dict):
        return {key: _escaped(item, key) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_escaped(item, argument) for item in value]
    return value


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
    beside: Keys | None = None,
    payloads: Sequence[bytes | str] = (),
    resend: Resend = Resend.NEVER,
) -> Command[T]:
    """A command that runs the script ``name``, its keys ordered as its first line names them.

    ``extra`` holds the keys that are not fixed keys of the queue, and ``beside`` those of the queue
    that takes its dead letters.
    """
    loaded = scripts.load(name)
    if extra:
        ordered, packed_keys = keys.in_order_with(loaded.key_names, extra), None
    else:
        ordered, packed_keys = keys.in_order(loaded.key_names, beside)
    return Command(
        parse,
        script=loaded,
        keys=ordered,
        args=args,
        payloads=payloads,
        resend=resend,
        packed_keys=packed_keys,
    )


def plain(
    *words: Word,
    parse: Callable[[Any], T],
    resend: Resend = Resend.SAME,
    block_ms: int = 0,
    near: str | None = None,
) -> Command[T]:
    """A command of the server itself; read-only ones may be resent."""
    return Command(parse, words=words, resend=resend, block_ms=block_ms, near=near)
