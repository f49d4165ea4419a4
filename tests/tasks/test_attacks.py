"""What users and their colleagues get wrong around tasks, and what must not come of it."""

from __future__ import annotations

import asyncio
import enum
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NewType

import msgspec
import pytest

from tests.helpers import wait_until
from tests.tasks.test_tasks import Running, app, run
from toril import App, ArgumentsError, InvalidInputError, JobFailedError, TaskMiddleware
from toril.errors import JobRemovedError, LaneFullError, PayloadTooLargeError, ResultError

__all__ = ["app", "run"]

PATIENCE_MS = 60_000


# ---------------------------------------------------------------------------- middleware


class Moody(TaskMiddleware):
    """Raises on one side, before or after the rest."""

    def __init__(self, side: str, moment: str) -> None:
        self.side, self.moment = side, moment
        self.is_angry = True

    async def _do(self, side: str, what: Any, following: Any) -> Any:
        is_angry = self.is_angry and self.side == side
        if is_angry and self.moment == "before":
            raise RuntimeError(f"{side} before")
        found = await following(what)
        if is_angry:
            raise RuntimeError(f"{side} after")
        return found

    async def on_enqueue(self, call: Any, next: Any) -> Any:  # noqa: A002
        return await self._do("enqueue", call, next)

    async def on_run(self, ctx: Any, next: Any) -> Any:  # noqa: A002
        return await self._do("run", ctx, next)


@pytest.mark.parametrize(("moment", "added"), [("before", 0), ("after", 1)])
async def test_middleware_that_raises_around_enqueue_raises_to_the_caller(
    moment: str, added: int, url: str, prefix: str
):
    moody = Moody("enqueue", moment)
    async with App(connection=url, prefix=prefix, middleware=[moody]) as app:

        @app.task
        async def work() -> None: ...

        with pytest.raises(RuntimeError, match=f"enqueue {moment}"):
            await work.enqueue()
        with pytest.raises(RuntimeError, match=f"enqueue {moment}"):
            await app.enqueue_many([work.call()])
        assert await app.queue("default").get_waiting_count() == 2 * added

        moody.is_angry = False
        await work.enqueue()
        assert await app.queue("default").get_waiting_count() == 2 * added + 1


@pytest.mark.parametrize(("moment", "runs"), [("before", 0), ("after", 1)])
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_middleware_that_raises_around_a_run_fails_that_attempt_alone(
    kind: str, moment: str, runs: int, url: str, prefix: str
):
    moody = Moody("run", moment)
    app = App(connection=url, prefix=prefix, middleware=[moody])
    ran: list[str] = []

    if kind == "async":

        @app.task(attempts=2)
        async def work() -> None:
            ran.append("")
    else:

        @app.task(attempts=2)
        def work() -> None:
            ran.append("")

    running = asyncio.create_task(app.run())
    handle = await work.enqueue()
    with pytest.raises(JobFailedError, match=f"run {moment}"):
        await handle.result(PATIENCE_MS)
    assert len(ran) == 2 * runs
    job = await handle.job()
    assert job is not None
    assert job.attempts_made == 2

    moody.is_angry = False
    await (await work.enqueue()).result(PATIENCE_MS)
    await app.close()
    await running


async def test_middleware_that_changes_a_result_is_told_when_it_is_read(url: str, prefix: str):
    class Changing(TaskMiddleware):
        async def on_run(self, ctx: Any, next: Any) -> Any:  # noqa: A002
            await next(ctx)
            return "no number"

    app = App(connection=url, prefix=prefix, middleware=[Changing()])

    @app.task
    async def work() -> int:
        return 1

    running = asyncio.create_task(app.run())
    handle = await work.enqueue()
    with pytest.raises(ResultError, match="result of task 'work' does not fit"):
        await handle.result(PATIENCE_MS)
    await app.close()
    await running


# ---------------------------------------------------------------------------- lifespan


async def test_a_lifespan_that_fails_ends_the_run_and_leaves_the_app_whole(url: str, prefix: str):
    is_broken = True

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[str]:
        if is_broken:
            raise OSError("no pool")
        yield "pool"

    app = App(connection=url, prefix=prefix, lifespan=lifespan)

    @app.task
    async def work() -> str:
        return "done"

    with pytest.raises(OSError, match="no pool"):
        await app.run()
    assert app.workers == []

    is_broken = False
    running = asyncio.create_task(app.run())
    assert await (await work.enqueue()).result(PATIENCE_MS) == "done"
    await app.close()
    await running


