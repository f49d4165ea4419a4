# Written by tools/unasync.py from src/toril/client/connection.py: change that file instead.
"""The door to the server: runs commands, and decides which to send again without an answer.

Whether a command may be sent again is its own property (``Resend``), which this module obeys.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, Union, cast

from toril.checking import checked_call
from toril.client import embedded
from toril.client.ids import flights
from toril.errors import (
    InvalidOptionError,
    ServerRefusalError,
    ServerUnusableError,
    TorilError,
)
from toril.logs import get_logger, warn_once
from toril.protocol import address, parceling
from toril.protocol.address import Address
from toril.protocol.command import Command, Plan
from toril.protocol.keys import Keys, check_slot_of_each, keys_at
from toril.protocol.numbering import Flights
from toril.protocol.parceling import Handed, Parcel
from toril.protocol.replies import is_on_the_move
from toril.protocol.sending import Dialect, Sending, longest_block_ms
from toril.protocol.slots import Node, cluster_mode
from toril.sync.cluster import ClusterTransport
from toril.sync.sockets import (
    REPLY_TIMEOUT_S,
    TROUBLES,
    MakeSocket,
    MovedError,
    address_of,
    maker,
    news_of_primary,
)
from toril.sync.transport import SOCKET_TIMEOUT_S, ServerTransport

T = TypeVar("T")
logger = get_logger(__name__)


class RedisClient(Protocol):
    """A client of redis-py, async or not; only its settings are used."""

    connection_pool: Any


class RedisClusterClient(Protocol):
    """A cluster client of redis-py, async or not; only its settings are used."""

    nodes_manager: Any


Target = Union[str, RedisClient, RedisClusterClient, "Connection", None]
"""What ``connection=`` takes: a URL, a redis-py client, a shared ``Connection``, or None."""

PATIENCE_S = 3.0
MOVING_S = 10.0
"""How long a slot may be on the move before a call that meets it gives up."""
SHORTEST_PAUSE_S = 0.02
BLOCKING_MARGIN_S = 2.0
MOST_AT_ONCE = 64


class Connection:
    """Runs commands, over as many sockets as are needed at once.

    ``patience_s`` is how long a command that may be sent again is retried without an answer.
    """

    @checked_call
    def __init__(
        self,
        target: Target = None,
        *,
        client_name: str | None = None,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
        patience_s: float = PATIENCE_S,
        blocking_margin_s: float = BLOCKING_MARGIN_S,
    ) -> None:
        self._target = target
        self._where = _find(target)
        self._make = partial(maker, client_name=client_name, socket_timeout_s=SOCKET_TIMEOUT_S)
        self._transport = _open_transport(self._where, self._make)
        self._reply_timeout_s = reply_timeout_s
        self._patience_s = patience_s
        self._blocking_margin_s = blocking_margin_s
        self._has_written = False
        self._dialect = Dialect()
        self._dialect.is_spread = self._transport.is_cluster
        self._has_told = False
        self.on_parcels: Callable[[str], None] | None = None
        """Told about each queue whose calls left parcels that have to be fetched; without it, the
        caller delivers them before it gets its answer."""
        self.on_handed: Callable[[str, Sequence[Parcel]], None] | None = None
        """Gets the parcels that replies brought. With ``on_parcels`` alone, replies bring none."""
        self._may_carry = True
        self._delivered: dict[str, list[str]] = {}

    def __repr__(self) -> str:
        return f"<Connection to {self._transport}>"

    @property
    def is_closed(self) -> bool:
        return self._transport.is_closed

    @property
    def is_cluster(self) -> bool:
        """Are keys spread over several servers?"""
        return self._transport.is_cluster

    def check_slots(self, *queues: Keys) -> None:
        """On a cluster, refuse a queue whose own keys do not share a slot."""
        if self._transport.is_cluster:
            check_slot_of_each(*queues)

    def meet(self) -> None:
        """Find out whether a single server is in fact a node of a cluster.

        Otherwise this is only noticed at the first key that the node does not serve; a caller that
        reads no key must know it beforehand, or it takes one node's part for the whole.
        """
        if self._where.kind == "server" and not self.is_cluster:
            with contextlib.suppress(ServerRefusalError):
                if self.run(cluster_mode()):
                    self._turn_to_cluster()

    def run(self, command: Command[T]) -> T:
        """Send ``command`` and return its parsed answer.

        Raises ``ServerUnavailableError`` when it had no effect, ``AmbiguousResultError`` when it
        may have had one, and ``ServerUnusableError`` at once when no retry would ever succeed.
        """
        timeout_s = self._timeout_s(command.block_ms)
        sending = self._sending(command, flights)
        try:
            try:
                reply = self._transport.exchange(sending, timeout_s)
            except TROUBLES as error:
                reply = self._try_again(sending, timeout_s, error)
        finally:
            sending.end()
        self._has_written = self._has_written or command.writes
        reply = sending.opened(reply)
        if sending.handed is not None:
            self._see_off(command.keys[0], sending.handed)
        return command.parse(reply)

    def note_delivered(self, base: str, ids: Sequence[str]) -> None:
        """These parcels of a queue have arrived: the next call of the queue names them, so that
        they are forgotten without a call of their own."""
        if ids:
            self._delivered.setdefault(base, []).extend(ids)

    def take_delivered(self, base: str) -> list[str]:
        """What no call has named yet, as much as one call may."""
        ids = self._delivered.get(base)
        if not ids:
            return []
        if len(ids) <= parceling.PARCELS_PER_SLICE:
            return self._delivered.pop(base)
        some = ids[: parceling.PARCELS_PER_SLICE]
        del ids[: parceling.PARCELS_PER_SLICE]
        return some

    def run_all(self, commands: Sequence[Command[T]], *, at_once: int = MOST_AT_ONCE) -> list[T]:
        """Send independent commands in one go, at most ``at_once`` of them in flight.

        Raises the first error when all have been answered.
        """
        if len(commands) == 1:
            return [self.run(commands[0])]
        answers: list[T | Exception] = self._exchange_all(commands, at_once)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return cast(list[T], answers)

    def run_each(self, commands: Sequence[Command[T]]) -> list[T | Exception]:
        """Send independent commands in one go; returns the answer or the error of each."""
        if len(commands) != 1:
            return self._exchange_all(commands, MOST_AT_ONCE)
        try:
            answer: T = self.run(commands[0])
        except Exception as error:  # noqa: BLE001 (it is the answer)
            return [error]
        return [answer]

    def follow(self, plan: Plan[T]) -> T:
        """Run a plan, one round trip after another."""
        try:
            command = next(plan)
            while True:
                try:
                    result = self._take_step(command)
                except Exception as error:  # noqa: BLE001 (the plan decides)
                    command = plan.throw(error)
                else:
                    command = plan.send(result)
        except StopIteration as end:
            return cast(T, end.value)

    def _take_step(self, step: Command[Any] | list[Command[Any]]) -> Any:
        if isinstance(step, list):
            return self.run_all(step)
        return self.run(step)

    def close(self) -> None:
        """Close every socket; waiting commands fail."""
        self._transport.close()

    def interrupt(self) -> None:
        """Send nothing more, and end all waits, whoever waits."""
        self._transport.interrupt()

    def twin(
        self,
        *,
        client_name: str | None = None,
        reply_timeout_s: float | None = None,
        patience_s: float | None = None,
    ) -> Connection:
        """Another connection to the same server, with sockets of its own.

        It waits and tries as long as this one, unless it is told otherwise.
        """
        return Connection(
            self._target,
            client_name=client_name,
            reply_timeout_s=self._reply_timeout_s if reply_timeout_s is None else reply_timeout_s,
            patience_s=self._patience_s if patience_s is None else patience_s,
            blocking_margin_s=self._blocking_margin_s,
        )

    def _try_again(self, sending: Sending, timeout_s: float, error: Exception) -> Any:
        """The reply to a command that met ``error``; raises if it must not be sent again."""
        give_up_at = 0.0
        pause_s = SHORTEST_PAUSE_S
        while True:
            trouble = self._mend(sending, error)
            if trouble is not None:
                now = time.monotonic()
                give_up_at = give_up_at or now + self._patience_with(trouble)
                end = self._end(sending, trouble, is_last=now >= give_up_at)
                if end is not None:
                    raise end from error
                time.sleep(pause_s * random.uniform(0.5, 1))
                pause_s = min(pause_s * 2, 1.0)
            try:
                return self._transport.exchange(sending, timeout_s)
            except TROUBLES as again:
                error = again

    def _exchange_all(self, commands: Sequence[Command[Any]], at_once: int) -> list[Any]:
        """The answer to each command, or the error it met."""
        timeout_s = self._timeout_s(longest_block_ms(commands))
        sendings = [self._sending(command, flights) for command in commands]
        try:
            answers = self._exchange_sendings(sendings, timeout_s, at_once)
        finally:
            for sending in sendings:
                sending.end()
        if self._dialect.is_spread:
            for base, handed in _by_queue(sendings).items():
                self._see_off(base, handed)
        return answers

    def _sending(self, command: Command[Any], numbers: Flights | None = None) -> Sending:
        """A command on its way; on a cluster it names parcels that have arrived."""
        carries = self._may_carry if self.on_parcels is None else self.on_handed is not None
        delivered: Sequence[str] = ()
        if self._delivered and command.script is not None and command.writes:
            delivered = self.take_delivered(command.keys[0])
        return Sending(command, numbers, self._dialect, carries=carries, delivered=delivered)

    def _pass_on(self, base: str, handed: Handed) -> None:
        """Tell whoever delivers for this connection."""
        if handed.parcels and self.on_handed is not None:
            self.on_handed(base, handed.parcels)
        if handed.has_more and self.on_parcels is not None:
            self.on_parcels(base)

    def _see_off(self, base: str, handed: Handed) -> None:
        """Have the parcels delivered that a call of this queue left.

        The call itself has succeeded, so it must not fail because of this: the workers of the queue
        deliver what is left.
        """
        if self.on_parcels is not None:
            self._pass_on(base, handed)
            return
        self._carry(base, handed)

    def _carry(self, base: str, handed: Handed) -> None:
        try:
            carried = self.follow(parceling.carry(keys_at(base), handed))
        except ServerUnusableError as error:
            # A producer may not have the right to deliver.
            self._may_carry = False
            warn_once("parcels of %s have to wait for a worker: %s", base, str(error))
        except TorilError as error:
            logger.warning("parcels of %s have to wait for a worker: %s", base, error)
        else:
            if carried.error is not None:
                logger.warning("parcels of %s have to wait for a worker: %s", base, carried.error)

    def _exchange_sendings(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        answers: list[Any] = [None] * len(sendings)
        waiting = list(range(len(sendings)))
        give_up_at = 0.0
        pause_s = SHORTEST_PAUSE_S
        while waiting:
            again: list[int] = []
            has_to_pause = False
            replies = self._transport.exchange_all(
                [sendings[index] for index in waiting], timeout_s, at_once
            )
            for index, reply in zip(waiting, replies, strict=True):
                answers[index] = reply
                if not isinstance(reply, Exception):
                    self._has_written = self._has_written or sendings[index].command.writes
                    continue
                trouble = self._mend(sendings[index], reply)
                if trouble is None:
                    again.append(index)
                    continue
                now = time.monotonic()
                give_up_at = give_up_at or now + self._patience_with(trouble)
                end = self._end(sendings[index], trouble, is_last=now >= give_up_at)
                if end is None:
                    again.append(index)
                    has_to_pause = True
                else:
                    end.__cause__ = None if end is reply else reply
                    answers[index] = end
            waiting = again
            if has_to_pause:
                time.sleep(pause_s * random.uniform(0.5, 1))
                pause_s = min(pause_s * 2, 1.0)
        return answers

    def _mend(self, sending: Sending, error: Exception) -> Exception | None:
        """None if the command may be sent again at once; otherwise the error it met."""
        if self._is_led_to_cluster(sending, error):
            return None
        if sending.lacks_library(error):
            try:
                self._transport.exchange(sending.loading(), self._reply_timeout_s)
            except TROUBLES as trouble:
                error = trouble
                end = sending.end_of_loading(trouble)
            else:
                return None
        else:
            end = None if sending.goes_again_at_once(error) else error
        if not self._dialect.has_functions and not self._has_told:
            self._has_told = True
            logger.warning(
                "%s does not support functions (%s); calls are sent as scripts, which is slower",
                self._transport,
                error,
            )
        return end

    def _is_led_to_cluster(self, sending: Sending, error: Exception) -> bool:
        """Whether a server has just turned out to be a node of a cluster: it sends us elsewhere."""
        if not isinstance(error, MovedError) or not self._turn_to_cluster():
            return False
        sending.was_sent = False
        return True

    def _turn_to_cluster(self) -> bool:
        node = self._transport
        if self._where.kind != "server":
            return False
        if not isinstance(node, ServerTransport):
            return True
        host, port = address_of(self._make(self._where))
        if not host:
            return False
        warn_once(
            "%s is a node of a cluster, and is used as one; write redis+cluster:// to name several"
            " nodes, so that only one of them has to be up when a process starts",
            str(self._where),
        )
        self._transport = _open_cluster(self._where, self._make, {(host, port): node})
        self._dialect.is_spread = True
        return True

    def _patience_with(self, trouble: Exception) -> float:
        return max(self._patience_s, MOVING_S if is_on_the_move(trouble) else 0.0)

    def _end(self, sending: Sending, error: Exception, *, is_last: bool) -> Exception | None:
        """Why a command is not sent again. A server that accepted a write is not a mere replica."""
        return sending.end_after(
            error,
            str(self._transport),
            is_last=is_last,
            finds_primary=self._transport.finds_primary or self._has_written,
        )

    def _timeout_s(self, block_ms: int) -> float:
        if block_ms:
            return block_ms / 1000 + self._blocking_margin_s
        return self._reply_timeout_s


def _by_queue(sendings: Sequence[Sending]) -> dict[str, Handed]:
    """What calls left for other slots, by the queues that they left it at."""
    found: dict[str, list[Handed]] = {}
    for sending in sendings:
        if sending.handed is not None:
            found.setdefault(sending.command.keys[0], []).append(sending.handed)
    return {base: parceling.together(some) for base, some in found.items()}


class Transport(Protocol):
    """Sends requests and reads their replies: to a server, or to the right node of a cluster."""

    is_cluster: bool
    finds_primary: bool
    is_closed: bool

    def exchange(self, sending: Sending, timeout_s: float) -> Any:
        """The reply, or the error raised."""

    def exchange_all(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        """The answer to each, or the error it met; read while the next ones are in flight."""

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


def _open_transport(where: Address, make: Callable[..., MakeSocket]) -> Transport:
    match where.kind:
        case "embedded":
            server = embedded.start(where.directory)
            return ServerTransport(make(address.parse(server.url)), str(where), server)
        case "cluster":
            return _open_cluster(where, make, {})
    news = news_of_primary(where)
    return ServerTransport(make(where), str(where), finds_primary=bool(news), news=news)


def _open_cluster(
    where: Address, make: Callable[..., MakeSocket], known: dict[Node, ServerTransport]
) -> ClusterTransport:
    def make_node(node: Node) -> ServerTransport:
        return ServerTransport(make(where, node=node), f"{node[0]}:{node[1]}", finds_primary=True)

    return ClusterTransport(make_node, where.hosts or list(known), str(where), known)


def _find(target: Any) -> Address:
    if isinstance(target, Connection):
        raise InvalidOptionError("a Connection cannot be opened over another one")
    if target is None:
        target = os.environ.get("TORIL_URL") or address.DEFAULT_URL
    if isinstance(target, str):
        return address.parse(target)
    where = address.of_client(target)
    if where is None:
        # The value is not shown: it may contain a password.
        kind = type(target).__name__
        raise InvalidOptionError(f"connection= is neither a URL nor a redis-py client but {kind!r}")
    return where


__all__ = ["Connection", "Target"]
