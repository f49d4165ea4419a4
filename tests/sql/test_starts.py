"""Groups and flows that start with the transaction that wanted them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from datetime import timedelta

import pytest
from sqlalchemy import create_engine, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from tests.helpers import wait_until
from toril import (
    Backoff,
    Compensation,
    FlowJob,
    FlowProducer,
    GroupJob,
    GroupSignal,
    Keep,
    NewJob,
    Parent,
    Queue,
    Worker,
)
from toril.errors import (
    GroupNotFoundError,
    GroupValidationError,
    InvalidNameError,
    InvalidOptionError,
    PayloadError,
    PayloadTooLargeError,
    UnknownOptionError,
    WaitTimeoutError,
)
from toril.outbox import Outbox, Relay, table_sql


@pytest.fixture
async def payments(url, prefix):
    async with Queue("payments", connection=url, prefix=prefix) as queue:
        yield queue


def saga(outbox, target, **options):
    return outbox.add_group(
        target,
        "order-fulfilment",
        [
            GroupJob("charge", {"order": 1, "is": "mine"}, queue_name="payments", attempts=5),
            {
                "name": "reserve",
                "queueName": "stock",
                "data": {"n": 2**70},
                "opts": {"attempts": 2},
            },
        ],
        {"charge": Compensation("refund", {"is": "GroupJob"}, timeout=timedelta(seconds=5))},
        timeout=timedelta(hours=1),
        **options,
    )


def again(engine, outbox):
    """As if every relay had died before it wrote down what it did."""
    with engine.begin() as connection:
        connection.execute(update(outbox.table).values(status="pending", due_at=0))


async def test_a_committed_group_starts_and_a_rolled_back_one_never_does(
    engine, outbox, relay, payments
):
    with Session(engine) as session, session.begin():
        group_id = saga(outbox, session, group_id="order-123")
        made_up = saga(outbox, session)
    with Session(engine) as session:
        lost = saga(outbox, session)
        session.rollback()

    assert await relay.drain() == 2

    assert group_id == "order-123"
    for known in (group_id, made_up):
        state = await payments.get_group_state(known)
        assert (state.name, state.total_jobs, state.state) == ("order-fulfilment", 2, "ACTIVE")
    assert await payments.get_group_state(lost) is None


async def test_a_group_is_the_same_as_if_it_were_created_directly(
    engine, outbox, relay, payments, url, prefix
):
    with engine.begin() as connection:
        first = saga(outbox, connection)
    await relay.drain()
    direct = _Direct(url, prefix)
    second = await saga(direct, None)

    async with Queue("stock", connection=url, prefix=prefix) as stock:
        for queue in (payments, stock):
            mine, theirs = await queue.get_waiting()
            left, right = dict(mine.opts.raw), dict(theirs.opts.raw)
            assert (left.pop("group")["id"], right.pop("group")["id"]) == (first, second.group_id)
            assert (mine.name, mine.data, left) == (theirs.name, theirs.data, right)


class _Direct:
    def __init__(self, url, prefix):
        self.url, self.prefix = url, prefix

    async def add_group(self, _, *args, **kwargs):
        async with FlowProducer(connection=self.url, prefix=self.prefix) as flow:
            return await flow.add_group(*args, **kwargs)


async def test_a_row_that_is_relayed_twice_starts_one_group(
    engine, outbox, make_relay, payments, url, prefix
):
    """Before it has ended, when it has, and when its jobs and the group itself are gone."""
    with engine.begin() as connection:
        group_id = outbox.add_group(
            connection,
            "g",
            [GroupJob("n", queue_name="payments", remove_on_complete=True)],
            group_retention=True,
        )
    ran = []
    await make_relay().drain()
    again(engine, outbox)
    await make_relay().drain()
    async with Worker("payments", lambda job: ran.append(job.id), connection=url, prefix=prefix):
        await wait_until(lambda: _is_forgotten(payments, group_id))
        again(engine, outbox)
        assert await make_relay().drain() == 1
        await payments.wait_until_empty(timeout=60_000)

    assert len(ran) == 1
    assert await payments.get_group_state(group_id) is None


async def _is_forgotten(queue, group_id):
    return await queue.get_group_state(group_id) is None


async def test_two_rows_with_one_group_id_start_one_group(engine, outbox, relay, payments):
    for _ in range(2):
        with engine.begin() as connection:
            saga(outbox, connection, group_id="order-123")
        await relay.drain()

    assert await payments.get_waiting_count() == 1
    assert (await relay.stats()).parked == 0


async def test_a_group_is_waited_for_before_it_is_relayed(tmp_path, url, prefix, payments):
    """By who has its id from the request, while the relay has not sent the row yet."""
    connection = sqlite3.connect(tmp_path / "x.db")
    for statement in table_sql("sqlite"):
        connection.execute(statement)
    outbox = Outbox()
    group_id = outbox.add_group(connection, "g", [GroupJob("n", queue_name="payments")])
    connection.commit()
    connection.close()
    with pytest.raises(GroupNotFoundError):
        await payments.wait_for_group(group_id, timeout=60_000)
    with pytest.raises(WaitTimeoutError, match="a relay is running"):
        await payments.wait_for_group(group_id, timeout=30, may_come=True)
    waiting = asyncio.create_task(payments.wait_for_group(group_id, timeout=60_000, may_come=True))
    engine = create_engine(f"sqlite:///{tmp_path}/x.db")
    async with (
        Relay(engine, outbox, connection=url, prefix=prefix) as relay,
        Worker("payments", lambda job: None, connection=url, prefix=prefix),
    ):
        await relay.drain()
        assert (await waiting).state == "COMPLETED"
    engine.dispose()


async def test_another_group_under_the_id_is_parked_at_once(engine, outbox, relay, payments):
    with engine.begin() as connection:
        saga(outbox, connection, group_id="order-123")
        outbox.add_group(
            connection, "other", [GroupJob("n", queue_name="payments")], group_id="order-123"
        )

    await relay.drain()

    (row,) = await relay.get_parked()
    assert (row.name, row.attempts) == ("other", 1)
    assert "GroupExistsError" in row.error
    assert (await payments.get_group_state("order-123")).name == "order-fulfilment"


async def test_stages_signals_and_ends_travel_with_the_row(
    engine, outbox, make_relay, payments, url, prefix
):
    """All that a group can be told, through the table and back, and relayed twice on the way."""
    jobs = [
        GroupJob("reserve", {"order": 1}, queue_name="payments"),
        GroupJob(
            "charge",
            {"order": 1},
            queue_name="payments",
            after=["reserve"],
            inputs={"pieces": "reserve"},
        ),
        GroupSignal("approval", after=["reserve"], timeout=timedelta(days=1), default={"by": "is"}),
        GroupJob("ship", {}, queue_name="payments", after=["charge", "approval"], pivot=True),
    ]
    ran = []

    def handler(job):
        ran.append((job.name, job.data.get("pieces")))
        return {"is": "GroupJob"} if job.name == "reserve" else None

    with engine.begin() as connection:
        group_id = outbox.add_group(
            connection,
            "order",
            jobs,
            {"reserve": Compensation("release", lane="a")},
            undo_timeout=timedelta(hours=1),
            on_completed=GroupJob("invoice", {"order": 1}, queue_name="payments"),
        )
    for _ in range(2):
        await make_relay().drain()
        again(engine, outbox)
    async with Worker("payments", handler, connection=url, prefix=prefix):
        await wait_until(lambda: ("charge", {"is": "GroupJob"}) in ran)
        await payments.complete_member(group_id, "approval", {"by": "back office"})
        info = await payments.wait_for_group(group_id, timeout=60_000)
        await wait_until(lambda: len(ran) == 4)

    assert info.state == "COMPLETED"
    assert [name for name, _ in ran] == ["reserve", "charge", "ship", "invoice"]
    again(engine, outbox)
    await make_relay().drain()


def flow_of(**options):
    return FlowJob(
        "render",
        {"video": 1},
        queue_name="video",
        children=[
            FlowJob("encode", {"n": n}, queue_name="payments", backoff=Backoff.fixed(n))
            for n in range(1, 4)
        ],
        **options,
    )


async def test_a_flow_starts_with_the_transaction(
    engine, outbox, make_relay, payments, url, prefix
):
    with engine.begin() as connection:
        root = outbox.add_flow(connection, flow_of(attempts=3, remove_on_complete=Keep(count=9)))
    with engine.connect() as connection:
        outbox.add_flow(connection, flow_of())
        connection.rollback()

    for _ in range(2):
        relay = make_relay()
        assert await relay.drain() == 1
        again(engine, outbox)

    assert relay.metrics.duplicates == 1
    children = await payments.get_waiting()
    assert [child.data["n"] for child in children] == [1, 2, 3]
    assert [child.opts.backoff.delay for child in children] == [1, 2, 3]
    async with FlowProducer(connection=url, prefix=prefix) as flows:
        node = await flows.get_flow(root, "video")
    assert (node.job.data, node.job.opts.attempts) == ({"video": 1}, 3)
    assert (len(node.children), node.job.idempotency_key) == (3, root)
    again(engine, outbox)


async def test_a_flow_that_has_run_and_gone_is_not_started_again(
    engine, outbox, make_relay, payments, url, prefix
):
    """The relay died before it wrote down what it did, and comes back when nothing is left."""
    ran = []
    gone = {"queue_name": "payments", "remove_on_complete": True}
    with engine.begin() as connection:
        root = outbox.add_flow(
            connection, FlowJob("root", children=[FlowJob("leaf", **gone)], **gone)
        )
    async with Worker("payments", lambda job: ran.append(job.name), connection=url, prefix=prefix):
        await make_relay().drain()
        await wait_until(lambda: _is_gone(payments, root, ran))
        again(engine, outbox)
        relay = make_relay()
        assert await relay.drain() == 1
        assert relay.metrics.duplicates == 1
        await payments.wait_until_empty(timeout=60_000)

    assert ran == ["leaf", "root"]


async def _is_gone(queue, job_id, ran):
    return len(ran) == 2 and await queue.get_job(job_id) is None


async def test_a_deep_flow(engine, outbox, relay, payments):
    """Deeper than the readers of JSON go."""
    flow = FlowJob("leaf", queue_name="payments")
    for n in range(1500):
        flow = FlowJob("step", {"n": n}, queue_name="video", children=[flow])
    with engine.begin() as connection:
        outbox.add_flow(connection, flow)

    await relay.drain()

    assert [job.name for job in await payments.get_waiting()] == ["leaf"]


async def test_starts_and_jobs_go_in_one_round_trip(engine, outbox, relay, payments, monkeypatch):
    with engine.begin() as connection:
        for n in range(5):
            outbox.add(connection, "payments", "charge", {"n": n})
            saga(outbox, connection)
            outbox.add_flow(connection, flow_of())
    trips = []
    run_each = relay._connection.run_each

    async def counting(commands):
        trips.append(len(commands))
        return await run_each(commands)

    monkeypatch.setattr(relay._connection, "run_each", counting)

    assert await relay.drain() == 15

    assert trips == [4, 11], "the first asks which queues have partitions, once in ten seconds"
    assert await payments.get_waiting_count() == 5 + 5 + 15


async def test_a_start_that_is_refused_is_parked_and_others_go_on(engine, outbox, relay, payments):
    await payments.add("charge", job_id="taken")
    with engine.begin() as connection:
        outbox.add_group(connection, "g", [GroupJob("n", queue_name="payments", job_id="taken")])
        connection.execute(
            outbox.table.insert(),
            [
                {"id": f"by-hand-{n}", "queue": "q", "name": "n", "data": data, "key": "k"}
                | {"options": options, "created_at": 0}
                for n, (data, options) in enumerate(
                    [
                        ("{}", '{"start":"group"}'),
                        ("[1]", '{"start":"flow"}'),
                        ("{", '{"start":"flow"}'),
                        ('{"nodes":[{"is":"FlowJob"}]}', '{"start":"flow"}'),
                        ('{"nodes":[{"is":"Stage"}]}', '{"start":"flow"}'),
                        ('{"nodes":[]}', '{"start":"flow"}'),
                        ("{}", '{"start":"rocket"}'),
                    ]
                )
            ],
        )
        kept = saga(outbox, connection)

    await relay.drain()

    parked = {row.id: row.error for row in await relay.get_parked()}
    assert len(parked) == 8
    assert "newer relay" in parked["by-hand-4"]
    assert "newer relay" in parked["by-hand-6"]
    assert await payments.get_group_state(kept) is not None


async def test_a_full_lane_lets_a_group_wait(engine, outbox, make_relay, payments):
    await payments.add("charge", lane="a")
    await payments.add("charge", lane="a")
    member = GroupJob("n", queue_name="payments", lane="a", max_lane_size=1)
    with engine.begin() as connection:
        group_id = outbox.add_group(connection, "g", [member])
    relay = make_relay()

    await relay.drain()

    assert relay.metrics.lanes_full == 1
    assert (await relay.stats()).pending == 1
    await payments.drain_lane("a")
    again(engine, outbox)
    await relay.drain()
    assert await payments.get_group_state(group_id) is not None


async def test_confirm_knows_how_groups_and_flows_stand(
    engine, outbox, make_relay, payments, url, prefix
):
    relay = make_relay(confirm=True, confirm_interval=1)
    with engine.begin() as connection:
        group_id = outbox.add_group(
            connection, "g", [GroupJob("n", queue_name="payments")], group_retention=True
        )
        lost = outbox.add_group(connection, "lost", [GroupJob("n", queue_name="lost")])
        root = outbox.add_flow(connection, FlowJob("root", queue_name="payments"))
    await relay.drain()
    async with Queue("lost", connection=url, prefix=prefix) as queue:
        await queue.obliterate(force=True)
        await relay.confirm_once()
        assert relay.metrics.dispatched_again == 1
        await relay.drain()
        assert await queue.get_group_state(lost) is not None
    assert (await relay.stats()).done == 0

    async with Worker("payments", lambda job: None, connection=url, prefix=prefix):
        await payments.wait_for_group(group_id, timeout=60_000)
        await payments.wait_for(root, timeout=60_000)

    async def are_done():
        await relay.confirm_once()
        return (await relay.stats()).done == 2

    await wait_until(are_done)
    assert relay.metrics.dispatched_again == 1


async def test_async_sessions(async_engine, table_name, url, prefix, metadata):
    outbox = Outbox(metadata, name=table_name)
    async with async_engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    async with AsyncSession(async_engine) as session, session.begin():
        group_id = await saga(outbox, session)
        root = await outbox.add_flow(session, flow_of())
    async with (
        Relay(async_engine, outbox, connection=url, prefix=prefix) as relay,
        Queue("payments", connection=url, prefix=prefix) as payments,
        Queue("video", connection=url, prefix=prefix) as video,
    ):
        assert await relay.drain() == 2
        assert await payments.get_group_state(group_id) is not None
        assert await video.get_state(root) == "waiting_children"
    async with async_engine.begin() as connection:
        await connection.run_sync(metadata.drop_all)


async def test_plain_connections(tmp_path, url, prefix):
    path = tmp_path / "x.db"
    connection = sqlite3.connect(path)
    for statement in table_sql("sqlite"):
        connection.execute(statement)
    outbox = Outbox()
    group_id = saga(outbox, connection)
    connection.commit()
    outbox.add_flow(connection, flow_of())
    connection.rollback()
    connection.close()
    engine = create_engine(f"sqlite:///{path}")

    async with (
        Relay(engine, outbox, connection=url, prefix=prefix) as relay,
        Queue("payments", connection=url, prefix=prefix) as payments,
    ):
        assert await relay.drain() == 1
        assert await payments.get_group_state(group_id) is not None
    engine.dispose()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": ""}, GroupValidationError),
        ({"jobs": []}, GroupValidationError),
        ({"jobs": "abc"}, GroupValidationError),
        ({"jobs": [NewJob("n")]}, GroupValidationError),
        ({"jobs": [{"name": "n"}]}, GroupValidationError),
        ({"compensation": {"other": Compensation("undo")}}, GroupValidationError),
        ({"compensation": 5}, GroupValidationError),
        ({"group_id": "a b"}, InvalidNameError),
        ({"group_id": "a:b"}, InvalidNameError),
        ({"jobs": [GroupJob("n", queue_name="q", after=["other"])]}, GroupValidationError),
        ({"timeoutt": 5}, UnknownOptionError),
        ({"timeout": -5}, InvalidOptionError),
        ({"jobs": [GroupJob("n", object(), queue_name="q")]}, PayloadError),
        ({"jobs": [GroupJob("n", "x" * 9, queue_name="q", size_limit=5)]}, PayloadTooLargeError),
        ({"queue_name": "q" * 256}, InvalidOptionError),
    ],
)
def test_a_group_that_could_not_start_is_refused_at_once(arguments, error, tmp_path):
    connection = sqlite3.connect(tmp_path / "x.db")
    given = {"name": "g", "jobs": [GroupJob("n", queue_name="q")], **arguments}

    with pytest.raises(error):
        Outbox().add_group(connection, **given)
    connection.close()


@pytest.mark.parametrize(
    ("flow", "error"),
    [
        (NewJob("n"), InvalidOptionError),
        (flow_of(prefix="an other"), InvalidNameError),
        (flow_of(parent=Parent("p", "q")), InvalidOptionError),
        (flow_of(size_limit=3), PayloadTooLargeError),
        (FlowJob("n", float("nan"), queue_name="q"), PayloadError),
    ],
)
def test_a_flow_that_could_not_start_is_refused_at_once(flow, error, tmp_path):
    connection = sqlite3.connect(tmp_path / "x.db")

    with pytest.raises(error):
        Outbox().add_flow(connection, flow)
    connection.close()


def test_a_row_says_what_it_starts(tmp_path):
    """Its data are the arguments by name, so that a later version may have more of them."""
    connection = sqlite3.connect(tmp_path / "x.db")
    for statement in table_sql("sqlite"):
        connection.execute(statement)

    saga(Outbox(), connection, group_id="order-1")

    connection.row_factory = sqlite3.Row
    row = connection.execute("SELECT * FROM toril_outbox").fetchone()
    assert row["options"] == '{"start":"group"}'
    assert (row["id"], row["queue"], row["name"]) == ("order-1", "payments", "order-fulfilment")
    stored = json.loads(row["data"])
    assert stored["timeout"] == 3_600_000
    assert stored["jobs"][0] == {
        "is": "GroupJob",
        "name": "charge",
        "data": {"order": 1, "is": "mine"},
        "attempts": 5,
        "queue_name": "payments",
    }
    assert stored["compensation"]["charge"]["timeout"] == 5000
    connection.close()
