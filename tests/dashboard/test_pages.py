"""Every page, as it is sent: what is on it, and what it costs."""

from __future__ import annotations

import asyncio
import csv
import html
import io
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.dashboard.conftest import Visitor
from tests.dashboard.world import World
from tests.features.dead_letters.forging import forge
from tests.helpers import wait_until
from toril import FlowJob, FlowProducer, GroupJob, NewJob, Queue, Worker
from toril.dashboard import dashboard
from toril.dashboard.exporting import file_name
from toril.dashboard.showing import link
from toril.protocol.rights import acl_rules


async def test_every_page_is_served_whole(visit: Callable[..., Visitor], shop: World):
    visitor = visit()

    for path in shop.paths:
        answer = await visitor.get(path)

        assert answer.status_code == 200, (path, answer.text[-400:])
        assert answer.text.rstrip().endswith("</html>"), path
        assert "<script>" not in answer.text
        assert "style=" not in answer.text, path
        assert " onclick" not in answer.text, path


async def very_many_queues(client: Any, prefix: str) -> None:
    """More than a page looks at."""
    pipeline = client.pipeline(transaction=False)
    for number in range(210):
        pipeline.hset(f"{prefix}:q{number:03}:meta", "opts.maxLenEvents", 10)
    await pipeline.execute()


async def test_a_job_is_found_in_whichever_of_very_many_queues_it_is(
    visit: Callable[..., Visitor], url: str, prefix: str, client: Any
):
    """The first 200 were searched, and the page said that no job has the id."""
    await very_many_queues(client, prefix)
    async with Queue("q209", connection=url, prefix=prefix) as queue:
        await queue.add("x", job_id="order-7")

    answer = await visit().get("/search?q=order-7")

    assert answer.status_code == 303, answer.text
    assert answer.headers["location"] == "/job?queue=q209&id=order-7"


@pytest.mark.parametrize(
    "path", ["/", "/dead-letters", "/groups", "/lanes", "/schedules", "/workers", "/log"]
)
async def test_pages_about_all_queues_say_how_many_they_leave_out(
    visit: Callable[..., Visitor], path: str, url: str, prefix: str, client: Any
):
    """ "There are none" was said of the queues that were looked at."""
    await very_many_queues(client, prefix)
    await forge(client, prefix, "q209", 3)

    page = (await visit().get(path)).text

    assert "10 more queues" in page


async def test_the_doctor_says_how_many_queues_it_looked_at(
    visit: Callable[..., Visitor], url: str, prefix: str, client: Any
):
    await very_many_queues(client, prefix)
    visitor = visit()

    async def says() -> bool:
        page = (await visitor.get("/")).text
        return "The doctor looked at the first 200 of 210 queues" in page

    await wait_until(says, every=0.1)


async def test_a_search_that_gets_no_answer_is_not_told_as_nothing_found(start_server: Any):
    server = start_server(tcp=True)
    app: Any = dashboard(connection=server.url)
    visitor = Visitor(app)
    async with Queue("pay", connection=server.url) as queue:
        await queue.add("x", job_id="order-7")
    assert (await visitor.get("/search?q=order-7")).status_code == 303
    server.stop()

    answer = await visitor.get("/search?q=order-7")

    assert answer.status_code == 503, answer.text
    await visitor.http.aclose()
    await app.close()


ODD = [
    "", " ", "a:b", "\x00", "\ud800", "\u202e", "../..", "%00", "-1", "9" * 400, "٣", "1e9", "*",
    "<script>", "x" * 3000, "repeat:nightly:1", "pay:compensation", "{a}", "\r\nX: y", "null", "[]",
]  # fmt: skip


async def test_odd_questions_have_answers(visit: Callable[..., Visitor], shop: World):
    """Whatever stands in an address: a page, or a page that says what is wrong."""
    visitor = visit()
    pages = sorted({path.partition("?")[0] for path in shop.paths} | {"/nothing", "/do/pause"})
    names = ("queue", "id", "state", "start", "lane", "minutes", "q", "since", "said", "said_of")
    for page in pages:
        for number, odd in enumerate(ODD):
            text = odd.encode("utf-8", "replace").decode()
            query = dict.fromkeys(names, text)
            if number % 2:
                query["queue"] = query["said_of"] = "pay"
            answer = await visitor.get(page, params=query)
            assert answer.status_code in (200, 303, 400, 404, 409), (page, odd, answer.text)
    for path in ("/%00", "/static/", "/static/%2e%2e/app.py", "/static/..%2fapp.py"):
        assert (await visitor.http.request("GET", path)).status_code in (404, 405), path
    assert (await visitor.http.head("/")).status_code == 200


