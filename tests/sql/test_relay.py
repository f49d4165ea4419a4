"""The relay: claims, order, retries, parking, confirmation, pruning (RULES-14, RULES-15)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, delete, event, insert, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.helpers import let_pass, wait_until
from tests.servers import Cluster
from tests.sql.conftest import ASYNC_SERVERS, SERVERS, url_of
from tests.sql.cutting import cut_all_connections
from toril import Backoff, NewJob, Queue, Worker
from toril.errors import InvalidOptionError, ServerRefusalError, ServerUnavailableError
from toril.outbox import Outbox, Relay, database, storing
from toril.outbox.storing import Claim, claim_pending
from toril.outbox.table import check_table, now_ms
from toril.protocol.keys import RESERVED_IDS
from toril.sql import MYSQL


def write(engine, outbox, count=1, **options):
    with engine.begin() as connection:
        return [
            outbox.add(connection, "payments", "charge", {"n": n}, **options) for n in range(count)
        ]


def statuses(engine, outbox):
    with engine.connect() as connection:
        table = outbox.table
        return list(connection.execute(select(table.c.status).order_by(table.c.seq)).scalars())


# ---------------------------------------------------------------------- claims


def test_two_claims_at_the_same_time_share_no_row(engine, outbox):
    """RULES-14: what one relay holds the other passes over, without waiting."""
    write(engine, outbox, 10)
    begin = time.monotonic()
    with engine.connect() as one, engine.connect() as other:
        first = claim_pending(one, outbox.table, Claim(relay="a", limit=6, lease_ms=30_000))
        if engine.dialect.name == "sqlite":
            one.commit()
        second = claim_pending(other, outbox.table, Claim(relay="b", limit=6, lease_ms=30_000))

    assert [row.seq for row in first] == [1, 2, 3, 4, 5, 6]
    assert [row.seq for row in second] == [7, 8, 9, 10]
    # Whoever waits for a lock waits for 50 s on MariaDB, and for ever on PostgreSQL.
    assert time.monotonic() - begin < 20


async def test_many_relays_dispatch_every_row_once(engine, outbox, make_relay, queue):
    """RULES-14: counted by the relays themselves, no row was sent twice."""
    ids = write(engine, outbox, 300)
    relays = [make_relay(batch_size=7) for _ in range(4)]

    async def work(relay):
        while (await relay.stats()).pending:
            await relay.run_once()

    await asyncio.gather(*map(work, relays))

    assert sum(relay.metrics.dispatched for relay in relays) == 300
    assert sum(relay.metrics.duplicates for relay in relays) == 0
    assert {job.id for job in await queue.get_waiting()} == set(ids)
    assert set(statuses(engine, outbox)) == {"dispatched"}


async def test_rows_that_commit_late_are_not_passed_over(engine, outbox, relay, queue):
    """Rows are found by status: one with a smaller number that commits later is not missed."""
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite has one writer at a time, so rows commit in their order")
    with engine.connect() as slow:
        late = outbox.add(slow, "payments", "charge", {"n": "late"})
        (early,) = write(engine, outbox)
        assert await relay.drain() == 1
        slow.commit()

    assert await relay.drain() == 1
    assert [job.id for job in await queue.get_waiting()] == [early, late]


async def test_rows_that_somebody_else_locks_are_passed_over_and_hold_up_their_lane(
    server_url, metadata, table_name, url, prefix, queue, client
):
    """RULES-14: a lane whose second row is held, by whomever, does not go on with the third."""
    engine = create_engine(server_url)
    outbox = Outbox(metadata, name=table_name)
    metadata.create_all(engine)
    first, second, third = write(engine, outbox, 3, lane="user-1")
    (other,) = write(engine, outbox)
    row = select(outbox.table).where(outbox.table.c.seq == 2)
    async with Relay(engine, outbox, connection=url, prefix=prefix) as relay:
        with engine.begin() as connection:
            connection.execute(row.with_for_update())
            await asyncio.wait_for(relay.drain(), 60)
            assert [fields async for fields in _added_ids(queue)] == [first, other]

        await relay.drain()

    assert [fields async for fields in _added_ids(queue)] == [first, other, second, third]
    metadata.drop_all(engine)
    engine.dispose()


async def test_on_sqlite_a_dead_relays_rows_are_free_when_its_lease_ends(
    tmp_path, metadata, url, prefix, queue
):
    engine = create_engine(f"sqlite:///{tmp_path}/lease.db")
    outbox = Outbox(metadata)
    metadata.create_all(engine)
    write(engine, outbox)
    with engine.begin() as connection:
        claim_pending(connection, outbox.table, Claim(relay="dead", limit=5, lease_ms=60_000))
    async with Relay(engine, outbox, connection=url, prefix=prefix) as relay:
        assert await relay.run_once() == 0

        with engine.begin() as connection:  # as if its minute had gone by
            ends = outbox.table.c.claimed_until - 60_000
            connection.execute(update(outbox.table).values(claimed_until=ends))
        assert await relay.run_once() == 1

    assert await queue.get_waiting_count() == 1


# ---------------------------------------------------------------------- the same row twice


async def test_a_row_that_is_dispatched_again_is_the_same_job(engine, outbox, make_relay, queue):
    """RULES-15: the relay died after the enqueue and before the mark."""
    (job_id,) = write(engine, outbox)
    await make_relay().drain()
    with engine.begin() as connection:
        connection.execute(update(outbox.table).values(status="pending", due_at=0))
    second = make_relay()

    await second.drain()

    assert second.metrics.duplicates == 1
    assert [job.id for job in await queue.get_waiting()] == [job_id]


async def test_and_even_if_that_job_has_run_and_was_removed_since(
    engine, outbox, make_relay, queue, url, prefix
):
    """RULES-15: the id lives longer than the job's record."""
    runs = []

    async def handler(job):
        runs.append(job.id)

    (job_id,) = write(engine, outbox, remove_on_complete=True)
    await make_relay().drain()
    async with Worker("payments", handler, connection=url, prefix=prefix):
        await wait_until(lambda: runs)
        await wait_until(lambda: _is_gone(queue, job_id))
        with engine.begin() as connection:
            connection.execute(update(outbox.table).values(status="pending", due_at=0))

        await make_relay().drain()

        assert await queue.get_job(job_id) is None
    assert runs == [job_id]
    assert statuses(engine, outbox) == ["dispatched"]


