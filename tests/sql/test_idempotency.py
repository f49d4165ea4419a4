"""Work that is done once per key, in the transaction of the work (RULES-01 … RULES-04)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from tests.helpers import wait_until
from tests.interop.toril_side import TorilSide
from toril import Backoff, NewJob, Queue, UnrecoverableError, Worker
from toril.errors import InvalidOptionError, JobFailedError, PayloadError, UnfinishedWorkError
from toril.idempotency import (
    RedisStore,
    SqlStore,
    check_lifetime,
    idempotency_table,
    idempotent,
    once,
    retry_window,
)
from toril.options import LANE_BACKOFF, WorkerOptions
from toril.protocol import codec
from toril.steps import BaseConsumer, EnqueueOptions, JobPayload, Producer


class FakeJob:
    prefix, queue_name, name = "bull", "payments", "charge"

    def __init__(self, key: str = "order-1", job_id: str = "1", fence: int = 1) -> None:
        self.idempotency_key, self.id, self.fence = key, job_id, fence


@pytest.fixture
def tables(engine, metadata, table_name):
    """The records, and the charges that the work writes."""
    records = idempotency_table(metadata, f"{table_name}_records")
    charges = Table(
        f"{table_name}_charges",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("key", String(255)),
    )
    metadata.create_all(engine)
    yield records, charges
    metadata.drop_all(engine)


def count(engine, table):
    with engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(table)).scalar()


# ---------------------------------------------------------------------- once


def test_a_second_run_does_nothing_and_gets_the_first_result(engine, tables):
    """RULES-02."""
    records, charges = tables
    results = []
    for _ in range(3):
        with Session(engine) as session, session.begin():
            with once(session, FakeJob(), table=records) as run:
                if not run.is_repeat:
                    session.execute(insert(charges).values(key=FakeJob().idempotency_key))
                    run.result = {"receipt": 17}
            results.append((run.is_repeat, run.result))

    assert count(engine, charges) == 1
    assert results == [(False, {"receipt": 17}), (True, {"receipt": 17}), (True, {"receipt": 17})]


def test_work_that_is_rolled_back_leaves_no_record(engine, tables):
    """RULES-02: the record commits with the work, or not at all."""
    records, charges = tables

    def attempt(fails):
        with Session(engine) as session, session.begin():
            with once(session, FakeJob(), table=records) as run:
                if not run.is_repeat:
                    session.execute(insert(charges).values(key="k"))
                    if fails:
                        raise ValueError("the bank says no")
            return run.is_repeat

    with pytest.raises(ValueError, match="bank"):
        attempt(fails=True)
    assert (count(engine, records), count(engine, charges)) == (0, 0)

    assert attempt(fails=False) is False
    assert attempt(fails=False) is True
    assert count(engine, charges) == 1


def test_two_runs_at_the_same_time_do_the_work_once(engine, tables):
    """A zombie and its successor: the second waits for the first, and then has nothing to do."""
    records, charges = tables
    repeats, is_inside = [], threading.Event()

    def work(name, waits):
        with Session(engine) as session, session.begin():
            with once(session, FakeJob(), table=records) as run:
                if not run.is_repeat:
                    is_inside.set()
                    session.execute(insert(charges).values(key=name))
                    if waits:
                        second.start()
                        # It must not get in while this transaction is open.
                        second.join(0.3)
                        assert second.is_alive()
            repeats.append((name, run.is_repeat))

    second = threading.Thread(target=work, args=("second", False))
    work("first", True)
    second.join(60)

    assert sorted(repeats) == [("first", False), ("second", True)]
    assert count(engine, charges) == 1


def test_the_same_key_in_another_scope_is_other_work(engine, tables):
    """An order's key may guard its charge and its mail."""
    records, _ = tables
    mail = FakeJob()
    mail.name = "mail"
    with Session(engine) as session, session.begin():
        for job, scope in ((FakeJob(), None), (mail, None), (mail, "refunds")):
            with once(session, job, table=records, scope=scope) as run:
                assert not run.is_repeat
        with once(session, FakeJob(), key="x" * 1000, table=records) as run:
            assert not run.is_repeat
        with once(session, FakeJob(), key="x" * 1000, table=records) as run:
            assert run.is_repeat


