"""Groups of calls: who uses whose result runs after it, and what was done is undone."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

from tests.helpers import wait_until
from tests.tasks.test_tasks import Receipt, Running, app, run
from toril import (
    App,
    ArgumentsError,
    Compensation,
    FlowJob,
    FlowProducer,
    GroupJob,
    GroupValidationError,
    InvalidInputError,
    JobFailedError,
    PayloadError,
)
from toril.contrib.opentelemetry import TracedFlowProducer, TracedOutbox
from toril.errors import InvalidOptionError
from toril.outbox import Outbox, Relay, table_sql
from toril.tasks.calls import Call
from toril.testing import running

__all__ = ["app", "run"]


async def test_a_call_runs_after_those_whose_results_it_uses(app: App, run: Running):
    seen: list[Any] = []

    @app.task(queue="payments")
    async def charge(order: int, amount: Decimal) -> Receipt:
        return Receipt(order, amount)

    @app.task(queue="stock")
    async def reserve(order: int) -> list[str]:
        return ["shelf 7"]

    @app.task(queue="parcels")
    async def ship(order: int, receipt: Receipt, items: list[str], note: str = "") -> str:
        seen.append((order, receipt, items, note))
        return "sent"

    run()
    async with app.group("order", group_id="order-1") as saga:
        receipt = saga.add(charge.call(1, Decimal("9.99")))
        stock = saga.add(reserve.call(1), after=[receipt])
        saga.add(ship.call(1, receipt=receipt.result, items=stock.result))
    group = await saga.wait(timeout=60_000)

    assert group.state == "COMPLETED"
    assert seen == [(1, Receipt(1, Decimal("9.99")), ["shelf 7"], "")]
    assert (await saga.results())["ship"] == "sent"


async def run_order(app: App, charge: Any, label: Any, ship: Any) -> Any:
    """An order of which each step needs what the one before returned; how it ended."""
    async with app.group("order") as saga:
        receipt = saga.add(charge.call(1))
        text = saga.add(label.call(receipt.result))
        saga.add(ship.call(text.result))
    return await saga.wait(60_000)


async def test_the_undo_of_a_task_is_its_compensation(app: App, run: Running):
    undone: list[Any] = []

    @app.task(queue="payments")
    async def charge(order: int) -> Receipt:
        return Receipt(order, Decimal(5))

    @charge.undo
    async def refund(order: int, *, result: Receipt | None) -> None:
        undone.append(("refund", order, result))

    @app.task(queue="payments")
    async def label(receipt: Receipt) -> str:
        return "label"

    @label.undo
    async def tear(receipt: Receipt) -> None:
        undone.append(("tear", receipt))

    @app.task(queue="payments", attempts=1)
    async def ship(label: str) -> None:
        raise RuntimeError("no lorry")

    run()
    info = await run_order(app, charge, label, ship)

    assert info.state == "FAILED"
    paid = Receipt(1, Decimal(5))
    assert undone == [("tear", paid), ("refund", 1, paid)]


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_undo_gets_results_that_are_too_long_for_its_job(
    is_async: bool, app: App, run: Running
):
    """The server gives the results of a group to its undos only up to a length."""
    undone: list[Any] = []

    @app.task(queue="payments")
    async def charge(order: int) -> Receipt:
        return Receipt(order, Decimal(5))

    @app.task(queue="payments")
    async def label(receipt: Receipt) -> str:
        return "x" * 600_000

    if is_async:

        @label.undo
        async def tear(receipt: Receipt) -> None:
            undone.append(receipt)
    else:

        @label.undo
        def tear_slowly(receipt: Receipt) -> None:
            undone.append(receipt)

    @app.task(queue="payments", attempts=1)
    async def ship(label: str) -> None:
        raise RuntimeError("no lorry")

    run()
    info = await run_order(app, charge, label, ship)

    assert info.state == "FAILED"
    assert undone == [Receipt(1, Decimal(5))]


async def undo_all(app: App, *calls: Call[Any]) -> str:
    """How a group of these calls and one that fails has ended."""

    @app.task(attempts=1)
    async def fail() -> None:
        raise RuntimeError("no lorry")

    async with app.group("order") as saga:
        steps = [saga.add(call) for call in calls]
        saga.add(fail.call(), after=steps)
    return (await saga.wait(60_000)).state


async def test_an_undo_gets_what_the_task_got_as_far_as_it_takes_it(app: App, run: Running):
    """Regression: it was read as a call of its own, without the defaults of the task."""
    undone: dict[str, Any] = {}

    async def pay(order: int, amount: int = 5, currency: str = "EUR") -> None: ...

    def own_name(name: str) -> Any:
        return app.task(name=name)(pay)

    @own_name("needed").undo
    async def undo_needed(order: int, currency: str) -> None:
        undone["needed"] = order, currency

    @own_name("less").undo
    async def undo_less(order: int) -> None:
        undone["less"] = order

    @own_name("other_default").undo
    async def undo_other(order: int, currency: str = "USD", reason: str = "group") -> None:
        undone["other_default"] = order, currency, reason

    @own_name("all").undo
    async def undo_all_of_it(order: int, **rest: int | str) -> None:
        undone["all"] = order, rest

    run()
    names = ("needed", "less", "other_default", "all")
    state = await undo_all(app, *(app.tasks[name].call(1, 7) for name in names))

    assert state == "FAILED"
    assert undone == {
        "needed": (1, "EUR"),
        "less": 1,
        "other_default": (1, "EUR", "group"),
        "all": (1, {"amount": 7, "currency": "EUR"}),
    }


async def test_an_undo_ignores_what_its_task_ignores_and_nothing_else(
    app: App, run: Running, url: str, prefix: str
):
    """A newer producer may send more."""
    undone: list[int] = []

    @app.task(extra="ignore")
    async def hold(order: int) -> None: ...

    @app.task
    async def charge(order: int) -> None: ...

    @hold.undo
    async def release(order: int) -> None:
        undone.append(order)

    @charge.undo
    async def refund(order: int) -> None:
        undone.append(-order)

    run()
    sent = {"order": 1, "new": 2}
    last = GroupJob("nobody", queue_name="default", after=["first"])
    states = {}
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        for task, undo, data in (("hold", "release", sent), ("charge", "refund", {"order": 1})):
            first = GroupJob(task, data, queue_name="default", key="first")
            mapping = {task: Compensation(undo, sent, attempts=1)}
            await flow.add_group("order", [first, last], mapping, group_id=task)
            states[task] = (await app.queue("default").wait_for_group(task, 60_000)).state

    assert states == {"hold": "FAILED", "charge": "FAILED_COMPENSATION"}
    assert undone == [1]


async def test_results_whose_keys_are_no_texts_can_be_read(app: App, run: Running):
    """Regression: JSON's keys are texts, and they were not read as anything else."""
    undone: list[Any] = []

    @app.task
    async def count(order: int) -> dict[int, list[dict[float, int]]]:
        return {order: [{1.5: 2}]}

    @count.undo
    async def discount(order: int, *, result: dict[int, Any] | None) -> None:
        undone.append(result)

    run()
    handle = await count.enqueue(5)
    state = await undo_all(app, count.call(6))

    assert await handle.result(60_000) == {5: [{1.5: 2}]}
    assert state == "FAILED"
    assert undone == [{6: [{1.5: 2}]}]


