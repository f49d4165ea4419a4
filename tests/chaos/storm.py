"""A storm: mixed work by real processes, and everything that can go wrong going wrong.

Jobs are added while workers are killed and stopped, the server is killed and restarted, lines are
cut and fall silent, scripts are forgotten and memory runs out. When all is calm again the work is
finished, and `report.py` looks at what came of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import redis.asyncio

from tests.chaos.history import follow, missed
from tests.chaos.program import LOCK_MS, QUEUE, UNDOING
from tests.forked import DEVNULL, Forked
from tests.proxy import Proxy, Rule, runs
from tests.servers import SAFE_ON_DISK, Server
from toril import Compensation, FlowJob, FlowProducer, GroupJob, GroupSignal, NewJob, Queue
from toril.client.connection import Connection
from toril.errors import AmbiguousResultError, ServerError, ServerOutOfMemoryError

PREFIX = "storm"
KINDS = ("plain", "delayed", "prioritized", "lane", "group", "flow", "fails", "flaky")
SHARES = (58, 10, 5, 15, 4, 2, 2, 4)
LINES = ("slow", "half-close", "partial", "torn")
"""What befalls a line besides being cut, losing a reply and falling silent (`tests/proxy.py`)."""
BATCH = 50
NOTES = "notes.jsonl"
PATIENCE_S = 120.0
"""How long whoever makes the weather waits for a server that writes much to its disk."""
BACKLOG = 3000
STALL_S = 1.0
KEPT = 20_000
"""How many completed jobs stay, so that an add that is tried again finds what it added. Every other
job has no id of its own and vanishes when it has completed: then nothing but the memory of its call
keeps it from being added twice."""


class Fault(NamedTuple):
    kind: str
    at: float
    until: float
    pid: int = 0


@dataclass
class Storm:
    """What is asked of a storm, and what happened in it."""

    jobs: int
    kills: int
    processes: int = 3
    concurrency: int = 8
    lanes: int = 40
    work_s: float = 0.002
    seed: int = 0
    calm_s: float = 60.0
    kills_at_once: int = 1
    every_s: tuple[float, float] = (0.2, 0.6)

    faults: list[Fault] = field(default_factory=list)
    added: dict[str, str] = field(default_factory=dict)
    """Label -> kind, of all jobs whose add was acknowledged."""
    lane_order: dict[str, list[str]] = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    tried_again: set[str] = field(default_factory=set)
    """Labels of jobs with an id whose add may have been made twice."""
    doubtful: set[str] = field(default_factory=set)
    """Labels of jobs without an id whose add was repeated although its result was open."""
    next_adds: list[str] = field(default_factory=list)
    """What is to go wrong with the next adds."""
    history: dict[str, list[str]] = field(default_factory=dict)
    """Job id -> its events, in the order of the queue's log."""
    killed: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    directory: Path = Path()

    def note(self, what: str, *words: Any) -> None:
        """Learn something and write it down at once: it outlives a storm that is interrupted."""
        self._learn(what, *words)
        with (self.directory / NOTES).open("a") as file:
            file.write(json.dumps([what, *words]) + "\n")

    def read_notes(self) -> None:
        """Learn again what the storm of this directory wrote down; its last line may be torn."""
        for row in (self.directory / NOTES).read_text().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                self._learn(*json.loads(row))

    def _learn(self, what: str, *words: Any) -> None:
        match what, words:
            case "added", (kinds,):
                self.added |= kinds
            case "lane", (lane, labels):
                self.lane_order.setdefault(lane, []).extend(labels)
            case "group", (group_id, expected):
                self.groups[group_id] = expected
            case "tried again", (labels,):
                self.tried_again.update(labels)
            case "doubtful", (labels,):
                self.doubtful.update(labels)
            case "fault", fault:
                self.faults.append(Fault(*fault))
            case _:
                raise ValueError(f"nobody knows what {what!r} is")


