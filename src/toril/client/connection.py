"""The door to the server, and the only module of the client that knows redis-py.

redis-py opens sockets, speaks TLS, finds masters through Sentinel and nodes of a cluster.  Its own
retries are off: a write that may have happened must not be sent again blindly.  What may be sent
again is a property of the command (``Resend``), and this module keeps to it.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, Union, cast

import redis.asyncio as redis
from hiredis import pack_command
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import AskError, MovedError, ReadOnlyError
from redis.retry import Retry

from toril.client import embedded
from toril.errors import (
    InvalidOptionError,
    ServerError,
    ServerUnavailableError,
)
from toril.protocol import address
from toril.protocol.command import Command, Plan, Word
from toril.protocol.keys import Keys, check_one_slot
from toril.protocol.sending import Sending, longest_block_ms
from toril.protocol.slots import MOST_REDIRECTIONS, SLOTS, Node, SlotMap, slot_of
from toril.version import VERSION

T = TypeVar("T")

Target = Union[str, redis.Redis, RedisCluster, "Connection", None]
"""What ``connection=`` takes: a URL, a redis-py client, a shared ``Connection``, or None."""

REPLY_TIMEOUT_S = 5.0
PATIENCE_S = 3.0
SHORTEST_PAUSE_S = 0.02
MOST_AT_ONCE = 64
MOST_SOCKETS = 16
_BLOCKING_MARGIN_S = 2.0
_WATCH_EVERY_S = 0.5
_TROUBLES = (redis.RedisError, OSError)
_LINE_TROUBLES = (redis.ConnectionError, redis.TimeoutError, OSError)
_ASKING = b"*1\r\n$6\r\nASKING\r\n"
_pack = cast(Callable[[tuple[Word, ...]], bytes], pack_command)


class Connection:
    """Runs commands, over as many sockets as are needed at once.

    ``patience_s`` is for how long a command that may be sent again is tried while nobody answers.
    """

    def __init__(
        self,
        target: Target = None,
        *,
        client_name: str | None = None,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._target = target
        self._transport = _open_transport(target, client_name)
        self._reply_timeout_s = reply_timeout_s
        self._patience_s = patience_s

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
        """On a cluster, refuse queues whose keys do not share a slot."""
        if self._transport.is_cluster:
            check_one_slot(*queues)

    async def run(self, command: Command[T]) -> T:
        """Send ``command`` and return what its answer says.

        Raises ``ServerUnavailableError`` when it had no effect, ``AmbiguousResultError`` when it
        may have had one.
        """
        return command.parse(await self._exchange(command))

    async def run_all(
        self, commands: Sequence[Command[T]], *, at_once: int = MOST_AT_ONCE
    ) -> list[T]:
        """Send independent commands in one go, at most ``at_once`` of them under way.

        Raises the first error when all have been answered.
        """
        if len(commands) == 1:
            return [await self.run(commands[0])]
        answers: list[T | Exception] = await self._exchange_all(commands, at_once)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return cast(list[T], answers)

    async def follow(self, plan: Plan[T]) -> T:
        """Run a plan, one round trip after another."""
        try:
            command = next(plan)
            while True:
                try:
                    result = await self._take_step(command)
                except Exception as error:  # noqa: BLE001 (the plan decides)
                    command = plan.throw(error)
                else:
                    command = plan.send(result)
        except StopIteration as end:
            return cast(T, end.value)

    async def _take_step(self, step: Command[Any] | list[Command[Any]]) -> Any:
        if isinstance(step, list):
            return await self.run_all(step)
        return await self.run(step)

    async def close(self) -> None:
        """Close every socket; waiting commands fail."""
        await self._transport.close()

    def twin(self, *, client_name: str | None = None) -> Connection:
        """Another connection to the same server, with sockets of its own."""
        return Connection(
            self._target,
            client_name=client_name,
            reply_timeout_s=self._reply_timeout_s,
            patience_s=self._patience_s,
        )

    async def _exchange(self, command: Command[Any]) -> Any:
        timeout_s = self._timeout_s(command.block_ms)
        sending = Sending(command)
        give_up_at = 0.0
        pause_s = SHORTEST_PAUSE_S
        while True:
            try:
                return await self._transport.exchange(sending, timeout_s)
            except _TROUBLES as error:
                if sending.goes_again_at_once(error):
                    continue
                now = time.monotonic()
                give_up_at = give_up_at or now + self._patience_s
                end = sending.end_after(error, repr(self), is_last=now >= give_up_at)
                if end is not None:
                    raise end from error
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))
            pause_s = min(pause_s * 2, 1.0)

    async def _exchange_all(self, commands: Sequence[Command[Any]], at_once: int) -> list[Any]:
        """The answer to each command, or the error that it met."""
        timeout_s = self._timeout_s(longest_block_ms(commands))
        sendings = [Sending(command) for command in commands]
        answers: list[Any] = [None] * len(commands)
        waiting = list(range(len(commands)))
        give_up_at = 0.0
        pause_s = SHORTEST_PAUSE_S
        while waiting:
            again: list[int] = []
            has_to_pause = False
            replies = await self._transport.exchange_all(
                [sendings[index] for index in waiting], timeout_s, at_once
            )
            for index, reply in zip(waiting, replies, strict=True):
                answers[index] = reply
                if not isinstance(reply, Exception):
                    continue
                if sendings[index].goes_again_at_once(reply):
                    again.append(index)
                    continue
                now = time.monotonic()
                give_up_at = give_up_at or now + self._patience_s
                end = sendings[index].end_after(reply, repr(self), is_last=now >= give_up_at)
                if end is None:
                    again.append(index)
                    has_to_pause = True
                else:
                    end.__cause__ = None if end is reply else reply
                    answers[index] = end
            waiting = again
            if has_to_pause:
                await asyncio.sleep(pause_s * random.uniform(0.5, 1))
                pause_s = min(pause_s * 2, 1.0)
        return answers

    def _timeout_s(self, block_ms: int) -> float:
        if block_ms:
            return block_ms / 1000 + _BLOCKING_MARGIN_S
        return self._reply_timeout_s


class Transport(Protocol):
    """Sends requests and reads their replies: on a server, or on the right node of a cluster."""

    is_cluster: bool
    is_closed: bool

    async def exchange(self, sending: Sending, timeout_s: float) -> Any:
        """The reply, or the error raised."""

    async def exchange_all(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        """The answer to each, or the error that it met; read while the next ones are under way."""

    async def close(self) -> None: ...


class ServerTransport:
    """One server, found by a URL, a client or Sentinel: a few sockets, opened when needed.

    A socket whose reply is overdue is cut by a watch that looks twice a second: a timer for every
    command would cost more than the command.
    """

    is_cluster = False

    def __init__(
        self,
        make_socket: Callable[[], Any],
        label: str,
        server: embedded.EmbeddedServer | None = None,
    ) -> None:
        self._make_socket = make_socket
        self._label = label
        self._server = server
        self._free: list[Any] = []
        self._deadlines: dict[Any, float] = {}
        self._watch: asyncio.TimerHandle | None = None
        self._room = asyncio.Semaphore(MOST_SOCKETS)
        self.is_closed = False

    def __str__(self) -> str:
        return self._label

    async def exchange(self, sending: Sending, timeout_s: float, *, is_asking: bool = False) -> Any:
        async with self._room:
            socket = self._borrow()
            try:
                if not socket.is_connected:
                    await _connect(socket)
                packed = _pack(sending.request())
                self._expect_reply(socket, timeout_s)
                sending.was_sent = True
                if is_asking:
                    packed = _ASKING + packed
                await socket.send_packed_command(packed, check_health=False)
                if is_asking:
                    await socket.read_response(disconnect_on_error=False)
                reply = await socket.read_response(disconnect_on_error=False)
            except ReadOnlyError:
                # A master no more: whoever looks again may find another one.
                await self._drop(socket)
                raise
            except redis.ResponseError:
                self._give_back(socket)
                raise
            except BaseException:
                await self._drop(socket)
                raise
            self._give_back(socket)
            return reply

    async def exchange_all(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        """Send on one socket, without waiting for one reply before the next request."""
        answers: list[Any] = []
        async with self._room:
            socket = self._borrow()
            try:
                await self._pipeline(socket, sendings, timeout_s, at_once, answers)
            except _TROUBLES as error:
                await self._drop(socket)
                return answers + [error] * (len(sendings) - len(answers))
            except BaseException:
                await self._drop(socket)
                raise
            self._give_back(socket)
            return answers

    async def _pipeline(
        self,
        socket: Any,
        sendings: Sequence[Sending],
        timeout_s: float,
        at_once: int,
        answers: list[Any],
    ) -> None:
        if not socket.is_connected:
            await _connect(socket)
        sent = 0
        while len(answers) < len(sendings):
            self._expect_reply(socket, timeout_s)
            if sent < len(sendings) and sent - len(answers) <= at_once // 2:
                part = sendings[sent : len(answers) + at_once]
                packed = b"".join([_pack(sending.request()) for sending in part])
                for sending in part:
                    sending.was_sent = True
                sent += len(part)
                await socket.send_packed_command(packed, check_health=False)
            try:
                reply = await socket.read_response(disconnect_on_error=False)
            except redis.ResponseError as error:
                answers.append(error)
                continue
            answers.append(sendings[len(answers)].answer(reply))

    def _borrow(self) -> Any:
        if self.is_closed:
            raise ServerUnavailableError(f"the connection to {self._label} is closed")
        socket = self._free.pop() if self._free else self._make_socket()
        self._deadlines[socket] = math.inf
        return socket

    def _give_back(self, socket: Any) -> None:
        del self._deadlines[socket]
        self._free.append(socket)

    async def _drop(self, socket: Any) -> None:
        """A socket that was left in the middle is never used again."""
        del self._deadlines[socket]
        await socket.disconnect(nowait=True)

    def _expect_reply(self, socket: Any, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._deadlines[socket] = loop.time() + timeout_s
        if self._watch is None:
            self._watch = loop.call_later(_WATCH_EVERY_S, self._cut_overdue)

    def _cut_overdue(self) -> None:
        loop = asyncio.get_running_loop()
        for socket, deadline in self._deadlines.items():
            if deadline < loop.time() and socket._writer is not None:
                socket._writer.transport.abort()
        self._watch = None
        if self._deadlines:
            self._watch = loop.call_later(_WATCH_EVERY_S, self._cut_overdue)

    async def close(self) -> None:
        self.is_closed = True
        if self._watch is not None:
            self._watch.cancel()
        sockets = [*self._free, *self._deadlines]
        self._free.clear()
        for socket in sockets:
            await socket.disconnect(nowait=True)
        if self._server is not None:
            self._server.close()


async def _connect(socket: Any) -> None:
    """Connecting ends with a question and an answer, which a server that hangs never gives."""
    async with asyncio.timeout(REPLY_TIMEOUT_S):
        await socket.connect()


class ClusterTransport:
    """A cluster: a few sockets to the node that serves a command's slot.

    A node that does not serve it any more says who does (MOVED), or who will in a moment (ASK); the
    command has not been done then, and is sent there.  While a slot moves, a script is refused
    (TRYAGAIN) until all its keys are in one place.
    """

    is_cluster = True

    def __init__(
        self, make_node: Callable[[Node], ServerTransport], seeds: Sequence[Node], label: str
    ) -> None:
        self._make_node = make_node
        self._label = label
        self._slots = SlotMap(seeds)
        self._nodes: dict[Node, ServerTransport] = {}
        self.is_closed = False

    def __str__(self) -> str:
        return self._label

    async def exchange(self, sending: Sending, timeout_s: float) -> Any:
        slot = slot_of(sending.command)
        node = await self._owner(slot)
        is_asking = False
        for _ in range(MOST_REDIRECTIONS):
            try:
                return await self._node(node).exchange(sending, timeout_s, is_asking=is_asking)
            except MovedError as error:
                node = self._slots.move(slot, error.host, error.port, node)
                is_asking = False
            except AskError as error:
                node = (error.host or node[0], error.port)
                is_asking = True
            except _LINE_TROUBLES:
                self._slots.forget()
                raise
            sending.was_sent = False
        raise redis.ConnectionError(f"{self._label} sends slot {slot} in circles")

    async def exchange_all(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        """On one socket when one node serves them all; what it sends elsewhere goes in order."""
        try:
            nodes = {await self._owner(slot_of(sending.command)) for sending in sendings}
        except _TROUBLES as error:
            return [error] * len(sendings)
        if len(nodes) > 1:
            return [await self._answer(sending, timeout_s) for sending in sendings]
        answers = await self._node(nodes.pop()).exchange_all(sendings, timeout_s, at_once)
        for index, answer in enumerate(answers):
            if isinstance(answer, AskError):
                sendings[index].was_sent = False
                answers[index] = await self._answer(sendings[index], timeout_s)
            elif isinstance(answer, _LINE_TROUBLES):
                self._slots.forget()
        return answers

    async def _answer(self, sending: Sending, timeout_s: float) -> Any:
        try:
            return sending.answer(await self.exchange(sending, timeout_s))
        except _TROUBLES as error:
            return error

    async def _owner(self, slot: int) -> Node:
        """The node that serves ``slot``; asks the nodes it knows when nobody has said so."""
        owner = self._slots.owner(slot)
        if owner is not None:
            return owner
        trouble: Exception = redis.ConnectionError(f"no node of {self._label} serves slot {slot}")
        for node in self._slots.nodes():
            try:
                reply = await self._node(node).exchange(Sending(SLOTS), REPLY_TIMEOUT_S)
            except _TROUBLES as error:
                trouble = error
                continue
            self._slots.learn(reply, node)
            owner = self._slots.owner(slot)
            if owner is not None:
                return owner
        raise trouble

    def _node(self, node: Node) -> ServerTransport:
        if self.is_closed:
            raise ServerUnavailableError(f"the connection to {self._label} is closed")
        transport = self._nodes.get(node)
        if transport is None:
            transport = self._nodes[node] = self._make_node(node)
        return transport

    async def close(self) -> None:
        self.is_closed = True
        for transport in self._nodes.values():
            await transport.close()


_KEPT_OPTIONS = frozenset(
    {"username", "password", "credential_provider", "ssl_keyfile", "ssl_certfile"}
    | {"ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_data", "ssl_check_hostname"}
)
try:
    from redis.driver_info import DriverInfo

    _WHO: dict[str, Any] = {"driver_info": DriverInfo().add_upstream_driver("toril", VERSION)}
except ImportError:  # redis-py before 7.2
    _WHO = {"lib_name": f"redis-py(toril_v{VERSION})"}

_SOCKET_OPTIONS: dict[str, Any] = {
    **_WHO,
    "decode_responses": False,
    "protocol": 2,
    "retry": Retry(NoBackoff(), 0),
    "retry_on_timeout": False,
    "retry_on_error": [],
    "socket_timeout": None,
    "socket_connect_timeout": REPLY_TIMEOUT_S,
    "socket_keepalive": True,
    "health_check_interval": 0,
    # A pool counts every socket that it ever made, and would refuse to make the 101st.
    "max_connections": 2**31 - 1,
}


def _open_transport(target: Target, client_name: str | None) -> Transport:
    if isinstance(target, Connection):
        raise InvalidOptionError("a Connection cannot be opened over another one")
    if isinstance(target, RedisCluster):
        return _cluster_like(target, client_name)
    if isinstance(target, redis.Redis):
        return _server_like(target, client_name)
    if target is None:
        target = os.environ.get("TORIL_URL") or address.DEFAULT_URL
    if not isinstance(target, str):
        raise InvalidOptionError(
            f"connection={target!r} is neither a URL nor an async redis-py client"
        )
    where = address.parse(target)
    options = {**_SOCKET_OPTIONS, "client_name": client_name}
    match where.kind:
        case "embedded":
            server = embedded.start(where.directory)
            return ServerTransport(_sockets_of(server.url, options), str(where), server)
        case "sentinel":
            return _through_sentinel(where, options)
        case "cluster":
            return _cluster_at(where, options)
    return ServerTransport(_sockets_of(where.url, options), str(where))


def _sockets_of(url: str, options: dict[str, Any]) -> Callable[[], Any]:
    pool = redis.ConnectionPool.from_url(url, **_fitting(url, options))
    return pool.make_connection


def _fitting(url: str, options: dict[str, Any]) -> dict[str, Any]:
    """Unix sockets know no keep-alive."""
    if url.startswith("unix:"):
        return {name: value for name, value in options.items() if name != "socket_keepalive"}
    return options


def _server_like(client: redis.Redis, client_name: str | None) -> Transport:
    """Sockets like those of a user's client, with our own rules about sending again."""
    pool = client.connection_pool
    options = {**pool.connection_kwargs, **_SOCKET_OPTIONS, "client_name": client_name}
    if "path" in options:
        options.pop("socket_keepalive", None)
    if isinstance(pool, SentinelConnectionPool):
        managed = SentinelConnectionPool(  # type: ignore[no-untyped-call]
            pool.service_name, pool.sentinel_manager, is_master=pool.is_master, **options
        )
        return ServerTransport(managed.make_connection, repr(pool.service_name))
    options = {name: value for name, value in options.items() if not name.startswith("maint_")}
    own = redis.ConnectionPool(connection_class=pool.connection_class, **options)
    where = options.get("path") or f"{options.get('host')}:{options.get('port')}"
    return ServerTransport(own.make_connection, str(where))