async def test_a_call_whose_undo_needs_more_than_it_has_is_refused(app: App):
    """Before anything is added; the undo could never run."""

    @app.task
    async def charge(order: int) -> None: ...

    @charge.undo
    async def refund(order: int, amount: int) -> None: ...

    with pytest.raises(GroupValidationError, match=r"'refund' undoes .* and needs 'amount'"):
        async with app.group("order") as saga:
            saga.add(charge.call(1))


async def test_an_undo_may_need_what_only_its_compensation_has(
    app: App, run: Running, url: str, prefix: str
):
    """A member that a program describes itself has data of its own for its undo."""
    undone: list[str] = []

    @app.task
    async def charge(amount: int) -> None: ...

    @charge.undo
    async def refund(order: str) -> None:
        undone.append(order)

    run()
    undo = Compensation("refund", {"order": "o-1"})
    first = GroupJob("charge", {"amount": 1}, queue_name="default", compensation=undo)
    last = GroupJob("nobody", queue_name="default", after=["charge"])
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        node = await flow.add_group("order", [first, last])
        group = await app.queue("default").wait_for_group(node.group_id, 60_000)

    assert group.state == "FAILED"
    assert undone == ["o-1"]


async def test_a_chain_and_a_gather(app: App, run: Running):
    order: list[int] = []

    @app.task
    async def double(n: int) -> Decimal:
        order.append(n)
        if n < 0:
            raise ValueError("negative")
        return Decimal(2 * n)

    run()
    chain = await app.chain(double.call(1), double.call(2), double.call(3))
    assert await chain.result(60_000) == Decimal(6)
    assert order == [1, 2, 3]
    gathered = await app.gather([double.call(n) for n in (5, 4, 6)])
    assert await gathered.result(60_000) == [Decimal(10), Decimal(8), Decimal(12)]
    failed = await app.gather([double.call(1), double.call(-1)])
    with pytest.raises(JobFailedError, match="negative"):
        await failed.result(60_000)
    assert (await failed.wait()).state == "FAILED"


