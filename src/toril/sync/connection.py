"""The door to the server for blocking code: the twin of ``toril.client.connection``.

A socket belongs to one thread at a time, and to one process: after a fork the child opens its own.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, Union, cast

import redis
import redis.asyncio
import redis.asyncio.cluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from toril.client import embedded
from toril.errors import (
    AmbiguousResultError,
    InvalidOptionError,
    ServerOutOfMemoryError,
    ServerUnavailableError,
    TorilError,
)
from toril.protocol import address
from toril.protocol.command import Command, Plan, Resend, Word
from toril.protocol.keys import Keys, check_one_slot
from toril.protocol.replies import Trouble, classify

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
PATIENCE_S = 10.0
_BLOCKING_MARGIN_S = 2.0


class Connection:
    """Runs commands and waits for their answers."""

    def __init__(
        self,
        target: Target = None,
        *,
        client_name: str | None = None,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._transport = _open_transport(target, client_name)
        self._reply_timeout_s = reply_timeout_s
        self._patience_s = patience_s

    def __repr__(self) -> str:
        return f"<Connection to {self._transport}>"

    def check_slots(self, *queues: Keys) -> None:
        """On a cluster, refuse queues whose keys do not share a slot."""
        if self._transport.is_cluster:
            check_one_slot(*queues)

    def run(self, command: Command[T]) -> T:
        """Send ``command`` and return what its answer says."""
        return command.parse(self._exchange(command))

    def run_all(self, commands: Sequence[Command[T]]) -> list[T]:
        """Run independent commands."""
        return [self.run(command) for command in commands]

    def follow(self, plan: Plan[T]) -> T:
        """Run a plan, one command after another."""
        try:
            command = next(plan)
            while True:
                try:
                    result = self.run(command)
                except Exception as error:  # noqa: BLE001 (the plan decides)
                    command = plan.throw(error)
                else:
                    command = plan.send(result)
        except StopIteration as end:
            return cast(T, end.value)

    def close(self) -> None:
        """Close every socket."""
        self._transport.close()

    def interrupt(self) -> None:
        """Wake a thread that waits in a blocking command; called from another thread."""
        self._transport.interrupt()

    def _exchange(self, command: Command[Any]) -> Any:
        timeout_s = self._reply_timeout_s
        if command.block_ms:
            timeout_s = command.block_ms / 1000 + _BLOCKING_MARGIN_S
        resent = by_source = False
        give_up_at = 0.0
        pause_s = 0.02
        while True:
            attempt = Attempt()
            try:
                request = command.request(resent=resent, by_source=by_source)
                return self._transport.exchange(request, timeout_s, attempt)
            except TorilError:
                raise
            except Exception as error:
                trouble = classify(error)
                if trouble is Trouble.UNKNOWN_SCRIPT and not by_source:
                    by_source = True
                    continue
                now = time.monotonic()
                give_up_at = give_up_at or now + self._patience_s
                may_have_run = attempt.was_sent and trouble is Trouble.LOST
                if not _may_try_again(trouble, command, may_have_run) or now > give_up_at:
                    raise _explained(error, trouble, may_have_run, self) from error
                resent = resent or may_have_run
            time.sleep(pause_s * random.uniform(0.5, 1))
            pause_s = min(pause_s * 2, 1.0)


class Attempt:
    """Notes of one try: did any byte of the command leave?"""

    __slots__ = ("was_sent",)

    def __init__(self) -> None:
        self.was_sent = False


class Transport(Protocol):
    """Sends one request and reads its reply."""

    is_cluster: bool

    def exchange(self, request: tuple[Word, ...], timeout_s: float, attempt: Attempt) -> Any: ...

    def close(self) -> None: ...

    def interrupt(self) -> None: ...


def _may_try_again(trouble: Trouble, command: Command[Any], may_have_run: bool) -> bool:
    if trouble is Trouble.NOT_NOW:
        return True
    return trouble is Trouble.LOST and not (may_have_run and command.resend is Resend.NEVER)


def _explained(
    error: Exception, trouble: Trouble, may_have_run: bool, connection: Connection
) -> Exception:
    if trouble is Trouble.OUT_OF_MEMORY:
        return ServerOutOfMemoryError(
            f"the server has reached its maxmemory and takes no more jobs ({error}); workers go on"
            f" draining: keep fewer finished jobs (remove_on_complete) or raise maxmemory"
        )
    if trouble is Trouble.LOST and may_have_run:
        return AmbiguousResultError(
            f"the reply of {connection!r} was lost ({error}); the command may have been done"
        )
    if trouble in (Trouble.LOST, Trouble.NOT_NOW):
        return ServerUnavailableError(
            f"{connection!r} does not serve ({error}); is the server up and the address right?"
        )
    return error


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
        self._pid = os.getpid()
        self._is_closed = False

    def __str__(self) -> str:
        return self._label

    def exchange(self, request: tuple[Word, ...], timeout_s: float, attempt: Attempt) -> Any:
        if self._is_closed:
            raise ServerUnavailableError(f"the connection to {self._label} is closed")
        connection = self._borrow()
        try:
            if connection._sock is None:
                connection.connect()
            connection._sock.settimeout(timeout_s)
            attempt.was_sent = True
            connection.send_packed_command(connection.pack_command(*request), check_health=False)
            reply = connection.read_response(disconnect_on_error=False)
        except redis.ResponseError:
            self._give_back(connection)
            raise
        except BaseException:
            with self._lock:
                self._in_use.discard(connection)
            connection.disconnect()
            raise
        self._give_back(connection)
        return reply

    def close(self) -> None:
        self._is_closed = True
        with self._lock:
            connections = [*self._free, *self._in_use]
            self._free.clear()
        for connection in connections:
            connection.disconnect()
        if self._server is not None:
            self._server.close()

    def interrupt(self) -> None:
        with self._lock:
            connections = list(self._in_use)
        for connection in connections:
            if connection._sock is not None:
                try:
                    connection._sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue

    def _borrow(self) -> Any:
        with self._lock:
            if self._pid != os.getpid():
                # Forked: the sockets are our parent's.
                self._pid = os.getpid()
                self._free = []
                self._in_use = set()
            connection = self._free.pop() if self._free else self._make_socket()
            self._in_use.add(connection)
        return connection

    def _give_back(self, connection: Any) -> None:
        with self._lock:
            self._in_use.discard(connection)
            self._free.append(connection)


class ClusterTransport:
    """A cluster: redis-py knows the slots and follows MOVED and ASK."""

    is_cluster = True

    def __init__(self, make_client: Callable[[], RedisCluster], label: str) -> None:
        self._make_client = make_client
        self._client: RedisCluster | None = None
        self._label = label
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return self._label

    def exchange(self, request: tuple[Word, ...], timeout_s: float, attempt: Attempt) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._make_client()
        attempt.was_sent = True
        return self._client.execute_command(*request)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        if self._client is not None:
            self._client.close()

    def interrupt(self) -> None:
        """Nothing to wake: blocking commands end by themselves within seconds."""


_SOCKET_OPTIONS: dict[str, Any] = {
    "decode_responses": False,
    "protocol": 2,
    "retry": Retry(NoBackoff(), 0),
    "retry_on_timeout": False,
    "retry_on_error": [],
    "socket_timeout": REPLY_TIMEOUT_S,
    "socket_connect_timeout": REPLY_TIMEOUT_S,
    "socket_keepalive": True,
    "health_check_interval": 0,
}
_CLUSTER_OPTIONS: dict[str, Any] = {
    "decode_responses": False,
    "protocol": 2,
    "retry": Retry(NoBackoff(), 0),
    "socket_timeout": 15.0,
    "socket_connect_timeout": REPLY_TIMEOUT_S,
    "require_full_coverage": False,
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
            return _cluster_at(where, client_name)
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


def _cluster_at(where: address.Address, client_name: str | None) -> Transport:
    def make() -> RedisCluster:
        nodes = [_node(host, port) for host, port in where.hosts]
        options: dict[str, Any] = {**_CLUSTER_OPTIONS, **where.options, "client_name": client_name}
        return RedisCluster(startup_nodes=nodes, **options)

    return ClusterTransport(make, str(where))


def _cluster_like(client: Any, client_name: str | None) -> Transport:
    nodes = [(node.host, int(node.port)) for node in client.nodes_manager.startup_nodes.values()]
    kwargs = getattr(client, "connection_kwargs", None) or client.get_connection_kwargs()
    given = {name: value for name, value in kwargs.items() if name in ("username", "password")}

    def make() -> RedisCluster:
        options: dict[str, Any] = {**given, **_CLUSTER_OPTIONS, "client_name": client_name}
        return RedisCluster(startup_nodes=[_node(*node) for node in nodes], **options)

    return ClusterTransport(make, f"cluster at {nodes[0][0]}:{nodes[0][1]}")


def _node(host: str, port: int) -> ClusterNode:
    return ClusterNode(host, port)  # type: ignore[no-untyped-call]
