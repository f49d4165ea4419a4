"""The servers of the tests do what the tests rely on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.servers import SAFE_ON_DISK, Cluster, Server


def test_a_killed_server_finds_its_data_again(start_server: Callable[..., Server]) -> None:
    server = start_server(SAFE_ON_DISK)
    with server.client() as client:
        client.set("key", "value")

        server.kill()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.start()

        assert client.get("key") == "value"


def test_a_slot_moves_while_it_is_used(cluster: Cluster) -> None:
    with redis.RedisCluster.from_url(cluster.url, decode_responses=True) as client:
        keys = [f"{{tag}}{n}" for n in range(50)]
        for key in keys:
            client.set(key, key)
        slot = cluster.slot_of(keys[0])
        before = cluster.owner(slot)

        after = cluster.migrate_slot(slot)

        assert after is not before
        assert cluster.owner(slot) is after
        assert [client.get(key) for key in keys] == keys
