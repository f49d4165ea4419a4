"""The door to the server for blocking code: the twin of ``toril.client.connection``.

A socket belongs to one thread at a time, and to one process: after a fork the child opens its own.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, Union, cast

import redis
import redis.asyncio
import redis.asyncio.cluster
from hiredis import pack_command
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import AskError, MovedError, ReadOnlyError
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from toril.client import embedded
from toril.errors import (
    InvalidOptionError,
    ServerUnavailableError,
)
from toril.protocol import address
from toril.protocol.command import Command, Plan, Word
from toril.protocol.keys import Keys, check_one_slot
from toril.protocol.sending import Sending, longest_block_ms
from toril.protocol.slots import MOST_REDIRECTIONS, SLOTS, Node, SlotMap, slot_of
from toril.version import VERSION

T = TypeVar("T")

Target = Union[
    str,
    redis.Redis,
    RedisCluster,
    redis.asyncio.Redis,
    redis.asyncio.cluster.RedisCluster,
    "Connection",
    None,
]

REPLY_TIMEOUT_S = 5.0
PATIENCE_S = 3.0
SHORTEST_PAUSE_S = 0.02
MOST_AT_ONCE = 64
_BLOCKING_MARGIN_S = 2.0
_TROUBLES = (redis.RedisError, OSError)
_LINE_TROUBLES = (redis.ConnectionError, redis.TimeoutError, OSError)
_ASKING = b"*1\r\n$6\r\nASKING\r\n"
_pack = cast(Callable[[tuple[Word, ...]], bytes], pack_command)


class Connection:
    """Runs commands and waits for their answers."""

    def __init__(
        self,
        target: Target = None,
        *,
        client_name: str | None = None,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
        blocking_margin_s: float = _BLOCKING_MARGIN_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._target = target
        self._transport = _open_transport(target, client_name)
        self._reply_timeout_s = reply_timeout_s
        self._blocking_margin_s = blocking_margin_s
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

    def run(self, command: Command[T]) -> T:
        """Send ``command`` and return what its answer says."""
        return command.parse(self._exchange(command))

    def run_all(self, commands: Sequence[Command[T]], *, at_once: int = MOST_AT_ONCE) -> list[T]:
        """Send independent commands in one go, at most ``at_once`` of them under way.

        Raises the first error when all have been answered.
        """
        if len(commands) == 1:
            return [self.run(commands[0])]
        answers: list[T | Exception] = self._exchange_all(commands, at_once)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return cast(list[T], answers)

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
        """Close every socket."""
        self._transport.close()

    def interrupt(self) -> None:
        """Send nothing any more, and wake the threads that wait; called from another thread."""
        self._transport.interrupt()

    def twin(self, *, client_name: str | None = None) -> Connection:
        """Another connection to the same server, with sockets of its own."""
        return Connection(
            self._target,
            client_name=client_name,
            reply_timeout_s=self._reply_timeout_s,
            blocking_margin_s=self._blocking_margin_s,
            patience_s=self._patience_s,
        )

    def _exchange(self, command: Command[Any]) -> Any:
        timeout_s = self._timeout_s(command.block_ms)
        sending = Sending(command)
        give_up_at = 0.0
        pause_s = SHORTEST_PAUSE_S
        while True:
            try:
                return self._transport.exchange(sending, timeout_s)
            except _TROUBLES as error:
                if sending.goes_again_at_once(error):
                    continue
                now = time.monotonic()
                give_up_at = give_up_at or now + self._patience_s
                end = sending.end_after(error, repr(self), is_last=now >= give_up_at)
                if end is not None:
                    raise end from error
            time.sleep(pause_s * random.uniform(0.5, 1))
            pause_s = min(pause_s * 2, 1.0)

    def _exchange_all(self, commands: Sequence[Command[Any]], at_once: int) -> list[Any]:
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
            replies = self._transport.exchange_all(
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
                time.sleep(pause_s * random.uniform(0.5, 1))
                pause_s = min(pause_s * 2, 1.0)
        return answers

    def _timeout_s(self, block_ms: int) -> float:
        if block_ms:
            return block_ms / 1000 + self._blocking_margin_s
        return self._reply_timeout_s


class Transport(Protocol):
    """Sends requests and reads their replies: on a server, or on the right node of a cluster."""

    is_cluster: bool
    is_closed: bool

    def exchange(self, sending: Sending, timeout_s: float) -> Any:
        """The reply, or the error raised."""

    def exchange_all(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        """The answer to each, or the error that it met; read while the next ones are under way."""

    def close(self) -> None: ...

    def interrupt(self) -> None: ...


class ServerTransport:
    """One server: a socket per thread that uses it at the same time."""

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
        self._lock = threading.Lock()
        self._free: list[Any] = []
        self._in_use: set[Any] = set()
        self.is_closed = False
        _transports.add(self)

    def __str__(self) -> str:
        return self._label

    def exchange(self, sending: Sending, timeout_s: float, *, is_asking: bool = False) -> Any:
        connection = self._borrow()
        try:
            self._connect(connection, timeout_s)
            packed = _pack(sending.request())
            sending.was_sent = True
            if is_asking:
                packed = _ASKING + packed
            connection.send_packed_command([packed], check_health=False)
            if is_asking:
                connection.read_response(disconnect_on_error=False)
            reply = connection.read_response(disconnect_on_error=False)
        except ReadOnlyError:
            # A master no more: whoever looks again may find another one.
            self._drop(connection)
            raise
        except redis.ResponseError:
            self._give_back(connection)
            raise
        except BaseException:
            self._drop(connection)
            raise
        self._give_back(connection)
        return reply

    def exchange_all(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        """Send on one socket, without waiting for one reply before the next request."""
        answers: list[Any] = []
        connection = self._borrow()
        try:
            self._pipeline(connection, sendings, timeout_s, at_once, answers)
        except _TROUBLES as error:
            self._drop(connection)
            return answers + [error] * (len(sendings) - len(answers))
        except BaseException:
            self._drop(connection)
            raise
        self._give_back(connection)
        return answers

    def _pipeline(
        self,
        connection: Any,
        sendings: Sequence[Sending],
        timeout_s: float,
        at_once: int,
        answers: list[Any],
    ) -> None:
        self._connect(connection, timeout_s)
        sent = 0
        while len(answers) < len(sendings):
            if sent < len(sendings) and sent - len(answers) <= at_once // 2:
                part = sendings[sent : len(answers) + at_once]
                packed = b"".join([_pack(sending.request()) for sending in part])
                for sending in part:
                    sending.was_sent = True
                sent += len(part)
                connection.send_packed_command([packed], check_health=False)
            try:
                reply = connection.read_response(disconnect_on_error=False)
            except redis.ResponseError as error:
                answers.append(error)
                continue
            answers.append(sendings[len(answers)].answer(reply))

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            connections = [*self._free, *self._in_use]
            self._free.clear()
        for connection in connections:
            connection.disconnect()
        if self._server is not None:
            self._server.close()

    def interrupt(self) -> None:
        with self._lock:
            self.is_closed = True
            connections = list(self._in_use)
        for connection in connections:
            _shut(connection)

    def forget_sockets(self) -> None:
        """In a forked child: the sockets are the parent's, and so may be whoever holds the lock."""
        self._lock = threading.Lock()
        self._free = []
        self._in_use = set()

    def _borrow(self) -> Any:
        with self._lock:
            self._refuse_if_closed()
            connection = self._free.pop() if self._free else self._make_socket()
            self._in_use.add(connection)
        return connection

    def _connect(self, connection: Any, timeout_s: float) -> None:
        if connection._sock is None:
            connection.connect()
            # Whoever closed meanwhile saw no socket to shut.
            self._refuse_if_closed()
        connection._sock.settimeout(timeout_s)

    def _refuse_if_closed(self) -> None:
        if self.is_closed:
            raise ServerUnavailableError(f"the connection to {self._label} is closed")

    def _give_back(self, connection: Any) -> None:
        with self._lock:
            self._in_use.discard(connection)
            if not self.is_closed:
                self._free.append(connection)
                return
        connection.disconnect()

    def _drop(self, connection: Any) -> None:
        """A socket that was left in the middle is never used again."""
        with self._lock:
            self._in_use.discard(connection)
        connection.disconnect()