def _through_sentinel(where: address.Address, options: dict[str, Any]) -> Transport:
    options = {**options, **where.options}
    if not options.pop("ssl", None):
        options.pop("ssl", None)
    sentinel = Sentinel(list(where.hosts), socket_timeout=REPLY_TIMEOUT_S)  # type: ignore[no-untyped-call]
    pool = SentinelConnectionPool(where.service, sentinel, is_master=True, **options)  # type: ignore[no-untyped-call]
    return ServerTransport(pool.make_connection, str(where))


def _cluster_at(where: address.Address, options: dict[str, Any]) -> Transport:
    given = {**where.options, **options}
    is_tls = bool(given.pop("ssl", False))
    return ClusterTransport(_nodes_with(given, is_tls=is_tls), where.hosts, str(where))


def _cluster_like(client: RedisCluster, client_name: str | None) -> Transport:
    """Sockets to the same nodes as a user's client, with our own rules about sending again."""
    seeds = [(node.host, int(node.port)) for node in client.nodes_manager.startup_nodes.values()]
    kwargs = client.connection_kwargs
    given = {name: value for name, value in kwargs.items() if name in _KEPT_OPTIONS}
    options = {**given, **_SOCKET_OPTIONS, "client_name": client_name}
    is_tls = getattr(kwargs.get("connection_class"), "__name__", "").startswith("SSL")
    label = f"cluster at {seeds[0][0]}:{seeds[0][1]}"
    return ClusterTransport(_nodes_with(options, is_tls=is_tls), seeds, label)


def _nodes_with(options: dict[str, Any], *, is_tls: bool) -> Callable[[Node], ServerTransport]:
    connection_class: Any = redis.SSLConnection if is_tls else redis.Connection

    def make(node: Node) -> ServerTransport:
        pool: Any = redis.ConnectionPool(
            connection_class=connection_class, **{**options, "host": node[0], "port": node[1]}
        )
        return ServerTransport(pool.make_connection, f"{node[0]}:{node[1]}")

    return make


__all__ = ["Connection", "ServerError", "Target"]