async def _is_gone(queue, job_id):
    return await queue.get_job(job_id) is None


async def test_an_id_used_again_for_other_work_is_another_job(engine, outbox, make_relay, queue):
    """The memory is of rows: a second row with the same custom id is not taken for the first."""
    write(engine, outbox, job_id="daily")
    relay = make_relay(keep=0)
    await relay.drain()
    await queue.remove("daily")
    await wait_until(relay.prune_once)

    write(engine, outbox, job_id="daily")
    await relay.drain()

    assert [job.id for job in await queue.get_waiting()] == ["daily"]


async def test_the_memory_expires(engine, outbox, make_relay, client, prefix):
    (job_id,) = write(engine, outbox)

    await make_relay(remember=60_000).drain()

    ttl_ms = await client.pttl(f"{prefix}:payments:toril:once:{job_id}")
    assert 50_000 < ttl_ms <= 60_000


# ---------------------------------------------------------------------- lanes


async def test_rows_of_a_lane_keep_their_order_between_relays(engine, outbox, make_relay, queue):
    """Whatever the batches and however many relays, a lane's jobs arrive in the order written."""
    with engine.begin() as connection:
        for n in range(60):
            lane = f"user-{n % 3}" if n % 4 else None
            outbox.add(connection, "payments", "charge", {"n": n, "lane": lane}, lane=lane)
    relays = [make_relay(batch_size=5) for _ in range(3)]

    async def work(relay):
        while (await relay.stats()).pending:
            await relay.run_once()

    await asyncio.gather(*map(work, relays))

    jobs = [job.data for job in await _all_jobs(queue)]
    assert len(jobs) == 60
    for lane in ("user-0", "user-1", "user-2"):
        numbers = [data["n"] for data in jobs if data["lane"] == lane]
        assert numbers == sorted(numbers)


async def _all_jobs(queue):
    """Every job in the order in which it was added, whatever place it waits in."""
    ids = [key async for key in _added_ids(queue)]
    return [await queue.get_job(job_id) for job_id in ids]


async def _added_ids(queue):
    import redis.asyncio

    target = queue._connection._target
    async with redis.asyncio.Redis.from_url(target, decode_responses=True) as client:
        for _, fields in await client.xrange(queue.keys.events):
            if fields["event"] == "added":
                yield fields["jobId"]


async def test_a_lane_waits_for_its_head_also_when_that_is_parked(engine, outbox, relay, queue):
    head, second, third = write(engine, outbox, 3, lane="user-1")
    (other,) = write(engine, outbox, lane="user-2")
    set_row(engine, outbox, head, due_at=2**52)
    assert await relay.drain() == 1, "the second row must wait for the head"

    set_row(engine, outbox, head, status="parked", due_at=0)
    await relay.drain()
    assert [job_id async for job_id in _added_ids(queue)] == [other]

    assert await relay.unpark(head) == 1
    await relay.drain()
    assert [job_id async for job_id in _added_ids(queue)] == [other, head, second, third]


def test_a_lane_stops_before_a_row_that_is_parked_or_unparked_while_a_claim_looks(
    server_url, metadata, table_name, monkeypatch
):
    """A claim looks several times, and rows of other lanes may be parked or freed in between."""
    engine = create_engine(server_url, isolation_level="READ COMMITTED")
    outbox = Outbox(metadata, name=table_name)
    metadata.create_all(engine)
    look = storing._look

    def claim_while(change, looks):
        """What a claim takes if ``change`` is made before its second look, or after its first."""
        done = []

        def look_on(*arguments):
            if not done and looks == "twice" and arguments[2] > 0:
                done.append(change())
            found = look(*arguments)
            if not done and looks == "once":
                done.append(change())
            return found

        monkeypatch.setattr(storing, "_look", look_on)
        with engine.begin() as connection:
            rows = claim_pending(connection, outbox.table, Claim(relay="a", limit=2, lease_ms=1000))
        assert done
        return [row.id for row in rows]

    waiting = write(engine, outbox, 2, lane="user-1")
    head, second = write(engine, outbox, 2, lane="user-2")
    set_row(engine, outbox, waiting[0], due_at=2**52)

    set_parked = lambda: set_row(engine, outbox, head, status="parked")  # noqa: E731
    assert claim_while(set_parked, "twice") == [], "the second must wait for the head"

    with engine.begin() as connection:
        connection.execute(delete(outbox.table).where(outbox.table.c.id.in_(waiting)))
    set_pending = lambda: set_row(engine, outbox, head, status="pending")  # noqa: E731
    assert claim_while(set_pending, "once") == [], "the head is next, and was not seen"
    monkeypatch.undo()
    with engine.begin() as connection:
        rows = claim_pending(connection, outbox.table, Claim(relay="a", limit=2, lease_ms=1000))
    assert [row.id for row in rows] == [head, second]
    metadata.drop_all(engine)
    engine.dispose()


def test_lanes_that_differ_in_a_space_at_their_end_are_different_lanes(engine, outbox):
    """MariaDB and MySQL compare texts without it."""
    lanes = ("a", "a ", "a", "a ", "b", "b", "b", "b ")
    with engine.begin() as connection:
        outbox.add_bulk(connection, "payments", [NewJob("charge", lane=lane) for lane in lanes])
    table = outbox.table
    with engine.begin() as connection:
        connection.execute(update(table).where(table.c.seq <= 2).values(status="parked"))
        connection.execute(update(table).where(table.c.seq == 5).values(due_at=2**52))

    with engine.begin() as connection:
        rows = claim_pending(connection, table, Claim(relay="a", limit=1, lease_ms=30_000))

    assert [(row.seq, row.lane) for row in rows] == [(8, "b ")]


async def test_a_lane_goes_on_without_a_parked_row_when_told_so(
    engine, outbox, make_relay, client, prefix
):
    head, second = write(engine, outbox, 2, lane="user-1")
    set_row(engine, outbox, head, status="parked")

    await make_relay(on_parked="skip").drain()

    assert await client.exists(f"{prefix}:payments:{second}")
    assert not await client.exists(f"{prefix}:payments:{head}")


