"""What operators do among very many dead letters: how long it takes, and does anybody notice?

    python benchmarks/dead_letters.py                  1,000,000 letters on the Valkey of the wheel
    python benchmarks/dead_letters.py --jobs 100000    fewer
    python benchmarks/dead_letters.py --server redis   or the URL of an empty server

The letters are written by a script of this program, as the move writes them, with a small payload
and one stack trace. Half of them pass the filter, spread evenly, which is the worst case: every
other letter has to leave the list. Meanwhile another process pings the server every millisecond.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable

import redis
from clock import Stopwatch, chunks, quantile
from toril_sweeping import Pinger

import servers
from toril import Queue

DLQ = "bench-dlq"
SLOWER_THAN_US = 1000

FILL = """#!lua
local base, head, member = KEYS[1], ARGV[3], ARGV[4]
local first, last = tonumber(ARGV[1]), tonumber(ARGV[2])
for number = first, last do
  local data = head .. number
  local text = data .. member .. "}"
  redis.call("HSET", base .. ":" .. number, "name", number % 2 == 0 and "send" or "keep",
    "data", text, "opts", '{"attempts":0}', "timestamp", 1700000000000 + number, "delay", 0,
    "priority", 0, "x.source", "bench", "x.job", "j" .. number,
    "x.why", "connectionerror: connection refused", "x.fp", "ConnectionError@bank.py:call",
    "x.opts", '{"attempts":3,"idempotencyKey":"bench:j' .. number .. ':1700000000000"}',
    "x.cut", "1:" .. #data .. ":" .. (#data + #member + 1) .. ":" .. #text)
  redis.call("LPUSH", base .. ":wait", number)
end
"""

META = {
    "sourceQueue": "bench",
    "originalJobId": "j1",
    "failedReason": "Connection refused",
    "stacktrace": ["Traceback (most recent call last):\n" + '  File "bank.py", line 1\n' * 12],
    "attemptsMade": 3,
    "deadLetteredAt": 1_700_000_000_000,
    "originalTimestamp": 1_700_000_000_000,
    "originalOpts": {"attempts": 3},
}


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
            ("replay every other", half, lambda: dlq.replay_all_dead_letters(name="send")),
            ("replay the rest", half, dlq.replay_all_dead_letters),
        ]
        fill(client, jobs)
        for step in steps:
            await clocked(client, url, *step)
        fill(client, jobs)
        await clocked(
            client, url, "purge every other", half, lambda: dlq.purge_dead_letters(name="send")
        )
        await clocked(client, url, "purge the rest", half, dlq.purge_dead_letters)


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


def fill(client: redis.Redis, jobs: int) -> None:
    client.flushdb()
    member = ',"_dlqMeta":' + json.dumps(META, separators=(",", ":"))
    write = client.register_script(FILL)
    for part in chunks(jobs, 2000):
        write([f"bull:{DLQ}"], [part[0] + 1, part[-1] + 1, '{"n":', member])


if __name__ == "__main__":
    main()
