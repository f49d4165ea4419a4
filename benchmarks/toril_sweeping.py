"""Bulk operations on a large queue: are they linear, and does anybody else notice?

Each operation runs on a tenth of the jobs and on all of them. Meanwhile another process pings the
server every millisecond; its p99 is what other clients experience, and the slow log shows the
longest script.
"""

from __future__ import annotations

import multiprocessing
import time
from argparse import Namespace
from collections.abc import Awaitable, Callable
from multiprocessing.synchronize import Event
from typing import Any, Self

import redis
from clock import Stopwatch, quantile
from letters import RARE, forge
from toril_program import all_completed, fill, main

from toril import Queue

Operation = Callable[[str], Awaitable[object]]
Fill = Callable[[str, int], Awaitable[None]]

SCRIPT_LIMIT_US = 10_000


async def waiting(url: str, count: int) -> None:
    await fill(Queue("bench", connection=url), count)


async def completed(url: str, count: int) -> None:
    await waiting(url, count)
    await all_completed(url, count, concurrency=200)


async def dead(url: str, count: int) -> None:
    forge(url, count)


async def drain_all(url: str) -> None:
    await Queue("bench", connection=url).drain()


async def obliterate(url: str) -> None:
    queue = Queue("bench", connection=url)
    await queue.pause()
    await queue.obliterate()


async def clean(url: str) -> None:
    await Queue("bench", connection=url).clean("completed")


def purge(**filters: Any) -> Operation:
    async def operate(url: str) -> None:
        await Queue("bench-dlq", connection=url).purge_dead_letters(**filters)

    return operate


def replay(**filters: Any) -> Operation:
    async def operate(url: str) -> None:
        await Queue("bench-dlq", connection=url).replay_all_dead_letters(**filters)

    return operate


OPERATIONS: dict[str, tuple[Fill, Operation]] = {
    "drain_all": (waiting, drain_all),
    "obliterate": (waiting, obliterate),
    "clean": (completed, clean),
    "purge": (dead, purge()),
    "purge_half": (dead, purge(name="half")),
    "purge_few": (dead, purge(fingerprint=RARE)),
    "replay": (dead, replay()),
    "replay_half": (dead, replay(name="half")),
    "replay_few": (dead, replay(fingerprint=RARE)),
}


def sweep(name: str) -> Callable[[Namespace], Awaitable[dict[str, float]]]:
    """The measure of one operation."""
    prepare, operate = OPERATIONS[name]

    async def measure(given: Namespace) -> dict[str, float]:
        server = redis.Redis.from_url(given.url, socket_timeout=120)
        figures: dict[str, float] = {}
        per_job, cpu_per_job = {}, {}
        for label, count in (("tenth", given.jobs // 10), ("all", given.jobs)):
            server.flushdb()
            await prepare(given.url, count)
            server.config_set("slowlog-log-slower-than", SCRIPT_LIMIT_US)
            server.slowlog_reset()
            with Pinger(given.url) as pinger:
                watch, before = Stopwatch(), _server_seconds(server)
                await operate(given.url)
                per_job[label] = watch.seconds() / count
                cpu_per_job[label] = (_server_seconds(server) - before) / count
            slow = server.slowlog_get(128)
            figures = {
                "rate": 1 / per_job[label],
                "p99": pinger.p99_ms,
                "slow_scripts": len(slow),
                "longest_ms": max((entry["duration"] for entry in slow), default=0) / 1e3,
            }
        return {
            **figures,
            "server_us": cpu_per_job["all"] * 1e6,
            "growth": per_job["all"] / per_job["tenth"],
            "server_growth": cpu_per_job["all"] / cpu_per_job["tenth"],
        }

    return measure


def _server_seconds(server: redis.Redis) -> float:
    """The server's CPU time: unlike wall-clock time, it does not include the load of others."""
    used = server.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


class Pinger:
    """Another client, in another process, for as long as the block runs."""

    p99_ms = 0.0

    def __init__(self, url: str) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._ready, self._stop = spawning.Event(), spawning.Event()
        self._answers = spawning.SimpleQueue()
        self._process = spawning.Process(
            target=_ping, args=(url, self._ready, self._stop, self._answers), daemon=True
        )

    def __enter__(self) -> Self:
        self._process.start()
        self._ready.wait()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self.p99_ms = self._answers.get() * 1e3
        self._process.join()


def _ping(url: str, ready: Event, stop: Event, answers: multiprocessing.SimpleQueue[float]) -> None:
    server = redis.Redis.from_url(url)
    server.ping()
    ready.set()
    seconds = []
    while not stop.is_set() or not seconds:
        watch = Stopwatch()
        server.ping()
        seconds.append(watch.seconds())
        time.sleep(0.001)
    answers.put(quantile(seconds, 0.99))


if __name__ == "__main__":
    main(**{name: sweep(name) for name in OPERATIONS})