class _Crew:
    """The worker processes; whoever dies is replaced."""

    def __init__(self, storm: Storm, urls: list[str]) -> None:
        self._storm = storm
        self._urls = urls
        self.members: list[Forked] = []

    def start_all(self) -> None:
        for index in range(self._storm.processes):
            self.members.append(self._start(index))

    def _start(self, index: int) -> Forked:
        config = {
            "url": self._urls[index % len(self._urls)],
            "prefix": PREFIX,
            "ledger": str(self._storm.directory),
            "concurrency": self._storm.concurrency,
            "work_s": self._storm.work_s,
        }
        words = ("-m", "tests.chaos.program", json.dumps(config))
        return Forked(*words, stdin=DEVNULL, stderr=DEVNULL)

    async def kill(self, index: int) -> None:
        victim = self.members[index]
        victim.kill()
        await asyncio.to_thread(victim.wait)
        self._storm.note("fault", "kill", time.time(), time.time(), victim.pid)
        self.members[index] = self._start(index)

    async def stop(self, index: int, seconds: float) -> None:
        victim, began = self.members[index], time.time()
        victim.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        victim.send_signal(signal.SIGCONT)
        self._storm.note("fault", "stop", began, time.time(), victim.pid)

    async def end(self) -> None:
        for member in self.members:
            member.send_signal(signal.SIGTERM)
        for member in self.members:
            try:
                await asyncio.to_thread(member.wait, 30)
            except subprocess.TimeoutExpired:
                member.kill()
                await asyncio.to_thread(member.wait)


async def rage(storm: Storm) -> tuple[Server, Any]:
    """Let the storm pass; returns the server, with everything done, and a client to look at it."""
    storm.directory = Path(tempfile.mkdtemp(prefix="toril-storm-"))
    began = time.monotonic()
    server = Server(SAFE_ON_DISK, tcp=True).start()
    client = redis.asyncio.Redis.from_url(
        server.unix_url,
        decode_responses=True,
        encoding_errors="backslashreplace",
        socket_timeout=PATIENCE_S,
    )
    async with Proxy(server.port) as proxy:
        crew = _Crew(storm, [server.url, proxy.url])
        crew.start_all()
        watching = asyncio.create_task(_watch(storm, server.unix_url))
        following = asyncio.create_task(follow(storm.history, server.unix_url, PREFIX, QUEUE))
        try:
            adding = asyncio.create_task(_add_all(storm, proxy.url, client))
            await _disturb(storm, server, client, proxy, crew, adding)
            await adding
            proxy.rule = lambda words: None
            await _until_calm(storm, client)
            storm.seen["events missed"] = await missed(storm.history, client, PREFIX, QUEUE)
        finally:
            watching.cancel()
            following.cancel()
            await crew.end()
    storm.seconds = time.monotonic() - began
    return server, client


# ---------------------------------------------------------------------------- work


async def _add_all(storm: Storm, url: str, client: Any) -> None:
    dice = random.Random(storm.seed)
    connection = Connection(url)
    queue = Queue(QUEUE, connection=connection, prefix=PREFIX)
    flow = FlowProducer(connection=connection, prefix=PREFIX)
    try:
        number = 0
        while number < storm.jobs:
            count = min(BATCH, storm.jobs - number)
            batch = [
                (f"j{number + n}", kind)
                for n, kind in enumerate(dice.choices(KINDS, SHARES, k=count))
            ]
            number += count
            await _pace(storm, client, number)
            await _add_batch(storm, queue, flow, batch, dice)
    finally:
        await connection.close()


async def _pace(storm: Storm, client: Any, number: int) -> None:
    """Add no faster than the faults go on, nor than the workers work: all of it is to be hit."""
    while True:
        is_early = number * storm.kills > (storm.killed + 1) * storm.jobs
        try:
            if not is_early and await client.llen(f"{PREFIX}:{QUEUE}:wait") < BACKLOG:
                return
        except redis.exceptions.RedisError:
            pass  # the storm has the server
        await asyncio.sleep(0.02)


async def _add_batch(
    storm: Storm,
    queue: Queue,
    flow: FlowProducer,
    batch: list[tuple[str, str]],
    dice: random.Random,
) -> None:
    jobs = [
        _job(storm, label, kind, dice) for label, kind in batch if kind not in ("group", "flow")
    ]
    for part in ([job for job in jobs if job.job_id], [job for job in jobs if not job.job_id]):
        labels = [job.data["n"] for job in part]
        await _surely(storm, lambda part=part: queue.add_bulk(part), labels, bool(part[0].job_id))
        for job in part:
            if job.lane:
                storm.note("lane", job.lane, [job.data["n"]])
        storm.note("added", {job.data["n"]: job.name for job in part})
    for label, kind in batch:
        if kind == "flow":
            labels = [label, f"{label}-0", f"{label}-1"]
            root, *children = (
                FlowJob("plain", {"n": one}, queue_name=QUEUE, **_identity(one, label))
                for one in labels
            )
            tree = msgspec.structs.replace(root, children=children)
            await _surely(storm, lambda tree=tree: flow.add(tree), labels, bool(root.job_id))
            storm.note("added", dict.fromkeys(labels, "plain"))
        if kind == "group":
            await _add_group(storm, flow, label, is_doomed=dice.random() < 0.4)


