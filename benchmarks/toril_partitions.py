"""What do partitions cost the server, how evenly do they spread, and what does an idle one cost?

    python benchmarks/toril_partitions.py                 all three
    python benchmarks/toril_partitions.py --jobs 2000 --lanes 1000 --rounds 1

Work is counted by `INFO commandstats`: calls, which a busy machine does not change, and the
microseconds of the server, which it does.  It starts its own servers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.servers import Cluster, Server

from toril import NewJob, Queue, Worker

MOST_FOR_A_PLAIN_JOB = 1.05
MOST_OF_THE_MEAN = 1.25


class Work(NamedTuple):
    """What servers did."""

    calls: int
    us: int


def reset(servers: Iterable[Server]) -> None:
    for server in servers:
        with server.client() as client:
            client.config_resetstat()


def work_of(server: Server) -> Work:
    with server.client() as client:
        stats = client.info("commandstats")
    rows = {name.removeprefix("cmdstat_"): row for name, row in stats.items()}
    calls = {name: row for name, row in rows.items() if name in ("fcall", "fcall_ro", "evalsha")}
    waits = {name: row for name, row in rows.items() if name in ("bzpopmin", "blpop", "zadd")}
    return Work(
        sum(int(row["calls"]) for row in (*calls.values(), *waits.values())),
        sum(int(row["usec"]) for row in (*calls.values(), *waits.values())),
    )


async def drain(
    url: str, jobs: list[NewJob], partitions: int, servers: Sequence[Server], concurrency: int = 100
) -> list[Work]:
    """Add and run jobs; returns what each server did for it."""
    where: dict[str, Any] = {"connection": url, "partitions": partitions}

    async def nothing(job: Any) -> None: ...

    async with Queue("mail" if partitions > 1 else "{mail}", **where) as queue:
        await queue.add_bulk(jobs)
        async with Worker(queue.name, nothing, concurrency=concurrency, **where):
            assert await queue.wait_until_empty(600_000)
        works = [work_of(server) for server in servers]
        await queue.obliterate(force=True)
    return works


def plain_jobs(count: int, partitions: int, rounds: int) -> None:
    """The work per plain job of one server, alternating; the best of each."""
    found: dict[int, list[Work]] = {1: [], partitions: []}
    with Server(tcp=True) as server:
        for _ in range(rounds + 1):
            for number, works in found.items():
                reset([server])
                jobs = [NewJob("x", {"n": n}) for n in range(count)]
                works.extend(asyncio.run(drain(server.url, jobs, number, [server])))
    best = {number: min(works[1:], key=lambda one: one.us) for number, works in found.items()}
    for number, work in best.items():
        print(
            f"  {number:>4} partitions: {work.us / count:6.2f} us, {work.calls / count:.4f} calls"
        )
    ratio = best[partitions].us / best[1].us
    print(f"  {ratio:.3f}x of one queue; the bar is {MOST_FOR_A_PLAIN_JOB}x")


def spread(lanes: int, partitions: int) -> None:
    """How much more than the mean the busiest of three nodes has to do."""
    jobs = [NewJob("x", {"n": n}, lane=f"user-{n}") for n in range(lanes)]
    with Cluster() as cluster:
        url = f"redis+cluster://127.0.0.1:{cluster.nodes[0].port}"
        asyncio.run(drain(url, jobs[:50], partitions, cluster.nodes))
        reset(cluster.nodes)
        works = asyncio.run(drain(url, jobs, partitions, cluster.nodes))
    for what in ("us", "calls"):
        each = [getattr(work, what) for work in works]
        ratio = max(each) * len(each) / sum(each)
        print(f"  {what:>5}: {each}, the busiest {ratio:.3f}x of the mean")
    print(f"  the bar is {MOST_OF_THE_MEAN}x")


async def idle(server: Server, partitions: int, seconds: float) -> None:
    """What an idle worker costs."""

    async def nothing(job: Any) -> None: ...

    name = "mail" if partitions > 1 else "{mail}"
    where: dict[str, Any] = {"connection": server.url, "prefix": f"p{partitions}"}
    with server.client() as client:
        before = {one["id"] for one in client.client_list()}
        async with Worker(name, nothing, concurrency=50, partitions=partitions, **where):
            await asyncio.sleep(2.0)
            reset([server])
            await asyncio.sleep(seconds)
            work = work_of(server)
            opened = [one for one in client.client_list() if one["id"] not in before]
    print(
        f"  {partitions:>4} partitions: {len(opened)} connections, {work.calls * 60 / seconds:.0f}"
        f" calls and {work.us * 60 / seconds / 1000:.1f} ms of the server per minute"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--lanes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    print(f"{given.jobs} plain jobs on one server")
    plain_jobs(given.jobs, 16, given.rounds)
    print(f"{given.lanes} lanes over 48 partitions on three nodes")
    spread(given.lanes, 48)
    print("an idle worker")
    with Server(tcp=True) as server:
        for partitions in (1, 16, 64):
            asyncio.run(idle(server, partitions, given.seconds))


if __name__ == "__main__":
    main()
