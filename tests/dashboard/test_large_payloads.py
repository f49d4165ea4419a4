"""Pages read no payloads that they do not show: counted in the bytes that the server sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.dashboard.conftest import Visitor
from tests.helpers import wait_until
from tests.servers import Server
from toril import (
    FlowJob,
    FlowProducer,
    GroupJob,
    NewJob,
    Queue,
    UnrecoverableError,
    Worker,
)
from toril.dashboard import dashboard
from toril.dashboard.showing import link

EACH = 30
PAYLOAD = 1_000_000
MOST_SENT = 1_000_000
"""As much as one payload: a page that reads one of them is found out."""
BIG = "x" * PAYLOAD
REASON = "No money, No money"


async def handle(job: Any) -> Any:
    if job.name == "fail":
        raise UnrecoverableError(REASON)
    return {"blob": BIG}


@asynccontextmanager
async def crowd(url: str) -> AsyncIterator[list[str]]:
    """Something in every state, with a large payload and a large result; all pages that show it."""
    data = {"blob": BIG}
    async with (
        Queue("pay", connection=url) as queue,
        Queue("dead", connection=url) as letters,
        Queue("strange", connection=url) as strange,
        FlowProducer(connection=url) as flows,
    ):
        group = await flows.add_group(
            "trip", [GroupJob("work", data, queue_name="pay", key=str(n)) for n in range(EACH)]
        )
        tree = await flows.add(flow("work", data, EACH))
        await add(queue, "work")
        await add(queue, "fail")
        async with Worker("pay", handle, connection=url, concurrency=4):
            await wait_until(lambda: has(queue, completed=3 * EACH + 1, failed=EACH))
        await add(queue, "fail")
        async with Worker(
            "pay", handle, connection=url, dead_letter_queue="dead", concurrency=4
        ) as worker:
            await wait_until(lambda: has(letters, waiting=EACH))
            await worker.close()
        await repair_one(letters, queue, url)
        await add(
            strange, "lost", {**data, "_dlqMeta": {"sourceQueue": "pay", "failedReason": "?"}}
        )
        await add(queue, "hold")
        await queue.upsert_job_scheduler("nightly", cron="0 3 * * *", template=NewJob("work", data))
        over = asyncio.Event()

        async def hold(job: Any) -> None:
            await job.report({"blob": BIG})
            await over.wait()

        async with Worker("pay", hold, connection=url, concurrency=EACH):
            try:
                await wait_until(lambda: has(queue, active=EACH))
                await fill(queue, flows)
                yield [
                    *paths_of(queue.name, letters.name, strange.name),
                    link("", "/group", queue="pay", id=group.group_id),
                    link("", "/flow", queue="pay", id=tree.job.id),
                    link("", "/flow", queue="pay", id=tree.children[0].job.id),
                ]
            finally:
                over.set()


async def fill(queue: Queue, flows: FlowProducer) -> None:
    """Jobs that wait, in every way in which a job can wait."""
    await queue.pause()
    await add(queue, "work")
    await add(queue, "work", delay=3_600_000)
    await add(queue, "work", priority=3)
    await add(queue, "work", lane="a")
    for _ in range(EACH):
        await flows.add(flow("parent", {"blob": BIG}, 1))
    assert await has(queue, waiting=3 * EACH, delayed=EACH + 1, prioritized=EACH)
    assert await has(queue, waiting_children=EACH)


def flow(name: str, data: Any, children: int) -> FlowJob:
    return FlowJob(
        name,
        data,
        queue_name="pay",
        children=[FlowJob("work", data, queue_name="pay") for _ in range(children)],
    )


async def add(queue: Queue, name: str, data: Any = None, **options: Any) -> None:
    for _ in range(EACH):
        await queue.add(name, data or {"blob": BIG}, **options)


async def repair_one(letters: Queue, queue: Queue, url: str) -> None:
    """A letter that was repaired has its original data in its metadata."""
    (letter,) = await letters.get_dead_letter_jobs(0, 0)
    await letters.replay_dead_letter(letter.id, data={"blob": BIG, "is": "repaired"})
    async with Worker("pay", handle, connection=url, dead_letter_queue="dead"):
        await wait_until(lambda: has(letters, waiting=EACH))
    assert await has(queue, waiting=0)


async def has(queue: Queue, **counts: int) -> bool:
    known = await queue.get_job_counts()
    return all(known[state] == count for state, count in counts.items())


def paths_of(name: str, *letters: str) -> list[str]:
    states = ("waiting", "active", "delayed", "prioritized", "waiting_children")
    return [
        "/",
        *(link("", "/queue", queue=name, state=one) for one in (*states, "completed", "failed")),
        link("", "/queue", queue=name, state="failed", text="money"),
        link("", "/queue", queue=letters[0], state="waiting"),
        link("", "/queue", queue=letters[1], state="waiting"),
        "/dead-letters",
        *(link("", "/dead-letters", queue=one) for one in letters),
        *(link("", "/dead-letters", queue=one, failed_reason="no") for one in letters),
        "/groups",
        link("", "/groups", queue=name, state="COMPLETED"),
        "/lanes",
        link("", "/lanes", queue=name),
        link("", "/lane", queue=name, lane="a"),
        "/schedules",
        "/workers",
        link("", "/workers", queue=name),
        "/log",
        link("", "/search", q="nowhere"),
    ]


class Counter:
    """How many bytes a server has sent since it was asked last."""

    def __init__(self, server: Server) -> None:
        self._client = server.client()
        self._before = 0

    def since(self) -> int:
        stats: Any = self._client.info("stats")
        before, self._before = self._before, int(stats["total_net_output_bytes"])
        return self._before - before


@pytest.mark.first
async def test_no_page_reads_payloads_that_it_does_not_show(
    start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
):
    # What is found beside a page is counted with it.
    monkeypatch.setattr("toril.dashboard.reading.DOCTOR_WAIT_S", 600.0)
    monkeypatch.setattr("toril.dashboard.beside.WAIT_S", 600.0)
    server = start_server(tcp=True)
    async with crowd(server.url) as paths, visitor_of(server.url) as visitor:
        sent, shown = await visited(visitor, Counter(server), paths)

        assert [(path, size) for path, size in sent.items() if size > MOST_SENT] == []
        assert shown["/dead-letters?queue=dead"].count(REASON) == EACH + 2, "rows, an example"
        assert "Traceback" in shown["/dead-letters?queue=dead"]
        assert shown["/dead-letters?queue=dead&failed_reason=no"].count(REASON) == EACH + 2
        assert "dead letter" in shown["/queue?queue=strange&state=waiting"]
        assert shown["/schedules"].count("nightly")

        await check_job_page(visitor, Counter(server))
        await check_questions(visitor, Counter(server))
        await check_open_page(visitor, Counter(server))


@asynccontextmanager
async def visitor_of(url: str) -> AsyncIterator[Visitor]:
    visitor = Visitor(dashboard(connection=url))
    await visitor.get("/log")  # connects, and loads the library
    yield visitor
    await visitor.http.aclose()
    await visitor.app.close()


async def visited(
    visitor: Visitor, counter: Counter, paths: Sequence[str]
) -> tuple[dict[str, int], dict[str, str]]:
    """How many bytes the server sent for each page, and what each shows."""
    sent: dict[str, int] = {}
    shown: dict[str, str] = {}
    for path in paths:
        counter.since()
        answer = await visitor.get(path)
        sent[path] = counter.since()
        shown[path] = answer.text
        assert answer.status_code == 200, (path, answer.text[-1000:])
    return sent, shown


async def check_job_page(visitor: Visitor, counter: Counter) -> None:
    """A job's own page reads its payload and its result, each once."""
    page = (await visitor.get("/queue?queue=pay&state=completed")).text
    path = page.split("/job?queue=pay&amp;id=")[1].partition('"')[0]
    counter.since()
    answer = await visitor.get(f"/job?queue=pay&id={path}")

    assert answer.status_code == 200
    assert 2 * PAYLOAD < counter.since() < 2 * PAYLOAD + MOST_SENT / 2


async def check_questions(visitor: Visitor, counter: Counter) -> None:
    """Letters are counted before they are replayed or purged."""
    for name in ("dead", "strange"):
        for verb in ("replay-all", "purge"):
            counter.since()
            answer = await visitor.do(verb, sure=False, queue=name, failed_reason="?")

            assert answer.status_code == 200, answer.text
            assert counter.since() < MOST_SENT, (name, verb)


async def check_open_page(visitor: Visitor, counter: Counter) -> None:
    """The events that an open page follows carry results and progress."""
    pulse = visitor.app._pages._desk.pulse
    counter.since()
    async for told in pulse.listen():
        assert "tick" in told
        break

    assert pulse.queues["pay"].glance.events
    assert counter.since() < MOST_SENT