KEYS = ("a", "A", "a ", "a  ", "ä", "Ä", "a\u0308", "ß", "ss", "x" * 255, "x" * 256, "👩‍🔧")


def test_keys_that_look_alike_are_different_work(engine, tables):
    """Case, accents and spaces at the end count, whatever the database takes for equal."""
    records, _ = tables
    for is_repeat in (False, True):
        with Session(engine) as session, session.begin():
            for key in KEYS:
                with once(session, FakeJob(key), table=records) as run:
                    assert run.is_repeat is is_repeat, key
                    run.result = key
                assert run.result == key
    assert count(engine, records) == len(KEYS)


def test_a_result_may_be_longer_than_64_kilobytes(engine, tables):
    records, _ = tables
    handler = idempotent(SqlStore(engine, table=records))(lambda job, session: "ü" * 100_000)

    assert handler(FakeJob()) == handler(FakeJob()) == "ü" * 100_000


def test_when_the_first_of_many_fails_one_of_the_others_does_the_work(engine, tables):
    """RULES-02: they all wait for it; none loses its attempt because they woke together."""
    records, charges = tables
    is_inside, results, failures = threading.Event(), [], []
    has_failed = threading.Event()

    @idempotent(SqlStore(engine, table=records))
    def charge(job, session):
        session.execute(insert(charges).values(key=job.id))
        if job.id == "first":
            is_inside.set()
            # Long enough for the others to be waiting for this transaction.
            has_failed.wait(0.5)
            raise ConnectionError("the bank does not answer")
        return job.id

    def run(job_id):
        try:
            results.append(charge(FakeJob(job_id=job_id)))
        except Exception as error:
            failures.append((job_id, type(error)))

    threads = [threading.Thread(target=run, args=("first",))]
    threads[0].start()
    assert is_inside.wait(60)
    threads += [threading.Thread(target=run, args=(f"other-{n}",)) for n in range(6)]
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert failures == [("first", ConnectionError)]
    assert len(results) == 6
    assert len(set(results)) == 1
    assert count(engine, charges) == 1


async def test_pruning_waits_for_nobody_who_is_at_work(server_url, metadata, table_name):
    """A prune that locked the whole table would stop every worker."""
    engine = create_engine(server_url)
    records = idempotency_table(metadata, table_name)
    metadata.create_all(engine)
    store = SqlStore(engine, table=records)
    for key in ("a", "k", "z"):
        idempotent(store)(lambda job, session: None)(FakeJob(key))
    with engine.begin() as connection:
        connection.execute(update(records).values(expires_at=1))
    with Session(engine) as session, session.begin(), once(session, FakeJob("j"), table=records):
        assert await asyncio.wait_for(store.prune(), 60) == 3

    assert count(engine, records) == 1
    metadata.drop_all(engine)
    engine.dispose()


async def test_once_with_async_sessions(async_engine, table_name):
    metadata = MetaData()
    records = idempotency_table(metadata, table_name)
    async with async_engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    seen = []
    for _ in range(2):
        async with AsyncSession(async_engine) as session, session.begin():
            async with once(session, FakeJob(), table=records) as run:
                run.result = [1] if not run.is_repeat else run.result
            seen.append((run.is_repeat, run.result))

    assert seen == [(False, [1]), (True, [1])]
    async with async_engine.connect() as connection:
        with pytest.raises(InvalidOptionError, match="async with"), once(connection, FakeJob()):
            pass
    async with async_engine.begin() as connection:
        await connection.run_sync(metadata.drop_all)


