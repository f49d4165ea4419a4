"""Kill primaries under load, and count the acknowledged adds that are gone.

    python -m tests.chaos.failovers --rounds 25

Each round adds jobs from many tasks, kills the primary with SIGKILL, waits until its replica has
taken over, and asks the new primary for every job whose ``add`` returned.  With ``--lag`` the
replica is cut off for that long before the primary dies, as by a line that breaks first: what it
has not received by then nobody has.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

import redis

from tests.helpers import wait_until_sync
from tests.servers import Cluster, Server, free_port
from toril import Queue
from toril.client.embedded import server_binary
from toril.errors import TorilError
from toril.protocol.command import Command, plain

ADDERS = 20
PATIENCE_S = 60.0
BEFORE_S = 0.3
AFTER = 50
"""How many adds must return after the failover before a round is over."""

_SENTINEL = """
port {port}
bind 127.0.0.1
dir {directory}
sentinel monitor main 127.0.0.1 {primary} 1
sentinel down-after-milliseconds main 500
sentinel failover-timeout main 5000
"""


class World(Protocol):
    """Servers of which one can be killed, and a queue on it."""

    url: str
    queue: str

    def kill_primary(self, lag_s: float) -> None: ...

    def heal(self) -> None:
        """Bring the one that was killed back as a replica, and wait until it keeps up."""

    def close(self) -> None: ...


class SentinelWorld:
    """A primary, its replica, and a sentinel that watches them."""

    queue = "failovers"

    def __init__(self) -> None:
        options = {"repl-diskless-sync-delay": "0"}
        self.primary, self.replica = Server(options, tcp=True), Server(options, tcp=True)
        self.primary.start()
        self.replica.start()
        with self.replica.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", self.primary.port)
        _wait_for_link(self.replica)
        self._directory = tempfile.TemporaryDirectory(prefix="toril-sentinel-")
        self._port = free_port()
        config = Path(self._directory.name) / "sentinel.conf"
        config.write_text(
            _SENTINEL.format(
                port=self._port, directory=self._directory.name, primary=self.primary.port
            )
        )
        log = (Path(self._directory.name) / "sentinel.log").open("wb")
        command = [str(server_binary()), str(config), "--sentinel"]
        self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self._client = redis.Redis(port=self._port, decode_responses=True)
        wait_until_sync(lambda: self._knows_replica(), PATIENCE_S)

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self._port}/main/0"

    def kill_primary(self, lag_s: float) -> None:
        _kill_behind(self.primary, self.replica, lag_s)

    def heal(self) -> None:
        self.primary, self.replica = self.replica, self.primary
        wait_until_sync(lambda: _told(self.primary).get("role") == "master", PATIENCE_S)
        self.replica.start()
        # The sentinel would do this as well, in its own time.
        with self.replica.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", self.primary.port)
        _wait_for_link(self.replica)
        wait_until_sync(self._knows_replica, PATIENCE_S)

    def _knows_replica(self) -> bool:
        try:
            known = self._client.execute_command("SENTINEL REPLICAS", "main")
        except redis.RedisError:
            return False
        return any("down" not in str(one.get("flags")) for one in map(_as_dict, known))

    def close(self) -> None:
        self._process.kill()
        self._process.wait(60)
        self._client.close()
        self.primary.close()
        self.replica.close()
        self._directory.cleanup()


class ClusterWorld:
    """Three masters with a replica each; the one that has the queue is killed."""

    queue = "{failovers}"

    def __init__(self) -> None:
        self._cluster = Cluster({"cluster-node-timeout": "1000"}, replicas=True).start()
        self.url = ",".join(f"127.0.0.1:{server.port}" for server in self._cluster.nodes)
        self.url = f"redis+cluster://{self.url}"
        slot = self._cluster.slot_of(self.queue)
        self.primary = self._cluster.owner(slot)
        number = self._cluster.nodes.index(self.primary)
        self.replica = self._cluster.replicas[number]

    def kill_primary(self, lag_s: float) -> None:
        _kill_behind(self.primary, self.replica, lag_s)

    def heal(self) -> None:
        self.primary, self.replica = self.replica, self.primary
        wait_until_sync(lambda: _told(self.primary).get("role") == "master", PATIENCE_S)
        self.replica.start()
        _wait_for_link(self.replica)

    def close(self) -> None:
        self._cluster.close()


def _as_dict(row: list[str] | dict[str, str]) -> dict[str, str]:
    return row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=False))


def _told(server: Server) -> dict[str, object]:
    """What a server says of its replication; nothing while a sentinel cuts its lines."""
    with server.client() as client:
        try:
            return dict(client.info("replication"))
        except redis.ConnectionError:
            return {}


def _wait_for_link(replica: Server) -> None:
    wait_until_sync(lambda: _told(replica).get("master_link_status") == "up", PATIENCE_S)


def _kill_behind(primary: Server, replica: Server, lag_s: float) -> None:
    """Kill the primary when its replica has been cut off for a while.

    To freeze the replica is not enough: what the primary has sent waits in the machine for it.
    """
    if lag_s:
        replica.freeze()
        with primary.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")
        time.sleep(lag_s)
    primary.kill()
    if lag_s:
        replica.thaw()


@dataclass
class Tally:
    """What came of the rounds."""

    rounds: int = 0
    acknowledged: int = 0
    refused: int = 0
    lost: int = 0
    pauses_s: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        pauses = sorted(self.pauses_s)
        middle = pauses[len(pauses) // 2] if pauses else 0.0
        return (
            f"{self.rounds} failovers: {self.acknowledged} adds acknowledged, {self.refused} not,"
            f" {self.lost} lost; no add returned for {middle:.1f} s (at most"
            f" {max(pauses, default=0):.1f} s)"
        )


class Adders:
    """Tasks that add jobs until they are told to stop, and write down which adds returned."""

    def __init__(self, queue: Queue, stem: str) -> None:
        self._queue = queue
        self._stem = stem
        self._number = 0
        self._is_over = False
        self.acknowledged: list[str] = []
        self.refused = 0
        self.last_at = time.monotonic()
        self.longest_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._add()) for _ in range(ADDERS)]
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def _add(self) -> None:
        while not self._is_over:
            self._number += 1
            job_id = f"{self._stem}-{self._number}"
            try:
                await self._queue.add("x", job_id=job_id)
            except TorilError:
                self.refused += 1
                await asyncio.sleep(0.02)
                continue
            now = time.monotonic()
            self.longest_s = max(self.longest_s, now - self.last_at)
            self.last_at = now
            self.acknowledged.append(job_id)
            await asyncio.sleep(0.002)


async def run_rounds(world: World, rounds: int, *, replicas: int, lag_s: float) -> Tally:
    tally = Tally()
    for number in range(rounds):
        options = {"connection": world.url, "replicas": replicas, "replicas_timeout": 500}
        async with Queue(world.queue, **options) as queue:
            async with Adders(queue, f"r{replicas}-{number}-{time.time_ns()}") as adders:
                await asyncio.sleep(BEFORE_S)
                await asyncio.to_thread(world.kill_primary, lag_s)
                await asyncio.to_thread(world.heal)
                enough = len(adders.acknowledged) + AFTER
                deadline = time.monotonic() + PATIENCE_S
                while len(adders.acknowledged) < enough:
                    assert time.monotonic() < deadline, "adds do not return after the failover"
                    await asyncio.sleep(0.02)
            found = await queue._connection.run_all(
                [_exists(queue, job_id) for job_id in adders.acknowledged]
            )
            tally.rounds += 1
            tally.acknowledged += len(adders.acknowledged)
            tally.refused += adders.refused
            tally.lost += found.count(False)
            tally.pauses_s.append(adders.longest_s)
            await queue.obliterate(force=True)
    return tally


def _exists(queue: Queue, job_id: str) -> Command[bool]:
    return plain("EXISTS", queue.keys.job(job_id), parse=bool)


WORLDS = {"sentinel": SentinelWorld, "cluster": ClusterWorld}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--lag", type=float, default=0.1, help="seconds that a replica is behind")
    parser.add_argument("--world", choices=sorted(WORLDS), action="append")
    given = parser.parse_args()
    for name in given.world or sorted(WORLDS):
        for replicas in (0, 1):
            world = WORLDS[name]()
            try:
                tally = asyncio.run(
                    run_rounds(world, given.rounds, replicas=replicas, lag_s=given.lag)
                )
            finally:
                world.close()
            print(f"{name}, replicas={replicas}: {tally}", flush=True)


if __name__ == "__main__":
    main()
