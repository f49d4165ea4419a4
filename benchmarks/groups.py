"""What groups cost: plain jobs that do not use them, and the server when a large one fails.

    python benchmarks/groups.py                       both, on the Valkey of the wheel
    python benchmarks/groups.py --waiting 100000      fewer jobs in the way
    python benchmarks/groups.py --server redis        or the URL of an empty server

The first part drains plain jobs with the scripts as they are and with scripts from which everything
about groups was removed, in turns, and compares what the server's process spends on a job.
The second creates, cancels and fails groups in a queue in which many jobs wait, and reports how
long one script held the server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Iterator
from statistics import median, quantiles

import redis
from clock import chunks

import servers
from toril import Compensation, FlowProducer, GroupJob, NewJob, Queue
from toril.client.connection import Connection
from toril.protocol import scripts, settling
from toril.protocol.keys import Keys
from toril.protocol.settling import Outcome, Settled, Take

BATCH = 100
REPEATS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=3_000, help="plain jobs in each round")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--server", default="valkey")
    given = parser.parse_args()
    (server,) = servers.find(given.server)
    with servers.fresh(server) as url:
        print(servers.version(url))
        asyncio.run(cost_for_others(url, given.jobs, given.rounds))
        asyncio.run(longest_scripts(url, given.waiting))


# ---------------------------------------------------------------------------- plain jobs


async def cost_for_others(url: str, jobs: int, rounds: int) -> None:
    """Many short rounds, each a pair: what disturbs one half of a pair often disturbs both."""
    ratios: list[float] = []
    micros: list[float] = []
    for number in range(rounds + 1):
        spent: dict[str, float] = {}
        for name in ("with", "without") if number % 2 else ("without", "with"):
            with scripts_without_groups() if name == "without" else contextlib.nullcontext():
                spent[name] = await drain(url, jobs)
        if number:  # the first round warms up
            ratios.append(spent["with"] / spent["without"])
            micros.append(spent["with"])
    low, middle, high = quantiles(ratios, n=4)
    print(f"a plain job, taken and completed, costs the server {median(micros):.1f} µs")
    print(
        f"groups are {100 * (middle - 1):+.1f} % of that, half of {rounds} rounds between"
        f" {100 * (low - 1):+.1f} and {100 * (high - 1):+.1f} %"
    )


async def drain(url: str, jobs: int) -> float:
    """Microseconds of the server's CPU time for one plain job, taken and completed."""
    client = redis.Redis.from_url(url)
    client.flushdb()
    keys = Keys("bull", "bench")
    async with Queue("bench", connection=url) as queue:
        for part in chunks(jobs, 1000):
            await queue.add_bulk([NewJob("x", {"n": n}) for n in part])
    connection = Connection(url)
    done = Outcome(kind="completed", payloads=("null",))
    settled: list[Settled] = []
    before = _cpu_seconds(client)
    for request in range(1, jobs // BATCH + 2):
        token = f"bench:{request}"
        take = Take(count=BATCH, token=token, lock_ms=60_000)
        call = settling.settle(keys, settled, take, flight="bench", request=request)
        reply = await connection.run(call)
        settled = [Settled(words[-1].decode(), token, done, None) for words in reply.jobs]  # type: ignore[arg-type]
    after = _cpu_seconds(client)
    await connection.close()
    assert client.zcard(keys.completed) == jobs
    return (after - before) / jobs * 1e6


def _cpu_seconds(client: redis.Redis) -> float:
    info = client.info("cpu")
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


@contextlib.contextmanager
def scripts_without_groups() -> Iterator[None]:
    """The library as it would be if there were no groups."""
    original, library = scripts.load, scripts.library()
    cut = library.with_texts({"rooms/jobs": jobs_without_groups(library)})
    scripts.load = cut.script  # type: ignore[assignment]
    try:
        yield
    finally:
        scripts.load = original


def jobs_without_groups(library: scripts.Library) -> str:
    """The room of jobs without what asks for a group when one ends."""
    text = library.rooms["jobs"]
    for old, new in (
        ("parent_key, deid, group, lane =\n", "parent_key, deid, lane =\n"),
        (', "deid", "x.group", "x.lane")\n  if not', ', "deid", "x.lane")\n  if not'),
        ("    group = group,\n", ""),
        ("known.group and lastRun(job, ended, known)", "nil"),
    ):
        assert text.count(old) == 1, f"rooms/jobs.lua no longer has {old!r}"
        text = text.replace(old, new)
    return text


# ---------------------------------------------------------------------------- large groups


async def longest_scripts(url: str, waiting: int) -> None:
    client = redis.Redis.from_url(url, socket_timeout=120)
    client.flushdb()
    for part in chunks(waiting, 50_000):
        client.lpush("bull:bench:wait", *(f"f{n}" for n in part))
    print(f"\nthe server's CPU time for one call, while {waiting:,} jobs wait in the queue:")
    print(f"the least and the median of {REPEATS}")
    undo = {"x": Compensation("undo")}
    async with FlowProducer(connection=url) as flow, Queue("bench", connection=url) as queue:
        for members in (3, 100, 1000):
            jobs = [GroupJob("x", queue_name="bench") for _ in range(members)]
            created, cancelled = [], []
            for _ in range(REPEATS):
                with cpu_ms(client, created):
                    node = await flow.add_group("order", jobs, undo)
                with cpu_ms(client, cancelled):
                    await queue.cancel_group(node.group_id)
            report(f"create a group of {members}", created)
            report(f"cancel a group of {members}", cancelled)
        turned: list[float] = []
        for number in range(REPEATS):
            await turn_over(client, url, flow, Keys("bull", f"turned-{number}"), turned)
        report("turn a group of 1000 over", turned)


async def turn_over(
    client: redis.Redis, url: str, flow: FlowProducer, keys: Keys, found: list[float]
) -> None:
    """999 of 1,000 members have completed, and the last one fails."""
    jobs = [GroupJob("x", queue_name=keys.name) for _ in range(1000)]
    await flow.add_group("order", jobs, {"x": Compensation("undo")})
    connection = Connection(url)
    request = 0

    async def call(settled: list[Settled], count: int) -> list[Settled]:
        nonlocal request
        request += 1
        token = f"bench:{request}"
        take = Take(count=count, token=token, lock_ms=60_000)
        command = settling.settle(keys, settled, take, flight="bench", request=request)
        reply = await connection.run(command)
        done = Outcome(kind="completed", payloads=('{"receipt":"r-1"}',))
        return [Settled(words[-1].decode(), token, done, None) for words in reply.jobs]  # type: ignore[arg-type]

    taken: list[Settled] = []
    for _ in range(10):
        taken = await call(taken, 100)
    last = taken.pop()
    await call(taken, 0)
    fails = Outcome(kind="failed", details={"attempts": 1}, payloads=("no", "[]"))

    with cpu_ms(client, found):
        await call([Settled(last.job_id, last.token, fails, None)], 0)  # type: ignore[arg-type]
    await connection.close()


@contextlib.contextmanager
def cpu_ms(client: redis.Redis, found: list[float]) -> Iterator[None]:
    before = _cpu_seconds(client)
    yield
    found.append((_cpu_seconds(client) - before) * 1000)


def report(what: str, found: list[float]) -> None:
    print(f"  {what:28}{min(found):8.2f}{median(found):8.2f} ms")


if __name__ == "__main__":
    main()