@pytest.mark.no_audit("a broken job is written by hand")
async def test_a_job_that_another_program_broke_is_shown(
    visit: Callable[..., Visitor], shop: World, client: Any, prefix: str
):
    visitor = visit()
    broken = {"name": b"\xff\xfe", "data": b"{no json", "opts": b"{}", "timestamp": "soon"}
    broken |= {"returnvalue": b"[", "progress": b"{", "stacktrace": b"no list", "finishedOn": "-"}
    await client.hset(f"{prefix}:pay:broken", mapping=broken)
    await client.zadd(f"{prefix}:pay:failed", {"broken": 9e15})
    deep = b"[" * 500 + b"]" * 500
    await client.hset(f"{prefix}:pay:deep", mapping={**broken, "data": deep, "timestamp": "9" * 18})
    await client.zadd(f"{prefix}:pay:failed", {"deep": 9e15})

    for path in (
        "/queue?queue=pay&state=failed",
        "/job?queue=pay&id=broken",
        "/job?queue=pay&id=deep",
    ):
        answer = await visitor.get(path)
        assert answer.status_code == 200, (path, answer.text[-300:])


async def test_a_server_that_lets_the_doctor_see_nothing_is_shown_all_the_same(
    visit: Callable[..., Visitor], shop: World, url: str, prefix: str, client: Any
):
    rights = [
        "on",
        ">secret",
        "~*",
        "&*",
        "+@all",
        "-info",
        "-config",
        "-acl",
        "-cluster",
    ]
    await client.execute_command("ACL", "SETUSER", "small", *rights)
    app: Any = dashboard(connection=url.replace("redis://", "redis://small:secret@"), prefix=prefix)
    visitor = Visitor(app)
    try:
        answer = await visitor.get("/queue?queue=pay")
        page = await visitor.get("/")
    finally:
        await visitor.http.aclose()
        await app.close()
        await client.execute_command("ACL", "DELUSER", "small")

    assert page.status_code == 200, page.text[-500:]
    assert answer.status_code == 200, answer.text[-500:]
    assert "pay" in page.text


async def test_the_smallest_rights_of_an_operator_are_enough(
    shop: World, url: str, prefix: str, client: Any
):
    await client.execute_command(
        "ACL", "SETUSER", "operator", "on", ">secret", *acl_rules("operator", prefix)
    )
    app: Any = dashboard(
        connection=url.replace("redis://", "redis://operator:secret@"), prefix=prefix
    )
    visitor = Visitor(app)
    try:
        answers = {path: await visitor.get(path) for path in shop.paths}
        paused = await visitor.do("pause", queue="pay")
    finally:
        await visitor.http.aclose()
        await app.close()
        await client.execute_command("ACL", "DELUSER", "operator")

    for path, answer in answers.items():
        assert answer.status_code == 200, (path, answer.text[-500:])
    assert "could not look" not in answers["/"].text
    assert paused.status_code == 303


async def test_a_page_says_when_the_server_is_gone(start_server: Any):
    server = start_server(tcp=True)
    async with Queue("pay", connection=server.url) as queue:
        await queue.add("one")
    app: Any = dashboard(connection=server.url)
    visitor = Visitor(app)
    assert (await visitor.get("/queue?queue=pay")).status_code == 200
    server.stop()
    answer = await visitor.get("/queue?queue=pay&state=failed")
    assert answer.status_code == 503
    assert "cannot be used" in answer.text
    assert "Traceback" not in answer.text
    server.start()
    assert (await visitor.get("/")).status_code == 200
    await visitor.http.aclose()
    await app.close()


# ---------------------------------------------------------------------------- dead letters


def rows_of(page: str) -> list[str]:
    """The ids of the jobs that a page lists."""
    return re.findall(r'name="id" value="([^"]+)" aria-label="Select', page)