async def test_a_lane_goes_on_when_its_parked_row_is_discarded(engine, outbox, relay, queue):
    head, second, third = write(engine, outbox, 3, lane="user-1")
    set_row(engine, outbox, head, status="parked")

    assert await relay.discard(head, second) == 1, "what is not parked is not discarded"
    await relay.drain()

    assert [job_id async for job_id in _added_ids(queue)] == [second, third]


async def test_a_row_is_discarded_in_the_queue_that_is_meant(engine, outbox, relay):
    """Regression: an order's id is that of its charge and of its mail, and both rows were gone."""
    with engine.begin() as connection:
        for queue in ("payments", "mail"):
            outbox.add(connection, queue, "n", job_id="order-17")
        connection.execute(update(outbox.table).values(status="parked"))

    with pytest.raises(InvalidOptionError, match="parked for the queues mail, payments"):
        await relay.discard("order-17")
    assert len(await relay.get_parked()) == 2
    assert await relay.discard("order-17", queue="mail") == 1
    assert [row.queue for row in await relay.get_parked()] == ["payments"]
    assert await relay.discard("order-17") == 1
    assert await relay.discard("order-17") == 0


async def test_what_follows_a_row_that_is_parked_now_is_held_with_it(
    engine, outbox, relay, client, prefix
):
    """In the same batch, that is: the lane must not go on between the fault and the mark."""
    first, bad, after = write(engine, outbox, 3, lane="user-1")
    (other,) = write(engine, outbox)
    set_row(engine, outbox, bad, data="{")

    await relay.drain()

    assert await client.exists(f"{prefix}:payments:{first}", f"{prefix}:payments:{other}") == 2
    assert not await client.exists(f"{prefix}:payments:{after}")
    assert [row.id for row in await relay.get_parked()] == [bad]


def set_row(engine, outbox, job_id, **values):
    with engine.begin() as connection:
        table = outbox.table
        connection.execute(update(table).where(table.c.id == job_id).values(**values))


async def test_a_full_lane_is_waited_for_as_long_as_it_takes(
    engine, outbox, make_relay, queue, url, prefix, monkeypatch
):
    """Back-pressure: no attempt is counted, nothing is parked, nothing of the lane overtakes."""
    monkeypatch.setattr("toril.outbox.relay._PASSING_WAIT_MS", 1)
    relay = make_relay(max_attempts=2, backoff=1)
    ids = write(engine, outbox, 3, lane="user-1", max_lane_size=1)
    ids += write(engine, outbox, 2, lane="user-1")  # these have no limit of their own
    others = write(engine, outbox, 2, lane="user-2")
    for _ in range(10):
        await relay.run_once()
        await let_pass(0.002, "the wait for the lane is over")

    assert {job_id async for job_id in _added_ids(queue)} == {ids[0], *others}
    assert (relay.metrics.put_off, relay.metrics.parked) == (0, 0)
    assert relay.metrics.lanes_full > 2
    with engine.connect() as connection:
        rows = connection.execute(select(outbox.table).where(outbox.table.c.id == ids[1])).one()
    assert (rows.status, rows.attempts) == ("pending", 0)
    assert rows.error.startswith("LaneFullError: ")

    async def handler(job):
        if job.lane == "user-1":
            ran.append(job.id)

    ran = []
    async with Worker("payments", handler, connection=url, prefix=prefix):
        await wait_until(lambda: _has_run(relay, ran, 5))
    assert ran == ids


async def _has_run(relay, ran, count):
    await relay.run_once()
    return len(ran) == count


async def test_a_lane_stops_before_a_row_whose_time_has_not_come(engine, outbox, relay, queue):
    """The head goes, and what follows it up to there; another lane goes on."""
    ids = write(engine, outbox, 5, lane="user-1")
    others = write(engine, outbox, 2, lane="user-2")
    is_third = outbox.table.c.id == ids[2]
    with engine.begin() as connection:
        connection.execute(update(outbox.table).where(is_third).values(due_at=2**52))

    await relay.drain()

    assert [job_id async for job_id in _added_ids(queue)] == [*ids[:2], *others]


async def test_when_the_head_of_a_lane_is_at_fault_what_follows_is_held_back(
    engine, outbox, make_relay, client, prefix, monkeypatch
):
    relay = make_relay(backoff=1)
    head, second = write(engine, outbox, 2, lane="user-1")
    (other,) = write(engine, outbox)
    run = relay._connection.run

    async def fail_the_head(command):
        if any(job["id"] == head for job in command.args["jobs"]):
            raise RuntimeError("not today")
        return await run(command)

    monkeypatch.setattr(relay._connection, "run", fail_the_head)
    await relay.run_once()

    assert await client.exists(f"{prefix}:payments:{other}")
    assert not await client.exists(f"{prefix}:payments:{second}")
    assert (relay.metrics.dispatched, relay.metrics.put_off) == (1, 1)
    monkeypatch.setattr(relay._connection, "run", run)
    await wait_until(lambda: _are_dispatched(relay, 3))


async def _are_dispatched(relay, count):
    await relay.run_once()
    return (await relay.stats()).dispatched == count


# ---------------------------------------------------------------------- trouble


async def test_a_row_that_cannot_be_a_job_is_parked_with_its_error(
    engine, outbox, relay, queue, caplog
):
    """Poison rows stop nobody, and say what is wrong with them."""
    with engine.begin() as connection:
        connection.execute(
            insert(outbox.table).values(
                [
                    {"id": "a", "queue": "a:b", "name": "n", "data": "{}", "options": "{}"}
                    | {"key": "a", "created_at": 0},
                    {"id": "b", "queue": "payments", "name": "n", "data": "{", "options": "{}"}
                    | {"key": "b", "created_at": 0},
                    {"id": "c", "queue": "payments", "name": "n", "data": "{}", "options": "[]"}
                    | {"key": "c", "created_at": 0},
                    {"id": "d", "queue": "payments", "name": "n", "data": "{}", "key": "d"}
                    | {"options": '{"atempts": 1}', "created_at": 0},
                ]
            )
        )
    (good,) = write(engine, outbox)

    await relay.drain()

    assert [job.id for job in await queue.get_waiting()] == [good]
    parked = await relay.get_parked()
    assert [row.id for row in parked] == ["a", "b", "c", "d"]
    assert "queue name" in parked[0].error
    assert "not JSON" in parked[1].error
    assert "atempts" in parked[3].error
    assert relay.metrics.parked == 4
    assert "is parked" in caplog.text
    with engine.begin() as connection:
        connection.execute(
            update(outbox.table).where(outbox.table.c.id == "b").values(data='{"now": "well"}')
        )
    assert await relay.unpark("b") == 1
    await relay.drain()
    assert (await queue.get_job("b")).data == {"now": "well"}
    assert (await relay.stats()).parked == 3


