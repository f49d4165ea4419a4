"""In which order rows of one lane come whose transactions overlap."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import MetaData, create_engine, select

from tests.helpers import wait_until_sync
from toril import NewJob
from toril.errors import InvalidOptionError
from toril.outbox import Outbox


@pytest.fixture
def make_outbox(postgres, table_name):
    metadata = MetaData()
    engine = create_engine(f"postgresql+psycopg://{postgres}")

    def make(**options):
        outbox = Outbox(metadata, name=table_name, **options)
        metadata.create_all(engine)
        return engine, outbox

    yield make
    metadata.drop_all(engine)
    engine.dispose()


def in_order(engine, outbox):
    with engine.connect() as connection:
        query = select(outbox.table.c.id).order_by(outbox.table.c.seq)
        return list(connection.execute(query).scalars())


def waiting_locks(engine):
    with engine.connect() as connection:
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        return connection.exec_driver_sql(query).scalar()


def add_later(engine, outbox, ids, **options):
    def add():
        with engine.begin() as connection:
            ids.append(outbox.add(connection, "payments", "charge", **options))

    thread = threading.Thread(target=add)
    thread.start()
    return thread


def test_by_default_the_one_that_wrote_first_comes_first(make_outbox):
    engine, outbox = make_outbox()
    with engine.connect() as slow:
        first = outbox.add(slow, "payments", "charge", lane="user-1")
        with engine.begin() as quick:
            second = outbox.add(quick, "payments", "charge", lane="user-1")
        slow.commit()

    assert in_order(engine, outbox) == [first, second]


def test_by_commit_the_second_waits_until_the_first_has_ended(make_outbox):
    """So no row of a lane becomes visible behind one that was relayed already."""
    engine, outbox = make_outbox(lane_order="commit")
    ids = []
    with engine.connect() as slow:
        first = outbox.add(slow, "payments", "charge", lane="user-1")
        other_lane = add_later(engine, outbox, [], lane="user-2")
        other_lane.join(60)
        waits = add_later(engine, outbox, ids, lane="user-1")
        wait_until_sync(lambda: waiting_locks(engine))
        assert ids == []
        slow.commit()
    waits.join(60)

    assert [one for one in in_order(engine, outbox) if one in (first, *ids)] == [first, *ids]


def test_a_transaction_that_is_rolled_back_lets_the_next_one_go(make_outbox):
    engine, outbox = make_outbox(lane_order="commit")
    ids = []
    with engine.connect() as slow:
        outbox.add(slow, "payments", "charge", lane="user-1")
        waits = add_later(engine, outbox, ids, lane="user-1")
        wait_until_sync(lambda: waiting_locks(engine))
        slow.rollback()
    waits.join(60)

    assert in_order(engine, outbox) == ids


def test_the_lanes_of_a_batch_are_locked_in_one_order(make_outbox):
    """Two that write the same lanes the other way round wait for each other, not for ever."""
    engine, outbox = make_outbox(lane_order="commit")
    jobs = [NewJob("charge", lane=f"user-{n}") for n in range(50)]
    errors = []

    def write(some):
        try:
            for _ in range(5):
                with engine.begin() as connection:
                    outbox.add_bulk(connection, "payments", some)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=[some]) for some in (jobs, jobs[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert errors == []
    assert len(in_order(engine, outbox)) == 500


def test_sqlite_has_one_writer_and_mariadb_no_such_lock(tmp_path, mariadb, table_name):
    metadata = MetaData()
    outbox = Outbox(metadata, name=table_name, lane_order="commit")
    engine = create_engine(f"sqlite:///{tmp_path}/x.db")
    metadata.create_all(engine)
    with engine.begin() as connection:
        outbox.add(connection, "payments", "charge", lane="user-1")

    other = create_engine(f"mariadb+pymysql://{mariadb}")
    with other.connect() as connection, pytest.raises(InvalidOptionError, match="PostgreSQL"):
        outbox.add(connection, "payments", "charge", lane="user-1")
    with pytest.raises(InvalidOptionError, match="lane_order"):
        Outbox(MetaData(), lane_order="id")
    other.dispose()
