"""What does a group cost whose members are in three slots, compared with one in a single slot?

    python benchmarks/toril_slots.py                 500 groups of 3, added in three ways
    python benchmarks/toril_slots.py --groups 50 --rounds 1

Both run on the same cluster of three nodes, with the same workers: three queues that share a hash
tag, then three queues on a node each.  A group that is alone has ended before the next is added;
one at a time, the next is added as soon as `add_group` returns.

Work is summed over the nodes by `INFO commandstats`: calls of functions and the commands inside
them, which a busy machine does not change, and the microseconds of the server, which it does.  It
starts its own servers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.servers import Cluster

from toril import Compensation, FlowProducer, GroupJob, Queue, Worker

MOST = 2.5
WAITS = ("bzpopmin", "blpop")
AT_ONCE = 20
CALLS = ("fcall", "fcall_ro", "evalsha")


class Work(NamedTuple):
    """What servers did: calls from outside, commands in all, and for how long."""

    calls: int
    commands: int
    us: int


def work_of(cluster: Cluster) -> Work:
    calls = commands = us = 0
    for node in cluster.nodes:
        with node.client() as client:
            stats = client.info("commandstats")
        for name, row in stats.items():
            command = name.removeprefix("cmdstat_")
            if command in CALLS:
                calls += int(row["calls"])
                us += int(row["usec"])
            elif command not in WAITS and "|" not in command:
                commands += int(row["calls"])
    return Work(calls, commands, us)


def reset(cluster: Cluster) -> None:
    for node in cluster.nodes:
        with node.client() as client:
            client.config_resetstat()


def names_of(cluster: Cluster, prefix: str, nodes: list[int]) -> list[str]:
    """A queue for each of these nodes; those on one node share a hash tag."""
    tags: dict[int, str] = {}
    while len(tags) < len(set(nodes)):
        tag = f"{{q{secrets.token_hex(4)}}}"
        owner = cluster.owner(cluster.slot_of(f"{prefix}:{tag}:wait"))
        tags.setdefault(cluster.nodes.index(owner), tag)
        tags = {node: tag for node, tag in tags.items() if node in nodes}
    return [f"{tags[node]}{number}" for number, node in enumerate(nodes)]


async def run(cluster: Cluster, nodes: list[int], groups: int, at_once: int) -> Work:
    """Add groups of three, so many at a time (0: each alone), let them complete, and count."""
    prefix = f"b{secrets.token_hex(4)}"
    url = cluster.url.replace("redis://", "redis+cluster://", 1)
    where: dict[str, Any] = {"connection": url, "prefix": prefix}
    names = names_of(cluster, prefix, nodes)

    ran = 0

    async def nothing(job: Any) -> None:
        nonlocal ran
        ran += 1

    async def add_alone() -> None:
        wanted = ran + 3
        await flow.add_group("order", members)
        while ran < wanted:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)  # until the last end is written and the workers are idle

    async with FlowProducer(**where) as flow, Queue(names[0], **where) as queue:
        undo = Compensation("undo")
        members = [GroupJob("x", {"n": 1}, queue_name=name, compensation=undo) for name in names]
        async with contextlib.AsyncExitStack() as stack:
            for name in names:
                worker = Worker(name, nothing, concurrency=20, **where)
                await stack.enter_async_context(worker)
            await flow.add_group("warm", members)
            await _until(queue, 1)
            reset(cluster)
            for _ in range(groups if not at_once else groups // at_once):
                if at_once:
                    await asyncio.gather(
                        *[flow.add_group("order", members) for _ in range(at_once)]
                    )
                else:
                    await add_alone()
            await _until(queue, groups + 1)
            await asyncio.sleep(1.0)
            return work_of(cluster)


async def _until(queue: Queue, wanted: int) -> None:
    while len(await queue.get_groups(["COMPLETED"])) < wanted:
        await asyncio.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with Cluster() as cluster:
        for at_once in (0, 1, AT_ONCE):
            print(f"{at_once} at a time" if at_once else "each alone")
            compare(cluster, options.groups, options.rounds, at_once)


def compare(cluster: Cluster, groups: int, rounds: int, at_once: int) -> None:
    found: dict[str, list[Work]] = {"one slot": [], "three slots": []}
    for _ in range(rounds):
        for what, nodes in (("one slot", [0, 0, 0]), ("three slots", [0, 1, 2])):
            found[what].append(asyncio.run(run(cluster, nodes, groups, at_once)))
    best = {what: min(works, key=lambda one: one.us) for what, works in found.items()}
    for what, work in best.items():
        calls, commands, us = (number / groups for number in work)
        print(f"  {what:>12}: {us:7.1f} us, {calls:.2f} calls, {commands:.1f} commands a group")
    one, three = best["one slot"], best["three slots"]
    print(
        f"  {three.us / one.us:.2f}x the time, {three.calls / one.calls:.2f}x the calls,"
        f" {three.commands / one.commands:.2f}x the commands; the bar is {MOST}x the time"
    )


if __name__ == "__main__":
    main()