@pytest.mark.parametrize("makes_sessions", [False, True], ids=["engine", "sessionmaker"])
def test_work_that_failed_is_done_again_on_an_engine_in_autocommit_mode(
    database_url, tables, engine, makes_sessions
):
    """The record would be committed before the work began, and the retry would find it done."""
    records, charges = tables
    automatic = create_engine(database_url, isolation_level="AUTOCOMMIT")
    target = sessionmaker(automatic) if makes_sessions else automatic
    runs = []

    @idempotent(SqlStore(target, table=records))
    def charge(job, session):
        session.execute(insert(charges).values(key="k"))
        runs.append(job.id)
        if len(runs) == 1:
            raise ConnectionError("the bank does not answer")
        return "charged"

    with pytest.raises(ConnectionError):
        charge(FakeJob())
    assert (count(engine, records), count(engine, charges)) == (0, 0)

    assert [charge(FakeJob()) for _ in range(2)] == ["charged"] * 2
    assert (len(runs), count(engine, records), count(engine, charges)) == (2, 1, 1)
    automatic.dispose()


async def test_async_work_that_failed_is_done_again_in_autocommit_mode(
    async_database_url, table_name
):
    metadata = MetaData()
    records = idempotency_table(metadata, table_name)
    engine = create_async_engine(
        async_database_url, poolclass=NullPool, isolation_level="AUTOCOMMIT"
    )
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    runs = []

    @idempotent(SqlStore(engine, table=records))
    async def charge(job, session):
        runs.append(job.id)
        if len(runs) == 1:
            raise ConnectionError("the bank does not answer")
        return "charged"

    with pytest.raises(ConnectionError):
        await charge(FakeJob())

    assert [await charge(FakeJob()) for _ in range(2)] == ["charged"] * 2
    assert len(runs) == 2
    async with engine.begin() as connection:
        await connection.run_sync(metadata.drop_all)
    await engine.dispose()


def test_a_record_whose_block_never_ended_does_not_pass_for_done_work(engine, tables):
    """Autocommit, or an error that is caught in the transaction: the record alone is committed."""
    records, charges = tables

    def attempt(fails):
        with Session(engine) as session, session.begin():
            with (
                contextlib.suppress(ConnectionError),
                once(session, FakeJob(), table=records) as run,
            ):
                if not run.is_repeat:
                    if fails:
                        raise ConnectionError("the bank does not answer")
                    session.execute(insert(charges).values(key="k"))
            return run.is_repeat, run.result

    attempt(fails=True)
    for _ in range(2):
        with pytest.raises(UnfinishedWorkError, match="autocommit"):
            attempt(fails=False)
    assert count(engine, charges) == 0

    with engine.begin() as connection:
        connection.execute(delete(records))
    assert [attempt(fails=False) for _ in range(2)] == [(False, None), (True, None)]
    assert count(engine, charges) == 1


async def test_a_session_of_the_wrong_kind_is_refused(engine):
    with Session(engine) as session, pytest.raises(InvalidOptionError, match="'with once"):
        async with once(session, FakeJob()):
            pass
    with pytest.raises(InvalidOptionError, match="not an SQLAlchemy session"):
        once(object(), FakeJob())


def test_a_result_that_is_not_json_rolls_the_work_back(engine, tables):
    records, charges = tables

    @idempotent(SqlStore(engine, table=records))
    def charge(job, session):
        session.execute(insert(charges).values(key="k"))
        return object()

    with pytest.raises(PayloadError):
        charge(FakeJob())
    assert (count(engine, records), count(engine, charges)) == (0, 0)


# ---------------------------------------------------------------------- handlers


async def test_an_idempotent_handler_charges_once_over_retries_and_redeliveries(
    engine, tables, queue, url, prefix
):
    """RULES-01, RULES-02, RULES-03: the key is the same at every run, and can be passed on."""
    records, charges = tables
    keys = []

    @idempotent(SqlStore(engine, table=records))
    def charge(job, session):
        keys.append(job.idempotency_key)
        session.execute(insert(charges).values(key=job.idempotency_key))
        if len(keys) == 1:
            raise ConnectionError("the first attempt fails")
        return {"receipt": len(keys)}

    async with Worker("payments", charge, connection=url, prefix=prefix):
        job = await queue.add("charge", {}, attempts=3, backoff=1, idempotency_key="order-9")
        first = await queue.wait_for(job.id, timeout=60_000)
        # The same order once more, as a producer that did not get its answer would send it.
        again = await queue.add("charge", {}, idempotency_key="order-9")
        second = await queue.wait_for(again.id, timeout=60_000)

    assert keys == ["order-9", "order-9"]
    assert first == second == {"receipt": 2}
    assert count(engine, charges) == 1


