"""Relay and worker killed with SIGKILL, at each step and at random: one effect per row (RULES-15).

``TORIL_CHAOS_ROWS=10000`` runs the random test in its full form.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time

import pytest
from sqlalchemy import create_engine, func, select

from tests.helpers import let_pass, wait_until
from tests.sql import program
from tests.sql.program import QUEUE, RELAY_STEPS, WORKER_STEPS, Tables, make_relay, make_worker
from toril import NewJob

ROWS = int(os.environ.get("TORIL_CHAOS_ROWS", "200"))
SEED = int(os.environ.get("TORIL_CHAOS_SEED", str(random.randrange(10**6))))


@pytest.fixture
def tables(engine, table_name):
    tables = Tables(table_name)
    tables.metadata.create_all(engine)
    yield tables
    tables.metadata.drop_all(engine)


@pytest.fixture
def arguments(engine, url, prefix, table_name):
    """What a child needs to know."""
    return (engine.url.render_as_string(hide_password=False), url, prefix, table_name)


def write(engine, tables, count, *, laned=False, **options):
    """With ``laned``, every other row goes to one of five lanes."""
    lanes = [f"user-{n % 5}" if laned and n % 2 else None for n in range(count)]
    jobs = [NewJob("charge", {"n": n}, lane=lane, **options) for n, lane in enumerate(lanes)]
    with engine.begin() as connection:
        return tables.outbox.add_bulk(connection, QUEUE, jobs)


def effects(engine, tables):
    with engine.connect() as connection:
        query = select(tables.effects.c.key).order_by(tables.effects.c.id)
        return list(connection.execute(query).scalars())


async def until_killed(child):
    assert await child.ended() == -signal.SIGKILL


@pytest.mark.parametrize("step", RELAY_STEPS)
async def test_a_relay_that_dies_leaves_one_job_per_row(
    step, engine, tables, arguments, url, prefix, queue
):
    """RULES-15: also when the jobs have run and were removed before the next relay comes."""
    ids = write(engine, tables, 3, remove_on_complete=True)
    await until_killed(program.start("relay", *arguments, step))

    async with make_worker(engine, tables, url, prefix):
        if step in ("sent", "marked", "committed"):
            await wait_until(lambda: len(effects(engine, tables)) == 3, 40)
            await wait_until(lambda: _is_idle(queue), 40)
        async with make_relay(engine, tables, url, prefix) as relay:
            await wait_until(lambda: _has_dispatched(relay, 3), 40)
        await wait_until(lambda: len(effects(engine, tables)) == 3, 40)
        await wait_until(lambda: _is_idle(queue), 40)

    assert sorted(effects(engine, tables)) == sorted(ids)
    assert [await queue.get_job(job_id) for job_id in ids] == [None] * 3


async def _has_dispatched(relay, count):
    await relay.run_once()
    stats = await relay.stats()
    return stats.dispatched + stats.done == count


async def _is_idle(queue):
    counts = await queue.get_job_counts("waiting", "active", "delayed", "prioritized")
    return not any(counts.values())


@pytest.mark.parametrize("step", WORKER_STEPS)
async def test_a_worker_that_dies_leaves_one_effect_per_job(
    step, engine, tables, arguments, url, prefix, queue
):
    """RULES-02: before the work, in the middle of it, and after its commit."""
    ids = write(engine, tables, 2)
    async with make_relay(engine, tables, url, prefix) as relay:
        await relay.drain()
    await until_killed(program.start("worker", *arguments, step))
    done_before = len(effects(engine, tables))
    assert (done_before > 0) is (step == "committed")

    async with make_worker(engine, tables, url, prefix):
        await wait_until(lambda: _have_completed(queue, 2), 40)

    assert sorted(effects(engine, tables)) == sorted(ids)
    assert [(await queue.get_job(job_id)).return_value for job_id in ids] == ids


async def _have_completed(queue, count):
    return await queue.get_completed_count() == count


@pytest.mark.timeout(1800)
async def test_random_kills_of_relays_and_workers_leave_one_effect_per_row(
    server_url, table_name, url, prefix, queue, client
):
    """Two relays and three workers, killed at random while rows are written; lanes keep order."""
    dice = random.Random(SEED)
    engine = create_engine(server_url)
    tables = Tables(table_name)
    tables.metadata.create_all(engine)
    arguments = (server_url, url, prefix, table_name)
    kinds = ["relay"] * 2 + ["worker"] * 3
    children = [program.start(kind, *arguments, "slow") for kind in kinds]
    options = {"attempts": 50, "backoff": 50, "remove_on_complete": True}
    taken_over = TakenOver(client, queue.keys.events)
    written = kills = 0
    begin = time.monotonic()
    try:
        while written < ROWS or not await _is_done(engine, tables, queue):
            if written < ROWS:
                count = min(max(20, ROWS // 100), ROWS - written)
                await asyncio.to_thread(write, engine, tables, count, laned=True, **options)
                written += count
            await let_pass(dice.uniform(0.1, 0.6), "nobody knows when somebody dies")
            await taken_over.look()
            if written < ROWS or kills < 8:
                victim = dice.randrange(len(children))
                if kinds[victim] == "worker":
                    await _until_running(queue)
                children[victim].kill()
                await children[victim].ended()
                kills += 1
                children[victim] = program.start(kinds[victim], *arguments, "slow")
            assert time.monotonic() - begin < 1500, f"not done, TORIL_CHAOS_SEED={SEED}"
    finally:
        for child in children:
            child.terminate()
        codes = await asyncio.gather(*(child.ended() for child in children))
    keys = effects(engine, tables)
    table = tables.outbox.table
    with engine.connect() as connection:
        rows = connection.execute(select(table.c.id, table.c.lane).order_by(table.c.seq)).all()
    tables.metadata.drop_all(engine)
    engine.dispose()

    print(
        f"{ROWS} rows, {kills} kills, {taken_over.count} jobs taken over from dead workers"
        f" in {time.monotonic() - begin:.0f} s, seed {SEED}"
    )
    assert len(keys) == len(set(keys)) == ROWS, f"TORIL_CHAOS_SEED={SEED}"
    assert set(keys) == {row.id for row in rows}
    for lane in {row.lane for row in rows} - {None}:
        written = [row.id for row in rows if row.lane == lane]
        assert [key for key in keys if key in set(written)] == written, f"{lane} is out of order"
    assert await queue.get_failed_count() == 0
    # A child that is told to end while it is still starting has no handler for that yet.
    assert set(codes) <= {0, -signal.SIGTERM}
    assert taken_over.count > 0 or ROWS < 5000, "no job was ever taken over from a dead worker"


async def _until_running(queue, seconds=1.0):
    """A worker is best killed while it works; but wait for that no longer than a moment."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not await queue.get_active_count():
        await asyncio.sleep(0.01)


class TakenOver:
    """Counts the jobs that were brought back from dead workers: the danger has to be met."""

    def __init__(self, client, stream):
        self._client, self._stream, self._last = client, stream, "-"
        self.count = 0

    async def look(self):
        for entry_id, fields in await self._client.xrange(self._stream, min=self._last):
            self._last = f"({entry_id}"
            self.count += fields["event"] == "stalled"


async def _is_done(engine, tables, queue):
    def rows_left():
        table = tables.outbox.table
        with engine.connect() as connection:
            query = select(func.count()).where(table.c.status == "pending")
            return connection.execute(query).scalar()

    return await asyncio.to_thread(rows_left) == 0 and await _is_idle(queue)