def write_by_hand(engine, outbox, *rows):
    """Rows as a service in another language writes them, with nothing checked."""
    usual = {"queue": "payments", "name": "n", "data": "{}", "options": "{}", "created_at": 0}
    with engine.begin() as connection:
        connection.execute(
            insert(outbox.table),
            [{**usual, "id": f"by-hand-{n}", "key": f"k{n}", **row} for n, row in enumerate(rows)],
        )


@pytest.mark.parametrize("is_used", [False, True], ids=["empty", "used"])
async def test_a_row_whose_id_is_no_jobs_id_is_parked_and_overwrites_no_key_of_its_queue(
    engine, outbox, relay, queue, client, prefix, url, is_used
):
    """A job with the id "meta" or "delayed" would be written over that key of the queue."""
    if is_used:
        await queue.add("n", job_id="done")
        async with Worker("payments", lambda job: None, connection=url, prefix=prefix):
            await queue.wait_for("done", timeout=60_000)
        await queue.add("n", delay=3_600_000)
        await queue.add("n", priority=3)
    before = await _types(client, prefix)
    ids = [*sorted(RESERVED_IDS), "7", "", "a b", "a:b"]
    starts = ('{"start":"flow"}', '{"nodes":[{"is":"FlowJob","name":"n","queue_name":"payments"}]}')
    write_by_hand(
        engine,
        outbox,
        *({"id": job_id} for job_id in ids),
        *({"id": job_id, "options": starts[0], "data": starts[1]} for job_id in ids),
    )
    (good,) = write(engine, outbox)

    await relay.drain()

    assert [row.id for row in await relay.get_parked()] == ids * 2
    assert (await relay.get_parked())[0].error.startswith("InvalidNameError: outbox row 1: the id")
    after = await _types(client, prefix)
    assert {key: after[key] for key in before} == before
    async with Worker("payments", lambda job: "ran", connection=url, prefix=prefix):
        assert await queue.wait_for(good, timeout=60_000) == "ran"


async def _types(client, prefix):
    return {key: await client.type(key) async for key in client.scan_iter(f"{prefix}:payments*")}


DEEP = "[" * 3000 + "]" * 3000
GROUP_JOB = '{"is":"GroupJob","name":"n","queue_name":"payments","%s":%s}'
FLOW_JOB = '{"is":"FlowJob","name":"n","queue_name":"payments","%s":%s}'


def a_group(member="", **fields):
    more = "".join(f',"{name}":{value}' for name, value in fields.items())
    member = member or GROUP_JOB % ("data", "1")
    return {"options": '{"start":"group"}', "data": f'{{"name":"g","jobs":[{member}]{more}}}'}


def a_flow(job):
    return {"options": '{"start":"flow"}', "data": f'{{"nodes":[{job}]}}'}


async def test_whatever_reading_a_row_raises_parks_that_row_alone(
    engine, outbox, relay, url, prefix
):
    """An error that the loop does not catch would end every relay, at the same row each time."""
    rows = [
        {"data": DEEP},
        {"data": '{"half":"\\ud83d","n":NaN}'},
        {"options": f'{{"deduplication":{DEEP}}}'},
        {"options": f'{{"start":{DEEP}}}'},
        a_group(GROUP_JOB % ("data", DEEP)),
        a_flow(FLOW_JOB % ("data", DEEP)),
        a_group(GROUP_JOB % ("compensation", "{}")),
        a_group(GROUP_JOB % ("compensation", "5")),
        a_group(on_failed=FLOW_JOB % ("queue_name", "null")),
        {**a_group(), "data": '{"name":"\\ud800","jobs":[%s]}' % (GROUP_JOB % ("data", "1"))},
        a_flow(FLOW_JOB % ("job_id", '"\\ud800"')),
        a_flow(FLOW_JOB % ("queue_name", "null")),
        {**a_group(), "id": "a:b"},
        # What stands in their errors is no text for every database.
        {"options": '{"remove_on_complete":{"\\u0000":1}}'},
        a_group(GROUP_JOB % ("\\u0000", 1)),
        a_group(GROUP_JOB % ("\\ud83d", 1)),
    ]

    async with Queue("payments", connection=url, prefix=prefix, partitions=2) as parts:
        await parts.add("n", job_id="first")
        write_by_hand(engine, outbox, *rows)
        (good,) = write(engine, outbox)
        await relay.drain()

        parked = await relay.get_parked()
        assert [row.seq for row in parked] == list(range(1, len(rows) + 1))
        assert "not JSON" in parked[0].error
        assert "outbox row 7 cannot be a job" in parked[6].error
        assert await parts.get_job(good) is not None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_row_that_was_written_as_bytes_is_a_job(engine, outbox, relay, queue):
    """SQLite keeps bytes as bytes, whatever the column is, and Go writes JSON as bytes."""
    rows = [
        {"data": '{"n":"ü"}'.encode(), "options": b'{"attempts":7}', "lane": b"user-1"},
        {"data": b'{"n":"\xff"}', "options": b"{}"},
        {"options": b'{"start":"flow"}'},
        {"queue": b"payments", "name": b"named", "key": b"k"},
    ]
    write_by_hand(engine, outbox, *({"lane": None, **row} for row in rows))

    await relay.drain()

    first, last = sorted(await queue.get_waiting(), key=lambda job: job.id)
    assert (first.data, first.opts.attempts, first.lane) == ({"n": "ü"}, 7, "user-1")
    assert (last.name, last.idempotency_key) == ("named", "k")
    assert [row.id for row in await relay.get_parked()] == ["by-hand-1", "by-hand-2"]


