"""Lanes at scale: 100,000 jobs of one millisecond, and worker processes that are killed.

``TORIL_LANE_STRESS=200x5000x4`` runs the long form: lanes x jobs per lane x processes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.features.lanes import Hand
from tests.helpers import wait_until
from toril import NewJob, Queue
from toril.client.connection import Connection

JOBS = 100_000
LANES, PER_LANE, PROCESSES = (
    int(part) for part in os.environ.get("TORIL_LANE_STRESS", "20x60x3").split("x")
)
LOCK_MS = 1500
PROGRAM = Path(__file__).with_name("lane_program.py")


@pytest.mark.slow
async def test_a_hundred_thousand_jobs_of_one_millisecond_keep_their_order(url, prefix):
    """FIFO-04, C-21: equal order_ms, exact order of arrival, whatever their number."""
    connection = Connection(url)
    async with Queue("q", connection=url, prefix=prefix) as queue:
        order_ms = 1_794_731_999_999
        for start in range(0, JOBS, 5000):
            await queue.add_bulk(
                NewJob("x", n, lane="a", order_ms=order_ms, remove_on_complete=True)
                for n in range(start, start + 5000)
            )
        lane = await queue.get_lane("a")
        assert (lane.depth, await queue.get_waiting_count()) == (JOBS, JOBS)

        ids = (await queue.get_job_ids("waiting"))["waiting"]
        numbers = [job.data for job in await queue.get_waiting(0, 99)]
        hand = Hand(connection, queue.keys, "one")
        (job,) = await hand.take(1)
        seen = []
        while len(seen) < 2000:
            seen.append((job.id, job.data))
            (job,) = await hand.complete(job, then_take=1)

        assert numbers == list(range(100))
        assert seen == list(zip(ids[:2000], range(2000), strict=True))
        tail = await queue.get_waiting(-100, -1)
        assert [job.data for job in tail] == list(range(JOBS - 100, JOBS))
        await queue.obliterate(force=True)
    await connection.close()


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_killed_workers_never_overlap_or_invert_a_lane(url, prefix, tmp_path):
    """FIFO-02, FIFO-04, FIFO-07, FIFO-12, FIFO-13: the ledger of several processes under SIGKILL.

    A process that gets no time for longer than its locks may overlap with the next run; it knows
    that it lost the job, and its result is refused. Any other overlap is a fault.
    """
    ledger = tmp_path / "ledger.sqlite"
    with sqlite3.connect(ledger) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE runs (lane, n INTEGER, fence INTEGER, start REAL, end REAL)")
        db.execute("CREATE TABLE lost (fence INTEGER)")
    async with Queue("q", connection=url, prefix=prefix) as queue:
        jobs = [
            NewJob("x", n, lane=f"lane-{lane}", order_ms=n, backoff=0)
            for n in range(PER_LANE)
            for lane in range(LANES)
        ]
        random.Random(7).shuffle(jobs)
        for start in range(0, len(jobs), 5000):
            await queue.add_bulk(jobs[start : start + 5000])
        kills = await run_and_kill(queue, url, prefix, ledger)
        counts = await queue.get_job_counts("completed", "failed", "waiting", "active", "delayed")

    assert kills >= 2
    assert counts == {
        "completed": len(jobs), "failed": 0, "waiting": 0, "active": 0, "delayed": 0,
    }  # fmt: skip
    check_ledger(ledger)


async def run_and_kill(queue: Queue, url: str, prefix: str, ledger: Path) -> int:
    """Keep the processes running, kill one now and then, until the queue is empty."""
    dice = random.Random(11)
    processes: list[subprocess.Popen[bytes]] = []
    kills = 0

    def start() -> None:
        command = [sys.executable, str(PROGRAM), url, prefix, str(ledger), str(LOCK_MS)]
        processes.append(subprocess.Popen(command, env=os.environ | {"PYTHONPATH": "src"}))

    try:
        for _ in range(PROCESSES):
            start()
        next_kill = time.monotonic() + 1.5
        deadline = time.monotonic() + 3000
        while not await queue.wait_until_empty(100):
            assert time.monotonic() < deadline
            if time.monotonic() > next_kill:
                victim = processes.pop(dice.randrange(len(processes)))
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                kills += 1
                start()
                next_kill = time.monotonic() + dice.uniform(0.7, 1.5)
            await asyncio.sleep(0.05)
    finally:
        for process in processes:
            process.terminate()
        await wait_until(lambda: all(process.poll() is not None for process in processes), 15)
    return kills


def check_ledger(ledger: Path) -> None:
    """By fencing number: no two runs of a lane overlap, and none begins before an earlier one."""
    runs = defaultdict(list)
    with sqlite3.connect(ledger) as db:
        lost = {fence for (fence,) in db.execute("SELECT fence FROM lost")}
        for lane, *run in db.execute("SELECT lane, n, fence, start, end FROM runs ORDER BY fence"):
            runs[lane].append(run)
    assert len(runs) == LANES
    for lane, rows in runs.items():
        numbers = [n for n, _, _, _ in rows]
        assert numbers == sorted(numbers), f"{lane} ran out of order: {numbers}"
        assert sorted(set(numbers)) == list(range(PER_LANE)), f"{lane} lost jobs"
        fences = [fence for _, fence, _, _ in rows]
        assert len(set(fences)) == len(fences)
        for (_, fence, _, end), (_, _, start, _) in itertools.pairwise(rows):
            # A run without an end was cut off by a kill.
            is_over = end is None or end <= start
            assert is_over or fence in lost, f"{lane}: two runs overlap"
