"""The servers of the tests do what the tests rely on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import redis

from tests.servers import SAFE_ON_DISK, Cluster, Server, free_port


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


def test_no_two_processes_choose_the_same_port() -> None:
    """Between the choice and the start of a server, another process may choose as well."""
    program = "from tests.servers import free_port; print(*{free_port() for _ in range(300)})"
    ours = {free_port() for _ in range(300)}

    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as other:
        theirs = {int(port) for port in other.communicate()[0].split()}

    assert len(ours) > 100
    assert len(theirs) > 100
    assert not ours & theirs
