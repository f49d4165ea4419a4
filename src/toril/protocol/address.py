"""Where the server is: the forms that ``connection=`` takes, read into one value."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import msgspec

from toril.errors import InvalidOptionError

DEFAULT_URL = "redis://127.0.0.1:6379"
_PLAIN_SCHEMES = ("redis", "rediss", "unix")


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """What to connect to: a ``server``, ``embedded``, ``sentinel`` or ``cluster``."""

    kind: str
    url: str = ""
    directory: str | None = None
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""
    options: dict[str, str | int] = {}

    def __str__(self) -> str:
        """For messages: without the password."""
        return redacted(self.url) if self.url else f"{self.kind}:{self.directory or ''}"


def parse(url: str) -> Address:
    """The address that ``url`` names."""
    if url.startswith("embedded:"):
        return Address(kind="embedded", directory=url.removeprefix("embedded:") or None)
    try:
        parts = urlsplit(url)
        scheme, _, flavour = parts.scheme.partition("+")
        if parts.scheme in _PLAIN_SCHEMES:
            return Address(kind="server", url=url)
        if scheme in ("redis", "rediss") and flavour in ("sentinel", "cluster"):
            return _many(url, parts.netloc, parts.path, parts.query, flavour, scheme == "rediss")
    except ValueError as error:
        raise InvalidOptionError(f"connection {redacted(url)!r} is no URL: {error}") from error
    raise InvalidOptionError(
        f"connection {redacted(url)!r} is not understood; use redis://, rediss://, unix://, "
        f"redis+sentinel://, redis+cluster:// or embedded:"
    )


def _many(url: str, netloc: str, path: str, query: str, flavour: str, tls: bool) -> Address:
    credentials, _, host_list = netloc.rpartition("@")
    default_port = 26379 if flavour == "sentinel" else 6379
    hosts = tuple(_host(item, default_port) for item in host_list.split(",") if item)
    if not hosts:
        raise InvalidOptionError(f"connection {redacted(url)!r} names no host")
    options: dict[str, str | int] = dict(parse_qsl(query))
    username, _, password = credentials.partition(":")
    if username:
        options["username"] = unquote(username)
    if password:
        options["password"] = unquote(password)
    if tls:
        options["ssl"] = 1
    segments = [segment for segment in path.split("/") if segment]
    service = ""
    if flavour == "sentinel":
        if not segments:
            raise InvalidOptionError(
                f"connection {redacted(url)!r} names no master; write "
                f"redis+sentinel://host:26379/mymaster/0"
            )
        service = segments[0]
        if len(segments) > 1:
            options["db"] = int(segments[1])
    return Address(kind=flavour, url=url, hosts=hosts, service=service, options=options)


def _host(item: str, default_port: int) -> tuple[str, int]:
    host, colon, port = item.rpartition(":")
    if not colon or not port.isdigit():
        return item.strip("[]"), default_port
    return host.strip("[]"), int(port)


def redacted(url: str) -> str:
    """``url`` without its password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "…"
    credentials, at, hosts = parts.netloc.rpartition("@")
    if not at:
        return url
    username = credentials.partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{username}:***@{hosts}"))
