"""Kill primaries under load, and count the acknowledged adds that are gone.

    python -m tests.chaos.failovers --rounds 25

Each round adds jobs from many tasks, kills the primary with SIGKILL, waits until its replica has
taken over, and asks the new primary for every job whose ``add`` returned.  A worker runs them: it
has to go on within five seconds of the moment in which the new primary answers.  Figures are
printed after each round, so that an interrupted run is worth something.  Servers that do not come
back on a busy machine are given up and counted, and the next round has new ones.

With ``--lag`` the replica is cut off for that long before the primary dies, as by a line that
breaks first: what it has not received by then nobody has.
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
from toril import Queue, Worker
from toril.client.embedded import server_binary
from toril.errors import TorilError
from toril.protocol.command import Command, plain

ADDERS = 20
PATIENCE_S = 60.0
GOES_ON_WITHIN_S = 5.0
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
    answered_at: float
    """When the new primary answered, by ``time.monotonic()``."""

    def kill_primary(self, lag_s: float) -> None: ...

    def heal(self) -> None:
        """Bring the one that was killed back as a replica, and wait until it keeps up."""

    def close(self) -> None: ...


class SentinelWorld:
    """A primary, its replica, and a sentinel that watches them."""

    queue = "failovers"
    answered_at = 0.0

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
        self.answered_at = time.monotonic()
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
    answered_at = 0.0

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
        self.answered_at = time.monotonic()
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


def _cut_off(primary: Server, replica: Server) -> None:
    """Let nothing reach the replica any more.

    To freeze it is not enough: what the primary has sent waits in the machine for it.
    """
    replica.freeze()
    with primary.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "replica")


def _kill_behind(primary: Server, replica: Server, lag_s: float) -> None:
    """Kill the primary when its replica has been cut off for a while."""
    if lag_s:
        _cut_off(primary, replica)
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
    given_up: int = 0
    """Rounds whose servers did not come back."""
    pauses_s: list[float] = field(default_factory=list)
    resumed_s: list[float] = field(default_factory=list)
    """How long after the new primary answered a worker had its first job from it."""

    @property
    def late(self) -> int:
        return sum(seconds > GOES_ON_WITHIN_S for seconds in self.resumed_s)

    def add(self, other: Tally) -> None:
        """What came of more rounds."""
        self.rounds += other.rounds
        self.acknowledged += other.acknowledged
        self.refused += other.refused
        self.lost += other.lost
        self.given_up += other.given_up
        self.pauses_s += other.pauses_s
        self.resumed_s += other.resumed_s

    def __str__(self) -> str:
        pauses = sorted(self.pauses_s)
        middle = pauses[len(pauses) // 2] if pauses else 0.0
        return (
            f"{self.rounds} failovers: {self.acknowledged} adds acknowledged, {self.refused} not,"
            f" {self.lost} lost; no add returned for {middle:.1f} s (at most"
            f" {max(pauses, default=0):.1f} s); a worker went on after at most"
            f" {max(self.resumed_s, default=0):.1f} s, {self.late} times after more than"
            f" {GOES_ON_WITHIN_S:.0f} s; {self.given_up} rounds given up"
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
            begun: list[float] = []

            async def note(job: object, begun: list[float] = begun) -> None:
                begun.append(time.monotonic())

            stem = f"r{replicas}-{number}-{time.time_ns()}"
            async with (
                Worker(world.queue, note, connection=world.url, concurrency=10),
                Adders(queue, stem) as adders,
            ):
                await asyncio.sleep(BEFORE_S)
                await asyncio.to_thread(world.kill_primary, lag_s)
                await asyncio.to_thread(world.heal)
                await _go_on(world, adders, begun)
            found = await queue._connection.run_all(
                [_exists(queue, job_id) for job_id in adders.acknowledged]
            )
            tally.rounds += 1
            tally.acknowledged += len(adders.acknowledged)
            tally.refused += adders.refused
            tally.lost += found.count(False)
            tally.pauses_s.append(adders.longest_s)
            tally.resumed_s.append(min(at for at in begun if at > world.answered_at))
            tally.resumed_s[-1] -= world.answered_at
            await queue.obliterate(force=True)
    return tally


async def _go_on(world: World, adders: Adders, begun: list[float]) -> None:
    """Until adds return again, and the worker has had a job from the new primary."""
    enough = len(adders.acknowledged) + AFTER
    deadline = time.monotonic() + PATIENCE_S
    while len(adders.acknowledged) < enough or not begun or begun[-1] <= world.answered_at:
        assert time.monotonic() < deadline, "nothing goes on after the failover"
        await asyncio.sleep(0.02)


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
            tally = measure(name, given.rounds, replicas=replicas, lag_s=given.lag)
            print(f"{name}, replicas={replicas}: {tally}", flush=True)


def measure(name: str, rounds: int, *, replicas: int, lag_s: float) -> Tally:
    """So many rounds; servers that do not come back are replaced by new ones."""
    total = Tally()
    world: World | None = None
    while total.rounds < rounds and total.given_up <= rounds:
        try:
            world = world or WORLDS[name]()
            total.add(asyncio.run(run_rounds(world, 1, replicas=replicas, lag_s=lag_s)))
        except (AssertionError, TorilError, redis.RedisError, OSError) as error:
            total.given_up += 1
            print(f"{name}, replicas={replicas}: given up: {error!r}", flush=True)
            if world is not None:
                world.close()
            world = None
        print(f"{name}, replicas={replicas}, so far: {total}", flush=True)
    if world is not None:
        world.close()
    return total


if __name__ == "__main__":
    main()