@pytest.mark.no_audit("one of the queue's keys has the wrong type")
async def test_a_row_whose_queue_is_damaged_is_tried_again_and_then_parked(
    engine, outbox, make_relay, client, prefix
):
    await client.set(f"{prefix}:payments:wait", "not a list")
    relay = make_relay(max_attempts=2, backoff=1)
    write(engine, outbox, 2)

    await relay.run_once()
    assert relay.metrics.put_off == 2
    await wait_until(relay.run_once)

    await wait_until(lambda: _are_parked(relay, 2))
    assert "WRONGTYPE" in (await relay.get_parked())[0].error


@pytest.mark.no_audit("one of the queue's keys has the wrong type")
async def test_a_row_that_is_refused_waits_longer_each_time(
    engine, outbox, make_relay, client, prefix
):
    """Retries back off; until then the row is left alone, and others are not."""
    await client.set(f"{prefix}:broken:wait", "not a list")
    relay = make_relay(backoff=Backoff.exponential(60_000))
    with engine.begin() as connection:
        outbox.add(connection, "broken", "charge")
    waits = []
    for attempts in (1, 2, 3):
        await relay.run_once()
        assert await relay.run_once() == 0, "it is not tried again before its time"
        with engine.begin() as connection:
            table = outbox.table
            query = select(table.c.attempts, table.c.due_at - now_ms(engine.dialect))
            made, wait_ms = connection.execute(query).one()
            connection.execute(update(table).values(due_at=0))
        assert made == attempts
        waits.append(wait_ms)

    for wait_ms, expected in zip(waits, (60_000, 120_000, 240_000), strict=True):
        assert expected - 20_000 < wait_ms <= expected
    write(engine, outbox)
    await relay.run_once()
    assert (relay.metrics.dispatched, relay.metrics.put_off) == (1, 4)


async def _are_parked(relay, count):
    await relay.run_once()
    return (await relay.stats()).parked == count


async def test_when_the_server_is_away_rows_wait_and_no_attempt_is_counted(
    engine, outbox, start_server, queue, make_relay
):
    server = start_server(tcp=True)
    relay = make_relay(connection=server.url, poll_interval=20)
    relay._connection._patience_s = 0.1
    server.stop()
    write(engine, outbox, 3)

    with pytest.raises(ServerUnavailableError):
        await relay.run_once()
    assert statuses(engine, outbox) == ["pending"] * 3
    with engine.connect() as connection:
        assert set(connection.execute(select(outbox.table.c.attempts)).scalars()) == {0}

    running = asyncio.create_task(relay.run())
    await wait_until(lambda: relay.metrics.errors > 0)
    server.start()
    await wait_until(lambda: relay.metrics.dispatched == 3, 30)
    await relay.close(timeout=60_000)
    await running


async def test_missing_rights_are_no_fault_of_the_rows(engine, outbox, start_server, make_relay):
    """An ACL that is wrong for an hour must not park every row that is written meanwhile."""
    server = start_server(tcp=True)
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "small", "on", ">secret", "~*", "+ping")
    relay = make_relay(connection=server.url.replace("redis://", "redis://small:secret@"))
    write(engine, outbox, 2)

    with pytest.raises(ServerRefusalError):
        await relay.run_once()

    assert statuses(engine, outbox) == ["pending"] * 2
    assert (relay.metrics.put_off, relay.metrics.parked) == (0, 0)


@pytest.mark.parametrize("kind", [*SERVERS, *ASYNC_SERVERS])
async def test_a_relay_whose_connections_are_cut_goes_on(
    kind, request, tmp_path, metadata, table_name, url, prefix, queue
):
    """A database that restarts or is tired of idle connections ends no relay."""
    is_async = kind in ASYNC_SERVERS
    driver = "postgresql+psycopg" if kind.startswith("postgresql") else "mariadb+pymysql"
    plain = create_engine(url_of(driver, request, tmp_path), poolclass=NullPool)
    outbox = Outbox(metadata, name=table_name)
    metadata.create_all(plain)
    make_engine = create_async_engine if is_async else create_engine
    engine = make_engine(url_of(kind, request, tmp_path))
    relay = Relay(engine, outbox, connection=url, prefix=prefix, poll_interval=1)
    running = asyncio.create_task(relay.run())
    write(plain, outbox)
    await wait_until(lambda: _has(queue, 1), 30)
    # Wherever it is just then: idle, in a transaction, between its end and the pool.
    cuts = [await asyncio.to_thread(cut_all_connections, plain.url) for _ in range(15)]
    write(plain, outbox)
    await wait_until(lambda: _has(queue, 2), 30)

    assert sum(cuts) > 0
    assert not running.done()
    await relay.close(timeout=60_000)
    await running
    pool = engine.sync_engine.pool if is_async else engine.pool
    assert pool.checkedout() == 0, "connections that were cut count as used"
    if is_async:
        await engine.dispose()
    metadata.drop_all(plain)


_ONLY_READ = {
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
    "mariadb": "SET SESSION TRANSACTION READ ONLY",
}


@pytest.mark.parametrize("kind", [*SERVERS, *ASYNC_SERVERS])
async def test_a_relay_leaves_connections_to_what_is_no_primary_any_more(
    kind, request, tmp_path, metadata, table_name, url, prefix
):
    """After a failover the pool still has them, and new ones lead to the new primary."""
    is_async = kind in ASYNC_SERVERS
    make_engine = create_async_engine if is_async else create_engine
    engine = make_engine(url_of(kind, request, tmp_path), pool_size=3)
    plain = engine.sync_engine if is_async else engine
    outbox = Outbox(metadata, name=table_name)

    async def run(function):
        if not is_async:
            with engine.begin() as connection:
                return function(connection)
        async with engine.begin() as connection:
            return await connection.run_sync(function)

    def demote(raw, _):
        cursor = raw.cursor()
        cursor.execute(_ONLY_READ[plain.dialect.name])
        cursor.close()
        raw.commit()

    await run(metadata.create_all)
    await run(lambda connection: outbox.add(connection, "payments", "charge", {}))
    if is_async:
        await engine.dispose()
    else:
        engine.dispose()
    event.listen(plain, "connect", demote)
    async with Relay(engine, outbox, connection=url, prefix=prefix) as relay:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(relay._database.transaction())
        event.remove(plain, "connect", demote)

        assert await relay.run_once() == 1
        assert await relay.prune_once() == 0

    await run(metadata.drop_all)
    if is_async:
        await engine.dispose()
    else:
        engine.dispose()