class ClusterTransport:
    """A cluster: sockets to the node that serves a command's slot; see the async twin."""

    is_cluster = True

    def __init__(
        self, make_node: Callable[[Node], ServerTransport], seeds: Sequence[Node], label: str
    ) -> None:
        self._make_node = make_node
        self._label = label
        self._slots = SlotMap(seeds)
        self._nodes: dict[Node, ServerTransport] = {}
        self._lock = threading.Lock()
        self.is_closed = False
        _transports.add(self)

    def __str__(self) -> str:
        return self._label

    def exchange(self, sending: Sending, timeout_s: float) -> Any:
        slot = slot_of(sending.command)
        node = self._owner(slot)
        is_asking = False
        for _ in range(MOST_REDIRECTIONS):
            try:
                return self._node(node).exchange(sending, timeout_s, is_asking=is_asking)
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

    def exchange_all(
        self, sendings: Sequence[Sending], timeout_s: float, at_once: int
    ) -> list[Any]:
        """On one socket when one node serves them all; what it sends elsewhere goes in order."""
        try:
            nodes = {self._owner(slot_of(sending.command)) for sending in sendings}
        except _TROUBLES as error:
            return [error] * len(sendings)
        if len(nodes) > 1:
            return [self._answer(sending, timeout_s) for sending in sendings]
        answers = self._node(nodes.pop()).exchange_all(sendings, timeout_s, at_once)
        for index, answer in enumerate(answers):
            if isinstance(answer, AskError):
                sendings[index].was_sent = False
                answers[index] = self._answer(sendings[index], timeout_s)
            elif isinstance(answer, _LINE_TROUBLES):
                self._slots.forget()
        return answers

    def _answer(self, sending: Sending, timeout_s: float) -> Any:
        try:
            return sending.answer(self.exchange(sending, timeout_s))
        except _TROUBLES as error:
            return error

    def _owner(self, slot: int) -> Node:
        owner = self._slots.owner(slot)
        if owner is not None:
            return owner
        trouble: Exception = redis.ConnectionError(f"no node of {self._label} serves slot {slot}")
        for node in self._slots.nodes():
            try:
                reply = self._node(node).exchange(Sending(SLOTS), REPLY_TIMEOUT_S)
            except _TROUBLES as error:
                trouble = error
                continue
            self._slots.learn(reply, node)
            owner = self._slots.owner(slot)
            if owner is not None:
                return owner
        raise trouble

    def _node(self, node: Node) -> ServerTransport:
        with self._lock:
            if self.is_closed:
                raise ServerUnavailableError(f"the connection to {self._label} is closed")
            transport = self._nodes.get(node)
            if transport is None:
                transport = self._nodes[node] = self._make_node(node)
        return transport

    def forget_sockets(self) -> None:
        """In a forked child: the nodes forget theirs themselves."""
        self._lock = threading.Lock()

    def close(self) -> None:
        for transport in self._ending():
            transport.close()

    def interrupt(self) -> None:
        for transport in self._ending():
            transport.interrupt()

    def _ending(self) -> list[ServerTransport]:
        with self._lock:
            self.is_closed = True
            return list(self._nodes.values())


