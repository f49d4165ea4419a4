"""What the dashboard costs: its pages over very many jobs, and very many pages over busy queues.

    python benchmarks/dashboard.py                 a million jobs, a hundred pages
    python benchmarks/dashboard.py --jobs 100000 --seconds 5

Prints two tables; nothing is written.  A page is to take less than 300 ms of the server's time, and
no command of it more than 10 ms.  A hundred open pages are to hear of no more than one change a
second each, and to keep the dashboard's process below one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import redis
from clock import chunks
from letters import forge

import servers
from toril import FlowProducer, GroupJob, NewJob, Queue, UnrecoverableError, Worker

ROUNDS = 5
PAUSE_S = 1.1
"""What pages read is shared for less than a second."""
LANES = 100_000
EVENTS_PER_ADD = 2

PAGES = {
    "overview": "/",
    "waiting jobs": "/queue?queue=big&state=waiting",
    "waiting jobs, the last page": "/queue?queue=big&state=waiting&start={last}",
    "a search": "/queue?queue=big&state=waiting&id=nothing",
    "failed jobs": "/queue?queue=big&state=failed",
    "a job": "/job?queue=big&id=first",
    "lanes of all queues": "/lanes",
    "lanes": "/lanes?queue=lanes",
    "a lane": "/lane?queue=lanes&lane=lane-7",
    "dead letters of all queues": "/dead-letters",
    "dead letters": "/dead-letters?queue=bench-dlq",
    "groups": "/groups",
    "schedules": "/schedules",
    "workers": "/workers",
    "find a job": "/search?q=nowhere",
    "log": "/log",
}


async def seed(url: str, jobs: int) -> None:
    """A third waits, a third waits in lanes, a third is dead letters; some of everything else."""
    third = jobs // 3
    async with (
        Queue("big", connection=url) as big,
        Queue("lanes", connection=url) as lanes,
        FlowProducer(connection=url) as flows,
    ):
        await big.add("doomed")

        async def fail(job: Any) -> None:
            raise UnrecoverableError("no")

        async with Worker("big", fail, connection=url):
            while not await big.get_failed_count():
                await asyncio.sleep(0.01)
        await big.add("x", {"n": 0}, job_id="first")
        for numbers in chunks(third):
            await big.add_bulk([NewJob("x", {"n": n}) for n in numbers])
            await lanes.add_bulk([NewJob("x", {"n": n}, lane=f"lane-{n % LANES}") for n in numbers])
        for number in range(200):
            await lanes.pause_lane(f"lane-{number}")
        for _ in range(200):
            await flows.add_group("g", [GroupJob("x", queue_name="big")])
    forge(url, third)


@contextmanager
def served(url: str) -> Iterator[tuple[str, int]]:
    """The dashboard in a process of its own: its address, and the process's id."""
    env = {**os.environ, "TORIL_URL": url}
    env["PYTHONPATH"] = str(Path(__file__).parent.parent / "src")
    process = subprocess.Popen(
        [sys.executable, "-m", "toril", "dashboard", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        env=env,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"].rstrip("/"), process.pid
    finally:
        process.terminate()
        process.wait()


class Meter:
    """What the server did since the last look, told by its slow log: one entry for each command."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self._client.config_set("slowlog-log-slower-than", 0)
        self._client.config_set("slowlog-max-len", 200_000)

    def reset(self) -> None:
        self._client.slowlog_reset()

    def read(self) -> tuple[int, float, tuple[float, str]]:
        """Commands, milliseconds of all, and of the longest, which is named."""
        took = [
            (one["duration"] / 1000, one["command"].split(b" ")[0].decode())
            for one in self._client.slowlog_get(200_000)
            if not one["command"].startswith((b"SLOWLOG", b"CONFIG"))
        ]
        return len(took), sum(ms for ms, _ in took), max(took, default=(0.0, ""))


async def measure_pages(url: str, base: str, jobs: int) -> None:
    meter = Meter(url)
    columns = ("answer, ms", "server, ms", "longest, ms")
    print(
        f"\n{'page':<28}{columns[0]:>12}{columns[1]:>12}{columns[2]:>13}{'commands':>10}  longest"
    )
    async with httpx.AsyncClient(base_url=base, timeout=60) as http:
        await http.get("/")
        await asyncio.sleep(3)  # the first search for queues, and the doctor's first look
        for name, path in PAGES.items():
            address = path.format(last=jobs // 3 - 50)
            walls, spent, longest, commands = [], [], [], []
            for _ in range(ROUNDS):
                await asyncio.sleep(PAUSE_S)
                meter.reset()
                began = time.perf_counter()
                answer = await http.get(address)
                walls.append(1000 * (time.perf_counter() - began))
                assert answer.status_code == 200, (address, answer.status_code)
                calls, ms, most = meter.read()
                spent.append(ms)
                longest.append(most)
                commands.append(calls)
            print(
                f"{name:<28}{median(walls):>12.1f}{median(spent):>12.1f}{max(longest)[0]:>13.1f}"
                f"{round(median(commands)):>10}  {max(longest)[1]}"
            )


async def keep_busy(url: str, events_per_s: int) -> None:
    async with Queue("big", connection=url) as queue:
        started, sent = time.monotonic(), 0
        while True:
            due = (time.monotonic() - started) * events_per_s / EVENTS_PER_ADD - sent
            if due >= 1:
                await queue.add_bulk([NewJob("x") for _ in range(int(due))])
                sent += int(due)
            await asyncio.sleep(0.02)


async def watch(http: httpx.AsyncClient, path: str, heard: list[float]) -> None:
    """What the script of an open page does: listen, and draw anew when something changed."""
    async with http.stream("GET", "/live") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                heard.append(time.monotonic())
                answer = await http.get(path)
                assert answer.status_code == 200


async def measure_open_pages(
    url: str, base: str, pid: int, pages: int, seconds: float, events_per_s: int
) -> None:
    meter = Meter(url)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=base, timeout=60, limits=limits) as http:
        heard: list[list[float]] = [[] for _ in range(pages)]
        tasks = [asyncio.create_task(watch(http, "/queue?queue=big", one)) for one in heard]
        busy = asyncio.create_task(keep_busy(url, events_per_s))
        await asyncio.sleep(3)
        for one in heard:
            one.clear()
        meter.reset()
        before, began = _cpu_s(pid), time.monotonic()
        await asyncio.sleep(seconds)
        passed = time.monotonic() - began
        share = (_cpu_s(pid) - before) / passed
        commands = meter.read()[0] / passed
        for task in (*tasks, busy):
            task.cancel()
        await asyncio.gather(*tasks, busy, return_exceptions=True)
    updates = [len(one) for one in heard]
    print(
        f"{pages:>6}{events_per_s:>10}{seconds:>10.0f}{max(updates):>14}{median(updates):>17.0f}"
        f"{100 * share:>18.0f}{commands:>19.0f}"
    )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the dashboard.")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--events", type=int, default=1000, help="events per second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--server", help="valkey, redis, or the URL of an empty server")
    given = parser.parse_args()
    with servers.fresh(servers.find(given.server or "valkey")[0]) as url:
        await seed(url, given.jobs)
        with served(url) as (base, pid):
            await measure_pages(url, base, given.jobs)
            print(
                f"\n{'pages':>6}{'events/s':>10}{'seconds':>10}{'most updates':>14}"
                f"{'median updates':>17}{'dashboard CPU, %':>18}{'server commands/s':>19}"
            )
            for pages in (1, given.pages):
                await measure_open_pages(url, base, pid, pages, given.seconds, given.events)


if __name__ == "__main__":
    asyncio.run(main())