async def test_closing_ends_the_run_and_a_second_run_is_refused(make_relay):
    relay = make_relay()
    running = asyncio.create_task(relay.run())
    await asyncio.sleep(0)

    await relay.close(timeout=60_000)
    await asyncio.wait_for(running, 60)

    with pytest.raises(InvalidOptionError, match=r"already (been )?started"):
        await relay.run()


# ---------------------------------------------------------------------- waking


async def test_a_running_relay_finds_new_rows(engine, outbox, make_relay, queue):
    relay = make_relay(poll_interval=50, listens=False)
    running = asyncio.create_task(relay.run())

    for _ in range(3):
        write(engine, outbox)
        expected = await queue.get_waiting_count() + 1
        await wait_until(lambda expected=expected: _has(queue, expected))

    await relay.close()
    await running


async def _has(queue, count):
    return await queue.get_waiting_count() >= count


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg", "psycopg async"])
async def test_on_postgresql_a_commit_wakes_the_relay(
    driver, postgres, metadata, table_name, url, prefix, queue, monkeypatch
):
    """LISTEN/NOTIFY: the poll is a minute away, the row is relayed at once."""
    monkeypatch.setattr("toril.outbox.listening._PAUSE_S", 0.1)
    plain = create_engine(f"postgresql+psycopg://{postgres}")
    outbox = Outbox(metadata, name=table_name)
    metadata.create_all(plain)
    name = driver.split()[0]
    engine = (
        plain if driver == "psycopg" else create_async_engine(f"postgresql+{name}://{postgres}")
    )
    relay = Relay(engine, outbox, connection=url, prefix=prefix, poll_interval=60_000)
    heard = asyncio.Event()
    set_news = relay._news.set
    relay._news.set = lambda: (heard.set(), set_news())  # type: ignore[method-assign]
    running = asyncio.create_task(relay.run())
    await asyncio.wait_for(heard.wait(), 30)
    await let_pass(0.1, "it looks once more, and then it waits for news")

    write(plain, outbox)
    await wait_until(queue.get_waiting_count, 30)

    # A listener whose connection is cut listens again; the poll is still a minute away.
    heard.clear()
    plain.dispose()
    await asyncio.to_thread(cut_all_connections, plain.url)
    await asyncio.wait_for(heard.wait(), 30)
    await let_pass(0.1, "it looks once more, and then it waits for news")
    write(plain, outbox)
    await wait_until(lambda: _has(queue, 2), 30)

    await relay.close(timeout=60_000)
    await asyncio.wait_for(running, 30)
    metadata.drop_all(plain)
    if engine is not plain:
        await engine.dispose()
    plain.dispose()


# ---------------------------------------------------------------------- confirm, prune, stats


async def test_in_confirm_mode_a_server_that_lost_its_memory_gets_the_jobs_again(
    engine, outbox, make_relay, queue, client, url, prefix
):
    """A row is kept until its job is finished; what the server lost is dispatched again."""
    relay = make_relay(confirm=True, confirm_interval=1)
    ids = write(engine, outbox, 3)
    await relay.drain()
    await wait_until(relay.confirm_once)
    assert statuses(engine, outbox) == ["dispatched"] * 3, "the jobs are still to run"

    await client.flushall()
    await wait_until(lambda: _again(relay, 3))
    await relay.drain()

    assert {job.id for job in await queue.get_waiting()} == set(ids)

    async def handler(job):
        pass

    async with Worker(
        *("payments", handler), connection=url, prefix=prefix, remove_on_complete=True
    ):
        await wait_until(lambda: _are_done(relay, 3))
    assert relay.metrics.confirmed == 3
    assert statuses(engine, outbox) == ["done"] * 3


async def _again(relay, count):
    await relay.confirm_once()
    return relay.metrics.dispatched_again == count


async def _are_done(relay, count):
    await relay.confirm_once()
    return (await relay.stats()).done == count


async def test_a_failed_job_is_finished_too(engine, outbox, make_relay, url, prefix):
    relay = make_relay(confirm=True, confirm_interval=1)
    write(engine, outbox)
    await relay.drain()

    async def handler(job):
        raise ValueError("no")

    async with Worker("payments", handler, connection=url, prefix=prefix):
        await wait_until(lambda: _are_done(relay, 1))


async def test_a_dead_letter_is_finished_too(engine, outbox, make_relay, url, prefix):
    """RULES-07: what failed for good is among the dead letters, and not dispatched again."""
    relay = make_relay(confirm=True, confirm_interval=1)
    write(engine, outbox)
    await relay.drain()

    async def handler(job):
        raise ValueError("no")

    async with (
        Queue("dead", connection=url, prefix=prefix) as dead,
        Worker(*("payments", handler), connection=url, prefix=prefix, dead_letter_queue="dead"),
    ):
        await wait_until(dead.get_dead_letter_count)
        await wait_until(lambda: _are_done(relay, 1))
    assert relay.metrics.dispatched_again == 0


async def test_a_running_relay_confirms_prunes_and_measures_by_itself(
    engine, outbox, make_relay, queue, url, prefix
):
    """Nobody has to call anything: rows come, their jobs run, rows go, and the metrics tell."""
    relay = make_relay(confirm=True, confirm_interval=20, keep=0, poll_interval=20)
    write(engine, outbox, 3)
    with engine.begin() as connection:
        connection.execute(update(outbox.table).values(created_at=outbox.table.c.created_at - 5000))
        connection.execute(update(outbox.table).where(outbox.table.c.seq == 3).values(due_at=2**52))
    running = asyncio.create_task(relay.run())

    async def handler(job):
        pass

    async with Worker("payments", handler, connection=url, prefix=prefix):
        await wait_until(lambda: relay.metrics.confirmed == 2, 30)
    relay._next_chores |= {"prune": 0.0, "stats": 0.0}  # a minute and seconds later, that is
    await wait_until(lambda: relay.metrics.pruned == 2, 30)
    await wait_until(lambda: relay.metrics.depth == 1, 30)

    assert statuses(engine, outbox) == ["pending"]
    assert 5000 <= relay.metrics.lag_ms < 60_000
    await relay.close(timeout=60_000)
    await running