async def test_an_exception_in_the_block_creates_nothing(app: App):
    @app.task
    async def one() -> None: ...

    saga = app.group("order", group_id="g")
    with pytest.raises(ZeroDivisionError):
        async with saga:
            raise ZeroDivisionError
    saga.add(one.call())

    assert saga.node is None
    assert await app.queue("default").get_group_state("g") is None
    with pytest.raises(InvalidInputError, match="not been created yet"):
        await saga.wait()


async def test_a_signal_is_a_step_too(app: App, run: Running):
    seen: list[Any] = []

    @app.task
    async def send(by: dict[str, str]) -> None:
        seen.append(by)

    run()
    async with app.group("order", group_id="g", queue_name="default") as saga:
        approval = saga.signal("approval")
        saga.add(send.call(approval.result))
    await app.queue("default").complete_member("g", "approval", {"who": "me"})
    await wait_until(lambda: seen)

    assert seen == [{"who": "me"}]


async def test_arguments_are_checked_where_the_call_is_made(app: App):
    @app.task
    async def one(n: int) -> int:
        return n

    @app.task
    async def two(a: int, b: int) -> None: ...

    async with app.group("order", group_id="g") as saga:
        step = saga.add(one.call(1))
        again = saga.add(one.call(2))
        with pytest.raises(ArgumentsError):
            two.call("x", step.result)  # type: ignore[arg-type]
        with pytest.raises(ArgumentsError):
            two.call(1, b=2, c=step.result)  # type: ignore[call-arg]
        with pytest.raises(GroupValidationError):
            saga.add("one")  # type: ignore[arg-type]
        with pytest.raises(GroupValidationError):
            saga.add(one.call(1), key="one")
        with pytest.raises(InvalidInputError, match="only a group"):
            await app.enqueue(two.call(1, step.result))
    with pytest.raises(GroupValidationError):
        await app.chain()
    assert (step.key, again.key) == ("one", "one-2")


async def test_a_result_is_a_whole_argument_or_refused(app: App):
    """Regression: inside a list it was sent as {"key": ...}, and the call did not wait for it."""

    @app.task
    async def reserve(order: int) -> str:
        return "shelf 7"

    @app.task
    async def ship(order: int, boxes: list[Any], note: Any = None, **rest: Any) -> None: ...

    saga = app.group("order")
    box: Any = saga.add(reserve.call(1)).result
    calls: list[dict[str, Any]] = [
        {"boxes": [box, box]},
        {"boxes": [{"box": box}]},
        {"boxes": [], "note": (box,)},
        {"boxes": [2**70, box]},
        {"boxes": [box], "note": box},
        {"boxes": [], "other": {"box": box}},
    ]
    for arguments in calls:
        with pytest.raises(ArgumentsError, match="the result of 'reserve' can only be a whole"):
            ship.call(1, **arguments)
    with pytest.raises(ArgumentsError, match=r"saga\.add\(ship\.call"):
        await ship.enqueue(1, [], box)
    with pytest.raises(PayloadError, match="Reference"):
        await app.queue("default").add("ship", {"boxes": box})
    whole = ship.call(1, [], box, other=box)

    assert sorted(whole.references) == ["note", "other"]
    assert await app.queue("default").get_waiting() == []


async def test_only_a_group_takes_a_call_that_uses_the_result_of_another(
    app: App, url: str, prefix: str
):
    """Regression: others added its job without that argument, and it ran with the default."""

    @app.task
    async def reserve(order: int) -> str:
        return "shelf 7"

    @app.task
    async def ship(order: int, shelf: str = "any") -> None: ...

    call = ship.call(1, shelf=app.group("order").add(reserve.call(1)).result)
    queue = app.queue("default")
    parent = FlowJob("pack", queue_name="default", children=[call])

    async def eagerly() -> None:
        with app.eager():
            await app.enqueue(call)

    async with FlowProducer(connection=url, prefix=prefix) as flow:
        for refused in (
            app.enqueue_many([call]),
            asyncio.to_thread(app.enqueue_blocking, call),
            eagerly(),
            queue.add_bulk([call]),
            queue.upsert_job_scheduler("s", every=3_600_000, template=call),
            flow.add(parent),
        ):
            with pytest.raises(InvalidInputError, match=r"only a group|Reference"):
                await refused
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(InvalidInputError, match="Reference"),
    ):
        Outbox().add(connection, call)

    assert await queue.get_waiting() == []
    assert await queue.get_job_schedulers() == []