async def test_without_a_key_of_ones_own_one_is_minted_when_the_job_is_added(queue, url, prefix):
    """RULES-01: the same at every attempt, and another for every job."""
    seen = {}

    async def handler(job):
        seen.setdefault(job.id, []).append(job.idempotency_key)
        if len(seen[job.id]) < 3:
            raise ValueError("again")

    jobs = await queue.add_bulk([NewJob("n", attempts=3, backoff=1) for _ in range(2)])
    async with Worker("payments", handler, connection=url, prefix=prefix):
        for job in jobs:
            await queue.wait_for(job.id, timeout=60_000)

    assert all(len(keys) == 3 and len(set(keys)) == 1 for keys in seen.values())
    assert {keys[0] for keys in seen.values()} == {job.idempotency_key for job in jobs}
    assert len({keys[0] for keys in seen.values()}) == 2


async def test_the_key_survives_the_dead_letters(queue, url, prefix):
    """RULES-01: a job that is replayed from the dead letters is the same work."""
    keys = []

    async def handler(job):
        keys.append(job.idempotency_key)
        if len(keys) == 1:
            raise UnrecoverableError("not now")

    job = await queue.add("n", {"a": 1})
    async with (
        Queue("payments-dlq", connection=url, prefix=prefix) as dead,
        Worker(*("payments", handler), connection=url, prefix=prefix, dead_letter_queue=dead.name),
    ):
        await wait_until(dead.get_dead_letter_count)
        (letter,) = await dead.get_dead_letter_jobs()
        await dead.replay_dead_letter(letter.id)
        await wait_until(lambda: len(keys) == 2)

    assert keys == [job.idempotency_key] * 2


async def test_an_async_handler_needs_an_async_engine_and_gets_a_session(
    async_engine, table_name, queue, url, prefix
):
    metadata = MetaData()
    records = idempotency_table(metadata, table_name)
    async with async_engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    runs = []

    @idempotent(SqlStore(async_engine, table=records))
    async def charge(job, session):
        runs.append(await session.scalar(select(1)))
        return job.data["n"]

    async with Worker("payments", charge, connection=url, prefix=prefix, concurrency=4):
        jobs = [
            await queue.add("charge", {"n": n}, idempotency_key="same", attempts=9, backoff=20)
            for n in range(4)
        ]
        results = [await queue.wait_for(job.id, timeout=60_000) for job in jobs]

    assert len(runs) == 1
    assert len(set(results)) == 1
    async with async_engine.begin() as connection:
        await connection.run_sync(metadata.drop_all)


def test_handlers_and_engines_of_different_kinds_are_refused(engine):
    async def handler(job, session): ...

    with pytest.raises(InvalidOptionError, match="an async def and needs an async engine"):
        idempotent(SqlStore(engine))(handler)
    with pytest.raises(InvalidOptionError, match="not an SQLAlchemy engine"):
        SqlStore(object())
    with pytest.raises(InvalidOptionError, match="not a store"):
        idempotent(object())


def test_an_engine_that_would_commit_the_record_before_the_work_is_refused(engine):
    automatic = engine.execution_options(isolation_level="AUTOCOMMIT")
    for target in (automatic, sessionmaker(automatic)):
        with pytest.raises(InvalidOptionError, match="record would stay"):
            SqlStore(target)