def _shut(connection: Any) -> None:
    """Wake whoever reads from this socket."""
    if connection._sock is not None:
        with contextlib.suppress(OSError):
            connection._sock.shutdown(socket.SHUT_RDWR)


_transports: weakref.WeakSet[ServerTransport | ClusterTransport] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for transport in _transports:
        transport.forget_sockets()


os.register_at_fork(after_in_child=_after_fork_in_child)

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
    "socket_timeout": REPLY_TIMEOUT_S,
    "socket_connect_timeout": REPLY_TIMEOUT_S,
    "socket_keepalive": True,
    "health_check_interval": 0,
    # A pool counts every socket that it ever made, and would refuse to make the 101st.
    "max_connections": 2**31 - 1,
}
_KEPT_OPTIONS = frozenset(
    {"host", "port", "path", "db", "username", "password", "credential_provider", "ssl_keyfile"}
    | {"ssl_certfile", "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_data", "ssl_check_hostname"}
)


def _open_transport(target: Target, client_name: str | None) -> Transport:
    if isinstance(target, Connection):
        raise InvalidOptionError("a Connection cannot be opened over another one")
    if isinstance(target, (RedisCluster, redis.asyncio.cluster.RedisCluster)):
        return _cluster_like(target, client_name)
    if isinstance(target, (redis.Redis, redis.asyncio.Redis)):
        return _server_like(target, client_name)
    if target is None:
        target = os.environ.get("TORIL_URL") or address.DEFAULT_URL
    if not isinstance(target, str):
        raise InvalidOptionError(f"connection={target!r} is neither a URL nor a redis-py client")
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
    if url.startswith("unix:"):
        options = {name: value for name, value in options.items() if name != "socket_keepalive"}
    pool = redis.ConnectionPool.from_url(url, **options)
    return pool.make_connection


