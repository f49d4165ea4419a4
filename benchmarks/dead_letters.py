"""Operators' work on very many dead letters: how long does it take, and does anybody notice?

    python benchmarks/dead_letters.py                  1,000,000 letters on the Valkey of the wheel
    python benchmarks/dead_letters.py --jobs 100000    fewer
    python benchmarks/dead_letters.py --server redis   or the URL of an empty server

Everything an operator does, one step after another, while another process pings the server every
millisecond. ``make bench`` measures the bulk operations by themselves.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable

import redis
from clock import Stopwatch, quantile
from letters import RARE, forge
from toril_sweeping import Pinger

import servers
from toril import Queue

DLQ = "bench-dlq"
SLOWER_THAN_US = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--server", default="valkey")
    given = parser.parse_args()
    (server,) = servers.find(given.server)
    with servers.fresh(server) as url:
        print(f"{servers.version(url)}, {given.jobs} dead letters")
        print(f"{'':26}{'seconds':>9}{'jobs/s':>10}{'scripts ms':>11}{'p99':>9}{'max':>9}", end="")
        print(f"{'others p99':>13}")
        asyncio.run(measure(url, given.jobs))


async def measure(url: str, jobs: int) -> None:
    client = redis.Redis.from_url(url, socket_timeout=120)
    async with Queue(DLQ, connection=url) as dlq:
        half = jobs // 2
        steps: list[tuple[str, int, Callable[[], Awaitable[object]]]] = [
            ("summary", jobs, dlq.get_dead_letter_summary),
            (
                "dry run, by reason",
                jobs,
                lambda: dlq.replay_all_dead_letters(failed_reason="REFUSED", dry_run=True),
            ),
            ("page in the middle", 10, lambda: dlq.get_dead_letter_jobs(half, half + 9)),
            ("replay one in the middle", 1, lambda: dlq.replay_dead_letter(str(half))),
            ("replay 1 in 100", jobs, lambda: dlq.replay_all_dead_letters(fingerprint=RARE)),
            ("replay every other", jobs, lambda: dlq.replay_all_dead_letters(name="half")),
            ("replay the rest", half, dlq.replay_all_dead_letters),
        ]
        forge(url, jobs)
        for step in steps:
            await clocked(client, url, *step)
        client.flushdb()
        forge(url, jobs)
        purges: list[tuple[str, int, Callable[[], Awaitable[object]]]] = [
            ("purge 1 in 100", jobs, lambda: dlq.purge_dead_letters(fingerprint=RARE)),
            ("purge every other", jobs, lambda: dlq.purge_dead_letters(name="half")),
            ("purge the rest", half, dlq.purge_dead_letters),
        ]
        for step in purges:
            await clocked(client, url, *step)


async def clocked(
    client: redis.Redis, url: str, what: str, jobs: int, act: Callable[[], Awaitable[object]]
) -> None:
    client.config_set("slowlog-log-slower-than", SLOWER_THAN_US)
    client.config_set("slowlog-max-len", 100_000)
    client.slowlog_reset()
    with Pinger(url) as pinger:
        watch = Stopwatch()
        await act()
        seconds = watch.seconds()
    slow_ms = [entry["duration"] / 1000 for entry in client.slowlog_get(-1)] or [0.0]
    print(
        f"{what:26}{seconds:9.2f}{jobs / seconds:10.0f}"
        f"{quantile(slow_ms, 0.5):11.1f}{quantile(slow_ms, 0.99):9.1f}{max(slow_ms):9.1f}"
        f"{pinger.p99_ms:13.1f}"
    )


if __name__ == "__main__":
    main()