@pytest.mark.parametrize("way", ["flow", "outbox"])
async def test_calls_are_members_wherever_a_group_is_described(
    app: App, run: Running, url: str, prefix: str, tmp_path: Path, way: str
):
    """Beside members of other kinds, with their undo, and as the job at the end."""
    undone: list[Any] = []
    told: list[Any] = []

    @app.task(queue="payments", attempts=3)
    async def charge(order: int, amount: Decimal) -> Receipt:
        return Receipt(order, amount)

    later = charge.using(priority=7)

    @charge.undo
    async def refund(order: int, amount: Decimal, *, result: Receipt | None) -> None:
        undone.append((order, amount, result))

    @app.task(queue="payments", attempts=1)
    async def ship(order: int) -> None:
        raise RuntimeError("no lorry")

    @app.task(queue="mail")
    async def apologise(order: int, group: dict[str, Any] | None = None) -> None:
        told.append((order, group and group["state"]))

    last = GroupJob("ship", {"order": 1}, queue_name="payments", after=["charge"])
    members = [later.call(1, Decimal("9.99")), last]
    run()
    if way == "flow":
        async with FlowProducer(connection=url, prefix=prefix) as flow:
            await flow.add_group("order", members, group_id="g", on_failed=apologise.call(1))
    else:
        engine = create_engine(f"sqlite:///{tmp_path}/outbox.db")
        outbox = Outbox()
        with Session(engine) as session:
            for statement in table_sql("sqlite"):
                session.execute(text(statement))
            outbox.add_group(session, "order", members, group_id="g", on_failed=apologise.call(1))
            session.commit()
        async with Relay(engine, outbox, connection=url, prefix=prefix) as relay:
            await relay.drain()
        engine.dispose()
    info = await app.queue("payments").wait_for_group("g", 60_000)

    assert info.state == "FAILED"
    assert undone == [(1, Decimal("9.99"), Receipt(1, Decimal("9.99")))]
    charged = await app.queue("payments").get_jobs("completed")
    assert [(job.priority, job.opts.attempts) for job in charged] == [(7, 3)]
    await wait_until(lambda: told)
    assert told == [(1, "FAILED")]


async def test_a_flow_is_no_member_of_a_group(app: App):
    @app.task
    async def parent() -> None: ...

    tree = FlowJob("parent", queue_name="default", children=[parent.call()])
    async with FlowProducer(connection="redis://127.0.0.1:1") as flow:
        with pytest.raises(GroupValidationError, match="both a group and a flow"):
            await flow.add_group("order", [tree])
        with pytest.raises(GroupValidationError, match="a call of a task"):
            await flow.add_group("order", [parent])


async def test_a_flow_of_calls_goes_through_the_outbox(
    app: App, run: Running, url: str, prefix: str, tmp_path: Path
):
    """Regression: a call says its prefix, and every root with one was refused."""
    ran: list[str] = []

    @app.task(queue="mail")
    async def child(order: int) -> None:
        ran.append("child")

    @app.task
    async def parent(order: int) -> None:
        ran.append("parent")

    tree = msgspec.structs.replace(parent.call(1), children=(child.call(1),))
    run()
    engine, outbox = create_engine(f"sqlite:///{tmp_path}/outbox.db"), Outbox()
    with Session(engine) as session:
        for statement in table_sql("sqlite"):
            session.execute(text(statement))
        ids = [outbox.add_flow(session, tree), outbox.add_flow(session, child.call(2))]
        session.commit()
    async with Relay(engine, outbox, connection=url, prefix=prefix) as relay:
        assert await relay.drain() == 2
    engine.dispose()
    await app.queue("default").wait_for(ids[0], 60_000)
    await app.queue("mail").wait_for(ids[1], 60_000)

    assert sorted(ran) == ["child", "child", "parent"]
    assert ran.index("parent") > ran.index("child")