async def _add_group(storm: Storm, flow: FlowProducer, label: str, *, is_doomed: bool) -> None:
    """One in three runs side by side, one in stages, one in stages with a signal that nobody gives:
    its time limit ends it."""
    names = ("plain", "plain", "fails" if is_doomed else "plain")
    shape = int(label.strip("j")) % 3
    members: list[GroupJob | GroupSignal] = [
        GroupJob(
            name,
            {"n": f"{label}-{n}"},
            queue_name=QUEUE,
            job_id=f"{label}-{n}",
            remove_on_complete=KEPT,
            key=f"m{n}",
            after=[f"m{n - 1}"] if shape and n else [],
            inputs={"before": f"m{n - 1}"} if shape and n else {},
        )
        for n, name in enumerate(names)
    ]
    if shape == 2:
        members[1] = GroupSignal("approval", key="m1", after=["m0"], timeout=300, default="yes")
    undoing = {"plain": Compensation("undo", {"of": label}, attempts=5, backoff=None)}
    options = {"group_id": f"group-{label}", "timeout": 86_400_000, "group_retention": False}
    node = await _surely(
        storm, lambda: flow.add_group("order", members, undoing, **options), [label], True
    )
    if shape:
        storm.seen["groups with stages"] += 1
    if node is not None:
        storm.note("group", node.group_id, "fails" if is_doomed else "completes")
        storm.seen["groups"] += 1


def _job(storm: Storm, label: str, kind: str, dice: random.Random) -> NewJob:
    options: dict[str, Any] = _identity(label, label)
    if kind == "delayed":
        options["delay"] = dice.randrange(20, 500)
    if kind == "prioritized":
        options["priority"] = dice.randint(1, 5)
    if kind == "lane":
        options["lane"] = f"lane-{dice.randrange(storm.lanes)}"
        options["attempts"] = 2
        kind = "flaky" if dice.random() < 0.1 else kind
    if kind == "flaky":
        options["attempts"] = 2
    return NewJob(kind, {"n": label}, **options)


def _identity(label: str, of: str) -> dict[str, Any]:
    """Every other one has an id and stays; the others have none and vanish."""
    if int(of.strip("j")) % 2:
        return {"job_id": label, "remove_on_complete": KEPT}
    return {"remove_on_complete": True}


async def _surely(storm: Storm, add: Any, labels: list[str], has_ids: bool) -> Any:
    """Add until it is acknowledged. With ids of ours doing it twice is doing it once, as long as
    the job is there: one that failed for good is among the dead letters by then. Without ids, what
    is said to have had no effect has had none."""
    while True:
        try:
            return await add()
        except ServerOutOfMemoryError:
            storm.seen["adds refused for want of memory"] += 1
            await asyncio.sleep(0.1)
        except ServerError as error:
            storm.seen["adds tried again"] += 1
            if has_ids:
                storm.note("tried again", labels)
            elif isinstance(error, AmbiguousResultError):
                storm.note("doubtful", labels)
            await asyncio.sleep(0.1)
        except Exception as error:
            if type(error).__name__ != "InvalidGroupError" and "exist" not in str(error):
                raise
            return None


# ---------------------------------------------------------------------------- weather