def _server_like(client: Any, client_name: str | None) -> Transport:
    """Sockets to the same server as a user's client, async or not."""
    pool = client.connection_pool
    given = {name: value for name, value in pool.connection_kwargs.items() if name in _KEPT_OPTIONS}
    options = {**given, **_SOCKET_OPTIONS, "client_name": client_name}
    if hasattr(pool, "service_name"):
        addresses = [
            (
                node.connection_pool.connection_kwargs["host"],
                node.connection_pool.connection_kwargs["port"],
            )
            for node in pool.sentinel_manager.sentinels
        ]
        sentinel = Sentinel(addresses, socket_timeout=REPLY_TIMEOUT_S)  # type: ignore[no-untyped-call]
        own = SentinelConnectionPool(pool.service_name, sentinel, is_master=True, **options)  # type: ignore[no-untyped-call]
        return ServerTransport(own.make_connection, repr(pool.service_name))
    kind = pool.connection_class.__name__
    if "path" in options:
        options.pop("socket_keepalive", None)
        connection_class: Any = redis.UnixDomainSocketConnection
    else:
        connection_class = redis.SSLConnection if kind.startswith("SSL") else redis.Connection
    own_pool = redis.ConnectionPool(connection_class=connection_class, **options)
    where = options.get("path") or f"{options.get('host')}:{options.get('port')}"
    return ServerTransport(own_pool.make_connection, str(where))


def _through_sentinel(where: address.Address, options: dict[str, Any]) -> Transport:
    options = {**options, **where.options}
    sentinel = Sentinel(list(where.hosts), socket_timeout=REPLY_TIMEOUT_S)  # type: ignore[no-untyped-call]
    pool = SentinelConnectionPool(where.service, sentinel, is_master=True, **options)  # type: ignore[no-untyped-call]
    return ServerTransport(pool.make_connection, str(where))


def _cluster_at(where: address.Address, options: dict[str, Any]) -> Transport:
    given = {**where.options, **options}
    is_tls = bool(given.pop("ssl", False))
    return ClusterTransport(_nodes_with(given, is_tls=is_tls), where.hosts, str(where))


def _cluster_like(client: Any, client_name: str | None) -> Transport:
    """Sockets to the same nodes as a user's client, async or not."""
    seeds = [(node.host, int(node.port)) for node in client.nodes_manager.startup_nodes.values()]
    kwargs = getattr(client, "connection_kwargs", None) or client.get_connection_kwargs()
    given = {name: value for name, value in kwargs.items() if name in _KEPT_OPTIONS}
    options = {**given, **_SOCKET_OPTIONS, "client_name": client_name}
    is_tls = bool(kwargs.get("ssl")) or getattr(
        kwargs.get("connection_class"), "__name__", ""
    ).startswith("SSL")
    label = f"cluster at {seeds[0][0]}:{seeds[0][1]}"
    return ClusterTransport(_nodes_with(options, is_tls=is_tls), seeds, label)


def _nodes_with(options: dict[str, Any], *, is_tls: bool) -> Callable[[Node], ServerTransport]:
    connection_class: Any = redis.SSLConnection if is_tls else redis.Connection

    def make(node: Node) -> ServerTransport:
        pool = redis.ConnectionPool(
            connection_class=connection_class, **{**options, "host": node[0], "port": node[1]}
        )
        return ServerTransport(pool.make_connection, f"{node[0]}:{node[1]}")

    return make
