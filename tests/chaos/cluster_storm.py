"""A storm over a cluster of six servers: masters are killed, slots move, workers die.

The queue has partitions, so its jobs lie in several slots on several nodes.  Adds wait for a
replica: what was acknowledged must not be lost.  What a failover forgets besides, that a job has
ended for example, makes the job run again; every such run has to have its fault.

An interrupted storm is judged by its notes: ``python -m tests.chaos.report DIRECTORY``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from tests.chaos.ledger import Run
from tests.chaos.program import QUEUE
from tests.chaos.report import _extra, _lost, _overlaps, _runs_of
from tests.chaos.storm import BATCH, PREFIX, Storm, _Crew, _watch
from tests.forked import DEVNULL, Forked
from tests.helpers import wait_until_sync
from tests.servers import Cluster, Server
from toril import Compensation, FlowJob, FlowProducer, GroupJob, NewJob, Queue
from toril.client.connection import Connection
from toril.errors import NotReplicatedError, TorilError
from toril.protocol.keys import Keys
from toril.protocol.partitioning import name_of

LETTERS, UNDOING = f"{{{QUEUE}}}-dlq", f"{{{QUEUE}}}:compensation"
KINDS = ("plain", "delayed", "lane", "group", "flow", "fails", "flaky")
SHARES = (58, 8, 18, 5, 4, 3, 4)
UNFINISHED = ("waiting", "active", "delayed", "prioritized", "waiting_children")
PARTITIONS = 6
KEPT = 1000
STEP = 100
"""How many keys of a slot move at a time."""
PATIENCE_S = 120.0


@dataclass
class ClusterStorm(Storm):
    """What is asked of a storm on a cluster; ``kills`` are those of workers."""

    master_kills: int = 1
    migrations: int = 2

    @property
    def faults_wanted(self) -> int:
        return self.kills + self.master_kills + self.migrations

    @property
    def faults_made(self) -> int:
        return sum(fault.kind != "stall" for fault in self.faults)


class Crew(_Crew):
    """Worker processes that serve all partitions."""

    def _start(self, index: int) -> Forked:
        config = {
            "url": self._urls[index % len(self._urls)],
            "prefix": PREFIX,
            "ledger": str(self._storm.directory),
            "concurrency": self._storm.concurrency,
            "work_s": self._storm.work_s,
            "partitions": PARTITIONS,
        }
        words = ("-m", "tests.chaos.program", json.dumps(config))
        return Forked(*words, stdin=DEVNULL, stderr=DEVNULL)


class Nodes:
    """Six servers of which any may be a master, and one may be away."""

    def __init__(self) -> None:
        self._cluster = Cluster({"cluster-node-timeout": "1000"}, replicas=True).start()
        self.servers = [*self._cluster.nodes, *self._cluster.replicas]
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{one.port}" for one in self.servers)
        names = [Keys(PREFIX, name_of(QUEUE, number)) for number in range(PARTITIONS)]
        self.slots = [self._cluster.slot_of(keys.wait) for keys in names]

    def close(self) -> None:
        self._cluster.close()

    def masters(self, without: Server | None = None) -> dict[int, Server]:
        """The master of each slot of the queue, as somebody who is there knows it."""
        for server in self.servers:
            if server is not without and (found := self._masters_by(server)):
                return found
        return {}

    def _masters_by(self, server: Server) -> dict[int, Server]:
        """The same as one server knows it; nothing if it is away."""
        found: dict[int, Server] = {}
        with contextlib.suppress(redis.RedisError, OSError), server.client() as client:
            for low, high, master, *_ in client.execute_command("CLUSTER SLOTS"):
                owner = next(one for one in self.servers if one.port == int(master[1]))
                found |= {slot: owner for slot in self.slots if low <= slot <= high}
        return found

    def kill_master(self, slot: int) -> None:
        """Kill it, wait until another one has taken over, and bring it back as a replica."""
        victim = self.masters()[slot]
        victim.kill()

        def has_successor() -> bool:
            owner = self.masters(without=victim).get(slot)
            return owner not in (None, victim)

        wait_until_sync(has_successor, PATIENCE_S)
        victim.start()
        wait_until_sync(self.is_whole, PATIENCE_S)

    def is_whole(self) -> bool:
        """Does everybody see a cluster that works, and has every master a replica that keeps up?"""
        roles: list[str] = []
        for server in self.servers:
            try:
                with server.client() as client:
                    state = str(client.execute_command("CLUSTER INFO"))
                    told = client.info("replication")
            except (redis.RedisError, OSError):
                return False
            is_led = told["role"] == "slave" and told.get("master_link_status") == "up"
            leads = told["role"] == "master" and int(told["connected_slaves"]) > 0
            if (
                not (is_led or leads)
                or "fail" in state.split("cluster_slots_assigned", maxsplit=1)[0]
            ):
                return False
            roles.append(str(told["role"]))
        return roles.count("master") == 3

    def migrate(self, slot: int, dice: random.Random) -> None:
        """Move a slot to another master, some keys at a time, while everybody goes on."""
        source = self.masters()[slot]
        others = {server.port: server for server in self._all_masters() if server is not source}
        target = others[dice.choice(sorted(others))]
        with source.client() as old, target.client() as new:
            old_id, new_id = (str(one.execute_command("CLUSTER MYID")) for one in (old, new))
            new.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", old_id)
            old.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", new_id)
            while keys := old.execute_command("CLUSTER GETKEYSINSLOT", slot, STEP):
                old.execute_command(
                    *("MIGRATE", "127.0.0.1", target.port, "", 0, 20_000, "REPLACE", "KEYS"), *keys
                )
            # What has moved is safe when a replica has it: its old owner has nothing any more.
            assert int(new.execute_command("WAIT", 1, 20_000)) >= 1, "no replica follows"
            new.execute_command("CLUSTER SETSLOT", slot, "NODE", new_id)
            old.execute_command("CLUSTER SETSLOT", slot, "NODE", new_id)
        for server in self._all_masters():
            if server not in (source, target):
                with server.client() as client:
                    client.execute_command("CLUSTER SETSLOT", slot, "NODE", new_id)
        wait_until_sync(lambda: self._all_agree(slot, target), PATIENCE_S)

    def _all_masters(self) -> list[Server]:
        found = []
        for server in self.servers:
            with server.client() as client:
                if client.info("replication")["role"] == "master":
                    found.append(server)
        return found

    def _all_agree(self, slot: int, owner: Server) -> bool:
        return all(self._masters_by(one).get(slot) is owner for one in self.servers)


async def rage(storm: ClusterStorm) -> Nodes:
    """Let the storm pass; returns the servers, with everything done."""
    storm.directory = Path(tempfile.mkdtemp(prefix="toril-cluster-storm-"))
    print(f"notes of the storm: {storm.directory}", flush=True)
    began = time.monotonic()
    nodes = await asyncio.to_thread(Nodes)
    crew = Crew(storm, [nodes.url])
    watching = [asyncio.create_task(_watch(storm, one.unix_url)) for one in nodes.servers]
    try:
        async with Queue(QUEUE, connection=nodes.url, prefix=PREFIX, partitions=PARTITIONS) as one:
            await one.pause()
            await one.resume()  # the number of partitions is written down
        crew.start_all()
        adding = asyncio.create_task(_add_all(storm, nodes.url))
        await _disturb(storm, nodes, crew, adding)
        await adding
        await _until_calm(storm, nodes)
    except BaseException:
        await crew.end()
        nodes.close()
        raise
    finally:
        for task in watching:
            task.cancel()
    await crew.end()
    storm.seconds = time.monotonic() - began
    return nodes


# ---------------------------------------------------------------------------- work


async def _add_all(storm: ClusterStorm, url: str) -> None:
    dice = random.Random(storm.seed)
    connection = Connection(url)
    options: dict[str, Any] = {"connection": connection, "prefix": PREFIX, "replicas": 1}
    queue = Queue(QUEUE, partitions=PARTITIONS, **options)
    flow = FlowProducer(partitions={QUEUE: PARTITIONS}, **options)
    try:
        for number in range(0, storm.jobs, BATCH):
            count = min(BATCH, storm.jobs - number)
            kinds = dice.choices(KINDS, SHARES, k=count)
            while number * storm.faults_wanted > (storm.faults_made + 1) * storm.jobs:
                await asyncio.sleep(0.02)
            batch = [(f"j{number + n}", kind) for n, kind in enumerate(kinds)]
            await _add_batch(storm, queue, flow, batch, dice)
    finally:
        await connection.close()


async def _add_batch(
    storm: ClusterStorm,
    queue: Queue,
    flow: FlowProducer,
    batch: list[tuple[str, str]],
    dice: random.Random,
) -> None:
    jobs = [
        _job(storm, label, kind, dice) for label, kind in batch if kind not in ("group", "flow")
    ]
    await _surely(storm, lambda: queue.add_bulk(jobs), [job.data["n"] for job in jobs])
    for job in jobs:
        if job.lane:
            storm.note("lane", job.lane, [job.data["n"]])
    storm.note("added", {job.data["n"]: job.name for job in jobs})
    for label, kind in batch:
        if kind == "flow":
            children = [FlowJob("plain", {"n": f"{label}-{n}"}, queue_name=QUEUE) for n in (0, 1)]
            root = FlowJob("plain", {"n": label}, queue_name=QUEUE, job_id=label, children=children)
            labels = [label, f"{label}-0", f"{label}-1"]
            await _surely(storm, lambda root=root: flow.add(root), labels)
            storm.note("added", dict.fromkeys(labels, "plain"))
            storm.seen["flows"] += 1
        if kind == "group":
            is_spread = dice.random() < 0.5
            await _add_group(storm, flow, label, is_doomed=dice.random() < 0.4, is_spread=is_spread)


async def _add_group(
    storm: ClusterStorm, flow: FlowProducer, label: str, *, is_doomed: bool, is_spread: bool
) -> None:
    """Three members in one slot or, as named partitions, in three."""
    number = int(label[1:])
    queues = [name_of(QUEUE, (number + n) % PARTITIONS) if is_spread else QUEUE for n in range(3)]
    members = [
        GroupJob(
            "fails" if is_doomed and n == 2 else "plain",
            {"n": f"{label}-{n}"},
            queue_name=queues[n],
            compensation=Compensation("undo", {"n": f"undo-{label}-{n}"}, attempts=5, backoff=None),
            key=f"m{n}",
            after=[f"m{n - 1}"] if n and number % 2 else [],
        )
        for n in range(3)
    ]
    group_id = f"group-{label}"
    options = {"group_id": group_id, "timeout": 86_400_000, "group_retention": False}
    await _surely(storm, lambda: flow.add_group("order", members, **options), [label])
    storm.note("group", group_id, "fails" if is_doomed else "completes")
    storm.seen["groups"] += 1
    storm.seen["groups over three slots"] += is_spread


def _job(storm: ClusterStorm, label: str, kind: str, dice: random.Random) -> NewJob:
    options: dict[str, Any] = {"job_id": label, "remove_on_complete": KEPT}
    if kind == "delayed":
        options["delay"] = dice.randrange(20, 500)
    if kind == "lane":
        options |= {"lane": f"lane-{dice.randrange(storm.lanes)}", "attempts": 2}
        kind = "flaky" if dice.random() < 0.1 else kind
    if kind == "flaky":
        options["attempts"] = 2
    return NewJob(kind, {"n": label}, **options)


async def _surely(storm: ClusterStorm, add: Any, labels: list[str]) -> None:
    """Add until a replica has it; with ids of ours doing it twice is doing it once."""
    while True:
        try:
            await add()
        except NotReplicatedError:
            storm.seen["adds that no replica had in time"] += 1
        except TorilError:
            storm.seen["adds tried again"] += 1
        else:
            return
        storm.note("tried again", labels)
        await asyncio.sleep(0.1)


# ---------------------------------------------------------------------------- weather


async def _disturb(
    storm: ClusterStorm, nodes: Nodes, crew: Crew, adding: asyncio.Task[None]
) -> None:
    dice = random.Random(storm.seed + 1)
    plan = ["kill"] * storm.kills + ["master"] * storm.master_kills
    plan += ["migrate"] * storm.migrations
    dice.shuffle(plan)
    for kind in plan:
        if adding.done() and adding.exception() is not None:
            return
        await asyncio.sleep(dice.uniform(0.1, 0.3))
        began, slot = time.time(), dice.choice(nodes.slots)
        if kind == "kill":
            # In turn, so that everybody has lived long enough to hold jobs.
            await crew.kill(storm.killed % storm.processes)
            storm.killed += 1
        elif kind == "master":
            await asyncio.to_thread(nodes.kill_master, slot)
            storm.note("fault", "restart", began, time.time())
        else:
            await asyncio.to_thread(nodes.migrate, slot, dice)
            storm.note("fault", "migrate", began, time.time())
        storm.seen[kind] += 1


async def _until_calm(storm: ClusterStorm, nodes: Nodes) -> None:
    deadline = time.monotonic() + storm.calm_s
    while left := await _left(storm, nodes):
        assert time.monotonic() < deadline, f"work is left after {storm.calm_s} s: {left}"
        await asyncio.sleep(0.2)


async def _try_again(storm: ClusterStorm, queue: Queue) -> None:
    """As a person would: a failover may forget a job that undoes and was sent from another slot."""
    for group in await queue.get_groups(["FAILED_COMPENSATION"]):
        await queue.retry_compensation(group.id)
        storm.seen["undoing tried again by hand"] += 1


async def _left(storm: ClusterStorm, nodes: Nodes) -> dict[str, Any]:
    where: dict[str, Any] = {"connection": nodes.url, "prefix": PREFIX, "partitions": PARTITIONS}
    found: dict[str, Any] = {}
    for name in (QUEUE, UNDOING):
        async with Queue(name, **where) as queue:
            counts = await queue.get_job_counts(*UNFINISHED)
            found |= {f"{name} {state}": count for state, count in counts.items() if count}
            await _try_again(storm, queue)
            open_groups = await queue.get_groups(["ACTIVE", "COMPENSATING"])
            found |= {f"{name} groups": len(open_groups)} if open_groups else {}
    return found


# ---------------------------------------------------------------------------- judgement


async def problems_of(storm: ClusterStorm, nodes: Nodes) -> list[str]:
    """Everything that must not be, as sentences."""
    by_label = _runs_of(storm)
    where: dict[str, Any] = {"connection": nodes.url, "prefix": PREFIX, "partitions": PARTITIONS}
    problems = [
        *_lost(storm, by_label),
        *_extra(storm, by_label),
        *_overlaps(storm, by_label),
        *_lanes(storm, by_label),
    ]
    async with Queue(QUEUE, **where) as queue, Queue(LETTERS, **where) as letters:
        found: dict[str, int] = defaultdict(int)
        for letter in await letters.get_dead_letter_jobs(0, -1):
            found[letter.data["n"]] += 1
        problems += _letters(storm, found)
        for group_id, expected in storm.groups.items():
            info = await queue.get_group_state(group_id)
            state = "gone" if info is None else info.state.value
            is_gone = info is not None and "it is gone" in (info.reason or "")
            if is_gone and any(fault.kind == "restart" for fault in storm.faults):
                # Its queue had it, said so, and lost it with its master: what was done is undone.
                storm.seen["groups undone because a failover forgot a member"] += 1
                expected = "fails"
            problems += _group(storm, group_id, expected, state, by_label)
    wanted = {"kill": storm.kills, "master": storm.master_kills, "migrate": storm.migrations}
    wanted |= {
        "groups": 1,
        "groups over three slots": 1,
        "flows": 1,
        "dead letters": 1,
        "lane runs": 1,
        "undoings": 1,
    }
    problems += [
        f"{what!r} happened {storm.seen[what]} times, and {least} were wanted"
        for what, least in wanted.items()
        if storm.seen[what] < least
    ]
    return problems


def _lanes(storm: ClusterStorm, by_label: dict[str, list[Run]]) -> Iterator[str]:
    """Nobody begins before the one before it in its lane has ended for the first time.

    Not by fencing numbers: those that a failover forgets are given once more.
    """
    for lane, labels in storm.lane_order.items():
        for earlier, later in itertools.pairwise(labels):
            first, second = by_label.get(earlier, []), by_label.get(later, [])
            ends = [run.ended for run in first if run.ended is not None]
            storm.seen["lane runs"] += len(second)
            if ends and second and min(run.started for run in second) < min(ends):
                yield f"lane {lane}: {later} began before {earlier} had ended"


def _letters(storm: ClusterStorm, found: dict[str, int]) -> Iterator[str]:
    storm.seen["dead letters"] = sum(found.values())
    for label, kind in storm.added.items():
        if kind == "fails" and not found[label]:
            yield f"{label} failed for good and is no dead letter"
    for label, times in found.items():
        if times > 1 and label not in storm.tried_again:
            yield f"{label} is {times} dead letters"


def _group(
    storm: ClusterStorm, group_id: str, expected: str, state: str, by_label: dict[str, list[Run]]
) -> Iterator[str]:
    if state != ("FAILED" if expected == "fails" else "COMPLETED"):
        yield f"group {group_id} is {state}, and it {expected}"
    label = group_id.removeprefix("group-")
    for number in range(3):
        runs = by_label.get(f"{label}-{number}", [])
        done = [run for run in runs if run.ended is not None and run.kind == "plain"]
        undone = by_label.get(f"undo-{label}-{number}", [])
        storm.seen["undoings"] += len(undone)
        if state == "COMPLETED" and undone:
            yield f"group {group_id} is {state}, and {label}-{number} was undone"
        if state == "FAILED" and done and not undone:
            # A failover may forget that a member was ever taken: then it is cancelled.
            if any(_was_forgotten(storm, run) for run in done):
                storm.seen["done, forgotten by a failover and not undone"] += 1
            else:
                yield f"group {group_id}: {label}-{number} was done and is not undone"


def _was_forgotten(storm: ClusterStorm, run: Run) -> bool:
    """Did a master die so soon after the run had ended that its replica may not have heard?"""
    assert run.ended is not None
    return any(
        fault.kind == "restart" and fault.at - 1.0 <= run.ended <= fault.until
        for fault in storm.faults
    )


def table_of(storm: ClusterStorm) -> str:
    """What happened, for people."""
    rows = [
        ("jobs added", len(storm.added) + 3 * storm.seen["groups"]),
        *sorted(storm.seen.items()),
        ("seconds", round(storm.seconds)),
        ("seed", storm.seed),
    ]
    return "\n".join(f"| {name} | {value:,} |" for name, value in rows)


__all__ = ["ClusterStorm", "problems_of", "rage", "table_of"]