async def test_the_steps_key_is_usable_by_the_guard(engine, tables, queue, url, prefix):
    """STEP-13: the key of EnqueueOptions arrives in the handler and guards its work."""
    records, charges = tables

    class Charge(BaseConsumer):
        async def handle(self, payload, job):
            with Session(engine) as session, session.begin():
                with once(session, job, table=records) as run:
                    if not run.is_repeat:
                        session.execute(insert(charges).values(key=job.idempotency_key))
                        run.result = "charged"
                return run.result

    producer = Producer(queue)
    options = EnqueueOptions(idempotency_key="order-1", remove_on_complete=True)
    consumer = Charge("payments", connection=url, prefix=prefix)
    await consumer.start()
    for _ in range(2):
        job = await producer.enqueue(JobPayload("w", "charge", None), options)
        await wait_until(lambda job=job: _is_gone(queue, job.id))
    await consumer.close()

    assert count(engine, charges) == 1


async def _is_gone(queue, job_id):
    return await queue.get_job(job_id) is None


async def test_old_records_are_pruned_and_kept_ones_are_not(engine, tables):
    records, _ = tables
    store = SqlStore(sessionmaker(engine), table=records)
    handler = idempotent(store)(lambda job, session: None)
    handler(FakeJob("old"))
    handler(FakeJob("new"))
    with engine.begin() as connection:
        connection.execute(update(records).where(records.c.key == "old").values(expires_at=1))

    assert await store.prune() == 1
    assert count(engine, records) == 1

    with engine.begin() as connection:
        connection.execute(update(records).values(expires_at=1))
    store._next_prune = 0
    handler(FakeJob("third"))
    assert count(engine, records) == 1, "a handler prunes by itself now and then"


async def test_pruning_keeps_up_with_those_who_write(engine, tables, monkeypatch):
    """Regression: a thousand an hour at most, and the table grew without end."""
    monkeypatch.setattr("toril.idempotency.sql_store._PRUNE_ON_S", 0.0)
    records, _ = tables
    store = SqlStore(engine, table=records)
    handler = idempotent(store)(lambda job, session: None)
    old = {"scope": "s", "job_id": "1", "created_at": 0, "expires_at": 1, "result": "null"}
    with engine.begin() as connection:
        connection.execute(insert(records), [{**old, "key": f"k{n}"} for n in range(2500)])

    store._next_prune = 0
    for n in range(4):
        handler(FakeJob(f"new-{n}"))

    assert count(engine, records) == 4
    assert store._next_prune > time.monotonic() + 60


# ---------------------------------------------------------------------- Redis


async def test_the_redis_store_remembers_results(queue, url, prefix):
    """RULES-02 without a database: finished work is not done again."""
    store, runs = RedisStore(url), []

    @idempotent(store)
    async def handler(job):
        runs.append(job.id)
        if len(runs) == 1:
            raise ValueError("the first attempt fails and may begin again")
        return {"n": len(runs)}

    async with Worker("payments", handler, connection=url, prefix=prefix):
        first = await queue.add("n", idempotency_key="k", attempts=2, backoff=1)
        assert await queue.wait_for(first.id, timeout=60_000) == {"n": 2}
        second = await queue.add("n", idempotency_key="k")
        assert await queue.wait_for(second.id, timeout=60_000) == {"n": 2}

    assert runs == [first.id, first.id]
    await store.close()


async def test_the_redis_store_serves_blocking_handlers(queue, url, prefix):
    store, runs = RedisStore(url), []

    @idempotent(store)
    def handler(job):
        runs.append(job.id)
        return "done"

    async with Worker("payments", handler, connection=url, prefix=prefix):
        for _ in range(2):
            job = await queue.add("n", idempotency_key="k")
            assert await queue.wait_for(job.id, timeout=60_000) == "done"

    assert len(runs) == 1
    await store.close()