def test_a_memory_shorter_than_the_confirmation_is_refused(engine, outbox, url):
    with pytest.raises(InvalidOptionError, match="remember"):
        Relay(engine, outbox, connection=url, confirm=True, remember=1000)


async def test_old_rows_are_pruned_and_parked_ones_are_not(engine, outbox, make_relay):
    relay = make_relay(keep=10_000)
    write(engine, outbox, 4)
    await relay.drain()
    table = outbox.table
    with engine.begin() as connection:
        connection.execute(update(table).where(table.c.seq == 1).values(status="parked"))
        connection.execute(update(table).where(table.c.seq <= 3).values(dispatched_at=1))

    assert await relay.prune_once() == 2

    assert statuses(engine, outbox) == ["parked", "dispatched"]


async def test_confirm_mode_prunes_only_what_is_done(engine, outbox, make_relay):
    relay = make_relay(confirm=True, keep=0)
    write(engine, outbox, 2)
    await relay.drain()
    with engine.begin() as connection:
        connection.execute(update(outbox.table).values(dispatched_at=1))
        connection.execute(
            update(outbox.table).where(outbox.table.c.seq == 1).values(status="done")
        )

    assert await relay.prune_once() == 1
    assert statuses(engine, outbox) == ["dispatched"]


async def test_pruning_waits_for_nobody(server_url, metadata, table_name, url, prefix):
    engine = create_engine(server_url)
    outbox = Outbox(metadata, name=table_name)
    metadata.create_all(engine)
    write(engine, outbox, 3)
    async with Relay(engine, outbox, connection=url, prefix=prefix, keep=0) as relay:
        await relay.drain()
        with engine.begin() as connection:
            connection.execute(update(outbox.table).values(dispatched_at=1))
        with engine.begin() as connection:
            row = select(outbox.table).where(outbox.table.c.seq == 1)
            connection.execute(row.with_for_update())

            assert await asyncio.wait_for(relay.prune_once(), 60) == 2

        assert await relay.prune_once() == 1
        assert relay.metrics.pruned == 3
    metadata.drop_all(engine)
    engine.dispose()


async def test_depth_and_lag_are_metrics(engine, outbox, make_relay):
    relay = make_relay()
    write(engine, outbox, 3)
    with engine.begin() as connection:
        connection.execute(update(outbox.table).values(created_at=outbox.table.c.created_at - 5000))

    stats = await relay.stats()

    assert (stats.pending, stats.parked) == (3, 0)
    assert 5000 <= stats.lag_ms < 30_000
    assert (relay.metrics.depth, relay.metrics.lag_ms) == (3, stats.lag_ms)


async def test_autocommit_engines_do_not_lose_their_locks(
    server_url, metadata, table_name, url, prefix
):
    """An engine with autocommit would let go of the rows between claim and mark."""
    engine = create_engine(server_url, isolation_level="AUTOCOMMIT")
    outbox = Outbox(metadata, name=table_name)
    metadata.create_all(engine)
    relay = Relay(engine, outbox, connection=url, prefix=prefix)
    async with relay._database.transaction() as ask, relay._database.transaction() as other:
        write(engine, outbox, 2)
        claim = Claim(relay="a", limit=5, lease_ms=1000)
        first = await ask(claim_pending, outbox.table, claim)
        second = await other(claim_pending, outbox.table, claim)

    assert (len(first), len(second)) == (2, 0)
    await relay.close()
    metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def shared(server_url, metadata, table_name):
    """An engine with one connection, which a program and its relay share, and an outbox."""
    engine = create_engine(server_url, pool_size=1, max_overflow=0, isolation_level="AUTOCOMMIT")
    outbox = Outbox(metadata, name=table_name)
    metadata.create_all(engine)
    yield engine, outbox
    metadata.drop_all(engine)
    engine.dispose()


@pytest.mark.parametrize("is_cut", [False, True], ids=["alive", "cut"])
async def test_a_batch_that_is_cancelled_during_a_statement_ends_after_it(
    shared, is_cut, server_url, url, prefix, monkeypatch
):
    """The statement goes on in its thread, and its connection serves one thread at a time."""
    engine, outbox = shared
    write(engine, outbox)
    begun = threading.Event()

    def wait_for_row(connection, table, _):
        begun.set()
        return list(connection.execute(select(table.c.seq).with_for_update()))

    monkeypatch.setattr(storing, "claim_pending", wait_for_row)
    relay = Relay(engine, outbox, connection=url, prefix=prefix)
    relay._database._threads = ThreadPoolExecutor(2)
    holder = create_engine(server_url, poolclass=NullPool).connect()
    holder.execute(select(outbox.table).with_for_update())

    batch = asyncio.create_task(relay.run_once())
    await wait_until(begun.is_set)
    await let_pass(0.2, "the statement waits for the row")
    batch.cancel()
    await let_pass(0.2, "the batch is cancelled")
    if is_cut:
        cut_all_connections(engine.url)
    with contextlib.suppress(SQLAlchemyError):
        holder.close()
    with pytest.raises(asyncio.CancelledError):
        await batch

    monkeypatch.undo()
    assert await relay.run_once() == 1
    await relay.close()


async def test_a_connection_that_nobody_waits_for_any_more_is_given_back_as_it_was(
    shared, server_url, url, prefix, monkeypatch
):
    """The relay changes its isolation level; what a program wrote with it was never committed."""
    engine, outbox = shared
    begun, may_end = threading.Event(), threading.Event()
    isolate = database._isolate

    def isolate_late(connection):
        isolate(connection)
        begun.set()
        assert may_end.wait(60)

    monkeypatch.setattr(database, "_isolate", isolate_late)
    relay = Relay(engine, outbox, connection=url, prefix=prefix)
    batch = asyncio.create_task(relay.run_once())
    await wait_until(begun.is_set)
    batch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await batch
    may_end.set()

    with engine.connect() as connection:
        outbox.add(connection, "payments", "charge", {})
    other = create_engine(server_url, poolclass=NullPool)
    assert statuses(other, outbox) == ["pending"]
    await relay.close()


