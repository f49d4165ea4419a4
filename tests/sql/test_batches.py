"""How rows travel: few round trips, lanes in one call, two batches at a time."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import MetaData, create_engine, event
from sqlalchemy.pool import NullPool, StaticPool

from toril import NewJob, Queue
from toril.errors import ServerUnavailableError
from toril.outbox import Outbox, Relay
from toril.outbox.database import open_database
from toril.outbox.packing import Packing
from toril.outbox.rows import OutboxRow
from toril.outbox.storing import Claim, claim_pending
from toril.protocol.adding import MOST_BYTES_PER_CALL, MOST_JOBS_PER_CALL, Prepared


def put(packing, seq, queue="q", lane=None, data=b"{}"):
    row = OutboxRow(seq, f"j{seq}", queue, "n", "{}", "{}", lane, "k", "pending", 0)
    packing.put(row, Prepared(row.id, {}, data, b"{}"), queue)


def seqs(packing):
    return [[row.seq for row in parcel.rows] for parcel in packing.parcels]


def test_a_call_has_no_more_jobs_or_bytes_than_it_may():
    packing = Packing()
    for seq in range(MOST_JOBS_PER_CALL + 1):
        put(packing, seq)
    large = Packing()
    for seq in range(3):
        put(large, seq, data=b"x" * MOST_BYTES_PER_CALL)

    assert seqs(packing) == [[*range(MOST_JOBS_PER_CALL)], [MOST_JOBS_PER_CALL]]
    assert seqs(large) == [[0], [1], [2]]


def test_a_call_names_the_rows_that_must_go_before_its_own():
    """Calls that are sent together fail one by one: nothing may overtake what failed."""
    packing = Packing()
    put(packing, 0, lane="a")
    for seq in range(1, MOST_JOBS_PER_CALL):
        put(packing, seq, lane="c" if seq == 5 else None)

    put(packing, 500, lane="a")
    put(packing, 501, lane="b")
    put(packing, 502, queue="other", lane="a")
    put(packing, 503, lane="a")

    assert seqs(packing) == [[*range(MOST_JOBS_PER_CALL)], [500, 501, 503], [502]]
    behind = [[job.id for job in parcel.behind] for parcel in packing.parcels]
    assert behind == [[], ["j0"], []]


@pytest.mark.parametrize("lanes", [0, 1, 20])
async def test_five_hundred_rows_are_one_round_trip(lanes, tmp_path, url, prefix, monkeypatch):
    engine, outbox = make(f"sqlite:///{tmp_path}/x.db")
    write(engine, outbox, [NewJob("n", {"n": -1})])
    async with Relay(engine, outbox, connection=url, prefix=prefix) as relay:
        await relay.run_once()  # the first call of all loads the script
        names = [f"u{n % lanes}" if lanes else None for n in range(500)]
        write(engine, outbox, [NewJob("n", {"n": n}, lane=lane) for n, lane in enumerate(names)])
        transport = relay._connection._transport
        trips = []
        for name in ("exchange", "exchange_all"):
            real = getattr(transport, name)
            monkeypatch.setattr(transport, name, counting(trips, real))

        assert await relay.run_once() == 500

    assert len(trips) == 1
    async with Queue("payments", connection=url, prefix=prefix) as queue:
        if not lanes:
            assert [job.data["n"] for job in await queue.get_waiting()] == [*range(-1, 500)]
        for lane in range(lanes):
            found = await queue.get_lane_jobs(f"u{lane}", 0, -1)
            assert [job.data["n"] for job in found] == [*range(lane, 500, lanes)]


async def test_a_call_whose_lane_stopped_before_adds_nothing_to_it(tmp_path, url, prefix):
    """The lane is full in the first of three calls; meanwhile a worker makes room for the next."""
    engine, outbox = make(f"sqlite:///{tmp_path}/x.db")
    jobs = [NewJob("n", {"n": n}, lane="a" if n % 2 else "b") for n in range(500)]
    jobs[101] = NewJob("n", {"n": 101}, lane="a", max_lane_size=5)
    write(engine, outbox, jobs)
    async with (
        Relay(engine, outbox, connection=url, prefix=prefix) as relay,
        Queue("payments", connection=url, prefix=prefix) as queue,
    ):
        assert await relay.run_once() == 500

        for lane, expected in (("a", range(1, 101, 2)), ("b", range(0, 500, 2))):
            found = await queue.get_lane_jobs(lane, 0, -1)
            assert [job.data["n"] for job in found] == [*expected]
        assert (await relay.stats()).pending == 200
        assert (await relay.stats()).parked == 0


async def test_what_is_behind_a_call_that_failed_is_held_back(tmp_path, url, prefix, monkeypatch):
    """The first of three calls is refused by the server; the next ones are not."""
    engine, outbox = make(f"sqlite:///{tmp_path}/x.db")
    write(engine, outbox, [NewJob("n", {"n": n}, lane="a") for n in range(500)])
    async with (
        Relay(engine, outbox, connection=url, prefix=prefix) as relay,
        Queue("payments", connection=url, prefix=prefix) as queue,
    ):
        run_each = relay._connection.run_each

        async def lose_the_first(commands):
            answers = await run_each(commands[1:])
            return [ServerUnavailableError("away"), *answers]

        monkeypatch.setattr(relay._connection, "run_each", lose_the_first)
        with pytest.raises(ServerUnavailableError):
            await relay.run_once()
        assert await queue.get_lane("a") is None
        assert (relay.metrics.lanes_full, relay.metrics.put_off) == (0, 0)

        monkeypatch.undo()
        assert await relay.drain() == 500
        found = await queue.get_lane_jobs("a", 0, -1)
        assert [job.data["n"] for job in found] == [*range(500)]


async def test_a_long_lane_goes_call_by_call_and_in_order(server_url, table_name, url, prefix):
    """Two batches are under way at a time, and one lane is in one of them."""
    engine, outbox = make(server_url, table_name)
    jobs = [NewJob("n", {"n": n}, lane="a" if n % 2 else f"b{n % 10}") for n in range(1500)]
    write(engine, outbox, jobs)
    async with (
        Relay(engine, outbox, connection=url, prefix=prefix, batch_size=300) as relay,
        Queue("payments", connection=url, prefix=prefix) as queue,
    ):
        assert await relay.drain() == 1500, "no row is claimed in vain"
        assert (relay.metrics.dispatched, relay.metrics.duplicates) == (1500, 0)
        for lane in ("a", "b0", "b2"):
            waiting = await queue.get_lane_jobs(lane, 0, -1)
            numbers = [job.data["n"] for job in waiting]
            assert numbers == sorted(numbers)
            assert len(numbers) == (750 if lane == "a" else 150)
    outbox.table.drop(engine)
    engine.dispose()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 2),
        ({"poolclass": NullPool}, 2),
        ({"pool_size": 2, "max_overflow": 0}, 1),
        ({"poolclass": StaticPool}, 1),
    ],
)
def test_two_transactions_need_connections_enough(options, expected):
    """With the listener they are three; who has fewer is relayed one batch after another."""
    engine = create_engine("postgresql+psycopg://nobody@localhost/none", **options)

    assert open_database(engine).most_transactions == expected


async def test_a_relay_with_few_connections_goes_on(server_url, table_name, url, prefix):
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 5}
    engine, outbox = make(server_url, table_name, **options)
    write(engine, outbox, [NewJob("n") for _ in range(30)])
    async with Relay(engine, outbox, connection=url, prefix=prefix, batch_size=10) as relay:
        assert await asyncio.wait_for(relay.drain(), 30) == 30
    outbox.table.drop(engine)
    engine.dispose()


def make(url, name="toril_outbox", **options):
    metadata = MetaData()
    outbox = Outbox(metadata, name=name)
    engine = create_engine(url, **options)
    metadata.create_all(engine)
    return engine, outbox


def write(engine, outbox, jobs):
    with engine.begin() as connection:
        outbox.add_bulk(connection, "payments", jobs)


def counting(trips, function):
    async def counted(*arguments, **options):
        trips.append(function)
        return await function(*arguments, **options)

    return counted


@pytest.mark.parametrize("lanes", [1, 20])
def test_a_claim_reads_about_as_much_as_it_takes(lanes, postgres, table_name):
    """However long the lanes are: it had looked at every row that waits, once per row before it."""
    engine, outbox = make(f"postgresql+psycopg://{postgres}", table_name)
    write(engine, outbox, [NewJob("n", lane=f"u{n % lanes}") for n in range(5000)])
    claim = Claim(relay="a", limit=100, lease_ms=1000)
    asked = []
    event.listen(engine, "before_cursor_execute", lambda *told: asked.append(told[2:4]))
    with engine.connect() as connection:
        assert [row.seq for row in claim_pending(connection, outbox.table, claim)] == [
            *range(1, 101)
        ]
        read, statements = 0, asked.copy()
        for statement, values in statements:
            told = connection.exec_driver_sql(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", values
            ).scalar()
            read += told[0]["Plan"]["Shared Hit Blocks"] + told[0]["Plan"]["Shared Read Blocks"]

    assert read < 1000
    outbox.table.drop(engine)
    engine.dispose()


def test_a_claim_on_postgresql_does_not_sort_all_that_waits(postgres, table_name):
    """Also of a table that has just grown, of which the planner knows nothing yet."""
    engine, outbox = make(f"postgresql+psycopg://{postgres}", table_name)
    write(engine, outbox, [NewJob("n", {"n": n}) for n in range(5000)])
    claim = Claim(relay="a", limit=100, lease_ms=1000)
    asked = []
    event.listen(engine, "before_cursor_execute", lambda *told: asked.append(told[2:4]))
    with engine.connect() as connection:
        assert len(claim_pending(connection, outbox.table, claim)) == 100
        statement, values = asked[-1]
        plan = connection.exec_driver_sql(f"EXPLAIN ANALYZE {statement}", values).scalars().all()

    assert not [line for line in plan if "Sort" in line]
    assert not [line for line in plan if "Bitmap" in line]
    outbox.table.drop(engine)
    engine.dispose()