@pytest.mark.parametrize("is_async", [True, False])
async def test_work_whose_result_is_no_json_is_not_done_again(is_async, queue, url, prefix):
    """It cannot be rolled back; a job without a store fails for good, too."""
    store, runs = RedisStore(url), []

    def work(job):
        runs.append(job.id)
        return {"receipt": object()}

    async def work_async(job):
        return work(job)

    handler = idempotent(store)(work_async if is_async else work)

    async with Worker("payments", handler, connection=url, prefix=prefix):
        job = await queue.add("n", attempts=3)
        with pytest.raises(JobFailedError, match="cannot be written as JSON"):
            await queue.wait_for(job.id, timeout=60_000)

    assert len(runs) == 1
    await store.close()


async def test_two_jobs_with_one_key_do_not_run_at_the_same_time(queue, url, prefix):
    store, runs = RedisStore(url), []
    may_end = asyncio.Event()

    @idempotent(store)
    async def handler(job):
        runs.append(job.id)
        await may_end.wait()
        return "first"

    async with Worker("payments", handler, connection=url, prefix=prefix, concurrency=2):
        jobs = [await queue.add("n", idempotency_key="k") for _ in range(2)]
        await wait_until(queue.get_delayed_count)
        may_end.set()
        await asyncio.gather(*(queue.promote(job.id) for job in await queue.get_delayed()))
        assert [await queue.wait_for(job.id, timeout=60_000) for job in jobs] == ["first"] * 2

    assert len(runs) == 1
    assert {(await queue.get_job(job.id)).attempts_made for job in jobs} == {1}
    await store.close()


async def test_a_later_attempt_of_the_same_job_takes_over_from_a_dead_one(url, prefix):
    """The queue took the job away from the first: waiting for its lease would help nobody."""
    store = RedisStore(url)
    job, later, other = FakeJob(), FakeJob(fence=2), FakeJob(job_id="2")
    for one in (job, later, other):
        one.prefix = prefix
    from toril.client.connection import Connection

    connection = Connection(url)
    assert (await connection.run(store._begin(job))).busy_ms == 0
    assert (await connection.run(store._begin(other))).busy_ms > 0
    assert (await connection.run(store._begin(later))).busy_ms == 0
    assert await connection.run(store._end(job, "late")) is False, "a zombie writes nothing"
    assert await connection.run(store._abandon(job)) is False
    assert await connection.run(store._end(later, "mine")) is True
    assert (await connection.run(store._begin(other))).result == "mine"
    await connection.close()


# ---------------------------------------------------------------------- the retry window


def test_the_window_of_a_job_that_is_tried_once_is_its_delay_its_run_and_its_stalls():
    """RULES-04: delay + a run + (lock + two sweeps + a run) for each worker that may die."""
    worker = WorkerOptions(lock_duration=10_000, stalled_interval=5_000, max_stalled_count=1)

    assert retry_window({"delay": 1000, "timeout": 2000}, worker) == (
        1000 + 2000 + (10_000 + 2 * 5_000 + 2000)
    )


@pytest.mark.parametrize(
    ("options", "backoffs"),
    [
        ({"attempts": 4, "backoff": 500}, 1500),
        ({"attempts": 4, "backoff": Backoff.exponential(1000, jitter=0.5)}, 7000),
        ({"attempts": 4}, 0),
    ],
)
def test_the_window_counts_every_attempt_and_the_longest_waits_between(options, backoffs):
    worker = WorkerOptions(max_stalled_count=0)

    assert retry_window({**options, "timeout": 100}, worker) == 4 * 100 + backoffs
    assert retry_window(NewJob("n", timeout=100, **options), worker) == 4 * 100 + backoffs
    opts = codec.decode_options(codec.encode_options(NewJob("n", timeout=100, **options)))
    assert retry_window(opts, worker) == 4 * 100 + backoffs


def test_the_window_knows_what_a_lane_does_by_default():
    """A job of a lane has three attempts and waits between them, although nobody said so."""
    worker = WorkerOptions(max_stalled_count=0)
    told = {"attempts": 3, "backoff": LANE_BACKOFF, "timeout": 100}

    for options in ({"lane": "user-1", "timeout": 100}, {**told, "lane": "user-1"}):
        window_ms = retry_window(options, worker)
        stored = codec.decode_options(codec.encode_options(NewJob("n", **options)))
        assert window_ms == retry_window(told, worker) == retry_window(stored, worker)