async def test_bulk_rows_and_a_checked_table(engine, outbox, relay):
    with engine.begin() as connection:
        outbox.add_bulk(connection, "payments", [NewJob("n", {"n": n}) for n in range(130)])

    assert await relay.drain() == 130
    assert check_table(outbox.table) is outbox.table


# ---------------------------------------------------------------------- clusters


@pytest.fixture
def shop(tmp_path, metadata):
    """An outbox in SQLite: what is tested here is the other side."""
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox(metadata)
    metadata.create_all(engine)
    yield engine, outbox
    engine.dispose()


def names_by_node(cluster, prefix):
    """A queue name for each node, by its port."""
    names = [f"{{q{n}}}" for n in range(30)]
    return {cluster.owner(cluster.slot_of(f"{prefix}:{name}:wait")).port: name for name in names}


async def test_one_relay_serves_queues_on_all_nodes_of_a_cluster(shop, cluster, table_name):
    """Each queue's jobs are a call of their own; also when they are asked for and lost."""
    engine, outbox = shop
    target = cluster.url.replace("redis://", "redis+cluster://")
    names = list(names_by_node(cluster, table_name).values())
    assert len(names) == 3
    with engine.begin() as connection:
        ids = {
            name: [outbox.add(connection, name, "charge", {"n": n}) for n in range(4)]
            for name in names
        }
    options = {"connection": target, "prefix": table_name, "confirm": True, "confirm_interval": 1}
    async with Relay(engine, outbox, **options) as relay:
        assert await relay.drain() == 12
        for name in names:
            async with Queue(name, connection=target, prefix=table_name) as queue:
                assert [job.id for job in await queue.get_waiting()] == ids[name]
                await queue.obliterate(force=True)

        await wait_until(lambda: _again(relay, 12))
        assert await relay.drain() == 12

    for name in names:
        async with Queue(name, connection=target, prefix=table_name) as queue:
            assert [job.id for job in await queue.get_waiting()] == ids[name]
            await queue.obliterate(force=True)


async def test_a_queue_without_a_hash_tag_is_no_queue_of_a_cluster(shop, cluster, table_name):
    """The row says so and waits: a relay with the right prefix takes it."""
    engine, outbox = shop
    target = cluster.url.replace("redis://", "redis+cluster://")
    with engine.begin() as connection:
        job_id = outbox.add(connection, "mail", "send")
        outbox.add(connection, "{good}", "send", job_id="good")
    async with Relay(engine, outbox, connection=target, prefix=table_name, backoff=1) as relay:
        await relay.run_once()
        metrics = relay.metrics
        assert (metrics.dispatched, metrics.put_off, metrics.parked) == (1, 1, 0)
        with engine.connect() as connection:
            row = select(outbox.table.c.error).where(outbox.table.c.id == job_id)
            error = connection.execute(row).scalar()
        assert error.startswith("CrossSlotError: the keys of queue 'mail' are in different slots")
        assert f"prefix='{{{table_name}}}'" in error
    async with Queue("{good}", connection=target, prefix=table_name) as queue:
        assert (await queue.get_job("good")) is not None
        await queue.obliterate(force=True)

    tagged = f"{{{table_name}}}"
    async with Relay(engine, outbox, connection=target, prefix=tagged) as relay:
        await wait_until(lambda: _are_dispatched(relay, 2))
    async with Queue("mail", connection=target, prefix=tagged) as queue:
        assert [job.id for job in await queue.get_waiting()] == [job_id]
        await queue.obliterate(force=True)


async def test_a_node_that_is_away_does_not_hold_up_the_queues_of_others(shop, table_name):
    """Its rows are first in the table and fill whole batches; the rest is relayed all the same."""
    engine, outbox = shop
    with Cluster({"cluster-require-full-coverage": "no"}) as cluster:
        target = cluster.url.replace("redis://", "redis+cluster://")
        by_port = names_by_node(cluster, table_name)
        gone = cluster.nodes[2]
        away, there = by_port[gone.port], by_port[cluster.nodes[0].port]
        with engine.begin() as connection:
            for queue in (away, away, away, there):
                outbox.add(connection, queue, "charge")
        gone.kill()
        relay = Relay(engine, outbox, connection=target, prefix=table_name, batch_size=2)
        relay._connection._patience_s = 0.1
        for _ in range(2):
            with pytest.raises(ServerUnavailableError):
                await relay.run_once()

        async with Queue(there, connection=target, prefix=table_name) as queue:
            assert await queue.get_waiting_count() == 1
        stats = await relay.stats()
        assert (stats.pending, stats.dispatched, stats.parked) == (3, 1, 0)
        with engine.connect() as connection:
            assert set(connection.execute(select(outbox.table.c.attempts)).scalars()) == {0}
        gone.start()
        with engine.begin() as connection:
            connection.execute(update(outbox.table).values(due_at=0))
        await wait_until(lambda: _relays_on(relay, 4), 30)
        await relay.close()


async def _relays_on(relay, count):
    """A node that comes back needs a moment until the others believe it."""
    with contextlib.suppress(ServerUnavailableError):
        await relay.run_once()
    return (await relay.stats()).dispatched == count


async def test_a_status_in_capitals_ends_no_relay(engine, outbox, relay, queue):
    """Regression: MariaDB, which finds it, ended every relay with it; others do not find it."""
    first, second = write(engine, outbox, 2)
    set_row(engine, outbox, first, status="PENDING")

    await relay.drain()
    stats = await relay.stats()

    assert await queue.get_state(second) == "waiting"
    is_found = engine.dialect.name in MYSQL
    assert await queue.get_state(first) == ("waiting" if is_found else None)
    assert (stats.dispatched, stats.pending) == (2 if is_found else 1, 0)
