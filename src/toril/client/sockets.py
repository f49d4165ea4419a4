"""Sockets, made by redis-py: it speaks TLS, greets the server and asks sentinels for the master.

This is the only module that imports it. Its own retries are off: a write that may have happened
must not be sent again blindly. No setting of the user may change how replies are read or how long
to wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from functools import cache, partial
from inspect import signature
from ssl import CERT_NONE
from typing import Any, cast

from hiredis import Reader
from redis import __version__ as redis_version
from redis.asyncio import Redis
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    ClusterDownError,
    InvalidResponse,
    MovedError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as LineError
from redis.exceptions import TimeoutError as LateError
from redis.retry import Retry

from toril.client.places import PerPlace
from toril.errors import InvalidOptionError
from toril.protocol import failovers, scripts
from toril.protocol.address import Address, kept
from toril.protocol.failovers import Told
from toril.protocol.slots import Node
from toril.version import VERSION

try:
    from fcntl import ioctl
    from termios import TIOCOUTQ

    _CAN_TELL = True
except ImportError:  # Windows
    _CAN_TELL = False

TROUBLES = (RedisError, OSError)
LINE_TROUBLES = (LineError, LateError, OSError)
NODE_TROUBLES = (*LINE_TROUBLES, ClusterDownError)
"""What a node of a cluster meets or says when another one may serve its slots by now."""
REPLY_TIMEOUT_S = 5.0
_LISTEN_AGAIN_S = 1.0
_LONGEST_SILENCE_S = 5.0


@cache
def _who() -> dict[str, Any]:
    """How the server lists us: the version, and the function library that we call."""
    version = f"{VERSION}+{scripts.library().version}"
    try:
        from redis.driver_info import DriverInfo
    except ImportError:  # redis-py before 7.2
        return {"lib_name": f"redis-py(toril_v{version})"}
    return {"driver_info": DriverInfo().add_upstream_driver("toril", version)}


_OPTIONS: dict[str, Any] = {
    "decode_responses": False,
    "protocol": 2,
    "retry": Retry(NoBackoff(), 0),
    "retry_on_timeout": False,
    "retry_on_error": [],
    "socket_connect_timeout": REPLY_TIMEOUT_S,
    "socket_keepalive": True,
    "health_check_interval": 0,
    # A pool counts every socket it has ever made, and would refuse to make the 101st.
    "max_connections": 2**31 - 1,
}

_CHECKS_HOSTS = bool(signature(SSLConnection).parameters["ssl_check_hostname"].default)
"""Does this version of redis-py check that a certificate is for the host?"""

LARGE = 65_536
"""A request of more bytes may take its time to leave: see ``unacknowledged``."""

MakeSocket = Callable[[], Any]
NOT_YET = object()
"""What a reader returns while a reply is incomplete."""
News = Callable[[], AsyncIterator[Node | Told]]
"""Told where the primary is, at first and whenever it changes, and when it is about to change."""


def maker(
    where: Address,
    *,
    client_name: str | None,
    socket_timeout_s: float | None,
    node: Node | None = None,
) -> MakeSocket:
    """A factory of sockets to a server, or to a ``node`` of a cluster; nothing is opened yet."""
    own = {**_OPTIONS, **_who(), "socket_timeout": socket_timeout_s, "client_name": client_name}
    if where.kind == "sentinel":
        return _through_sentinel(where, own)
    given, socket_class = _settings(where)
    if issubclass(socket_class, SSLConnection):
        given = _checking_hosts(given, where)
    options = {**given, **own}
    if node is not None:
        options["host"], options["port"] = node
    if "path" in options:
        del options["socket_keepalive"]
    pool: Any = ConnectionPool(connection_class=socket_class, **options)
    return partial(_make, pool, where)


def address_of(make: MakeSocket) -> Node:
    """Where its sockets connect to; there is no host for a unix socket."""
    socket = make()
    return str(getattr(socket, "host", "")), int(getattr(socket, "port", 0))


def _make(pool: Any, where: Address) -> Any:
    try:
        return pool.make_connection()
    except TypeError:
        pass
    raise _unknown_option(where)


def make_reader(socket: Any) -> Reader:
    """A parser for the replies of an open socket; it reads errors like redis-py."""
    return Reader(
        protocolError=InvalidResponse, replyError=socket._parser.parse_error, notEnoughData=NOT_YET
    )


def unacknowledged(sock: Any) -> int:
    """How many bytes the system holds that have not reached the other side; 0 if it cannot tell.

    It may hold megabytes, which a slow link takes longer to carry than any reply may take.
    """
    if not _CAN_TELL or sock is None:
        return 0
    try:
        return int.from_bytes(ioctl(sock.fileno(), TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):  # closed, or a kind of socket that does not know
        return 0


def _unknown_option(where: Address) -> InvalidOptionError:
    # Show neither its name nor redis-py's message: in a mistyped URL it may be part of a password.
    return InvalidOptionError(
        f"connection '{where}' has an option that redis-py {redis_version} does not know;"
        f" look at what follows the '?'"
    )


def _settings(where: Address) -> tuple[dict[str, Any], Any]:
    """The options of a socket as the user gave them, and its class."""
    if where.url and where.kind == "server":
        given = _parsed(where)
        return given, given.pop("connection_class", Connection)
    if isinstance(where.socket_class, type) and issubclass(where.socket_class, AbstractConnection):
        return where.options, where.socket_class
    given = kept(where.options)
    if "path" in given:
        return given, UnixDomainSocketConnection
    return given, SSLConnection if where.is_tls else Connection


def _checking_hosts(given: dict[str, Any], where: Address) -> dict[str, Any]:
    """The same options, plus the check that a certificate is for the host, unless it is waived.

    Redis-py before 6 does not check this by default.  The setting of one of its clients is ignored,
    because every client has it set.
    """
    if "ssl_cert_reqs" in given and given["ssl_cert_reqs"] in (None, "none", CERT_NONE):
        return given
    is_waived = given.get("ssl_check_hostname") is False and (_CHECKS_HOSTS or bool(where.url))
    return given if is_waived else {**given, "ssl_check_hostname": True}


def _parsed(where: Address) -> dict[str, Any]:
    try:
        return dict(cast(Any, parse_url)(where.url))
    except ValueError:
        pass
    # Outside of the handler: redis-py's message may quote a part of the URL.
    raise InvalidOptionError(
        f"connection '{where}' has an option of the wrong type; socket_timeout, db and such take"
        f" numbers, and a port is below 65536"
    )


def _through_sentinel(where: Address, own: dict[str, Any]) -> MakeSocket:
    options = {**where.options, **own, "ssl": where.is_tls}
    if where.is_tls:
        options = _checking_hosts(options, where)
    sentinel = _sentinel(where, _sentinel_options(where))
    pool: Any = SentinelConnectionPool(  # type: ignore[no-untyped-call]
        where.service, sentinel, is_master=True, **options
    )
    return partial(_make, pool, where)


def _sentinel_options(where: Address) -> dict[str, Any]:
    options = where.sentinel_options
    if options.get("ssl"):
        options = _checking_hosts(options, where)
    # One that does not answer is asked again only after the others.
    return {**options, "socket_timeout": REPLY_TIMEOUT_S, "retry": Retry(NoBackoff(), 0)}


def _sentinel(where: Address, options: dict[str, Any]) -> Any:
    try:
        return _Sentinel(list(where.hosts), sentinel_kwargs=options)
    except TypeError:
        pass
    raise _unknown_option(where)


class _Sentinel(Sentinel):
    """Says which sentinels were asked in vain, without passwords, which redis-py may show.

    Each event loop asks on its own sockets.
    """

    def __init__(self, hosts: list[Node], sentinel_kwargs: dict[str, Any]) -> None:
        def make() -> Any:
            return cast(Any, Sentinel)(hosts, sentinel_kwargs=sentinel_kwargs).sentinels

        cast(Any, super()).__init__(hosts, sentinel_kwargs=sentinel_kwargs)
        self._asked = PerPlace(make)

    async def discover_master(self, service_name: str) -> Any:
        self.sentinels = self._asked.here()
        try:
            return await cast(Any, super()).discover_master(service_name)
        except MasterNotFoundError as error:
            is_refused = "AuthenticationError" in str(error)
        asked = [one.connection_pool.connection_kwargs for one in self.sentinels]
        hosts = ", ".join(f"{one.get('host')}:{one.get('port')}" for one in asked)
        raise MasterNotFoundError(
            f"no sentinel of {hosts} answers and knows the master {service_name!r}"
            + ("; AuthenticationError" if is_refused else "")
        )


def news_of_primary(where: Address) -> list[News]:
    """What each sentinel announces, as long as somebody listens; nothing for other servers.

    It listens to all of them: only the one that leads a failover announces it in advance.
    """
    if where.kind != "sentinel":
        return []
    return [partial(_news, where, host, port) for host, port in where.hosts]


async def _news(where: Address, host: str, port: int) -> AsyncIterator[Node | Told]:
    options: dict[str, Any] = {
        **_sentinel_options(where),
        "socket_connect_timeout": REPLY_TIMEOUT_S,
        "health_check_interval": 10,
        "decode_responses": True,
    }
    while True:
        sentinel: Any = Redis(host=host, port=port, **options)
        try:
            ears: Any = sentinel.pubsub(ignore_subscribe_messages=True)
            await ears.subscribe(*failovers.CHANNELS)
            # Asked after subscribing: later changes are announced, this covers earlier ones.
            named = await sentinel.execute_command(
                "SENTINEL", "GET-MASTER-ADDR-BY-NAME", where.service
            )
            if named:
                yield str(named[0]), int(named[1])
            while True:
                message = await ears.get_message(timeout=_LONGEST_SILENCE_S)
                yield failovers.read(message, where.service)
        except TROUBLES:
            yield Told.NOTHING  # the sockets meet the same problem, and report it
        finally:
            with contextlib.suppress(*TROUBLES):
                await sentinel.aclose()
        await asyncio.sleep(_LISTEN_AGAIN_S)


__all__ = [
    "LARGE",
    "LINE_TROUBLES",
    "NODE_TROUBLES",
    "NOT_YET",
    "REPLY_TIMEOUT_S",
    "TROUBLES",
    "AskError",
    "LateError",
    "LineError",
    "MakeSocket",
    "MovedError",
    "News",
    "ReadOnlyError",
    "Reader",
    "ResponseError",
    "address_of",
    "make_reader",
    "maker",
    "news_of_primary",
    "unacknowledged",
]