def test_the_window_counts_until_its_time_and_the_wait_for_late_ones():
    worker = WorkerOptions(max_stalled_count=0)
    alone_ms = retry_window({"timeout": 100, "lane": "a"}, worker)
    at = datetime.now(UTC) + timedelta(days=3)
    run_at_ms = retry_window({"timeout": 100, "lane": "a", "run_at": at}, worker) - alone_ms
    ordering = {"timeout": 100, "lane": "a", "ordering_delay": 5000}

    assert 3 * 86_400_000 - 60_000 < run_at_ms <= 3 * 86_400_000 + 1
    # A job may be ahead of its time by as much as it waits for others.
    assert retry_window(ordering, worker) == alone_ms + 10_000
    assert retry_window({**ordering, "delay": 60_000}, worker) == alone_ms + 60_000
    stored = codec.decode_options(codec.encode_options(NewJob("n", **ordering)))
    assert retry_window(stored, worker) == alone_ms + 10_000
    with pytest.raises(InvalidOptionError, match="would then do its work again"):
        check_lifetime(timedelta(days=1), {"run_at": datetime(2100, 1, 1, tzinfo=UTC)})


@pytest.mark.parametrize(
    "backoff", [150, Backoff.exponential(60, jitter=0.5)], ids=["fixed", "exponential"]
)
async def test_a_real_job_comes_back_within_its_window(backoff, queue, url, prefix):
    """RULES-04: its delay, a worker that is killed over it, and all of its attempts."""
    options = {"attempts": 4, "backoff": backoff, "delay": 200}
    lock_ms = 1000
    times = {"lock_duration": lock_ms, "stalled_interval": 100}
    runs = []

    async def fail(job):
        runs.append(time.time() * 1000)
        raise ValueError("no")

    job = await queue.add("charge", {}, **options)
    async with TorilSide(url, prefix) as side:
        await side.crash("payments", {"*": [["hang"]]}, **times)
        killed_ms = time.time() * 1000
    async with Worker("payments", fail, connection=url, prefix=prefix, **times) as worker:
        await wait_until(queue.get_failed_count, 60)
        window_ms = retry_window(options, worker)

    assert len(runs) == 4, "the killed run was no attempt"
    # What the test itself took to kill the worker is no part of it, and a busy machine is slow.
    late_ms = killed_ms - job.timestamp - options["delay"]
    assert options["delay"] + 350 < runs[-1] - job.timestamp - late_ms <= window_ms + 3000
    backoffs_ms = 450 if backoff == 150 else 420
    assert window_ms == 200 + 4 * lock_ms + backoffs_ms + (lock_ms + 2 * 100 + lock_ms)


def test_what_is_not_known_can_be_told():
    worker = WorkerOptions(max_stalled_count=0)
    custom = {"attempts": 3, "backoff": {"type": "mine"}}

    assert retry_window({"attempts": 2}, worker, longest_run=10, longest_wait=5) == 30
    assert retry_window(custom, worker, longest_run=0, longest_backoff=timedelta(seconds=1)) == 2000
    with pytest.raises(InvalidOptionError, match="longest_backoff"):
        retry_window(custom, worker)


def test_a_window_is_finite_for_any_number_of_attempts():
    options = {"attempts": 1_000_000, "backoff": Backoff.exponential(1000)}

    assert retry_window(options) < 10**15


def test_records_that_live_too_short_are_refused_when_the_handler_is_made(engine):
    """RULES-04: at start-up, and not when a late redelivery slips past the guard."""
    options = {"attempts": 10, "backoff": Backoff.exponential(60_000)}
    store = SqlStore(engine, ttl=timedelta(hours=1))

    with pytest.raises(InvalidOptionError, match="would then do its work again"):
        idempotent(store, options=options)
    check_lifetime(timedelta(days=30), options)
    idempotent(SqlStore(engine), options=options)