async def test_calls_under_another_prefix_are_refused_with_what_to_do(
    app: App, url: str, prefix: str, tmp_path: Path
):
    """Nobody would ever run them."""

    @app.task
    async def charge(order: int) -> None: ...

    other = App(connection=url, prefix=f"{prefix}-other")

    @other.task
    async def ship(order: int) -> None: ...

    plain = GroupJob("plain", queue_name="default")
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        for options in (
            {"jobs": [charge.call(1), ship.call(1)]},
            {"jobs": [charge.call(1)], "on_failed": ship.call(1)},
        ):
            with pytest.raises(GroupValidationError, match="different prefixes"):
                await flow.add_group("order", group_id="g", **options)
        for options in ({"jobs": [ship.call(1)]}, {"jobs": [plain], "on_completed": ship.call(1)}):
            with pytest.raises(InvalidOptionError, match=f"with prefix='{prefix}-other'"):
                await flow.add_group("order", group_id="g", **options)
        assert await flow.get_group_state("g") is None

    engine, outbox = create_engine(f"sqlite:///{tmp_path}/outbox.db"), Outbox()
    with Session(engine) as session:
        for statement in table_sql("sqlite"):
            session.execute(text(statement))
        flow_id = outbox.add_flow(session, ship.call(1))
        outbox.add_group(session, "order", [ship.call(1)], group_id="g1")
        outbox.add_group(session, "order", [plain], group_id="g2", on_failed=ship.call(1))
        outbox.add_group(session, "order", [charge.call(1)], group_id="g3")
        session.commit()
    async with Relay(engine, outbox, connection=url, prefix=prefix) as relay:
        await relay.drain()
        parked = {row.id: row.error for row in await relay.get_parked()}
    engine.dispose()

    assert parked.keys() == {flow_id, "g1", "g2"}
    for error in parked.values():
        assert f"a Relay, with prefix='{prefix}-other'" in error
    assert [job.name for job in await app.queue("default").get_waiting()] == ["charge"]


def a_database(path: Path) -> tuple[Engine, Outbox]:
    engine = create_engine(f"sqlite:///{path}/outbox.db")
    with engine.begin() as connection:
        for statement in table_sql("sqlite"):
            connection.execute(text(statement))
    return engine, Outbox()


def outboxes(outbox: Outbox) -> list[Outbox | TracedOutbox]:
    return [outbox, TracedOutbox(outbox)]


async def test_no_way_into_a_group_forgets_the_prefix_of_a_call(
    app: App, url: str, prefix: str, tmp_path: Path
):
    """Regression: traced groups, sagas, chains and gathers waited forever for such members."""
    other = App(connection=url, prefix=f"{prefix}-other")

    @other.task
    async def ship(order: int) -> None: ...

    async def in_saga() -> None:
        async with app.group("order", group_id="saga") as saga:
            saga.add(ship.call(1))

    for way in (in_saga(), app.chain(ship.call(1)), app.gather([ship.call(1)])):
        with pytest.raises(GroupValidationError, match=f"with prefix='{prefix}-other', and"):
            await way
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        for producer in (flow, TracedFlowProducer(flow)):
            with pytest.raises(InvalidOptionError, match=f"with prefix='{prefix}-other'"):
                await producer.add_group("order", [ship.call(1)], group_id="flow")
    engine, outbox = a_database(tmp_path)
    with engine.begin() as connection:
        rows = [one.add_group(connection, "order", [ship.call(1)]) for one in outboxes(outbox)]
    async with Relay(engine, outbox, connection=url, prefix=prefix) as relay:
        await relay.drain()
        assert {row.id for row in await relay.get_parked()} == set(rows)
    engine.dispose()

    assert await app.queue("default").get_groups() == []
    assert await app.queue("default").get_waiting() == []


async def test_traced_groups_of_calls_run_at_home(
    app: App, run: Running, url: str, prefix: str, tmp_path: Path
):
    """A relay of the version before can read their rows, too: no member says the prefix."""
    ran: list[int] = []

    @app.task
    async def charge(order: int) -> None:
        ran.append(order)

    run()
    engine, outbox = a_database(tmp_path)
    with engine.begin() as connection:
        for number, one in enumerate(outboxes(outbox)):
            one.add_group(connection, "order", [charge.call(number)])
        stored = connection.execute(text("SELECT data FROM toril_outbox")).scalars().all()
    async with Relay(engine, outbox, connection=url, prefix=prefix) as relay:
        await relay.drain()
    engine.dispose()
    async with FlowProducer(connection=url, prefix=prefix) as flow:
        await TracedFlowProducer(flow).add_group("order", [charge.call(2)])
    await wait_until(lambda: len(ran) == 3)

    assert sorted(ran) == [0, 1, 2]
    assert not any("prefix" in str(data) for data in stored)


async def test_a_saga_takes_calls_that_are_older_than_the_test(app: App):
    """`running` moves an app to a prefix of its own, and a call may be a constant."""

    @app.task
    async def charge(order: int) -> str:
        return "paid"

    call = charge.call(1)
    async with running(app) as rig:
        handle = await app.chain(call)
        await rig.drain()

        assert await handle.result(60_000) == "paid"