async def test_dead_letters_are_paged_and_searched(
    visit: Callable[..., Visitor], url: str, prefix: str, client: Any
):
    visitor = visit()
    await forge(client, prefix, "dead", 130, source="pay", names=("charge", "mail"))
    await client.hset(f"{prefix}:dead:meta", "opts.maxLenEvents", 10000)
    seen: list[str] = []
    address: str | None = "/dead-letters?queue=dead"
    pages = 0
    while address is not None:
        page = html.unescape((await visitor.get(address)).text)
        seen += rows_of(page)
        pages += 1
        following = re.search(r'href="([^"]+)" rel="next"', page)
        address = following[1] if following else None
    assert (pages, len(seen), len(set(seen))) == (3, 130, 130)
    assert seen[0] == "130", "the newest first"
    assert 'rel="prev"' in page

    page = (await visitor.get("/dead-letters?queue=dead&name=mail")).text
    assert len(rows_of(page)) == 50
    assert all(int(one) % 2 == 0 for one in rows_of(page))
    assert "searched" in page
    page = (await visitor.get("/dead-letters?queue=dead&failed_reason=REFUSED&since=1h")).text
    assert rows_of(page) == [], "all of them died long ago"
    page = (await visitor.get("/dead-letters?queue=dead&failed_reason=REFUSED&until=1h")).text
    assert len(rows_of(page)) == 50


async def test_a_page_lists_and_exports_what_its_buttons_mean(
    visit: Callable[..., Visitor], url: str, prefix: str, client: Any
):
    """Found by the type of their errors they were counted, replayed and purged, and not listed."""
    visitor = visit()
    await forge(client, prefix, "dead", 3, source="pay")
    await client.hset(f"{prefix}:dead:meta", "opts.maxLenEvents", 10000)
    async with Queue("dead", connection=url, prefix=prefix) as dead:
        meant = await dead.purge_dead_letters(failed_reason="ConnectionError", dry_run=True)

    page = (await visitor.get("/dead-letters?queue=dead&failed_reason=ConnectionError")).text
    address = "/export?queue=dead&state=dead-letters&as=json&failed_reason=ConnectionError"
    exported = (await visitor.get(address)).json()

    assert len(rows_of(page)) == len(exported) == meant == 3
    assert 'formaction="/do/purge"' in page


async def test_very_many_dead_letters_are_counted_beside_the_page(
    visit: Callable[..., Visitor], prefix: str, client: Any, monkeypatch: pytest.MonkeyPatch
):
    """The page is there at once; how far the count is, and then the groups, come by themselves."""
    visitor = visit()
    await forge(client, prefix, "dead", 30, source="pay")
    await client.hset(f"{prefix}:dead:meta", "opts.maxLenEvents", 10000)
    count, go = Queue.get_dead_letter_summary, asyncio.Event()

    async def slowly(queue: Queue, **options: Any) -> Any:
        options["on_progress"](17)
        await go.wait()
        return await count(queue, **options)

    monkeypatch.setattr(Queue, "get_dead_letter_summary", slowly)
    monkeypatch.setattr("toril.dashboard.beside.WAIT_S", 0.15)

    page = (await visitor.get("/dead-letters?queue=dead")).text

    assert "Counting:" in page
    assert 'value="17"' in page
    assert "of 30 looked at" in page
    assert "load delay:1s" in page, "it looks again"
    assert len(rows_of(page)) == 30
    go.set()

    async def is_counted() -> bool:
        page = (await visitor.get("/dead-letters?queue=dead")).text
        return "Counting:" not in page and "ConnectionError@bank.py:call" in page

    await wait_until(is_counted)


# ---------------------------------------------------------------------------- exports


async def test_a_list_is_exported_as_it_may_be_shown(visit: Callable[..., Visitor], queue: Queue):
    visitor = visit(redact=["card"])
    await queue.add_bulk([NewJob("more", {"n": n, "card": "4111 1111 1111"}) for n in range(1200)])
    await queue.add("=cmd|' /C calc'!A0", {"n": -1}, job_id="-evil", lane="@lane")

    answer = await visitor.get("/export?queue=pay&state=waiting&as=json")
    rows = answer.json()
    assert len(rows) == 1202
    assert answer.headers["content-disposition"] == 'attachment; filename="pay-waiting.json"'
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "4111 1111 1111" not in answer.text
    assert rows[1]["data"] == {"n": 0, "card": "••••••"}

    answer = await visitor.get("/export?queue=pay&state=waiting&as=csv&id=evil")
    [row] = csv.DictReader(io.StringIO(answer.text))
    assert row["name"] == "'=cmd|' /C calc'!A0", "no spreadsheet runs it"
    assert (row["id"], row["lane"]) == ("'-evil", "'@lane")
    assert row["data"] == '{"n": -1}'
    for path, status in (
        ("/export?queue=pay&state=waiting", 404),
        ("/export?queue=pay&state=nonsense&as=csv", 404),
        ("/export?queue=none&state=waiting&as=csv", 404),
        ("/export?queue=pay&state=failed&as=json", 200),
    ):
        assert (await visitor.get(path)).status_code == status, path