async def _disturb(
    storm: Storm, server: Server, client: Any, proxy: Proxy, crew: _Crew, adding: asyncio.Task[None]
) -> None:
    """Kills between all other faults, until there were enough of them and all jobs are added."""
    dice = random.Random(storm.seed + 1)
    others = ["stop", "restart", "forget", "disconnect", "cut", "silence", "squeeze", "lose"]
    others += ["freeze", *LINES]
    planned = others * 2
    dice.shuffle(planned)
    planned += ["cut", "lose"]  # these first: they have to meet adds, which end with the kills
    while storm.killed < storm.kills or planned or not adding.done():
        if adding.done() and adding.exception() is not None:
            return
        await asyncio.sleep(dice.uniform(*storm.every_s))
        for _ in range(min(storm.kills_at_once, storm.kills - storm.killed)):
            # In turn, so that everybody has lived long enough to hold jobs.
            await crew.kill(storm.killed % storm.processes)
            storm.killed += 1
        kind = planned.pop() if planned else dice.choice(others)
        storm.seen[kind] += 1
        await _fault(kind, storm, server, client, proxy, crew, dice)
    storm.seen["kill"] = storm.killed


async def _fault(
    kind: str,
    storm: Storm,
    server: Server,
    client: Any,
    proxy: Proxy,
    crew: _Crew,
    dice: random.Random,
) -> None:
    began = time.time()
    match kind:
        case "stop":
            await crew.stop(dice.randrange(storm.processes), 4.5)
            return
        case "restart":
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(dice.uniform(0.05, 0.5))
            await asyncio.to_thread(server.start)
        case "forget":
            await client.function_flush()
        case "disconnect":
            await client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        case "cut" | "lose":
            left = dice.randrange(3, 30)

            def rule(words: list[bytes]) -> str | None:
                nonlocal left
                left -= 1
                return kind if left >= 0 and left % 3 == 0 else None

            storm.next_adds.append(kind)
            proxy.rule = _also_for_adds(storm, rule)
        case "freeze":
            # Locks are renewed every third of their time: half of them may end meanwhile.
            server.freeze()
            await asyncio.sleep(dice.uniform(0.3, LOCK_MS / 1000))
            server.thaw()
        case _ if kind in LINES:
            spells = dice.randrange(3, 15)

            def weather(words: list[bytes]) -> str | None:
                nonlocal spells
                spells -= 1
                return kind if spells >= 0 and spells % 3 == 0 else None

            proxy.rule = _also_for_adds(storm, weather)
        case "silence":
            proxy.rule = lambda words: "swallow"
            await asyncio.sleep(0.7)
            proxy.rule = _also_for_adds(storm, lambda words: None)
        case "squeeze":
            used = (await client.info("memory"))["used_memory"]
            await client.config_set("maxmemory", max(1, int(used * 0.9)))
            await asyncio.sleep(0.5)
            await client.config_set("maxmemory", 0)
    storm.note("fault", kind, began, time.time())


def _also_for_adds(storm: Storm, rule: Rule) -> Rule:
    """The rule, and what is to become of the next adds."""

    def both(words: list[bytes]) -> str | None:
        if storm.next_adds and (runs(words, "add") or runs(words, "addFlow")):
            kind = storm.next_adds.pop()
            storm.seen[f"adds hit by {kind}"] += 1
            return kind
        return rule(words)

    return both


async def _watch(storm: Storm, url: str) -> None:
    """Write down when the server did not answer for so long that locks may have run out, or when
    this process, in which the proxy is, had no time to ask it."""
    async with redis.asyncio.Redis.from_url(url, socket_timeout=PATIENCE_S) as client:
        before = time.time()
        while True:
            with contextlib.suppress(redis.exceptions.RedisError):
                await client.ping()
            now = time.time()
            if now - before > STALL_S:
                storm.seen["server did not answer for a second"] += 1
                storm.note("fault", "stall", before, now)
            before = now
            await asyncio.sleep(0.1)


async def _until_calm(storm: Storm, client: Any) -> None:
    """Wait until nothing is left to do."""
    base, undoing = f"{PREFIX}:{QUEUE}", f"{PREFIX}:{UNDOING}"
    places = ("wait", "active", "prioritized", "delayed", "waiting-children")
    lanes = ("lanes:waiting", "lanes:delayed", "lanes:held", "toril:groups-open")
    keys = [f"{one}:{place}" for one in (base, undoing) for place in (*places, *lanes)]
    deadline = time.monotonic() + storm.calm_s
    while await client.exists(*keys):
        left = [key for key in keys if await client.exists(key)]
        assert time.monotonic() < deadline, f"work is left after {storm.calm_s} s: {left}"
        await asyncio.sleep(0.1)
