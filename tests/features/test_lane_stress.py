"""Lanes at scale: many jobs of one millisecond, and worker processes that are killed.

``TORIL_LANE_STRESS=200x5000x4`` runs the long form: lanes x jobs per lane x processes;
``TORIL_LANE_STRESS_SEED`` another one.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.features.lane_ledger import Fault, Inquest, Ledgers, ServerLog, job_id
from tests.features.lanes import Hand
from tests.forked import Forked
from tests.helpers import wait_until
from tests.proving import amount
from toril import NewJob, Queue
from toril.client.connection import Connection

JOBS = amount(20_000, 100_000)
LANES, PER_LANE, PROCESSES = (
    int(part) for part in os.environ.get("TORIL_LANE_STRESS", "20x60x3").split("x")
)
SEED = int(os.environ.get("TORIL_LANE_STRESS_SEED", "7"))
IS_LONG = LANES * PER_LANE > 10_000
LOCK_MS = 1500
STOP_S = LOCK_MS / 1000 + 1.0
BETWEEN_FAULTS_S = (3.0, 6.0) if IS_LONG else (0.7, 1.5)
PROGRAM = Path(__file__).with_name("lane_program.py")


async def test_many_jobs_of_one_millisecond_keep_their_order(url, prefix):
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

        await queue.add_bulk([NewJob("x", lane="small") for _ in range(3)])
        lanes = []
        for _ in range(8):
            (job,) = await hand.complete(job, then_take=1)
            lanes.append(job.lane)
        assert lanes.count("small") == 3, f"a tenant with {JOBS} jobs starves one with three"
        await queue.obliterate(force=True)
    await connection.close()


@pytest.mark.timeout(7200)
async def test_killed_workers_never_overlap_or_invert_a_lane(url, prefix, client, tmp_path):
    """FIFO-02, FIFO-04, FIFO-07, FIFO-12, FIFO-13: the ledgers of several processes under SIGKILL.

    The server gives a lane to one job at a time, in order. A process that is stopped or gets no
    time for longer than its locks may still run a handler when the next one has begun: each such
    overlap is traced to the sweep that took the lane from it and to the fault that let its lock
    expire, and whatever it writes is refused. Any other overlap is a failure.
    """
    began = time.monotonic()
    async with Queue("q", connection=url, prefix=prefix) as queue:
        await client.hset(queue.keys.meta, "opts.maxLenEvents", 500_000)
        await fill(queue)
        async with server_log(client, queue.keys.events) as log:
            faults = await run_and_disturb(queue, url, prefix, tmp_path)
            await wait_until(lambda: log.completed == LANES * PER_LANE, 60)
        inquest = Inquest(log, Ledgers(tmp_path), faults, lock_s=LOCK_MS / 1000)
        problems = inquest.problems()
        counts = await queue.get_job_counts("completed", "failed", "waiting", "active", "delayed")
        left = await client.exists(*(f"{queue.keys.base}:lanes:{part}" for part in LANE_KEYS))
        if IS_LONG:
            await queue.obliterate(force=True)

    kinds = [fault.kind for fault in faults]
    figures = {
        "seed": SEED, "seconds": round(time.monotonic() - began), "jobs": LANES * PER_LANE,
        "killed": kinds.count("kill"), "stopped": kinds.count("stop"), **sorted_items(inquest.seen),
    }  # fmt: skip
    print("\n".join(f"| {name} | {value:,} |" for name, value in figures.items()))
    assert not problems, "\n".join(map(str, [*problems[:20], *faults]))
    assert counts == {
        "completed": LANES * PER_LANE, "failed": 0, "waiting": 0, "active": 0, "delayed": 0,
    }  # fmt: skip
    assert left == 0
    assert kinds.count("kill") >= 2
    assert inquest.seen["swept: its process was killed"] > 0
    if IS_LONG:
        assert inquest.seen["overlaps"] > 0, "no process ran on without its lock: nothing proved"


LANE_KEYS = ("waiting", "delayed", "held", "ready", "later", "index", "diverting", "settings")


def sorted_items(seen: dict[str, int]) -> dict[str, int]:
    return dict(sorted(seen.items()))


async def fill(queue: Queue) -> None:
    """Jobs in no order; one in twenty fails once, half of these with a wait that blocks."""
    dice = random.Random(SEED)
    places = [(lane, number) for number in range(PER_LANE) for lane in range(LANES)]
    dice.shuffle(places)
    for start in range(0, len(places), 5000):
        await queue.add_bulk(
            NewJob(
                "x",
                {"fails": dice.random() < 0.05},
                lane=f"lane{lane}",
                order_ms=number,
                job_id=job_id(lane, number),
                backoff=dice.choice((0, 30)),
            )
            for lane, number in places[start : start + 5000]
        )


@asynccontextmanager
async def server_log(client: Any, stream: str) -> AsyncIterator[ServerLog]:
    """Follows the events from now on, as they come."""
    log = ServerLog()
    (last,) = await client.xrevrange(stream, count=1)
    cursor = last[0]

    async def follow() -> None:
        nonlocal cursor
        while True:
            page = await client.xread({stream: cursor}, count=5000, block=500)
            for cursor, fields in page[0][1] if page else ():
                if job := fields.get("jobId"):
                    at_ms = int(cursor.partition("-")[0])
                    log.read(at_ms, fields["event"], job, fields.get("prev", ""))
            await asyncio.sleep(0.05)  # pages of many cost less than pages of one

    following = asyncio.create_task(follow())
    try:
        yield log
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following


async def run_and_disturb(queue: Queue, url: str, prefix: str, ledgers: Path) -> list[Fault]:
    """Keep the processes running, kill or stop one now and then, until the queue is empty."""
    dice = random.Random(SEED)
    processes: list[Forked] = []
    stopped: dict[Forked, float] = {}
    faults: list[Fault] = []

    def start() -> None:
        processes.append(Forked(str(PROGRAM), url, prefix, str(ledgers), str(LOCK_MS)))

    def kill(victim: Forked) -> None:
        processes.remove(victim)
        at_s = time.time()
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        # What it still wrote, it wrote before this moment.
        faults.append(Fault("kill", victim.pid, at_s, time.time()))
        start()

    def go_on(*, after_s: float) -> None:
        for victim, since_s in list(stopped.items()):
            if time.time() - since_s >= after_s:
                del stopped[victim]
                victim.send_signal(signal.SIGCONT)
                faults.append(Fault("stop", victim.pid, since_s, time.time()))

    def has_worked(process: Forked) -> bool:
        ledger = ledgers / str(process.pid)
        return ledger.exists() and "start" in ledger.read_text()

    def disturb() -> bool:
        # Whoever is hit has run something: else a slow machine would only ever start processes.
        awake = [each for each in processes if each not in stopped and has_worked(each)]
        if not awake:
            return False
        victim = dice.choice(awake)
        if len(faults) + len(stopped) >= 2 and len(awake) > 1 and dice.random() < 0.3:
            stopped[victim] = time.time()
            victim.send_signal(signal.SIGSTOP)
        else:
            kill(victim)
        return True

    try:
        for _ in range(PROCESSES):
            start()
        next_fault = time.monotonic()
        deadline = time.monotonic() + 6000
        while not await queue.wait_until_empty(100):
            assert time.monotonic() < deadline
            assert all(process.poll() is None for process in processes), "a worker ended by itself"
            go_on(after_s=STOP_S)
            if time.monotonic() > next_fault and disturb():
                next_fault = time.monotonic() + dice.uniform(*BETWEEN_FAULTS_S)
            await asyncio.sleep(0.05)
        go_on(after_s=0)
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        await wait_until(lambda: all(process.poll() is not None for process in processes), 60)
    return faults
