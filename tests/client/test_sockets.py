"""Sockets as they are made, before any is opened: what the user gave, and what nobody may set."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster

from tests.helpers import name_of
from toril import Queue
from toril.client import sockets
from toril.errors import InvalidOptionError
from toril.protocol import address
from toril.sync import sockets as blocking_sockets
from toril.sync.queue import Queue as BlockingQueue

BOTH = pytest.mark.parametrize("made_by", [sockets, blocking_sockets], ids=["async", "blocking"])


def make(made_by: Any, where: Any, **options: Any) -> Any:
    where = address.parse(where) if isinstance(where, str) else address.of_client(where)
    maker = made_by.maker(where, client_name="me", socket_timeout_s=7.0, **options)
    socket = maker()
    socket.kept_alive_by = maker
    return socket


@BOTH
def test_nothing_in_a_url_changes_how_replies_are_read_or_waited_for(made_by):
    """reliability 2.3: redis-py's own retries and timeouts would send writes twice."""
    socket = make(
        made_by,
        "redis://u:p@h:1/3?socket_timeout=1&retry_on_timeout=yes&decode_responses=true&protocol=3"
        "&health_check_interval=5&client_name=other",
    )

    assert (socket.host, socket.port, socket.db, socket.username) == ("h", 1, 3, "u")
    assert (socket.socket_timeout, socket.retry._retries) == (7.0, 0)
    assert (socket.retry_on_timeout, socket.retry_on_error) == (False, [])
    assert (int(socket.protocol), socket.encoder.decode_responses) == (2, False)
    assert (socket.health_check_interval, socket.client_name) == (0, "me")


CLIENTS = {
    "async": lambda **given: redis.asyncio.Redis(**given),
    "blocking": lambda **given: redis.Redis(**given),
}


@BOTH
@pytest.mark.parametrize("flavour", CLIENTS)
def test_a_client_of_either_kind_gives_its_settings(made_by, flavour):
    client = CLIENTS[flavour](
        host="h", port=9, db=4, password="p", socket_timeout=1, decode_responses=True
    )

    socket = make(made_by, client)

    assert (socket.host, socket.port, socket.db, socket.password) == ("h", 9, 4, "p")
    assert (socket.socket_timeout, socket.retry._retries) == (7.0, 0)
    assert socket.encoder.decode_responses is False
    assert ("asyncio" in type(socket).__module__) is (made_by is sockets)


@BOTH
@pytest.mark.parametrize("flavour", CLIENTS)
def test_tls_and_unix_sockets_stay_what_they_are(made_by, flavour):
    safe = make(made_by, CLIENTS[flavour](host="h", ssl=True, ssl_check_hostname=False))
    near = make(made_by, CLIENTS[flavour](unix_socket_path="/tmp/s"))

    assert type(safe).__name__ == "SSLConnection"
    assert near.path == "/tmp/s"


def test_a_class_of_the_users_own_is_used_where_it_fits():
    class Own(redis.asyncio.Connection):
        pass

    pool = redis.asyncio.ConnectionPool(connection_class=Own, host="h")
    client = redis.asyncio.Redis(connection_pool=pool)

    assert type(make(sockets, client)) is Own
    assert type(make(blocking_sockets, client)) is redis.Connection


@BOTH
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_a_master_behind_sentinels_is_spoken_to_as_safely_as_the_url_says(made_by, scheme):
    """`rediss+sentinel://` that ended in plain text would be a leak that nobody sees."""
    url = f"{scheme}+sentinel://:p@a,b:7/main/2?sentinel_password=s"

    socket = make(made_by, url)

    sentinels = socket.connection_pool.sentinel_manager.sentinels
    assert (socket.connection_pool.service_name, socket.db, socket.password) == ("main", 2, "p")
    assert ("SSL" in type(socket).__name__) is (scheme == "rediss")
    for one in sentinels:
        assert ("SSL" in one.connection_pool.connection_class.__name__) is (scheme == "rediss")
        assert one.connection_pool.connection_kwargs["password"] == "s"


@BOTH
def test_a_sentinel_client_gives_its_settings_and_those_of_its_sentinels(made_by):
    sentinel = redis.asyncio.Sentinel([("a", 1)], sentinel_kwargs={"password": "s", "ssl": True})

    socket = make(made_by, sentinel.master_for("main", password="p", ssl=True))

    (one,) = socket.connection_pool.sentinel_manager.sentinels
    kwargs = one.connection_pool.connection_kwargs
    assert (kwargs["host"], kwargs["port"], kwargs["password"]) == ("a", 1, "s")
    assert (socket.password, "SSL" in type(socket).__name__) == ("p", True)
    assert "SSL" in one.connection_pool.connection_class.__name__


@BOTH
@pytest.mark.parametrize("is_tls", [False, True])
def test_nodes_of_a_cluster_have_the_settings_of_its_client(made_by, is_tls):
    client = AsyncRedisCluster(startup_nodes=[AsyncClusterNode("a", 1)], password="p", ssl=is_tls)

    socket = make(made_by, client, node=("b", 2))

    assert (socket.host, socket.port, socket.password) == ("b", 2, "p")
    assert (type(socket).__name__ == "SSLConnection") is is_tls
    assert address.of_client(client).hosts == (("a", 1),)


@pytest.mark.parametrize("queue", [Queue, BlockingQueue], ids=["async", "blocking"])
def test_without_a_connection_the_environment_names_it_or_it_is_here(queue, monkeypatch):
    monkeypatch.setenv("TORIL_URL", "redis://elsewhere:7/2")
    assert "redis://elsewhere:7/2" in repr(queue("q")._connection)
    monkeypatch.delenv("TORIL_URL")
    assert "redis://127.0.0.1:6379" in repr(queue("q")._connection)


@pytest.mark.parametrize("wrong", [7, object(), b"redis://h"], ids=name_of)
@pytest.mark.parametrize("queue", [Queue, BlockingQueue], ids=["async", "blocking"])
def test_what_is_no_address_is_refused(queue, wrong):
    with pytest.raises(InvalidOptionError, match="neither a URL nor a redis-py client"):
        queue("q", connection=wrong)
