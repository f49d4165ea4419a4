"""One command on its way to the server: how often it may be sent, and what its failure means.

Both connections keep to these rules, the async and the blocking one:

1. A command that the server refused before doing anything (LOADING, READONLY, …) may be sent again.
2. A command whose bytes may have left and whose reply was lost is sent again only if it says so
   (``Resend``); then its script is told, or knows it by its number.
3. A command that never left may always be sent again.
4. A server that does not know our library is given it, and the call is sent again at once: nothing
   was done.  Where there are no functions calls go as scripts, by their source the first time, and
   back to functions when scripts are forbidden: a user may lose one right and get the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from toril.errors import (
    AmbiguousResultError,
    ServerOutOfMemoryError,
    ServerRefusalError,
    ServerUnavailableError,
    ServerUnusableError,
    TorilError,
)
from toril.protocol import parceling, replicating
from toril.protocol.command import Command, Resend, Way, plain
from toril.protocol.numbering import RESEND_WITHIN_S, Flight, Flights
from toril.protocol.packing import Word, pack_words
from toril.protocol.parceling import Handed
from toril.protocol.replies import Trouble, classify, forbids_scripts, why_not_primary, why_unusable

ASKING = b"*1\r\n$6\r\nASKING\r\n"
"""Before a request to a node that is just being given its slot."""


PARCELS = b"toril:parcels"
"""What the reply of a call begins with that left parcels for other slots."""

_SPREAD: Mapping[str, Any] = {"spread": True}
_CARRIES: Mapping[str, Any] = {"spread": True, "carries": True}

WORTH_A_MESSAGE = 16_384
"""So many bytes leave at once: the server reads them while the next request is packed."""

MOST_LOADS = 32
"""How often a call has the library loaded before it goes as a script: once for every node that it
is sent to, and whenever somebody flushes it in between."""


class Dialect:
    """What a server has shown of itself, as far as it concerns how calls are sent."""

    __slots__ = ("has_functions", "is_spread")

    def __init__(self) -> None:
        self.has_functions = True
        self.is_spread = False
        """Is it a cluster? Then calls may leave parcels for other slots (``parceling.py``)."""


class Sending:
    """A command and what its tries have taught.

    Whoever sends sets ``was_sent`` when the first byte may leave. A command that is known by its
    number takes one of the ``flights`` when it leaves for the first time, and gives it back when it
    is over.
    """

    __slots__ = (
        *("_clashes", "_dialect", "_first_left_s", "_flight", "_flights", "_has_turned", "_loads"),
        *("_number", "_resent", "_told", "_way", "command", "handed", "was_sent"),
    )

    def __init__(
        self,
        command: Command[Any],
        flights: Flights | None = None,
        dialect: Dialect | None = None,
        *,
        carries: bool = False,
        delivered: Sequence[str] = (),
    ) -> None:
        """``carries`` if whoever sends it delivers the parcels that it leaves; ``delivered`` are
        earlier ones of its queue that have arrived."""
        self.command = command
        self.was_sent = False
        self.handed: Handed | None = None
        """What the call left for other slots, which somebody has to carry there."""
        self._resent = False
        self._dialect = dialect or Dialect()
        self._told = _CARRIES if carries else _SPREAD
        if delivered:
            self._told = {**self._told, "delivered": list(delivered)}
        self._way = Way.FUNCTION if self._dialect.has_functions else Way.SCRIPT
        self._loads = 0
        self._clashes = 0
        self._has_turned = False
        self._flights = flights if command.resend is Resend.NUMBERED else None
        self._flight: Flight | None = None
        self._number: dict[str, Any] | None = None
        self._first_left_s: float | None = None

    def request(self, now_s: float) -> tuple[Word, ...]:
        """The words of the next try, which leave now."""
        if self._flights is not None:
            self._take_number(self._flights, now_s)
        return self.command.request(
            resent=self._resent,
            way=self._way,
            number=self._number,
            told=self._told if self._dialect.is_spread else None,
        )

    def packed(self, now_s: float) -> bytes:
        """The next try as bytes, which leave now."""
        if self._flights is not None:
            self._take_number(self._flights, now_s)
        packed = self.command.packed(
            resent=self._resent,
            way=self._way,
            number=self._number,
            told=self._told if self._dialect.is_spread else None,
        )
        replicas = self.command.replicas
        return packed if replicas is None else packed + pack_words(replicating.words(replicas))

    @property
    def replies(self) -> int:
        """How many replies a try has: one, and another behind it that tells of replicas."""
        return 1 if self.command.replicas is None else 2

    def _take_number(self, flights: Flights, now_s: float) -> None:
        if self._flight is None:
            self._flight, number = flights.take()
            self._number = {"flight": self._flight.name, "request": number}
        if self._first_left_s is None or not self._resent:
            self._first_left_s = now_s
        elif now_s - self._first_left_s > RESEND_WITHIN_S:
            # The server may have forgotten it: then it is not to be made.
            self._number = {**(self._number or {}), "is_late": True}

    def end(self) -> None:
        """It has its answer, or nobody waits for one any more."""
        if self._flight is not None and self._flights is not None:
            self._flights.give_back(self._flight)
            self._flight = self._flights = None

    def opened(self, reply: Any) -> Any:
        """The reply of the call itself; notes the parcels that it told of."""
        if not self._dialect.is_spread:
            return reply
        if self.command.replicas is not None:
            answer, reached = reply
            return self._unwrapped(answer), reached
        return self._unwrapped(reply)

    def _unwrapped(self, reply: Any) -> Any:
        if type(reply) is not list or len(reply) not in (2, 4) or reply[0] != PARCELS:
            return reply
        self.handed = Handed() if len(reply) == 2 else parceling.handed(*reply[2:])
        return reply[1]

    def answer(self, reply: Any) -> Any:
        """What the reply says, or the refusal that it is."""
        self.end()
        try:
            return self.command.parse(self.opened(reply))
        except TorilError as refusal:
            return refusal

    def lacks_library(self, error: Exception) -> bool:
        """Whether the error is no more than our library, which the server has to be given."""
        if classify(error) is not Trouble.UNKNOWN_FUNCTION or self._loads == MOST_LOADS:
            return False
        self._loads += 1
        self.was_sent = False
        return True

    def loading(self) -> Sending:
        """Gives our library to the server that this command goes to."""
        script = self.command.script
        assert script is not None, "plain commands need no library"
        words = ("FUNCTION", "LOAD", script.library)
        return Sending(plain(*words, parse=str, near=self.command.keys[0]))

    def end_of_loading(self, error: Exception) -> Exception | None:
        """The error that kept the library from being loaded, or None when the call may go again."""
        if "already exists" in str(error):
            # Once: somebody else has just loaded it. Twice: what has its name is not our library.
            self._clashes += 1
            if self._clashes > 1:
                self._way = Way.SCRIPT
            return None
        trouble = classify(error)
        if trouble is Trouble.NO_FUNCTIONS:
            self._dialect.has_functions = False
        elif trouble is not Trouble.OUT_OF_MEMORY:
            return error
        self._way = Way.SCRIPT
        return None

    def goes_again_at_once(self, error: Exception) -> bool:
        """Whether the error is no more than the way in which the call was sent."""
        trouble = classify(error)
        if trouble is Trouble.NO_FUNCTIONS and self._way is Way.FUNCTION:
            self._dialect.has_functions = False
            self._way = Way.SCRIPT
        elif not self._has_turned and forbids_scripts(error):
            self._has_turned = True
            self._dialect.has_functions = True
            self._way = Way.FUNCTION
        elif trouble is Trouble.UNKNOWN_FUNCTION and self._way is Way.FUNCTION:
            self._way = Way.SCRIPT
        elif trouble is Trouble.UNKNOWN_SCRIPT and self._way is not Way.SOURCE:
            self._way = Way.SOURCE
        else:
            return False
        self.was_sent = False
        return True

    def end_after(
        self,
        error: Exception,
        server: str,
        *,
        is_last: bool = False,
        finds_primary: bool = False,
    ) -> Exception | None:
        """The error that the user should see, or None if the command may be resent.

        ``finds_primary`` when a primary was found before or is looked for: then a replica is a
        sign of a failover, and else of a wrong address.
        """
        if isinstance(error, TorilError):
            if isinstance(error, ServerUnavailableError) and self._resent and self.command.writes:
                return _lost(server, error)  # this try did nothing, but an earlier one may have
            return error
        trouble = classify(error)
        may_have_run = self.was_sent and trouble is Trouble.LOST
        is_forbidden = may_have_run and self.command.resend is Resend.NEVER
        if trouble is Trouble.GHOST:
            # Somebody else uses the flight: a copy of this process, made of a snapshot.
            self._flight = None
            is_forbidden = self._resent
        if is_last or is_forbidden or trouble not in _PASSING:
            is_open = (may_have_run or self._resent) and self.command.writes
            return _explained(error, trouble, is_open, server, finds_primary)
        self._resent = self._resent or may_have_run
        self.was_sent = False
        return None


def messages(sendings: Iterable[Sending], now_s: float) -> Iterator[tuple[bytes, int]]:
    """Their requests, small ones put together, and how many replies each message has."""
    packed: list[bytes] = []
    size = replies = 0
    for sending in sendings:
        packed.append(sending.packed(now_s))
        sending.was_sent = True
        size += len(packed[-1])
        replies += sending.replies
        if size >= WORTH_A_MESSAGE:
            yield b"".join(packed), replies
            packed = []
            size = replies = 0
    if packed:
        yield b"".join(packed), replies


_PASSING = (Trouble.LOST, Trouble.NOT_NOW, Trouble.GHOST)


def longest_block_ms(commands: Iterable[Command[Any]]) -> int:
    """For how long the server may keep the slowest of these commands by design."""
    return max((command.block_ms for command in commands), default=0)


def _explained(
    error: Exception, trouble: Trouble, may_have_run: bool, server: str, finds_primary: bool
) -> Exception:
    """The error for the user: what happened, to what, and what to do."""
    words = str(error) or type(error).__name__
    if may_have_run and trouble is not Trouble.WRONG:
        return _lost(server, words)
    why = why_unusable(error) or ("" if finds_primary else why_not_primary(error))
    if why:
        return ServerUnusableError(f"{server} cannot serve: {why} (its answer: {words})")
    if trouble is Trouble.OUT_OF_MEMORY:
        return ServerOutOfMemoryError(
            f"the server has reached its maxmemory and takes no more jobs ({error}); workers go on"
            f" draining: keep fewer finished jobs (remove_on_complete) or raise maxmemory"
        )
    if trouble in _PASSING:
        return ServerUnavailableError(
            f"{server} does not serve ({words}); is the server up and the address right?"
        )
    if words.startswith("WRONGTYPE"):
        return ServerRefusalError(
            f"a key on {server} holds a value of another kind than belongs there, so this cannot be"
            f" done; the doctor names it (WRONGTYPE)"
        )
    return ServerRefusalError(f"{server} answered with an error: {words}")


def _lost(server: str, why: object) -> AmbiguousResultError:
    return AmbiguousResultError(
        f"the reply of {server} was lost ({why}); the command may have been done"
    )
