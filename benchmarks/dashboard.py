"""What the dashboard costs: its pages over very many jobs, and very many pages over busy queues.

    python benchmarks/dashboard.py                 a million jobs, a hundred pages
    python benchmarks/dashboard.py --jobs 100000 --groups 500 --seconds 5

Prints three tables, and writes no files.  A page should take less than 300 ms of the server's time,
and none of its commands more than 10 ms.  A hundred open pages should each hear of at most one
change a second, and keep the dashboard's process below one core.  The last table says which bars
were met; the exit code is 1 if one was not.  A million jobs take about four minutes on a quiet
machine; on a busy one a command may be interrupted, so a page that misses a bar is measured twice.
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
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import redis
from clock import chunks
from letters import forge

import servers
from toril import FlowJob, FlowProducer, GroupJob, NewJob, Queue, UnrecoverableError, Worker

ROUNDS = 3
PAUSE_S = 1.1
"""What pages read is shared for less than a second."""
LANES = 100_000
MEMBERS = 1000
EVENTS_PER_ADD = 2

SERVER_MS = 300.0
LONGEST_MS = 10.0
CPU_PERCENT = 100.0

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
    "groups of all queues": "/groups",
    "groups": "/groups?queue=big",
    "groups, the last page": "/groups?queue=big&start={last_group}",
    "groups in a rare state": "/groups?queue=big&state=BLOCKED",
    "a group of 1,000 members": "/group?queue=big&id={group}",
    "its last members": "/group?queue=big&id={group}&start=900",
    "a flow": "/flow?queue=big&id=parent",
    "a queue with partitions": "/queue?queue=parts&state=waiting",
    "its lanes": "/lanes?queue=parts",
    "schedules": "/schedules",
    "workers": "/workers",
    "find a job": "/search?q=nowhere",
    "log": "/log",
}


@dataclass(frozen=True)
class Bar:
    """Something that was measured, and what it may be at most."""

    what: str
    measured: float
    most: float
    unit: str

    @property
    def is_kept(self) -> bool:
        return self.measured <= self.most


@dataclass(frozen=True)
class Visit:
    """What one page cost: medians of some rounds, and the longest command of all."""

    page: str
    answer_ms: float
    server_ms: float
    longest_ms: float
    longest: str
    commands: int

    @property
    def bars(self) -> list[Bar]:
        return [
            Bar(f"{self.page}: server time", self.server_ms, SERVER_MS, "ms"),
            Bar(f"{self.page}: longest command", self.longest_ms, LONGEST_MS, "ms"),
        ]


async def seed(url: str, jobs: int, groups: int) -> str:
    """A third waits, a third waits in lanes, a third is dead letters; some of everything else.

    Returns the id of a group of very many members.
    """
    third = jobs // 3
    async with Queue("big", connection=url) as big, Queue("lanes", connection=url) as lanes:
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
    forge(url, third)
    return await seed_families(url, groups)


async def seed_families(url: str, groups: int) -> str:
    """Groups, a flow, and a queue with partitions; returns the id of the largest group."""
    async with (
        Queue("parts", connection=url, partitions=16) as parts,
        FlowProducer(connection=url) as flows,
    ):
        await parts.add_bulk(
            [NewJob("x", lane=f"lane-{n}" if n % 2 else None) for n in range(2000)]
        )
        for numbers in chunks(groups):
            jobs = [GroupJob("x", queue_name="big")]
            await asyncio.gather(*(flows.add_group("g", jobs) for _ in numbers))
        children = [FlowJob("child", queue_name="big") for _ in range(100)]
        await flows.add(FlowJob("parent", queue_name="big", job_id="parent", children=children))
        members = [GroupJob("x", queue_name="big", key=f"k{n}") for n in range(MEMBERS)]
        return (await flows.add_group("large", members)).group_id


@contextmanager
def served(url: str) -> Iterator[tuple[str, int]]:
    """The dashboard in its own process: its address, and the process id."""
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
    """What the server did since the last look, from its slow log: one entry per command."""

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


async def measure_pages(url: str, base: str, places: dict[str, Any]) -> list[Visit]:
    meter = Meter(url)
    columns = ("answer, ms", "server, ms", "longest, ms")
    print(
        f"\n{'page':<28}{columns[0]:>12}{columns[1]:>12}{columns[2]:>13}{'commands':>10}  longest"
    )
    visits: list[Visit] = []
    async with httpx.AsyncClient(base_url=base, timeout=60) as http:
        await http.get("/")
        await asyncio.sleep(3)  # the first search for queues, and the doctor's first look
        for name, path in PAGES.items():
            address = path.format(**places)
            visit = await measure_page(http, meter, name, address)
            if not all(bar.is_kept for bar in visit.bars):
                visit = await measure_page(http, meter, name, address)
            visits.append(visit)
            print(
                f"{name:<28}{visit.answer_ms:>12.1f}{visit.server_ms:>12.1f}"
                f"{visit.longest_ms:>13.1f}{visit.commands:>10}  {visit.longest}"
            )
    return visits


async def measure_page(http: httpx.AsyncClient, meter: Meter, name: str, address: str) -> Visit:
    walls, spent, longest, commands = [], [], [], []
    for _ in range(ROUNDS):
        await asyncio.sleep(PAUSE_S)
        meter.reset()
        began = time.perf_counter()
        answer = await http.get(address)
        walls.append(1000 * (time.perf_counter() - began))
        assert answer.status_code in (200, 303), (address, answer.status_code)
        calls, ms, most = meter.read()
        spent.append(ms)
        longest.append(most)
        commands.append(calls)
    worst = max(longest)
    return Visit(name, median(walls), median(spent), *worst, round(median(commands)))


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
    """What the script of an open page does: listen, and redraw when something changed."""
    async with http.stream("GET", "/live") as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                heard.append(time.monotonic())
                answer = await http.get(path)
                assert answer.status_code == 200


async def measure_open_pages(
    url: str, base: str, pid: int, pages: int, seconds: float, events_per_s: int
) -> list[Bar]:
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
    return [
        # The first and the last may stand at the edges of the time.
        Bar(f"{pages} open pages: updates of one", max(updates), passed + 1, ""),
        Bar(f"{pages} open pages: updates at all", -min(updates), -1, ""),
        Bar(f"{pages} open pages: CPU of the dashboard", 100 * share, CPU_PERCENT, "%"),
    ]


def judge(bars: list[Bar]) -> int:
    """Say which bars were kept; 1 when one was not."""
    print(f"\n{'bar':<52}{'measured':>10}{'at most':>10}")
    for bar in bars:
        words = "" if bar.is_kept else "  MISSED"
        print(f"{bar.what:<52}{bar.measured:>10.1f}{bar.most:>10.1f} {bar.unit}{words}")
    missed = sum(not bar.is_kept for bar in bars)
    print(f"\n{len(bars) - missed} of {len(bars)} bars kept.")
    return 1 if missed else 0


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the dashboard.")
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--events", type=int, default=1000, help="events per second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--server", help="valkey, redis, or the URL of an empty server")
    given = parser.parse_args()
    bars: list[Bar] = []
    with servers.fresh(servers.find(given.server or "valkey")[0]) as url:
        group = await seed(url, given.jobs, given.groups)
        places = {
            "last": max(given.jobs // 3 - 50, 0),
            "last_group": max(given.groups - 50, 0),
            "group": group,
        }
        with served(url) as (base, pid):
            for visit in await measure_pages(url, base, places):
                bars += visit.bars
            print(
                f"\n{'pages':>6}{'events/s':>10}{'seconds':>10}{'most updates':>14}"
                f"{'median updates':>17}{'dashboard CPU, %':>18}{'server commands/s':>19}"
            )
            for pages in (1, given.pages):
                bars += await measure_open_pages(url, base, pid, pages, given.seconds, given.events)
    return judge(bars)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
