"""Workers and producers of the version before work beside new ones in the same queues."""

from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import tarfile
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import pytest

from tests.helpers import not_run, wait_until
from tests.proving import amount
from toril import Queue

ROOT = Path(__file__).parent.parent.parent
PROGRAM = Path(__file__).parent / "program.py"
BEFORE = "e6009b42b601999821d2667c12fa379aca162d0c"
"""The last commit of the version before: its scripts are no library of functions yet."""
JOBS, KILLS = amount(24, 400), amount(6, 100)
PER_WORKER = 5 * 4


@pytest.fixture(scope="module")
def old_source(tmp_path_factory) -> Path:
    """The version before, from the history of this repository."""
    asked = subprocess.run(
        ["git", "-C", str(ROOT), "archive", BEFORE, "src"], capture_output=True, check=False
    )
    if asked.returncode != 0:
        not_run("the history of the repository is missing, so no older version was run")
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(asked.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


class Fleet:
    """Processes of both versions."""

    def __init__(self, sources: dict[str, Path], url: str, prefix: str) -> None:
        self._sources = sources
        self._where = (url, prefix)
        self.workers: dict[str, subprocess.Popen[str]] = {}

    def start(self, verb: str, who: str, *numbers: int) -> subprocess.Popen[str]:
        source = self._sources[who.partition("-")[0]]
        env = {**os.environ, "PYTHONPATH": str(source), "WHO": who}
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), verb, *self._where, *map(str, numbers)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith(str(source)), "the wrong version was imported"
        return process

    def work(self, who: str) -> None:
        self.workers[who] = self.start("work", who)

    def kill(self, who: str) -> None:
        self.workers[who].kill()
        self.workers[who].wait()

    def close(self) -> None:
        for process in self.workers.values():
            process.kill()
            process.wait()


def runs_in(ledger: list[str]) -> dict[str, list[tuple[str, str]]]:
    """Who ran each job, in order, by its name; the id behind it."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for line in ledger:
        name, job_id, n, who = line.split("\t")
        found[f"{name} {n}"].append((job_id, who))
    return found


@pytest.mark.first
async def test_the_version_before_works_beside_this_one(old_source, url, prefix, client):
    fleet = Fleet({"old": old_source, "new": ROOT / "src"}, url, prefix)
    await client.delete("ledger")
    dice = random.Random(7)
    try:
        for who in ("old-1", "new-1", "old-2", "new-2"):
            fleet.work(who)
        producers = [
            fleet.start("add", who, number * JOBS, JOBS)
            for number, who in enumerate(("old", "new"))
        ]
        for _ in range(KILLS):
            before = await client.llen("ledger")
            async with Queue("q", connection=url, prefix=prefix) as queue:
                await wait_until(partial(_goes_on, client, queue, before), timeout=60)
            who = dice.choice(sorted(fleet.workers))
            fleet.kill(who)
            fleet.work(who)
        for producer in producers:
            assert producer.wait(timeout=120) == 0
        async with Queue("q", connection=url, prefix=prefix) as queue:
            await wait_until(lambda: _is_done(queue), timeout=90)
            await _check(queue, await client.lrange("ledger", 0, -1))
    finally:
        fleet.close()
        await client.delete("ledger")
    for name in ("q", "other", "dead"):
        async with Queue(name, connection=url, prefix=prefix) as queue:
            await queue.obliterate(force=True)
    for name in ("q:compensation", "other:compensation"):
        keys = [key async for key in client.scan_iter(f"{prefix}:{name}:*")]
        if keys:
            await client.delete(*keys)


async def _goes_on(client, queue: Queue, before: int) -> bool:
    """Have some jobs run since, or is nothing left?"""
    return await client.llen("ledger") > before + 5 or await _is_done(queue)


async def _is_done(queue: Queue) -> bool:
    counts = await queue.get_job_counts()
    left = sum(counts.values()) - counts["completed"] - counts["failed"]
    groups = await queue.get_groups()
    are_over = all(group.state.value in ("FAILED", "COMPLETED") for group in groups)
    return left == 0 and len(groups) > 0 and are_over


async def _check(queue: Queue, lines: list[str]) -> None:
    ledger = [line if isinstance(line, str) else line.decode() for line in lines]
    runs = runs_in(ledger)
    everything = range(2 * JOBS)
    fourth = [n for n in everything if n % 4 == 0]
    once = ("plain", "later", "urgent", "ordered", "same")
    assert [f"{name} {n}" for name in once for n in everything if not runs[f"{name} {n}"]] == []
    assert [n for n in everything if len(runs[f"flaky {n}"]) < 2] == []
    for name in ("child", "doomed"):
        assert [n for n in fourth if not runs[f"{name} {n}"]] == [], name
    # What started in a group that failed is undone, whoever ran it; the rest never starts.
    groups = await queue.get_groups()
    assert len(groups) == len(fourth)
    started = {n for n in fourth if runs[f"kept {n}"]}
    assert {n for n in fourth if runs[f"undone {n}"]} == started
    assert started
    compensations = Counter(line.split("\t")[1] for line in ledger if line.startswith("undone"))
    assert len(compensations) == len(started), "one job for each"
    # A handler runs again only when its worker was killed.
    extra = sum(len(runs[f"{name} {n}"]) - 1 for name in once for n in everything)
    assert extra <= KILLS * PER_WORKER
    # Each lane in order: a job that runs again does so before the next one starts.
    for lane in range(3):
        order = [int(line.split("\t")[2]) for line in ledger if line.startswith("ordered\t")]
        for first in (0, JOBS):
            mine = [n for n in order if n % 3 == lane and first <= n < first + JOBS]
            assert mine == sorted(mine), (lane, mine)
    versions = {line.rsplit("\t", 1)[1].partition("-")[0] for line in ledger}
    assert versions == {"old", "new"}
    async with Queue("dead", connection=queue._connection, prefix=queue.keys.prefix) as dead:
        # The doomed ones, and the members of groups that failed.
        assert await dead.get_dead_letter_count() == 2 * len(fourth)
