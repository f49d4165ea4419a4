"""A queue with partitions is one queue on every page, and what is done is done to the whole."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.dashboard.conftest import Visitor
from tests.helpers import wait_until
from toril import (
    FlowProducer,
    GroupJob,
    ManualWorker,
    NewJob,
    Queue,
    UnrecoverableError,
    Worker,
)
from toril.dashboard.folding import MOST_QUEUES
from toril.protocol.partitioning import MOST_PARTITIONS

Visit = Callable[..., Visitor]


@pytest.fixture
async def mail(url: str, prefix: str) -> AsyncIterator[Queue]:
    async with Queue("mail", connection=url, prefix=prefix, partitions=3) as queue:
        await queue.add("first", {"n": 0}, job_id="first")
        yield queue


def links(page: str, path: str) -> list[str]:
    """Where the links of a page to ``path`` lead."""
    found = re.findall(rf'href="([^"]*{path}\?[^"]*)"', page)
    return list(dict.fromkeys(html.unescape(one) for one in found))


async def test_every_link_of_the_folded_row_leads_to_the_whole(
    visit: Visit, mail: Queue, url: str, prefix: str
):
    visitor = visit()
    for number in range(6):
        await mail.add("x", lane=f"lane-{number}")
    async with FlowProducer(connection=url, prefix=prefix, partitions={"mail": 3}) as flows:
        nodes = [await flows.add_group("g", [GroupJob("x", queue_name="mail")]) for _ in range(4)]

    page = (await visitor.get("/")).text
    (row,) = re.findall(r'<tr>\s*<th scope="row"><a href="/queue\?queue=mail">.*?</tr>', page, re.S)
    assert links(row, "/queue") == ["/queue?queue=mail"]
    lanes = (await visitor.get(*links(row, "/lanes"))).text
    groups = (await visitor.get(*links(row, "/groups"))).text

    assert all(f">lane-{number}<" in lanes for number in range(6))
    assert "6 lanes" in lanes
    for node in nodes:
        (link,) = [one for one in links(groups, "/group") if node.group_id in one]
        assert (await visitor.get(link)).status_code == 200
        assert (await visitor.get(f"/group?queue=mail&id={node.group_id}")).status_code == 200
    assert "<td>mail</td>" in groups


async def test_the_queue_page_shows_the_jobs_of_all_partitions(visit: Visit, mail: Queue):
    visitor = visit()
    added = await mail.add_bulk([NewJob("x", {"n": n}) for n in range(40)])
    for part in mail.partitions:
        await part.add_bulk([NewJob("y")] * 10)

    page = (await visitor.get("/queue?queue=mail&state=waiting")).text
    rest = (await visitor.get("/queue?queue=mail&state=waiting&start=50")).text

    assert "waiting <b>71</b>" in page
    assert "3 partitions" in page
    found = [*links(page, "/job"), *links(rest, "/job")]
    assert len(found) == 71
    for job in (added[0], added[-1]):
        (link,) = [one for one in found if one.endswith(f"id={job.id}")]
        answer = (await visitor.get(link)).text
        assert links(answer, "/queue")[0] == "/queue?queue=mail", "the way back is to the whole"
    part = (await visitor.get("/queue", params={"queue": mail.partitions[1].name})).text
    assert 'a partition of <a href="/queue?queue=mail">' in part
    exported = (await visitor.get("/export?queue=mail&state=waiting&as=json")).json()
    assert len(exported) == 71


async def test_what_is_done_to_the_whole_is_done_to_all(visit: Visit, mail: Queue):
    visitor = visit()

    assert (await visitor.do("pause", queue="mail")).status_code == 303
    assert all([await part.is_paused() for part in mail.partitions])
    paused = (await visitor.get("/queue?queue=mail")).text
    assert "s-paused" in paused
    await visitor.do("resume", queue="mail")
    assert not any([await part.is_paused() for part in mail.partitions])
    await visitor.do("concurrency", queue="mail", concurrency="9")
    assert [await part.get_global_concurrency() for part in mail.partitions] == [3, 3, 3]
    refused = await visitor.do("concurrency", queue="mail", concurrency="2")
    assert refused.status_code == 400
    await visitor.do("add", queue="mail", name="new", job_id="second")
    assert (await mail.get_job("second")).name == "new"
    await visitor.do("cancel-all", queue="mail", state="waiting")
    assert await mail.get_job_counts("waiting", "failed") == {"waiting": 0, "failed": 2}
    await visitor.do("retry-all", queue="mail", state="failed")
    await visitor.do("remove-all", queue="mail", state="waiting")
    assert sum((await mail.get_job_counts()).values()) == 0
    log = (await visitor.get("/log")).text
    assert "remove all waiting jobs" in log


async def test_of_two_jobs_with_one_id_the_ticked_one_is_meant(visit: Visit, mail: Queue):
    visitor = visit()
    one, two, _ = mail.partitions
    for part in (one, two):
        await part.add("twin", job_id="twin-7")
    page = (await visitor.get("/queue?queue=mail&state=waiting")).text
    ticks = re.findall(r'type="checkbox" name="id" value="([^"]*)"', page)
    first = await mail.get_job("first")
    assert sorted(ticks) == sorted(
        [f"{one.name}:twin-7", f"{two.name}:twin-7", f"{first.queue_name}:first"]
    )

    said = await visitor.do("remove", queue="mail", id=f"{two.name}:twin-7", by_queue="yes")

    assert said.status_code == 303
    assert await two.get_job("twin-7") is None
    for strange in ("other:twin-7", ":twin-7", "twin-7"):
        refused = await visitor.do("remove", queue="mail", id=strange, by_queue="yes")
        assert refused.status_code == 400, strange
    assert await one.get_job("twin-7") is not None


async def test_lanes_schedules_and_workers_are_those_of_the_whole(
    visit: Visit, mail: Queue, url: str, prefix: str
):
    visitor = visit()
    for number in range(5):
        await mail.upsert_job_scheduler(f"s{number}", every=3_600_000, template=NewJob("tick"))
        await mail.add("x", lane=f"lane-{number}")
        await mail.pause_lane(f"lane-{number}")
    gate = asyncio.Event()

    async def wait(job: Any) -> None:
        await gate.wait()

    schedules = (await visitor.get("/schedules")).text
    assert schedules.count('<a href="/queue?queue=mail">mail</a>') == 5
    await visitor.do("pause-schedule", queue="mail", id="s3")
    assert (await mail.get_job_scheduler("s3")).is_paused
    assert "5 schedules" in (await visitor.get("/queue?queue=mail")).text
    lanes = (await visitor.get("/lanes?queue=mail")).text
    assert all(
        f"lane-{number}" in lanes.partition("Running, the longest")[0] for number in range(5)
    )
    assert '<a href="/lanes?queue=mail">' in (await visitor.get("/lanes")).text
    await visitor.do("resume-lane", queue="mail", lane="lane-2")
    assert not (await mail.get_lane("lane-2")).is_paused

    async with Worker(
        "mail", wait, connection=url, prefix=prefix, partitions=3, concurrency=50, worker_name="w1"
    ):

        async def runs() -> bool:
            return (await mail.get_job_counts("active"))["active"] >= 2

        await wait_until(runs)

        async def is_shown() -> bool:
            return "1 connected" in (await visitor.get("/workers")).text

        await wait_until(is_shown)
        for path in ("/workers", "/workers?queue=mail"):
            workers = (await visitor.get(path)).text
            assert workers.count('<a href="/queue?queue=mail">mail</a>') == 1 + ("=" in path)
            assert workers.count('<th scope="row">w1</th>') == 1
        jobs = links(workers, "/job")
        assert len(jobs) >= 2
        assert all([(await visitor.get(one)).status_code == 200 for one in jobs])
        gate.set()


async def test_dead_letters_of_all_partitions_are_one_list(
    visit: Visit, mail: Queue, url: str, prefix: str
):
    visitor = visit()

    async def fail(job: Any) -> None:
        raise UnrecoverableError("no")

    await mail.add_bulk([NewJob("x") for _ in range(3)])
    for part in mail.partitions:
        await part.add("y")
    options = {"connection": url, "prefix": prefix, "partitions": 3}
    async with Queue("{mail}-dlq", **options) as letters:
        await letters.pause()  # writes down how many partitions it has
        async with Worker("mail", fail, dead_letter_queue="{mail}-dlq", **options):

            async def are_dead() -> bool:
                return await letters.get_dead_letter_count() == 7

            await wait_until(are_dead)

        queues = (await visitor.get("/dead-letters")).text
        (link,) = links(queues, "/dead-letters")
        page = (await visitor.get(link)).text
        assert "7 dead letters" in page
        ids = re.findall(r'name="id" value="([^"]*)"', page)
        assert len(ids) == 7
        assert all([(await visitor.get(one)).status_code == 200 for one in links(page, "/job")])
        await visitor.do("replay", queue="{mail}-dlq", id=html.unescape(ids[0]), by_queue="yes")
        assert await letters.get_dead_letter_count() == 6
        await visitor.do("purge", queue="{mail}-dlq")
        assert await letters.get_dead_letter_count() == 0


async def test_a_page_of_the_whole_hears_of_each_partition(visit: Visit, mail: Queue):
    visitor = visit()
    pulse = (await visitor.get("/queue?queue=mail")) and visitor.app._pages._desk.pulse
    heard = pulse.listen()

    async def version() -> int:
        while True:
            told = await anext(heard)
            if told.startswith("event: tick"):
                versions = json.loads(told.partition("data: ")[2])
                if all(part.name in pulse.queues for part in mail.partitions):
                    return int(versions.get("mail", 0))

    for part in mail.partitions:
        await part.add("x")  # all three are there to be watched
    before = await version()
    for part in mail.partitions:
        await part.add("x")
        async with asyncio.timeout(30):
            while (now := await version()) == before:
                pass
        before = now
    await heard.aclose()


async def test_a_plain_queue_beside_the_partitions_has_a_row_without_links(
    visit: Visit, mail: Queue, url: str, prefix: str
):
    """It took their place; and a link to it would open them."""
    visitor = visit()
    where = {"connection": url, "prefix": prefix}
    async with Queue("mail", **where) as plain, FlowProducer(**where) as flows:
        await plain.add_bulk([NewJob("x", lane="a"), NewJob("x", lane="a")])
        await plain.upsert_job_scheduler("s", every=3_600_000)
        await flows.add_group("g", [GroupJob("x", queue_name="mail")])
    worker = ManualWorker("mail", **where)
    running = await worker.get_next_job()

    pages = {
        path: (await visitor.get(path)).text
        for path in ("/", "/groups", "/lanes", "/schedules", "/workers")
    }

    rows = re.findall(r"<tr>\s*<th scope=\"row\">.*?</tr>", pages["/"], re.S)
    whole, beside = (row for row in rows if "mail" in row)
    assert links(whole, "/queue") == ["/queue?queue=mail"]
    assert "3 partitions" in whole
    assert "<a " not in beside
    for path, page in pages.items():
        assert "plain queue beside its partitions" in page, path
    assert "run-schedule" not in pages["/schedules"]
    assert running.id in pages["/workers"]
    assert 'action="/do/cancel"' not in pages["/workers"]
    await running.complete(None)
    await worker.close()


async def test_odd_numbers_of_partitions_harm_no_page(
    visit: Visit, queue: Queue, client: Any, prefix: str
):
    visitor = visit()
    for stem in ("a", "b", "c"):
        async with Queue(f"{{{stem}-0}}", connection=queue._connection, prefix=prefix) as part:
            await part.add("x")
    await client.set(f"{prefix}:a:toril:partitions", "99999999")
    await client.hset(f"{prefix}:b:toril:partitions", "x", "y")
    await client.set(f"{prefix}:c:toril:partitions", "\xff,-1>")

    page = (await visitor.get("/")).text

    assert all(f"{{{stem}-0}}</a>" in page for stem in ("a", "b", "c"))
    for path in ("/groups", "/lanes", "/schedules", "/workers", "/log", "/dead-letters"):
        assert (await visitor.get(path)).status_code == 200
    for stem in ("a", "b", "c"):
        assert (await visitor.get(f"/queue?queue={stem}")).status_code == 404


async def test_a_page_asks_a_bounded_number_of_plain_queues(
    visit: Visit, client: Any, prefix: str, url: str
):
    for number in range(MOST_QUEUES + 50):
        await client.hset(f"{prefix}:q{number:04}:meta", "version", "x")
    for stem in ("big", "huge"):
        await client.hset(f"{prefix}:{{{stem}-0}}:meta", "version", "x")
        async with Queue(stem, connection=url, prefix=prefix, partitions=MOST_PARTITIONS) as whole:
            await whole.add("x")
    visitor = visit()

    page = (await visitor.get("/")).text
    folded = await visitor.app._pages._desk.folding.all()

    assert len(folded.rows) == MOST_QUEUES
    assert len(folded.parts) <= MOST_QUEUES + MOST_PARTITIONS
    assert folded.left_out == 52
    assert "52 more queues" in page