async def test_dead_letters_are_exported_with_their_reasons(
    visit: Callable[..., Visitor], prefix: str, client: Any
):
    await forge(client, prefix, "dead", 30, source="pay", names=("charge", "mail"))
    await client.hset(f"{prefix}:dead:meta", "opts.maxLenEvents", 10000)

    answer = await visit().get("/export?queue=dead&state=dead-letters&as=json&name=mail")

    rows = answer.json()
    assert len(rows) == 15
    assert rows[0]["failed_reason"] == "Connection refused"
    assert rows[0]["data"] == {"n": 29}


async def test_an_export_is_bounded(
    visit: Callable[..., Visitor], queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    await queue.add_bulk([NewJob("more", "x" * 500) for _ in range(700)])
    visitor, path = visit(), "/export?queue=pay&state=waiting&as=json"
    monkeypatch.setattr("toril.dashboard.exporting.MOST_JOBS", 600)
    assert len((await visitor.get(path)).json()) == 600
    monkeypatch.setattr("toril.dashboard.exporting.MOST_BYTES", 50_000)
    assert 10 < len((await visitor.get(path)).json()) < 100
    assert file_name('../é"\r\n;x', "waiting", "csv") == "x-waiting.csv"


@pytest.fixture
async def queue(queue: Queue) -> Queue:
    await queue.add("charge", {"n": 1}, job_id="one")
    return queue


# ---------------------------------------------------------------------------- the rest


async def test_a_schedule_shows_its_last_run(
    visit: Callable[..., Visitor], queue: Queue, url: str, prefix: str
):
    await queue.upsert_job_scheduler("often", every=1000, template=NewJob("tick"))
    await queue.upsert_job_scheduler("fresh", cron="0 3 * * *")

    async def handler(job: Any) -> None:
        pass

    visitor = visit()

    async def rows() -> list[str]:
        """Those of both, when the last run of one is there."""
        page = html.unescape((await visitor.get("/schedules")).text)
        found = [
            re.search(rf"<tr><th scope=\"row\">{name}.*?</tr>", page, re.DOTALL)
            for name in ("often", "fresh")
        ]
        often, fresh = (row[0] if row else "" for row in found)
        run = re.search(r"id=repeat%3Aoften%3A\d+.*s-(completed|running|waiting)", often, re.DOTALL)
        return [often, fresh] if run else []

    async with Worker("pay", handler, connection=url, prefix=prefix):
        await wait_until(lambda: _has_run_twice(queue))
        # After a run that was late by more than a second, the time before the next had none.
        _, fresh = await wait_until(rows)

    assert fresh
    assert "s-completed" not in fresh


@pytest.mark.no_audit("a job gets a parent by hand")
@pytest.mark.parametrize("parent", ["elsewhere:pay:two", "x", "elsewhere::two"])
async def test_a_parent_under_another_prefix_is_no_job_of_ours(
    visit: Callable[..., Visitor], queue: Queue, prefix: str, client: Any, parent: str
):
    """BullMQ's flows may cross prefixes: a job of ours with the same id was shown as the parent."""
    await queue.add("child", job_id="one")
    await queue.add("stranger", job_id="two")
    await client.hset(f"{prefix}:pay:one", "parentKey", parent)
    visitor = visit()

    job = (await visitor.get("/job?queue=pay&id=one")).text
    flow = await visitor.get("/flow?queue=pay&id=one")

    assert "id=two" not in job
    assert f"<dd>{parent}</dd>" in job
    assert flow.status_code == 200, flow.text
    assert "stranger" not in flow.text


@pytest.mark.no_audit("jobs are made by hand")
async def test_a_run_that_was_late_is_shown_and_an_older_one_is_not_taken_for_it(
    visit: Callable[..., Visitor], queue: Queue, url: str, prefix: str, client: Any
):
    """No worker was there for some minutes: the page said that the last run is not kept."""
    minute = 60_000
    await queue.upsert_job_scheduler("often", every=minute, template=NewJob("tick"))
    base, now = f"{prefix}:pay", int(time.time() * 1000)
    slot = now + 10_000
    taken = now - 20_000

    async def add(due: int, **fields: Any) -> str:
        job_id = f"repeat:often:{due}"
        await client.hset(f"{base}:{job_id}", mapping={"name": "tick", **fields})
        return link("", "/job", queue="pay", id=job_id)

    await client.zadd(f"{base}:repeat", {"often": slot})
    await client.hset(f"{base}:repeat:often", "ic", 9)
    await add(slot, timestamp=taken, rjk="often")
    ran = {"ats": 1, "atm": 1, "failedReason": "no", "finishedOn": now}
    older = await add(slot - 9 * minute, **ran, processedOn=now - 8 * minute)
    visitor = visit()

    page = html.unescape((await visitor.get("/schedules")).text)
    assert "not kept" in page
    assert older not in page
    late = await add(slot - 5 * minute, **ran, processedOn=taken)
    visitor.app._pages._desk.forget()
    page = html.unescape((await visitor.get("/schedules")).text)
    assert late in page
    assert "s-failed" in page
    assert "not kept" not in page


async def _has_run_twice(queue: Queue) -> bool:
    found = await queue.get_job_scheduler("often")
    return found is not None and found.iterations >= 3


async def test_groups_are_found_without_reading_all_of_them(
    visit: Callable[..., Visitor], shop: World, url: str, prefix: str, client: Any
):
    """A rare state among very many groups is looked for among the newest, and the page says so."""
    visitor = visit()
    overview = html.unescape((await visitor.get("/")).text)
    assert re.search(r'class="bad" href="/groups\?queue=pay">\s*2 need a person', overview)
    async with FlowProducer(connection=url, prefix=prefix) as flows:
        for number in range(40):
            await flows.add_group(f"g{number}", [GroupJob("x", queue_name="pay")])
    visitor.app._pages._desk.forget()
    for path, shown in (
        ("/groups", 44),
        ("/groups?state=FAILED_COMPENSATION", 1),
        ("/groups?queue=pay&state=ACTIVE", 42),
        ("/groups?queue=pay&state=COMPENSATING", 0),
    ):
        page = (await visitor.get(path)).text
        assert page.count('<tr><th scope="row">') == shown, path
        assert ("searched 1,000 at a time" if "queue=" in path else "at most 100 in all") in page

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toril.dashboard.reading.SEARCHED_AT_ONCE", 10)
        patch.setattr("toril.protocol.groups.GROUPS_PER_READ", 10)
        visitor.app._pages._desk.forget()
        await client.config_resetstat()
        await visitor.get("/groups?queue=pay&state=COMPENSATING")
        calls = await client.info("commandstats")
    assert calls["cmdstat_hmget"]["calls"] <= 20


async def test_a_group_shows_its_stages_and_what_it_waits_for(
    visit: Callable[..., Visitor], shop: World
):
    visitor = visit()
    staged = html.unescape((await visitor.get(f"/group?queue=pay&id={shop.staged_group}")).text)
    stages = re.search(r'<ol class="stages">(.*?)</ol>', staged, re.DOTALL)
    assert stages is not None
    assert re.findall(r'"node">(\w+)', stages[1]) == ["draft", "approval", "send"]
    assert re.findall(r"badge s-(\w+)", stages[1]) == ["completed", "awaited", "planned"]
    assert '<option value="approval">' in staged
    assert re.search(r"draft completed", staged)

    blocked = html.unescape((await visitor.get(f"/group?queue=pay&id={shop.blocked_group}")).text)
    assert "point of no return" in blocked
    assert "Run it again" in blocked
    assert "Let the group continue" in blocked
    assert '<option value="late">' in blocked
    assert "no money" in blocked
    gone = await visitor.get("/group?queue=pay&id=nobody")
    assert gone.status_code == 404


async def test_of_a_very_large_flow_a_page_shows_a_part(
    visit: Callable[..., Visitor], url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("toril.dashboard.reading.MOST_NODES", 30)
    async with FlowProducer(connection=url, prefix=prefix) as flows:
        leaves = [FlowJob("leaf", queue_name="pay") for _ in range(8)]
        twigs = [FlowJob("twig", queue_name="pay", children=leaves) for _ in range(6)]
        tree = await flows.add(FlowJob("root", queue_name="pay", children=twigs))
    leaf = tree.children[0].children[0].job

    page = (await visit().get(f"/flow?queue=pay&id={leaf.id}")).text

    assert page.count('class="node"') == 30
    assert page.count(">twig</a>") == 6, "level by level"
    assert page.count("s-waiting_children") == 7
    assert page.count('aria-current="true"') == 1, "the one that was asked for"
    assert "this flow has more" in page


async def test_of_very_many_lanes_a_page_shows_a_hundred(
    visit: Callable[..., Visitor], queue: Queue, client: Any, prefix: str
):
    visitor = visit()
    settings = {f"lane-{n}": '{"paused":true,"since":5}' for n in range(300)}
    settings |= {f"calm-{n}": '{"weight":2}' for n in range(2000)}
    await client.hset(f"{prefix}:pay:lanes:settings", mapping=settings)
    await queue.add_bulk([NewJob("x", lane=f"lane-{n}") for n in range(150)])

    page = (await visitor.get("/lanes?queue=pay")).text

    assert page.count("s-paused") == 200, "a hundred of both tables"
    assert "200 more lanes are stopped" in page
    assert "150 lanes" in page


async def test_a_job_shows_each_attempt_with_its_times_and_worker(
    visit: Callable[..., Visitor], queue: Queue, url: str, prefix: str
):
    async def no(job: Any) -> None:
        raise ValueError("no")

    async def is_failed() -> bool:
        return await queue.get_state(job.id) == "failed"

    job = await queue.add("a", {}, attempts=3)
    async with Worker(queue.name, no, connection=url, prefix=prefix, worker_name="mail<1>"):
        await wait_until(is_failed)

    page = (await visit().get(f"/job?queue={queue.name}&id={job.id}")).text

    (table,) = re.findall(r'id="attempts".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    assert [re.search(r">(\d+)</th>", row)[1] for row in rows] == ["3", "2", "1"]
    assert all(row.count("<time ") == 2 and "mail&lt;1&gt;" in row for row in rows)


async def test_partitions_are_one_row_of_the_overview(
    visit: Callable[..., Visitor], url: str, prefix: str
):
    async with Queue("mail", connection=url, prefix=prefix, partitions=4) as mail:
        await mail.add("a")  # the number of partitions is written down with the first job
        for part in mail.partitions:
            await part.add_bulk([NewJob("a")] * 10)
    async with Queue("plain", connection=url, prefix=prefix) as plain:
        await plain.add("a", {})

    visitor = visit()

    async def rows_of_queues() -> list[str]:
        page = (await visitor.get("/")).text
        rows = re.findall(r"<tr.*?</tr>", page, re.DOTALL)
        return rows if sum("/queue?queue=" in row for row in rows) == 2 else []

    rows = await wait_until(rows_of_queues)  # a look at a busy server may not reach all queues
    (row,) = [row for row in rows if "4 partitions" in row]
    assert '<td class="n">41</td>' in row
    assert row.count("/queue?queue=mail") == 1


async def test_the_jobs_of_a_long_lane_are_turned_over_page_by_page(
    visit: Callable[..., Visitor], queue: Queue, client: Any
):
    lane = 'long <&"'
    await queue.add_bulk([NewJob("x", lane=lane, job_id=f"j{n:03}") for n in range(120)])
    await queue.add("x", lane=lane, job_id="later", delay=3_600_000)
    visitor = visit()
    path, seen, pages = link("", "/lane", queue="pay", lane=lane), [], 0
    while path:
        page = (await visitor.get(path)).text
        seen += re.findall(r"&amp;id=(j\d+|later)\"", page)
        pages += 1
        following = re.findall(r'href="([^"]*)" rel="next"', page)
        path = html.unescape(following[0]) if following else ""

    assert seen == [*(f"j{n:03}" for n in range(120)), "later"]
    assert pages == 3
    for odd in ("99999", "-1", "x", "999999999"):
        answer = await visitor.get(link("", "/lane", queue="pay", lane=lane, start=odd))
        assert "id=j0" in answer.text or "id=later" in answer.text, odd


async def test_lanes_are_listed_by_how_many_wait_and_by_how_long(
    visit: Callable[..., Visitor], queue: Queue, client: Any
):
    for lane, waiting, age_s in (("short", 1, 7200), ("long", 5, 60), ("middle", 3, 600)):
        for _ in range(waiting):
            job = await queue.add("x", lane=lane)
            await client.hset(queue.keys.job(job.id), "timestamp", job.timestamp - age_s * 1000)
    visitor = visit()

    def order(page: str) -> list[str]:
        return re.findall(r'<a href="/lane\?[^"]*lane=(\w+)"', html.unescape(page))

    by_length = (await visitor.get(f"/lanes?queue={queue.name}")).text
    by_age = (await visitor.get(f"/lanes?queue={queue.name}&by=oldest")).text

    assert order(by_length) == ["long", "middle", "short"]
    assert order(by_age) == ["short", "middle", "long"]
    assert re.search(r"2h( \d+[ms])? ago", by_age)
    assert (await visitor.get(f"/lanes?queue={queue.name}&by=<x>")).status_code == 200
