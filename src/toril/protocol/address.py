"""Where the server is: the forms that ``connection=`` takes, read into one value.

Of a redis-py client only its settings are read, so that an async one serves blocking code as well:
no module of the client library is needed for that.

What may be a secret is never shown.  Passwords stand in credentials and in options, and in a URL
that was mistyped anywhere; so only those parts are shown that were read as what they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec

from toril.errors import InvalidOptionError

DEFAULT_URL = "redis://127.0.0.1:6379"
_PLAIN_SCHEMES = ("redis", "rediss", "unix")
_MANY_SCHEMES = tuple(
    f"{scheme}+{flavour}" for scheme in ("redis", "rediss") for flavour in ("sentinel", "cluster")
)
_HOST = re.compile(r"(\[[\w:.%]+\]|[\w.-]*)(:\d{1,5})?")
_DATABASE = re.compile(r"/?\d*/?")
_MASTER = re.compile(r"/[\w.-]*(/\d*)?")
_CREDENTIAL = re.compile(r"\w*(password|username)=")
_SWITCH = {"true": True, "yes": True, "false": False, "no": False}
_SENTINEL_OPTION = "sentinel_"
_KEPT_OPTIONS = frozenset(
    {"host", "port", "path", "db", "username", "password", "credential_provider"}
    | {"socket_type", "socket_keepalive_options"}
)


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """What to connect to: a ``server``, ``embedded``, ``sentinel`` or ``cluster``.

    ``options`` are those of a socket, in redis-py's names; a ``server`` has them or a ``url``.
    ``socket_class`` is that of the client that it was read from.
    """

    kind: str
    url: str = ""
    label: str = ""
    directory: str | None = None
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""
    options: dict[str, Any] = {}
    sentinel_options: dict[str, Any] = {}
    is_tls: bool = False
    socket_class: Any = None

    def __repr__(self) -> str:
        return f"<Address {self}>"

    def __str__(self) -> str:
        """For messages: without anything that may be a secret."""
        if self.label:
            return self.label
        return redacted(self.url) if self.url else f"{self.kind}:{self.directory or ''}"


def parse(url: str) -> Address:
    """The address that ``url`` names."""
    if url.startswith("embedded:"):
        return Address(kind="embedded", directory=url.removeprefix("embedded:") or None)
    parts = _split(url)
    if parts is None or parts.scheme not in (*_PLAIN_SCHEMES, *_MANY_SCHEMES):
        raise InvalidOptionError(
            f"connection {redacted(url)!r} is not understood; use redis://, rediss://, unix://, "
            f"redis+sentinel://, redis+cluster:// or embedded:"
        )
    if not _is_as_meant(parts):
        raise InvalidOptionError(
            f"connection {redacted(url)!r} cannot be read; write scheme://user:password@host:port, "
            f"and in a password %2F for '/', %3F for '?', %23 for '#', %40 for '@'"
        )
    if parts.scheme in _PLAIN_SCHEMES:
        return Address(kind="server", url=url)
    return _many(url, parts)


def _split(url: str) -> SplitResult | None:
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _is_as_meant(parts: SplitResult) -> bool:
    """Are there hosts where hosts belong, and credentials nowhere else?

    A ``/``, ``?`` or ``#`` in a password ends the part with the hosts too early.
    """
    hosts = parts.netloc.rpartition("@")[2].split(",")
    options = parts.query.split("&") if parts.query else ()
    return (
        all(_HOST.fullmatch(host) for host in hosts)
        and bool(parts.netloc or parts.scheme == "unix")
        and ("@" not in parts.path or parts.scheme == "unix")
        and all("=" in one and ("@" not in one or _CREDENTIAL.match(one)) for one in options)
        and not parts.fragment
    )


def _many(url: str, parts: SplitResult) -> Address:
    scheme, _, flavour = parts.scheme.partition("+")
    tls = scheme == "rediss"
    credentials, _, host_list = parts.netloc.rpartition("@")
    default_port = 26379 if flavour == "sentinel" else 6379
    hosts = tuple(_host(item, default_port) for item in host_list.split(",") if item)
    if not hosts:
        raise InvalidOptionError(f"connection {redacted(url)!r} has no host")
    given = {name: _SWITCH.get(value.lower(), value) for name, value in parse_qsl(parts.query)}
    sentinel_options: dict[str, Any] = {
        name.removeprefix(_SENTINEL_OPTION): value
        for name, value in given.items()
        if name.startswith(_SENTINEL_OPTION)
    }
    options: dict[str, Any] = {
        name: value for name, value in given.items() if not name.startswith(_SENTINEL_OPTION)
    }
    username, _, password = credentials.partition(":")
    if username:
        options["username"] = unquote(username)
    if password:
        options["password"] = unquote(password)
    if tls:
        # Who can be told another master can be told everything: sentinels are spoken to as safely.
        certificates = {name: value for name, value in options.items() if name.startswith("ssl_")}
        sentinel_options = {"ssl": True, **certificates, **sentinel_options}
    segments = [segment for segment in parts.path.split("/") if segment]
    service = ""
    if flavour == "sentinel":
        if not segments:
            raise InvalidOptionError(
                f"connection {redacted(url)!r} has no master name; write "
                f"redis+sentinel://host:26379/mymaster/0"
            )
        service = segments[0]
        if len(segments) > 1:
            if not segments[1].isdecimal():
                raise InvalidOptionError(
                    f"connection {redacted(url)!r} has a database that is not a number; write "
                    f"redis+sentinel://host:26379/mymaster/0"
                )
            options["db"] = int(segments[1])
    return Address(
        kind=flavour,
        url=url,
        hosts=hosts,
        service=service,
        options=options,
        sentinel_options=sentinel_options if flavour == "sentinel" else {},
        is_tls=tls,
    )


def _host(item: str, default_port: int) -> tuple[str, int]:
    host, colon, port = item.rpartition(":")
    if not colon or not port.isdigit():
        return item.strip("[]"), default_port
    return host.strip("[]"), int(port)


def of_client(client: Any) -> Address | None:
    """Where a redis-py client leads, async or not; None if it is no such client."""
    if hasattr(client, "nodes_manager"):
        return _of_cluster(client)
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        return None
    if hasattr(pool, "sentinel_manager"):
        return _of_sentinel(pool)
    options = dict(pool.connection_kwargs)
    where = options.get("path") or f"{options.get('host')}:{options.get('port')}"
    return Address(
        kind="server",
        label=str(where),
        options={name: value for name, value in options.items() if not name.startswith("maint_")},
        is_tls=_is_tls(pool.connection_class),
        socket_class=pool.connection_class,
    )


def _of_sentinel(pool: Any) -> Address:
    sentinels = [one.connection_pool for one in pool.sentinel_manager.sentinels]
    hosts = [(one.connection_kwargs["host"], one.connection_kwargs["port"]) for one in sentinels]
    sentinel_options = kept(sentinels[0].connection_kwargs)
    if _is_tls(sentinels[0].connection_class):
        sentinel_options["ssl"] = True
    return Address(
        kind="sentinel",
        label=repr(pool.service_name),
        hosts=tuple(hosts),
        service=pool.service_name,
        options=kept(pool.connection_kwargs),
        sentinel_options={
            name: value
            for name, value in sentinel_options.items()
            if name not in ("host", "port", "db")
        },
        is_tls=_is_tls(pool.connection_class),
    )


def _of_cluster(client: Any) -> Address:
    nodes = client.nodes_manager.startup_nodes.values()
    hosts = tuple((node.host, int(node.port)) for node in nodes)
    options = getattr(client, "connection_kwargs", None) or client.get_connection_kwargs()
    return Address(
        kind="cluster",
        label=f"cluster at {hosts[0][0]}:{hosts[0][1]}",
        hosts=hosts,
        options=kept(options),
        is_tls=bool(options.get("ssl")) or _is_tls(options.get("connection_class")),
    )


def kept(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that mean the same to async and to blocking sockets.

    Not all sockets of all versions of redis-py know all options of TLS; those that a client leaves
    unset are left out.
    """
    return {
        name: value
        for name, value in options.items()
        if name in _KEPT_OPTIONS or (name.startswith("ssl_") and _is_set(name, value))
    }


def _is_set(name: str, value: Any) -> bool:
    # Without requirements, by None, a certificate is not checked at all.
    return bool(value) if "ocsp" in name else value is not None or name == "ssl_cert_reqs"


def _is_tls(socket_class: Any) -> bool:
    return "SSL" in getattr(socket_class, "__name__", "")


def redacted(url: str) -> str:
    """What of ``url`` cannot be a secret: the scheme, the hosts, the database or the master.

    If it cannot be read as it was meant, that is the scheme at most.
    """
    parts = _split(url)
    if parts is None or parts.scheme not in (*_PLAIN_SCHEMES, *_MANY_SCHEMES):
        return "…"
    if not _is_as_meant(parts):
        return f"{parts.scheme}://…"
    _, at, hosts = parts.netloc.rpartition("@")
    kind = _MASTER if parts.scheme.endswith("sentinel") else _DATABASE
    path = parts.path if parts.scheme == "unix" or kind.fullmatch(parts.path) else ""
    return f"{parts.scheme}://{'***@' if at else ''}{hosts}{path}"