async def test_an_app_that_is_closed_while_its_lifespan_opens_ends_as_asked(url: str, prefix: str):
    """As by SIGTERM while a database that the lifespan waits for is away."""
    told: list[str] = []
    is_opening, may_open = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        is_opening.set()
        await may_open.wait()
        told.append("opened")
        yield
        told.append("closed")

    app = App(connection=url, prefix=prefix, lifespan=lifespan)

    @app.task
    async def work() -> None: ...

    running = asyncio.create_task(app.run())
    await is_opening.wait()
    await app.close()
    may_open.set()
    await running

    assert told == ["opened", "closed"]
    assert app.workers == []


async def test_a_lifespan_that_fails_in_a_child_process_fails_the_attempt_and_says_why(
    url: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    broken = tmp_path / "broken"
    broken.touch()
    monkeypatch.setenv("TORIL_TEST_BROKEN", str(broken))
    monkeypatch.setenv("TORIL_TEST_URL", url)
    monkeypatch.setenv("TORIL_TEST_PREFIX", prefix)
    (tmp_path / "fragile.py").write_text(FRAGILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("fragile")
    app, work = module.app, module.work
    running = asyncio.create_task(app.run())

    with pytest.raises(JobFailedError, match="no pool in this child"):
        await (await work.enqueue()).result(PATIENCE_MS)
    assert not running.done()

    broken.unlink()
    assert await (await work.enqueue()).result(PATIENCE_MS) == "pool"
    await app.close(timeout=1000)
    await running


FRAGILE = """
import os
from contextlib import asynccontextmanager
from toril import App, Context

HOME = os.getpid()

@asynccontextmanager
async def lifespan(app):
    if os.getpid() != int(os.environ.setdefault("TORIL_TEST_HOME", str(HOME))):
        if os.path.exists(os.environ["TORIL_TEST_BROKEN"]):
            raise OSError("no pool in this child")
    yield "pool"

app = App(
    connection=os.environ["TORIL_TEST_URL"],
    prefix=os.environ["TORIL_TEST_PREFIX"],
    lifespan=lifespan,
    worker_options={"executor": "process"},
)

@app.task
def work(ctx: Context) -> str:
    return ctx.state
"""


# ---------------------------------------------------------------------------- routes and names


async def test_of_overlapping_routes_the_first_decides(url: str):
    routes = {"report_big_*": "big", "report_*": "reports", "*": "rest", "report_never": "never"}
    app = App(connection=url, routes=routes, queue="default")

    def work() -> None: ...

    found = {
        name: app.task(name=name)(work).queue_name
        for name in ("report_big_1", "report_1", "report_never", "mail", "Report_1", "report_[x]")
    }
    own = app.task(name="report_own", queue="own")(work)

    assert found == {
        "report_big_1": "big",
        "report_1": "reports",
        "report_never": "reports",
        "mail": "rest",
        "Report_1": "rest",
        "report_[x]": "reports",
    }
    assert own.queue_name == "own"


async def test_jobs_of_a_task_that_was_renamed_fail_with_its_name_and_can_be_retried(
    url: str, prefix: str
):
    async with App(connection=url, prefix=prefix) as before:

        @before.task(name="chrage")
        async def misspelt(order: int) -> None: ...

        handle = await misspelt.enqueue(1)

        after = App(connection=url, prefix=prefix)

        @after.task
        async def charge(order: int) -> int:
            return order

        running = asyncio.create_task(after.run())
        with pytest.raises(JobFailedError, match=r"'chrage' \(registered: charge\)"):
            await handle.result(PATIENCE_MS)
        await after.close()
        await running

        after.task(name="chrage")(charge.function)  # its old name, until its jobs are gone
        await before.queue("default").retry(handle.id)
        running = asyncio.create_task(after.run())
        await wait_until(lambda: _is_completed(handle))
        await after.close()
        await running


async def _is_completed(handle: Any) -> bool:
    return await handle.state() == "completed"


# ---------------------------------------------------------------------------- arguments

UserId = NewType("UserId", int)


class Colour(enum.Enum):
    RED = "red"


class Node(msgspec.Struct):
    value: int
    below: list[Node] = []


async def test_odd_annotations_travel(app: App, run: Running):
    @app.task
    async def odd(
        user: UserId,
        kind: Literal["a", "b"],
        size: Annotated[int, msgspec.Meta(ge=0)],
        tree: Node,
        pairs: list[tuple[int, ...]] | None = None,
        by_colour: dict[Colour, set[int]] | None = None,
        **rest: Any,
    ) -> Any:
        return [user, kind, size, tree.below[0].value, pairs, by_colour, rest]

    run()
    tree = Node(1, [Node(2)])
    handle = await odd.enqueue(UserId(7), "a", 3, tree, [(1, 2), ()], {Colour.RED: {1}}, x=None)

    assert await handle.result(PATIENCE_MS) == [
        *(7, "a", 3, 2),
        [[1, 2], []],
        {"red": [1]},
        {"x": None},
    ]
    for bad in ({"kind": "c"}, {"size": -1}, {"user": "x"}, {"tree": {"value": "x"}}):
        with pytest.raises(ArgumentsError):
            await odd.enqueue(**{"user": 1, "kind": "a", "size": 1, "tree": tree} | bad)


async def test_parameters_may_have_any_name(app: App, run: Running):
    names = ["self", "name", "data", "args", "kwargs", "job", "queue", "call", "options", "cls"]
    space: dict[str, Any] = {}
    exec(f"async def work({', '.join(names)}): return [{', '.join(names)}]", space)
    work = app.task(space["work"])
    given = {name: number for number, name in enumerate(names)}
    run()

    handle = await work.enqueue(**given)

    assert await handle.result(PATIENCE_MS) == [*range(len(names))]
    assert work.call(**given).data == given
    assert await work(**given) == [*range(len(names))]
    blocking = await asyncio.to_thread(lambda: work.sync.enqueue(**given))
    assert await asyncio.to_thread(blocking.result, PATIENCE_MS) == [*range(len(names))]


async def test_huge_arguments_arrive_whole_or_are_refused_by_their_limit(app: App, run: Running):
    @app.task
    async def length(text: str, numbers: list[int]) -> list[int]:
        return [len(text), len(numbers)]

    run()
    handle = await length.enqueue("ä" * 2_000_000, [*range(100_000)])
    assert await handle.result(PATIENCE_MS) == [2_000_000, 100_000]

    with pytest.raises(PayloadTooLargeError, match="size_limit is 1000"):
        await length.using(size_limit=1000).enqueue("x" * 2000, [])


async def test_deep_arguments_are_refused_with_a_typed_error(app: App):
    @app.task
    async def work(tree: Any) -> None: ...

    deep: Any = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(InvalidInputError):
        await work.enqueue(deep)
    assert await app.queue("default").get_waiting_count() == 0


# ---------------------------------------------------------------------------- handles and bulks


async def test_the_handle_of_a_removed_job_says_so(app: App):
    @app.task
    async def work() -> None: ...

    handle = await work.enqueue()
    waiting = asyncio.create_task(handle.result(PATIENCE_MS))
    await app.queue("default").remove(handle.id)

    with pytest.raises(JobRemovedError, match=handle.id):
        await waiting
    with pytest.raises(JobRemovedError, match=handle.id):
        await handle.result(PATIENCE_MS)
    assert await handle.state() is None
    assert await handle.job() is None


@pytest.mark.parametrize("bad", ["too long", "of a group", "no call"])
async def test_of_many_calls_with_a_bad_one_none_is_added(bad: str, app: App):
    @app.task(queue="a")
    async def first(text: str) -> str:
        return text

    @app.task(queue="b")
    async def second(text: str) -> None: ...

    calls: list[Any] = [first.call("x"), second.call("x"), first.call("y")]
    if bad == "too long":
        calls.append(second.using(size_limit=10).call("x" * 100))
    elif bad == "of a group":
        saga = app.group("order")
        calls.append(second.call(saga.add(first.call("x")).result))
    else:
        calls.append(second)

    with pytest.raises(InvalidInputError):
        await app.enqueue_many(calls)

    for queue in ("a", "b"):
        assert await app.queue(queue).get_waiting_count() == 0


async def test_a_full_lane_keeps_no_other_of_many_calls_away(app: App):
    """Regression: those for queues behind it were not added, and the docs said that none is."""

    @app.task(queue="a", lane="l", max_lane_size=1)
    async def first(text: str) -> None: ...

    @app.task(queue="b")
    async def second(text: str) -> None: ...

    with pytest.raises(LaneFullError):
        await app.enqueue_many([first.call("x"), first.call("y"), second.call("x")])

    assert await app.queue("a").get_waiting_count() == 1
    assert await app.queue("b").get_waiting_count() == 1
